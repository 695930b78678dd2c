//! A stop signal for tasks and blocking threads alike.

use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Why a load was stopped before its work was done.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The duration is over: the usual end of a load without a fixed number of operations.
    Duration,
    /// Ctrl-C, SIGTERM, SIGHUP, or the run was abandoned.
    Interrupted,
    /// Another load of the same run failed, so the mix is no longer the one asked for.
    LoadFailed,
}

/// A stop signal, shared by its clones: when one is stopped, all are.
///
/// Threads wait on a condition variable and tasks on a notification, so neither polls: an idle worker
/// costs nothing while handlers are measured, and still stops at once.
#[derive(Debug, Clone, Default)]
pub struct StopSignal {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    reason: OnceLock<StopReason>,
    tasks: Notify,
    lock: Mutex<()>,
    threads: Condvar,
}

impl StopSignal {
    /// A signal that is not stopped yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops all who share the signal. The first reason is kept; later ones are ignored.
    pub fn stop(&self, reason: StopReason) {
        if self.inner.reason.set(reason).is_ok() {
            self.inner.tasks.notify_waiters();
            // A thread between its check and its wait holds the lock: taking it here means that the
            // thread either sees the reason or is notified.
            drop(self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.inner.threads.notify_all();
        }
    }

    /// Whether it is stopped: one atomic load, cheap enough for a hot loop.
    pub fn is_stopped(&self) -> bool {
        self.reason().is_some()
    }

    /// Why it was stopped; `None` if it is not.
    pub fn reason(&self) -> Option<StopReason> {
        self.inner.reason.get().copied()
    }

    /// Waits in a task until it is stopped.
    pub async fn stopped(&self) -> StopReason {
        loop {
            let notified = self.inner.tasks.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            notified.await;
        }
    }

    /// Blocks the calling thread until `due` or until it is stopped. True if `due` came first.
    pub fn sleep_until(&self, due: Instant) -> bool {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let held = self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = self.inner.threads.wait_timeout_while(held, left, |()| !self.is_stopped());
        }
        !self.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_reason_stays() {
        let stop = StopSignal::new();
        assert_eq!(stop.reason(), None);
        assert!(!stop.is_stopped());
        stop.clone().stop(StopReason::Duration);
        stop.stop(StopReason::Interrupted);
        assert_eq!(stop.reason(), Some(StopReason::Duration));
        assert!(stop.is_stopped());
    }

    #[test]
    fn a_sleeping_thread_wakes_at_once() {
        let stop = StopSignal::new();
        let sleeper = {
            let stop = stop.clone();
            std::thread::spawn(move || stop.sleep_until(Instant::now() + Duration::from_secs(600)))
        };
        std::thread::sleep(Duration::from_millis(50));
        let stopped = Instant::now();
        stop.stop(StopReason::Interrupted);
        assert!(!sleeper.join().unwrap());
        assert!(stopped.elapsed() < Duration::from_secs(60), "took {:?}", stopped.elapsed());
    }

    #[test]
    fn a_due_time_is_told_from_a_stop() {
        let stop = StopSignal::new();
        let due = Instant::now() + Duration::from_millis(20);
        assert!(stop.sleep_until(due));
        assert!(Instant::now() >= due);
        stop.stop(StopReason::Duration);
        assert!(!stop.sleep_until(due), "a time long past does not hide the signal");
    }

    #[tokio::test]
    async fn a_task_sees_a_stop_before_and_after_it_waits() {
        let stop = StopSignal::new();
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move { stop.stopped().await }
        });
        tokio::task::yield_now().await;
        stop.stop(StopReason::LoadFailed);
        assert_eq!(waiting.await.unwrap(), StopReason::LoadFailed);
        assert_eq!(stop.stopped().await, StopReason::LoadFailed);
    }
}
