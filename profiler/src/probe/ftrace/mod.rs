//! The function-graph backend: the kernel's own tracer of calls and returns, through tracefs.
//!
//! Works in all kernels with `CONFIG_FUNCTION_GRAPH_TRACER`, without BTF and without BPF, and in
//! functions that run inside kprobes. The tracer is limited to the handlers, and its binary buffers are
//! read page by page: two events a call (about 72 bytes) that cross to user space, which a thread of
//! the profiler counts into histograms at some ten million events a second.
//!
//! **A duration** is the tracer's own, from before it writes the entry to after the function's return, so
//! that writing the entry is in it: that is several times the cost of a BPF pair. Kernels whose exit
//! event has no times of the call give the time between the two events. Sleep and callees are
//! counted. Nothing is subtracted.
//!
//! **Losses.** A full buffer drops new events, which the kernel counts. It does not hook the return of a
//! call whose entry was dropped: so each dropped event is one call, either one that was not seen at
//! all (`overrun`) or one whose exit is missing (`lost`).
//!
//! **A call tree** is made of the same events: the tracer is limited to what runs within one handler, and [`calls`] puts
//! each call below its caller.

mod calls;
mod filter;
mod format;
#[cfg(fuzzing)]
#[path = "../../../../fuzz/src/hooks/ftrace.rs"]
pub mod fuzzing;
mod journal;
mod page;
mod pairing;
mod setup;
mod stream;
#[cfg(test)]
mod tests;
mod tracefs;
mod users;
mod waiting;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Drained, Options, ProbeError, Session, Traced};
use crate::kernel::target::{KernelFiles, ResolveError, Target};
use crate::recording::Backend;

pub use journal::{Recovered, recover};

use calls::Calls;
use format::Layout;
use pairing::Pairing;
use setup::Tracing;
use stream::{Sink, Stream};
use tracefs::Folder;

/// How long the reader sleeps between two looks at the buffers, at least and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A buffer as full as this is looked at sooner, and one less full than that later.
const FULL: f64 = 0.125;
const EMPTY: f64 = 0.015;

/// Why the tracer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FtraceError {
    /// tracefs is not mounted.
    #[error(
        "tracefs is not there, which the function-graph backend needs: mount -t tracefs nodev \
         /sys/kernel/tracing"
    )]
    NoTracefs,
    /// The kernel was built without the tracer.
    #[error(
        "this kernel has no function_graph tracer: use one built with CONFIG_FUNCTION_GRAPH_TRACER, as \
         those of Debian, Ubuntu, Fedora and RHEL are"
    )]
    NoTracer,
    /// Somebody else uses what there is only one of.
    #[error("the function_graph tracer cannot be used now: {what}; {remedy}, and try again")]
    InUse {
        /// The file, and what is in it.
        what: String,
        /// How to end it.
        remedy: String,
    },
    /// Another profiler uses it.
    #[error(
        "another profiler{} is using the function_graph tracer: wait for its end, or use another \
         backend", pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
    )]
    Running {
        /// Its process.
        pid: Option<u32>,
    },
    /// Somebody else traces a handler.
    #[error(
        "handler {handler} is traced by somebody else ({line}): that time would be counted as the \
         handler's; stop the other tool or allow it with --allow-shared"
    )]
    Shared {
        /// The handler.
        handler: String,
        /// The kernel's line on it.
        line: String,
    },
    /// ftrace cannot trace the function.
    #[error(
        "handler {handler} cannot be traced: it is marked notrace, or ftrace does not know it; measure \
         the function that calls it"
    )]
    NotTraceable {
        /// The handler.
        handler: String,
    },
    /// Other functions have the same name, and it is not known which one is meant.
    #[error(
        "several functions are called {handler}, and ftrace's list does not show which is which on this \
         kernel: rename one, or measure the function that calls it"
    )]
    Ambiguous {
        /// The handler.
        handler: String,
    },
    /// A call tree has one root.
    #[error("the call tree is that of one function, and {0} were named: name one of them")]
    Several(usize),
    /// The kernel hides addresses.
    #[error(
        "the address of handler {handler} is hidden, by which its calls are known: sysctl \
         kernel.kptr_restrict=1, and run as root"
    )]
    Hidden {
        /// The handler.
        handler: String,
    },
    /// A description of the kernel's data is not as expected.
    #[error("cannot make sense of {file} of tracefs: {what}; please report it with that file")]
    Format {
        /// The file, below the folder of tracefs.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// A file cannot be used.
    #[error("{doing} {path}: {error}")]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// What a profiler had changed cannot be put back.
    #[error(
        "what the profiler changed in tracefs could not be put back: {what}; its next start tries again"
    )]
    NotRestored {
        /// The files, each with what the system said.
        what: String,
    },
    /// Functions have no names.
    #[error("naming the functions that were called: {0}")]
    Names(ResolveError),
    /// The reader of the buffers failed.
    #[error("reading the trace buffers: {0}")]
    Reading(io::Error),
}

