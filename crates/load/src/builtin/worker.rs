//! What the operations of all built-in loads have in common.

use std::ffi::CString;
use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

use crate::sandbox::PrivateFolder;
pub(super) use profiler_recording::loads::OperationErrors;

/// What all workers of one load share.
#[derive(Default)]
pub(super) struct Shared {
    /// The directory that they work in; empty for a load that needs none.
    pub(super) directory: PathBuf,
    /// Removes it at the end.
    pub(super) _folder: Option<PrivateFolder>,
}

/// Makes the operations of one thread.
pub(super) trait Worker {
    /// Makes what the next operation needs. Its time is not measured, and at a fixed rate it is called
    /// before the operation is due.
    fn prepare(&mut self) -> Result<(), OperationErrors> {
        Ok(())
    }

    /// Makes one operation.
    fn operate(&mut self) -> Result<(), OperationErrors>;
}

/// A worker, or why it cannot be set up.
pub(super) type NewWorker = Result<Box<dyn Worker>, String>;

/// A worker whose operations need nothing prepared.
pub(super) fn simple(operate: impl FnMut() -> Result<(), OperationErrors> + 'static) -> NewWorker {
    Ok(Box::new(operate))
}

impl<F: FnMut() -> Result<(), OperationErrors>> Worker for F {
    fn operate(&mut self) -> Result<(), OperationErrors> {
        self()
    }
}

/// The failure of an operation that was `doing` this.
pub(super) fn failed<E: Into<io::Error>>(doing: impl AsRef<str>) -> impl Fn(E) -> OperationErrors {
    move |error| {
        let error = error.into();
        let kind = match error.raw_os_error() {
            Some(errno) => format!("{:?}", Errno::from_raw(errno)),
            None => format!("{:?}", error.kind()),
        };
        OperationErrors::one(kind, format!("{}: {}", doing.as_ref(), described(&error)))
    }
}

/// The failure to set up what the operations need.
pub(super) fn unavailable<E: Into<io::Error>>(what: impl AsRef<str>) -> impl Fn(E) -> String {
    move |error| format!("{}: {}", what.as_ref(), described(&error.into()))
}

/// A string as the kernel takes it.
pub(super) fn c_string(text: impl Into<Vec<u8>>) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}

fn described(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => Errno::from_raw(errno).desc().to_owned(),
        None => error.to_string(),
    }
}
