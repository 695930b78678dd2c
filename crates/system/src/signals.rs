//! Signals that ask this process to end.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use nix::sys::signal::Signal;

/// Number of the last signal that was caught; 0 is none.
static CAUGHT: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Catches these signals from now on. They end this process no more: whoever calls this asks for [`caught_signal`], and ends its guests
/// first.
///
/// # Errors
/// If the system refuses.
pub fn catch_signals() -> io::Result<()> {
    let hangup = (!hangup_is_ignored()).then_some(Signal::SIGHUP);
    for signal in [Signal::SIGINT, Signal::SIGTERM].into_iter().chain(hangup) {
        signal_hook::flag::register_usize(signal as i32, Arc::clone(&CAUGHT), signal as usize)?;
    }
    Ok(())
}

/// Number of the last signal that was caught.
pub fn caught_signal() -> Option<i32> {
    i32::try_from(CAUGHT.load(Ordering::Relaxed)).ok().filter(|number| *number != 0)
}

/// Whether this process was started with SIGHUP ignored, as by `nohup`: then it is to go on without its terminal.
pub fn hangup_is_ignored() -> bool {
    // sigaction(2) can tell only by an unsafe call.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hangup_is_caught_unless_it_is_ignored() {
        catch_signals().unwrap();
        assert_eq!(caught_signal(), None);
        nix::sys::signal::raise(Signal::SIGHUP).unwrap();
        // Whoever runs the tests may have it ignored, as `nohup` does.
        let expected = (!hangup_is_ignored()).then_some(Signal::SIGHUP as i32);
        assert_eq!(caught_signal(), expected);
    }
}
