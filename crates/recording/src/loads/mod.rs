//! What a recording says of a load: what it was ([`LoadSpec`]) and what came of it ([`LoadOutcome`]).
//!
//! Data only: nothing here runs anything.

mod dimensions;
mod kind;
mod outcome;
mod rate;
mod spec;
mod test_runs;

pub use dimensions::{Dimensions, Points};
pub use kind::BuiltinKind;
pub(crate) use outcome::LATENCY_DIGITS;
pub use outcome::{CpuTime, Latency, LoadFailure, LoadOutcome, LoadRun, LoadStatus};
pub use outcome::{OperationErrors, OperationTimes};
pub use rate::Rate;
pub use spec::{LoadSpec, LtpSpec, LtpTest};
pub(crate) use test_runs::tests_in_words;
pub use test_runs::{Ended, ResultCount, TIMED_OUT, TestEnd, TestResult, TestRuns, mix_changes};

use super::is_zero;
