//! Lets a load ask how often each handler has been called: all that it knows of probes.

use tokio::sync::{mpsc, oneshot};

/// A request for the counters; the sender in it takes the answer. Without one the measurement has ended.
pub type HitQuestion = oneshot::Sender<HitCount>;

/// Asks for the counters, so that a load knows which calls each of its tests made. Clones ask the same counters.
pub type HitCounter = mpsc::Sender<HitQuestion>;

/// How often each handler has been called so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HitCount {
    /// Calls that have started since the probes were attached, in the order of the recording's handlers.
    pub entries: Vec<u64>,
    /// Whether the measured window has started: what a load does before is warm-up.
    pub measured: bool,
}