impl FtraceError {
    /// What was tried of a file, where it failed.
    fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::File { doing, path: path.to_owned(), error }
    }
}

/// Whether this kernel has the tracer, and lets us see it.
///
/// # Errors
/// Why it cannot be used. It may still be in use by somebody else.
pub fn try_tracer() -> Result<(), FtraceError> {
    Folder::find(Path::new("/")).map(|_| ())
}

/// Handlers traced by function_graph. Dropping it puts tracefs back as it was.
pub struct FtraceSession {
    targets: Vec<Target>,
    stream: Arc<Mutex<Stream>>,
    reader: Option<Reader>,
    tracing: Tracing,
    finished: bool,
}

/// The thread that empties the buffers.
struct Reader {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl FtraceSession {
    /// Starts to trace the handlers.
    ///
    /// # Errors
    /// When the tracer is in use or cannot trace a handler. Then tracefs is as it was.
    pub fn attach(targets: &[Target], options: Options) -> Result<Self, ProbeError> {
        Ok(Self::attach_below(Path::new("/"), targets, options)?)
    }

    fn attach_below(
        root: &Path,
        targets: &[Target],
        options: Options,
    ) -> Result<Self, FtraceError> {
        if let Some(hidden) = targets.iter().find(|target| target.address == 0) {
            return Err(FtraceError::Hidden { handler: hidden.name.clone() });
        }
        if options.call_tree && targets.len() > 1 {
            return Err(FtraceError::Several(targets.len()));
        }
        let mut tracing = Tracing::prepare(root, targets, options)?;
        let layout = Layout::read(&|name| tracing.read_format(name))?;
        let addresses: Vec<u64> = targets.iter().map(|target| target.address).collect();
        let (precision, coherent) = (options.precision, tracing.coherent);
        let sink = match addresses.as_slice() {
            [handler] if options.call_tree => {
                Sink::Calls(Box::new(Calls::new(*handler, precision)))
            }
            _ => {
                let cpus = tracing.cpus.len();
                Sink::Durations(Box::new(Pairing::new(&addresses, cpus, precision, coherent)))
            }
        };
        tracing.start()?;
        // The kernel changes no tracer under an open buffer, so they are opened last and closed first.
        let stream = Arc::new(Mutex::new(Stream::open(layout, &tracing, sink)?));
        let reader = Reader::start(Arc::clone(&stream)).map_err(FtraceError::Reading)?;
        let targets = targets.to_vec();
        Ok(Self { targets, stream, reader: Some(reader), tracing, finished: false })
    }

    fn lock(&self) -> Result<MutexGuard<'_, Stream>, FtraceError> {
        self.stream
            .lock()
            .map_err(|_| FtraceError::Reading(io::Error::other("the reader has panicked")))
    }
}

impl Session for FtraceSession {
    fn targets(&self) -> Vec<&Target> {
        self.targets.iter().collect()
    }

    fn backends(&self) -> Vec<Backend> {
        vec![Backend::FunctionGraph; self.targets.len()]
    }

    fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
        Ok(self.lock()?.drain(self.finished)?)
    }

    fn call_tree(&mut self) -> Result<Option<Traced>, ProbeError> {
        match &self.lock()?.sink {
            Sink::Calls(calls) => {
                Ok(Some(calls.traced(&KernelFiles::default()).map_err(FtraceError::Names)?))
            }
            Sink::Durations(_) => Ok(None),
        }
    }

    /// Stops writing; what was written is still in the buffers.
    fn detach(&mut self) {
        if !self.finished {
            // If the kernel refuses, the tracer runs until the session is dropped.
            self.finished = self.tracing.pause().is_ok();
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.tracing.buffer_bytes
    }
}

impl Drop for FtraceSession {
    fn drop(&mut self) {
        if let Some(Reader { stop, thread }) = self.reader.take() {
            drop(stop);
            // It has said what was wrong, if anything.
            let _ = thread.join();
        }
        if let Ok(mut stream) = self.stream.lock() {
            stream.close();
        }
        if let Err(error) = self.tracing.restore() {
            crate::terminal::say(&format!("warning: {error}"));
        }
    }
}

impl Reader {
    fn start(stream: Arc<Mutex<Stream>>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let read = move || {
            let mut pause = PAUSE.0;
            // Until the sender is dropped.
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let Ok(mut stream) = stream.lock() else { return };
                if stream.failed.is_some() {
                    continue;
                }
                match stream.round() {
                    Ok(filled) if filled > FULL => pause = (pause / 2).max(PAUSE.0),
                    Ok(filled) if filled < EMPTY => pause = (pause * 2).min(PAUSE.1),
                    Ok(_) => {}
                    Err(error) => stream.failed = Some(error),
                }
            }
        };
        let thread = std::thread::Builder::new().name("profiler-ftrace".to_owned()).spawn(read)?;
        Ok(Self { stop, thread })
    }
}
