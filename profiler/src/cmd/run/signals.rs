//! The signals that end a run early.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::internal;
use crate::error::{Failure, exit};

/// The signals that end a run early.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| internal(&format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// One that has come already.
    pub(crate) async fn pending(&mut self) -> Option<(u8, &'static str)> {
        tokio::select! {
            biased;
            signal = self.next() => Some(signal),
            () = std::future::ready(()) => None,
        }
    }

    pub(crate) async fn next(&mut self) -> (u8, &'static str) {
        tokio::select! {
            _ = self.interrupt.recv() => (exit::INTERRUPTED, "SIGINT"),
            _ = self.terminate.recv() => (exit::TERMINATED, "SIGTERM"),
        }
    }
}
