//! What the operations of all built-in loads have in common.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::load::sandbox::PrivateFolder;

/// What all workers of one load share.
#[derive(Default)]
pub(super) struct Shared {
    /// The directory that they work in.
    pub(super) directory: Option<PathBuf>,
    /// Removes it at the end.
    pub(super) _folder: Option<PrivateFolder>,
}

impl Shared {
    pub(super) fn directory(&self) -> Result<&Path, String> {
        Ok(self.directory.as_deref().ok_or("it has no directory")?)
    }
}

/// Makes the operations of one thread.
pub(super) trait Worker {
    /// Makes what the next operation needs. Its time is not measured, and at a fixed rate it is called
    /// before the operation is due.
    fn prepare(&mut self) -> Result<(), OperationError> {
        Ok(())
    }

    /// Makes one operation.
    fn operate(&mut self) -> Result<(), OperationError>;
}

/// A worker, or why it cannot be set up.
pub(super) type NewWorker = Result<Box<dyn Worker>, String>;

/// A worker whose operations need nothing prepared.
pub(super) fn simple(operate: impl FnMut() -> Result<(), OperationError> + 'static) -> NewWorker {
    Ok(Box::new(operate))
}

impl<F: FnMut() -> Result<(), OperationError>> Worker for F {
    fn operate(&mut self) -> Result<(), OperationError> {
        self()
    }
}

/// One operation that failed.
#[derive(Debug)]
pub(super) struct OperationError {
    /// What errors are counted by.
    pub(super) kind: String,
    pub(super) text: String,
}

impl OperationError {
    pub(super) fn new(kind: impl Into<String>, text: impl Into<String>) -> Self {
        Self { kind: kind.into(), text: text.into() }
    }
}

/// The failure of an operation that was `doing` this.
pub(super) fn failed<E: Into<io::Error>>(doing: impl AsRef<str>) -> impl Fn(E) -> OperationError {
    move |error| {
        let error = error.into();
        let kind = match error.raw_os_error() {
            Some(errno) => format!("{:?}", Errno::from_raw(errno)),
            None => format!("{:?}", error.kind()),
        };
        OperationError { kind, text: format!("{}: {}", doing.as_ref(), described(&error)) }
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
