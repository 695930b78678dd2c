//! The one signal that ends a load, for tasks and for blocking threads alike.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Why a load was told to end before its work was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The time asked for is over: the usual end of a load without a fixed number of operations.
    Duration,
    /// Ctrl-C, SIGTERM, or the run was given up.
    Interrupted,
    /// A load of the same run failed, so the mix is no longer the one asked for.
    LoadFailed,
}

/// A signal shared by everything that has to end together. Clones are the same signal.
///
/// Worker threads sleep on a condition variable and tasks on a watch channel, so neither polls: an
/// idle worker costs nothing while handlers are measured, and still stops at once.
#[derive(Debug, Clone)]
pub struct StopSignal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    stopped: AtomicBool,
    reason: watch::Sender<Option<StopReason>>,
    lock: Mutex<()>,
    bell: Condvar,
}

impl Default for StopSignal {
    fn default() -> Self {
        Self::new()
    }
}

impl StopSignal {
    /// A signal not given yet.
    #[must_use]
    pub fn new() -> Self {
        let inner = Inner {
            stopped: AtomicBool::new(false),
            reason: watch::Sender::new(None),
            lock: Mutex::new(()),
            bell: Condvar::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Gives the signal. The first reason stays; later ones are ignored.
    pub fn stop(&self, reason: StopReason) {
        let first = self.inner.reason.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert(reason);
            first
        });
        if first {
            self.inner.stopped.store(true, Ordering::Release);
            // A worker between its check and its sleep holds the lock: taking it here means that the
            // worker either sees the flag or hears the bell.
            drop(self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.inner.bell.notify_all();
        }
    }

    /// Whether the signal was given: one atomic load, fit for every turn of a hot loop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.inner.stopped.load(Ordering::Acquire)
    }

    /// The reason of the stop, or `None` as long as the signal was not given.
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        *self.inner.reason.borrow()
    }

    /// Waits for the signal in a task.
    pub async fn stopped(&self) -> StopReason {
        let mut changes = self.inner.reason.subscribe();
        match changes.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or(StopReason::Interrupted),
            // The sender lives as long as `self`, so that the channel cannot close.
            Err(_) => StopReason::Interrupted,
        }
    }

    /// Blocks the calling thread until `due`, or until the signal. True when the time came first.
    #[must_use]
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
            let woken = self.inner.bell.wait_timeout(held, left);
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
        let told = Instant::now();
        stop.stop(StopReason::Interrupted);
        assert!(!sleeper.join().unwrap());
        assert!(told.elapsed() < Duration::from_secs(1), "took {:?}", told.elapsed());
    }

    #[test]
    fn time_that_passes_first_is_told_apart() {
        let stop = StopSignal::new();
        let due = Instant::now() + Duration::from_millis(20);
        assert!(stop.sleep_until(due));
        assert!(Instant::now() >= due);
        stop.stop(StopReason::Duration);
        assert!(!stop.sleep_until(due), "a time long past does not hide the signal");
    }

    #[tokio::test]
    async fn a_task_hears_a_signal_given_before_and_after() {
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
