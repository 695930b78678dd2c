//! The signals that end a run early.

use std::future::pending;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use profiler_base::error::{Failure, exit};

use super::internal;

/// The end of a run by a signal.
pub(super) fn ended_by(signal: Signal) -> Failure {
    let code = match signal {
        Signal::SIGINT => exit::INTERRUPTED,
        Signal::SIGHUP => exit::HUNG_UP,
        _ => exit::TERMINATED,
    };
    Failure::new(code, format!("ended by {signal}; the report covers the time until then"))
}

/// Whether a run was ended so.
pub(super) fn was_ended(end: &Failure) -> bool {
    [exit::INTERRUPTED, exit::HUNG_UP, exit::TERMINATED].contains(&end.code)
}

/// The signals that have come to end a run early.
pub(super) struct Signals(mpsc::UnboundedReceiver<Signal>);

impl Signals {
    /// From now on they do not end the process. To be called within a runtime.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn new() -> Result<Self, Failure> {
        let (sender, caught) = mpsc::unbounded_channel();
        let mut all = vec![Signal::SIGINT, Signal::SIGTERM];
        // Not under `nohup`.
        if !profiler_system::hangup_is_ignored() {
            all.push(Signal::SIGHUP);
        }
        for of in all {
            let mut stream = signal(SignalKind::from_raw(of as i32))
                .map_err(|error| internal(format!("cannot listen for signals: {error}")))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(of).is_ok() {}
            });
        }
        Ok(Self(caught))
    }

    /// One that has come already.
    pub(super) fn pending(&mut self) -> Option<Signal> {
        self.0.try_recv().ok()
    }

    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => pending().await,
        }
    }
}
