//! Why LTP's tests cannot be run.

use std::path::PathBuf;

/// How to get LTP.
const INSTALL: &str = "install LTP (https://github.com/linux-test-project/ltp: `make autotools && ./configure && \
                       make && make install` puts it there), name its folder with --ltp-root or LTPROOT, or \
                       use the built-in load with --builtin";

/// Why the tests cannot be run as asked, found before anything is measured.
#[derive(Debug, thiserror::Error)]
pub enum LtpError {
    /// There is no LTP.
    #[error("no LTP at {}: {reason}; {INSTALL}", .root.display())]
    NoLtp {
        /// Where it was looked for.
        root: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// There is no such list.
    #[error("no list of tests {}{}", .path.display(), also(.near))]
    NoSuite {
        /// The file.
        path: PathBuf,
        /// The list with the most similar name.
        near: Option<String>,
    },
    /// A list cannot be read.
    #[error("{}: {reason}: this list of tests cannot be read", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// A line of the list cannot be parsed.
    #[error("{}:{line}: {reason}", .path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The pattern is not a regular expression.
    #[error("`{pattern}` is not a regular expression: {reason}")]
    BadPattern {
        /// What was given.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The pattern matches nothing.
    #[error("`{pattern}` matches none of the {total} tests of runtest/{suite}{}", also(.near))]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// The list.
        suite: String,
        /// Tests in it.
        total: usize,
        /// The test with the most similar name.
        near: Option<String>,
    },
    /// The pattern matches all.
    #[error("--ltp-skip `{pattern}` leaves no test of runtest/{suite} to run")]
    AllLeftOut {
        /// The pattern.
        pattern: String,
        /// The list.
        suite: String,
    },
    /// The list has no test.
    #[error("runtest/{suite} has no test in it")]
    Empty {
        /// The list.
        suite: String,
    },
    /// None of the programs exists.
    #[error(
        "none of the {count} tests can be executed ({first}: {reason}): is this LTP built and installed \
         completely? Otherwise {INSTALL}"
    )]
    NothingRuns {
        /// Tests chosen.
        count: usize,
        /// The first of them.
        first: String,
        /// Why it cannot be.
        reason: String,
    },
    /// Some tests may harm the machine.
    #[error("{} may harm this machine: leave them out with --ltp-skip, or allow them with --allow-destructive", .tests.join("; "))]
    Destructive {
        /// Each with the reason.
        tests: Vec<String>,
    },
    /// The tests cannot run as the user asked for.
    #[error("{0}")]
    User(String),
    /// The runner asked for cannot be used.
    #[error("{0}")]
    Runner(String),
}

fn also(near: &Option<String>) -> String {
    near.as_ref().map_or_else(String::new, |near| format!(": did you mean {near}?"))
}
