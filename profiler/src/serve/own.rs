//! CPU time and memory of the daemon itself.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use procfs::process::Process;

use profiler_base::stats::nanoseconds;

/// CPU time of all threads of this process since it began, in nanoseconds; 0 if the system does not say.
pub(super) fn cpu_ns() -> u64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0 };
    let taken = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    u64::try_from(taken).unwrap_or(0) * 1000
}

/// CPU time of the calling thread, in nanoseconds; 0 if the system does not say. Work for clients, such as scrapes, is in
/// other threads.
pub(super) fn thread_cpu_ns() -> u64 {
    let taken =
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
    nanoseconds(taken)
}

/// Resident memory of this process that is not shared with files (`RssAnon`), in bytes; 0 if the system does not say.
pub(super) fn memory_bytes() -> u64 {
    let status = Process::myself().and_then(|process| process.status());
    status.ok().and_then(|status| status.rssanon).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    #[test]
    fn cpu_time_is_that_of_all_threads_and_sleep_is_none() {
        let spin = || {
            let until = Instant::now() + Duration::from_millis(200);
            while Instant::now() < until {}
        };
        let before = cpu_ns();
        std::thread::spawn(spin).join().unwrap();
        // A machine with other work gives it a part of that time.
        assert!(cpu_ns() - before > 20_000_000, "{}", cpu_ns() - before);
    }

    #[test]
    fn the_time_of_a_thread_is_its_own() {
        let before = thread_cpu_ns();
        let spin = || {
            let began = thread_cpu_ns();
            while thread_cpu_ns() - began < 100_000_000 {}
        };
        std::thread::spawn(spin).join().unwrap();
        let taken = thread_cpu_ns() - before;
        assert!(taken < 50_000_000, "{taken}");
        spin();
        assert!(thread_cpu_ns() - before >= 100_000_000);
    }

    #[test]
    fn memory_is_what_was_written_to() {
        const BYTES: u64 = 64 << 20;
        let before = memory_bytes();
        let held = black_box(vec![1_u8; BYTES as usize]);
        let more = memory_bytes().saturating_sub(before);
        drop(held);
        assert!(before > 0 && more > BYTES / 2, "{before} and {more} more");
    }
}
