//! The signals that end a run early.

use tokio::signal::unix::{SignalKind, signal};

use super::internal;
use crate::error::{Failure, exit};

/// A signal that ends a run early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub enum Signal {
    /// Ctrl-C.
    #[strum(to_string = "SIGINT")]
    Interrupt,
    /// `kill` without an option.
    #[strum(to_string = "SIGTERM")]
    Terminate,
    /// The terminal or the connection is gone.
    #[strum(to_string = "SIGHUP")]
    Hangup,
}

impl Signal {
    const ALL: [Self; 3] = [Self::Interrupt, Self::Terminate, Self::Hangup];

    /// The exit code after it.
    pub fn code(self) -> u8 {
        match self {
            Self::Interrupt => exit::INTERRUPTED,
            Self::Terminate => exit::TERMINATED,
            Self::Hangup => exit::HUNG_UP,
        }
    }

    /// The end of a run by it.
    pub(super) fn failure(self) -> Failure {
        let text = format!("ended by {self}; the report covers the time until then");
        Failure::new(self.code(), text)
    }

    /// The signal that ended a run, if one did.
    pub fn of(end: &Failure) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.code() == end.code)
    }
}

/// Waits for the signals that end a run early.
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// None under `nohup`.
    hangup: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    /// From now on they do not end the process. To be called within a runtime.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| internal(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: (!profiler_vm::hangup_is_ignored())
                .then(|| listen(SignalKind::hangup()))
                .transpose()?,
        })
    }

    /// One that has come already.
    pub(super) async fn pending(&mut self) -> Option<Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Some(signal),
            () = std::future::ready(()) => None,
        }
    }

    /// The next one.
    pub async fn next(&mut self) -> Signal {
        let Self { interrupt, terminate, hangup } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => Signal::Interrupt,
            _ = terminate.recv() => Signal::Terminate,
            _ = hangup => Signal::Hangup,
        }
    }
}
