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
#[cfg(feature = "fuzzing")]
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
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

use profiler_kernel::target::Target;
use profiler_recording::Backend;

use super::{Attached, Drained, Options, ProbeError, Session, Traced, errno::Doing as _};

pub(super) use journal::{patiently, recover};
pub(super) use tracefs::PLACES;

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

/// Rounds after which the reader looks for dropped events.
const ROUNDS_A_LOOK: u32 = 16;

/// What is tried where the events cannot be had.
const READING: &str = "reading the trace buffers";

/// Whether this kernel has the tracer, and lets us see it.
///
/// # Errors
/// Why it cannot be used. It may still be in use by somebody else.
pub(super) fn try_tracer() -> Result<(), ProbeError> {
    Folder::find().map(drop)
}

/// Handlers traced by function_graph. Dropping it puts tracefs back as it was: when its buffers are closed, the fields are.
pub(super) struct FtraceSession {
    targets: Vec<Target>,
    /// A thread empties the buffers as long as this is there.
    stream: Arc<Mutex<Stream>>,
    tracing: Tracing,
    finished: bool,
}

impl FtraceSession {
    /// Starts to trace those handlers that can be traced; no session if there are none. The others are returned.
    ///
    /// # Errors
    /// When the tracer cannot be used, or must not. Then tracefs is as it was.
    pub(super) fn attach_each(
        targets: &[Target],
        options: Options,
    ) -> Result<Attached, ProbeError> {
        if options.call_tree && targets.len() > 1 {
            return Err(ProbeError::NotAllowed(format!(
                "the call tree is that of one function, and {} were named: name one of them",
                targets.len()
            )));
        }
        let top = Folder::find()?;
        let (mut traced, mut places, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let found = filter::places(&top, targets)?;
        for (number, (target, place)) in targets.iter().zip(found).enumerate() {
            match place {
                Ok(place) => {
                    traced.push(target.clone());
                    places.push(place);
                }
                Err(why) => {
                    let text = format!("handler {} cannot be traced: {why}", target.name);
                    let reason = why.to_owned();
                    refused.push((number, ProbeError::Handler { text, reason }));
                }
            }
        }
        if traced.is_empty() {
            return Ok((None, refused));
        }
        let tracing = Tracing::prepare(&top, &traced, &places, options)?;
        let session = Self::start(traced, tracing, options)?;
        Ok((Some(Box::new(session)), refused))
    }

    fn start(
        targets: Vec<Target>,
        mut tracing: Tracing,
        options: Options,
    ) -> Result<Self, ProbeError> {
        let layout = Layout::read(&|name| tracing.place.read(&format!("events/{name}")))?;
        let addresses: Vec<u64> = targets.iter().map(|target| target.address).collect();
        let (precision, coherent) = (options.precision, tracing.coherent);
        let (sink, rounds_a_look): (Box<dyn Sink>, _) = match *addresses {
            // It leaves out the calls between two looks of which the second finds losses.
            [handler] if options.call_tree => (Box::new(Calls::new(handler, precision)), 1),
            _ => {
                let cpus = tracing.cpus.len();
                (Box::new(Pairing::new(&addresses, cpus, precision, coherent)), ROUNDS_A_LOOK)
            }
        };
        tracing.start()?;
        // The kernel changes no tracer under an open buffer, so they are opened last and closed first.
        let stream = Stream::open(layout, &tracing, sink, rounds_a_look)?;
        let stream = Arc::new(Mutex::new(stream));
        let read = Arc::downgrade(&stream);
        let reader = thread::Builder::new().name("profiler-ftrace".to_owned());
        reader.spawn(move || keep_reading(&read)).doing(READING)?;
        Ok(Self { targets, stream, tracing, finished: false })
    }

    fn lock(&self) -> Result<MutexGuard<'_, Stream>, ProbeError> {
        self.stream.lock().map_err(|_| io::Error::other("the reader has panicked")).doing(READING)
    }
}

impl Session for FtraceSession {
    fn handlers(&self) -> Vec<(&Target, Backend)> {
        self.targets.iter().map(|target| (target, Backend::FunctionGraph)).collect()
    }

    fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
        self.lock()?.drain(self.finished)
    }

    fn call_tree(&mut self) -> Result<Option<Traced>, ProbeError> {
        let tree = self.lock()?.sink.call_tree().map_err(io::Error::other);
        tree.doing("naming the functions that were called")
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
        // If the reader has panicked, nobody else has the stream, and it is closed as this field is dropped.
        if let Ok(mut stream) = self.stream.lock() {
            stream.close();
        }
    }
}

/// Empties the buffers, the more often the fuller they are, until the session is gone.
fn keep_reading(stream: &Weak<Mutex<Stream>>) {
    let mut pause = PAUSE.0;
    loop {
        thread::sleep(pause);
        let Some(stream) = stream.upgrade() else { return };
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
}
