//! Import of function_graph text: the output of `trace-cmd report`, or the kernel's `trace` and
//! `trace_pipe`. One pass in bounded memory groups the durations by function, exactly.
//!
//! [`scan`] splits the text into lines and hands long texts to several threads (`parallel`), [`line`]
//! parses one line, [`collect`] groups what the lines say, and [`table`] and [`json`] print it.

pub mod collect;
pub mod json;
pub mod line;
mod names;
mod parallel;
pub mod scan;
pub mod seems;
pub mod table;
pub mod values;

use std::fmt;
use std::io::{self, Read};

use collect::{Collector, Counts, Function};
pub use values::Percentile;

/// What a file of function_graph text holds.
#[derive(Debug)]
pub struct Import {
    /// The file, as the user named it.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Functions with their calls, by their total time.
    pub functions: Vec<Function>,
    /// Everything but the calls.
    pub counts: Counts,
}

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It cannot be opened or read.
    #[error("cannot read {file}: {source}: check the path and its permissions")]
    Io {
        /// The file.
        file: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It has no content.
    #[error("{file} is empty: the command that should have written it may have failed; look there")]
    Empty {
        /// The file.
        file: String,
    },
    /// Durations have a comma, which could mean decimals or thousands.
    #[error(
        "{file}, line {line}: {}: trace-cmd and the kernel write points, so another program changed \
         them; turn each back into a point, or print the report again",
        line::Fault::Comma.describe()
    )]
    Comma {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
    },
    /// It has no call.
    #[error("{file} has no call of function_graph (lines: {lines}): {seems}")]
    NoCalls {
        /// The file.
        file: String,
        /// Its lines.
        lines: u64,
        /// What it seems to be, and what to do.
        seems: String,
    },
}

impl Import {
    /// Reads `input` to its end. `file` is its name in messages; `progress` is called with the bytes
    /// read so far.
    ///
    /// Memory stays below 100 MB whatever the input is.
    ///
    /// # Errors
    /// If it cannot be read or has no call; the message says what the file seems to be.
    pub fn read(
        input: &mut dyn Read,
        file: &str,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, ImportError> {
        let file = || file.to_owned();
        let mut collector = Collector::default();
        let scanned = scan::scan(input, &mut collector, progress)
            .map_err(|source| ImportError::Io { file: file(), source })?;
        let (functions, counts) = collector.finish();
        if let Some(line) = counts.comma {
            return Err(ImportError::Comma { file: file(), line });
        }
        if scanned.head.iter().all(u8::is_ascii_whitespace) && scanned.bytes <= scan::HEAD as u64 {
            return Err(ImportError::Empty { file: file() });
        }
        let import = Self { file: file(), bytes: scanned.bytes, functions, counts };
        if import.calls() == 0 {
            let seems = seems::seems(&scanned.head, &import.counts);
            return Err(ImportError::NoCalls { file: file(), lines: import.counts.lines, seems });
        }
        Ok(import)
    }

    /// Calls with a duration, of all functions.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.functions.iter().map(|function| function.values.count()).sum()
    }

    /// What printed the text.
    #[must_use]
    pub fn format(&self) -> &'static str {
        match (self.counts.trace_cmd_lines > 0, self.counts.ftrace_lines > 0) {
            (true, false) => "trace-cmd report",
            (false, true) => "ftrace",
            _ => "trace-cmd report and ftrace",
        }
    }

    /// Why the figures may mislead.
    #[must_use]
    pub fn warnings(&self) -> Vec<ImportWarning> {
        let counts = &self.counts;
        let coarse = self.functions.iter().filter(|f| !f.values.is_exact()).count() as u64;
        let all = [
            (counts.lost_events > 0 || counts.lost_unknown > 0)
                .then_some(ImportWarning::Lost(counts.lost_events, counts.lost_unknown)),
            (counts.unparsable > 0).then(|| ImportWarning::Unparsable {
                file: self.file.clone(),
                count: counts.unparsable,
                first: counts.faults.clone(),
            }),
            counts.cut_off.then_some(ImportWarning::CutOff(counts.lines)),
            (counts.overlong > 0).then_some(ImportWarning::Overlong(counts.overlong)),
            (counts.unreturned > 0).then_some(ImportWarning::Unreturned(counts.unreturned)),
            (counts.unmatched_returns > 0)
                .then_some(ImportWarning::Unmatched(counts.unmatched_returns)),
            (counts.beyond_functions > 0).then_some(ImportWarning::Beyond(counts.beyond_functions)),
            (coarse > 0).then_some(ImportWarning::Coarse(coarse)),
        ];
        all.into_iter().flatten().collect()
    }
}

/// Why the figures of an import may mislead, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportWarning {
    /// The tracer lost records: their known number, and the places that lost an unknown number.
    Lost(u64, u64),
    /// Lines that cannot be used.
    Unparsable {
        /// The file.
        file: String,
        /// How many.
        count: u64,
        /// The first of them.
        first: Vec<collect::FaultAt>,
    },
    /// The file ends within its last line.
    CutOff(u64),
    /// Lines too long to be read.
    Overlong(u64),
    /// Calls whose return is not in the file.
    Unreturned(u64),
    /// Returns whose call is not in the file.
    Unmatched(u64),
    /// Calls of functions beyond the limit on functions.
    Beyond(u64),
    /// Functions with more distinct durations than are kept.
    Coarse(u64),
}

impl fmt::Display for ImportWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(count, places) => {
                match (count, places) {
                    (count, 0) => write!(f, "records lost by the tracer: {count}"),
                    (0, places) => write!(f, "places where the tracer lost records: {places}"),
                    (count, places) => write!(
                        f,
                        "records lost by the tracer: {count}, and more at {places} other places"
                    ),
                }?;
                f.write_str("; trace fewer functions, or with larger buffers (trace-cmd record -b)")
            }
            Self::Unparsable { file, count, first } => {
                write!(f, "lines of function_graph that cannot be used, not counted: {count};")?;
                for fault in first {
                    write!(f, " {file}, line {}: {};", fault.line, fault.fault.describe())?;
                }
                f.write_str(" look at them, or print the report again")
            }
            Self::CutOff(line) => {
                write!(
                    f,
                    "the file ends within line {line}: copy it again, it may have been cut off"
                )
            }
            Self::Overlong(count) => {
                write!(f, "lines longer than 256 KiB, skipped: {count}; look at the file")
            }
            Self::Unreturned(count) => write!(
                f,
                "calls without their return in the file, not counted: {count}; they were running \
                 at its end, or records were lost"
            ),
            Self::Unmatched(count) => write!(
                f,
                "returns without their call in the file, not counted as their function is not \
                 known: {count}; the trace began inside them, or records were lost; `trace-cmd \
                 report -O fgraph:tailprint` names them"
            ),
            Self::Beyond(count) => write!(
                f,
                "calls of more functions than are kept, not counted: {count}; trace fewer functions"
            ),
            Self::Coarse(count) => write!(
                f,
                "functions with more different durations than are kept: {count}; their percentiles \
                 are rounded up or missing, their count, average and max are exact; import fewer \
                 functions at a time"
            ),
        }
    }
}
