//! How the program ends: exit codes, and the sentence that goes with each.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Exit codes of the program; docs/exit-codes.md has the same table.
pub mod exit {
    /// All went well.
    pub const OK: u8 = 0;
    /// An error that is no fault of the caller, or one of the profiler itself.
    pub const INTERNAL: u8 = 1;
    /// The command line is wrong (clap's own code for it).
    pub const USAGE: u8 = 2;
    /// This machine cannot measure, or not as asked: privileges, BTF, a program refused.
    pub const CANNOT_MEASURE: u8 = 3;
    /// What was to be measured is not there: module, handler.
    pub const NO_TARGET: u8 = 4;
    /// The load failed; what was measured until then was reported and saved.
    pub const LOAD_FAILED: u8 = 5;
    /// Nothing was measured: no handler had a single hit.
    pub const NO_HITS: u8 = 6;
    /// An input file is not what it should be.
    pub const BAD_INPUT: u8 = 7;
    /// An output file cannot be written.
    pub const BAD_OUTPUT: u8 = 8;
    /// A handler had fewer hits than the load profile wants; all was reported and saved.
    pub const FEW_HITS: u8 = 9;
    /// The gate found a regression, or a budget exceeded.
    pub const REGRESSION: u8 = 10;
    /// The gate cannot tell: the runs differ too much among themselves, or have too few samples.
    pub const INCONCLUSIVE: u8 = 11;
    /// Recordings that must not be compared or merged: they differ in more than the driver's build.
    pub const NOT_COMPARABLE: u8 = 12;
    /// So few runs that the gate could not find any regression, however large.
    pub const TOO_FEW_RUNS: u8 = 13;
    /// More calls were lost than `--max-loss` allows; reported and saved.
    pub const LOSSES: u8 = 14;
    /// The VM of a lab failed: no boot, a broken kernel, a driver that does not load.
    pub const LAB_FAILED: u8 = 15;
    /// The driver was replaced or unloaded while it was measured, or between two runs; reported and saved.
    pub const DRIVER_REPLACED: u8 = 16;
    /// Ended by SIGHUP (128 + 1), as its terminal was closed; what was measured until then was reported and saved.
    pub const HUNG_UP: u8 = 129;
    /// Ended by Ctrl-C (128 + SIGINT); what was measured until then was reported and saved.
    pub const INTERRUPTED: u8 = 130;
    /// Ended by SIGTERM (128 + 15); what was measured until then was reported and saved.
    pub const TERMINATED: u8 = 143;
}

/// Why the program ends without success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// One of [`exit`].
    pub code: u8,
    /// What happened, to which handler or file, and what to do next.
    pub message: String,
}

impl Failure {
    /// A failure with one of the codes of [`exit`].
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// What an error of the system is, for `map_err`: a file that cannot be read.
    pub fn cannot_read(path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.display();
        move |why| {
            let text = format!("cannot read {path}: {why}: check the path and its permissions");
            Self::new(exit::BAD_INPUT, text)
        }
    }

    /// The same: a file or folder that cannot be written.
    pub fn cannot_write(path: &Path) -> impl Fn(io::Error) -> Self {
        move |why| Self::new(exit::BAD_OUTPUT, format!("cannot write {}: {why}", path.display()))
    }
}

/// Returns a failure: a code of [`exit`], and a message as [`format!`] takes it.
#[macro_export]
macro_rules! bail {
    ($code:ident, $($message:tt)+) => {
        return Err($crate::error::Failure::new($crate::error::exit::$code, format!($($message)+)))
    };
}
pub use crate::bail;
