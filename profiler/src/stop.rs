//! A stop signal for tasks and blocking threads alike.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Why a load was stopped before its work was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
/// Threads wait on a condition variable and tasks on a watch channel, so neither polls: an idle worker
/// costs nothing while handlers are measured, and still stops at once.
#[derive(Debug, Clone)]
pub struct StopSignal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    stopped: AtomicBool,
    reason: watch::Sender<Option<StopReason>>,
    lock: Mutex<()>,
    wakeup: Condvar,
}

impl Default for StopSignal {
    fn default() -> Self {
        Self::new()
    }
}

impl StopSignal {
    /// A signal that is not stopped yet.
    pub fn new() -> Self {
        let inner = Inner {
            stopped: AtomicBool::new(false),
            reason: watch::Sender::new(None),
            lock: Mutex::new(()),
            wakeup: Condvar::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Stops all who share the signal. The first reason is kept; later ones are ignored.
    pub fn stop(&self, reason: StopReason) {
        let first = self.inner.reason.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert(reason);
            first
        });
        if first {
            self.inner.stopped.store(true, Ordering::Release);
            // A thread between its check and its wait holds the lock: taking it here means that the
            // thread either sees the flag or is notified.
            drop(self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.inner.wakeup.notify_all();
        }
    }

    /// Whether it is stopped: one atomic load, cheap enough for a hot loop.
    pub fn is_stopped(&self) -> bool {
        self.inner.stopped.load(Ordering::Acquire)
    }

    /// Why it was stopped; `None` if it is not.
    pub fn reason(&self) -> Option<StopReason> {
        *self.inner.reason.borrow()
    }

    /// Waits in a task until it is stopped.
    pub async fn stopped(&self) -> StopReason {
        let mut changes = self.inner.reason.subscribe();
        match changes.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or(StopReason::Interrupted),
            // The sender lives as long as `self`, so the channel cannot close.
            Err(_) => StopReason::Interrupted,
        }
    }

    /// Blocks the calling thread until `due` or until it is stopped. True if `due` came first.
    pub fn sleep_until(&self, due: Instant) -> bool {
        if Instant::now() >= due {
            return !self.is_stopped();
        }
        let mut held = self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.is_stopped() {
                return false;
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let woken = self.inner.wakeup.wait_timeout(held, left);
            held = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
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
            std::thread::spawn(move || stop.sleep_until(Instant::now() + Duration::from_secs(60)))
        };
        std::thread::sleep(Duration::from_millis(50));
        let stopped = Instant::now();
        stop.stop(StopReason::Interrupted);
        assert!(!sleeper.join().unwrap());
        assert!(stopped.elapsed() < Duration::from_secs(1), "took {:?}", stopped.elapsed());
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
