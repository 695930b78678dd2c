//! The one thing that a load may ask of whoever measures: how often each handler has been called.

use tokio::sync::{mpsc, oneshot};

/// A question for the counters now; the answer goes to the sender within.
pub type HitQuestion = oneshot::Sender<HitCount>;

/// How often each handler was called so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HitCount {
    /// Calls that have begun since the probes were attached, in the order of the profile's handlers.
    pub entries: Vec<u64>,
    /// Whether the measured window has begun: what a load does before is warm-up.
    pub measured: bool,
}

/// Asks for the counters, so that a load can tell which of its pieces made which calls. Clones ask the
/// same ones. The load knows nothing else of probes.
#[derive(Debug, Clone)]
pub struct HitCounter(mpsc::Sender<HitQuestion>);

impl HitCounter {
    /// A counter, and the questions that it will ask.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<HitQuestion>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// The counters now; `None` when nobody measures any more.
    pub async fn read(&self) -> Option<HitCount> {
        let (question, answer) = oneshot::channel();
        self.0.send(question).await.ok()?;
        answer.await.ok()
    }
}
