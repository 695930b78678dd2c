//! What the operations of all built-in loads have in common.

use std::ffi::CString;
use std::fmt::Display;
use std::io;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

pub(super) use profiler_recording::loads::OperationErrors;

/// What a worker is called for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// To make what the next operation needs. Its time is not measured, and at a fixed rate it comes before the operation is due.
    Prepare,
    /// To make one operation.
    Operate,
}

/// Makes the operations of one thread.
pub(super) type Worker = Box<dyn FnMut(Step) -> Result<(), OperationErrors>>;

/// A worker, or why it cannot be set up.
pub(super) type NewWorker = Result<Worker, OperationErrors>;

/// A worker whose operations need nothing prepared.
pub(super) fn simple<T>(
    mut operate: impl FnMut() -> Result<T, OperationErrors> + 'static,
) -> NewWorker {
    Ok(Box::new(move |step| match step {
        Step::Prepare => Ok(()),
        Step::Operate => operate().map(drop),
    }))
}

/// Says what a call that failed was for.
pub(super) trait Doing<T> {
    fn doing(self, what: impl Display) -> Result<T, OperationErrors>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Display) -> Result<T, OperationErrors> {
        self.map_err(|error| {
            let error = error.into();
            let (kind, why) = match error.raw_os_error().map(Errno::from_raw) {
                Some(errno) => (format!("{errno:?}"), errno.desc().to_owned()),
                None => (format!("{:?}", error.kind()), error.to_string()),
            };
            OperationErrors::one(kind, format!("{what}: {why}"))
        })
    }
}

/// Fails unless all bytes were transferred.
pub(super) fn is_whole(did: &str, length: usize, all: usize) -> Result<(), OperationErrors> {
    if length == all {
        return Ok(());
    }
    let text = format!("{did} {length} bytes instead of {all}");
    Err(OperationErrors::one("wrong length", text))
}

/// Why a load does not run here.
pub(super) fn refused(why: impl Into<String>) -> OperationErrors {
    OperationErrors::one("refused", why)
}

/// Moves this thread into a namespace of its own.
pub(super) fn new_namespace(flags: CloneFlags, what: &str) -> Result<(), OperationErrors> {
    unshare(flags)
        .map_err(|errno| refused(format!("{what}: {} ({errno:?}): run it as root", errno.desc())))
}

/// A string as the kernel takes it.
pub(super) fn c_string(text: impl Into<Vec<u8>>) -> Result<CString, OperationErrors> {
    CString::new(text).doing("a string for the kernel")
}
