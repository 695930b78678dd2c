//! The signals that end a run early.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::timeout;

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

/// Waits for the signals that end a run early.
pub(super) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From now on they do not end the process. To be called within a runtime.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn new() -> Result<Self, Failure> {
        let mut all = vec![Signal::SIGINT, Signal::SIGTERM];
        // Not under `nohup`.
        if !profiler_system::hangup_is_ignored() {
            all.push(Signal::SIGHUP);
        }
        let mut streams = Vec::new();
        for of in all {
            let stream = signal(SignalKind::from_raw(of as i32))
                .map_err(|error| internal(format!("cannot listen for signals: {error}")))?;
            streams.push((of, stream));
        }
        Ok(Self(streams))
    }

    /// One that has come already.
    pub(super) async fn pending(&mut self) -> Option<Signal> {
        timeout(Duration::ZERO, self.next()).await.ok()
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}
