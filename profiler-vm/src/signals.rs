//! Signals that ask this process to end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::Signal;

/// Signals that ask this process to end, which they do no more: whoever has this ends its guests first.
pub struct Interrupts {
    /// Number of the last one; 0 is none.
    signal: Arc<AtomicUsize>,
}

impl Interrupts {
    /// Catches them from now on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn catch() -> io::Result<Self> {
        let signal = Arc::<AtomicUsize>::default();
        let hangup = (!hangup_is_ignored()).then_some(Signal::SIGHUP);
        for caught in [Signal::SIGINT, Signal::SIGTERM].into_iter().chain(hangup) {
            let flag = Arc::clone(&signal);
            signal_hook::flag::register_usize(caught as i32, flag, caught as usize)?;
        }
        Ok(Self { signal })
    }

    /// Number of the last signal that was caught.
    pub fn caught(&self) -> Option<i32> {
        i32::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|number| *number != 0)
    }
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
        let interrupts = Interrupts::catch().unwrap();
        assert_eq!(interrupts.caught(), None);
        nix::sys::signal::raise(Signal::SIGHUP).unwrap();
        // Whoever runs the tests may have it ignored, as `nohup` does.
        let expected = (!hangup_is_ignored()).then_some(Signal::SIGHUP as i32);
        assert_eq!(interrupts.caught(), expected);
    }
}
