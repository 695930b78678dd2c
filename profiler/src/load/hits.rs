//! Lets a load ask how often each handler has been called: all that it knows of probes.

use tokio::sync::{mpsc, oneshot};

/// A request for the counters; the sender in it takes the answer.
pub type HitQuestion = oneshot::Sender<HitCount>;

/// How often each handler has been called so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HitCount {
    /// Calls that have started since the probes were attached, in the order of the recording's handlers.
    pub entries: Vec<u64>,
    /// Whether the measured window has started: what a load does before is warm-up.
    pub measured: bool,
}

/// Asks for the counters, so that a load knows which calls each of its tests made. Clones ask the same
/// counters.
#[derive(Debug, Clone)]
pub struct HitCounter(mpsc::Sender<HitQuestion>);

impl HitCounter {
    /// A counter, and the receiver of its requests.
    pub fn channel() -> (Self, mpsc::Receiver<HitQuestion>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// The counters now; `None` if the measurement has ended.
    pub async fn read(&self) -> Option<HitCount> {
        let (question, answer) = oneshot::channel();
        self.0.send(question).await.ok()?;
        answer.await.ok()
    }
}
