//! What systemd hears: sd_notify(3). Without a socket in the environment nothing is sent, and what cannot be sent is left out: the
//! manager then has its own view, by its time-outs.

use std::time::{Duration, Instant};

use sd_notify::{NotifyState, notify, watchdog_enabled};

/// The service manager.
#[derive(Debug, Default)]
pub struct Notifier {
    /// A quarter of the time after which systemd takes a silent daemon for dead.
    every: Option<Duration>,
    last_ping: Option<Instant>,
}

impl Notifier {
    /// That which the environment names: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    #[must_use]
    pub fn from_env() -> Self {
        Self { every: watchdog_enabled().map(|time| time / 4), last_ping: None }
    }

    /// When [`alive`](Self::alive) is to be called at the latest; `None` without a watchdog.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        Some(self.last_ping? + self.every?)
    }

    /// The daemon has started or reloaded: its probes are attached, or it waits for a module.
    pub fn ready(&mut self, status: &str) {
        let _ = notify(&[NotifyState::Ready, NotifyState::Status(status)]);
        self.last_ping = Some(Instant::now());
    }

    /// What the daemon does now, in one line of `systemctl status`.
    pub fn status(&self, status: &str) {
        let _ = notify(&[NotifyState::Status(status)]);
    }

    /// It reads its configuration anew; [`ready`](Self::ready) ends it. `Type=notify-reload` compares the time with that of
    /// its own signal.
    pub fn reloading(&self) {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            let _ = notify(&[NotifyState::Reloading, now]);
        }
    }

    /// It ends.
    pub fn stopping(&self) {
        let _ = notify(&[NotifyState::Stopping]);
    }

    /// Says that the daemon lives, if it `is_well`: all drains that were due at `now` succeeded, or none was due.
    pub fn alive(&mut self, now: Instant, is_well: bool) {
        if self.due().is_some_and(|due| due <= now) {
            self.last_ping = Some(now);
            if is_well {
                let _ = notify(&[NotifyState::Watchdog]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_is_due_each_quarter_of_the_watchdogs_time() {
        let start = Instant::now();
        let second = |number| start + Duration::from_secs(number);
        let every = Some(Duration::from_secs(15));
        let mut notifier = Notifier { every, last_ping: Some(start) };
        let due: Vec<u64> = (0..60)
            .step_by(5)
            .filter(|&number| {
                let is_due = notifier.due().is_some_and(|due| due <= second(number));
                notifier.alive(second(number), true);
                is_due
            })
            .collect();
        assert_eq!(due, [15, 30, 45]);
        let mut nobody = Notifier::default();
        nobody.alive(second(60), true);
        assert_eq!(nobody.due(), None);
    }
}
