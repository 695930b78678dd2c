//! What a recording says of a load: what it was ([`LoadSpec`]) and what came of it ([`LoadOutcome`]).
//!
//! Data only: nothing here runs anything.

mod dimensions;
mod kind;
mod latency;
mod ltp_spec;
mod outcome;
mod rate;
mod spec;
mod test_runs;

pub use dimensions::{Dimensions, Points};
pub use kind::BuiltinKind;
pub(crate) use latency::LATENCY_DIGITS;
pub use latency::{Latency, OperationTimes};
pub use ltp_spec::{LtpSpec, LtpTest};
pub use outcome::{CpuTime, LoadFailure, LoadOutcome, LoadRun, LoadStatus, OperationErrors};
pub use rate::Rate;
pub use spec::LoadSpec;
pub use test_runs::{Ended, TestEnd, tests_in_words};
pub use test_runs::{ResultCount, TIMED_OUT, TestResult, TestRuns, mix_changes};

use super::is_zero;
