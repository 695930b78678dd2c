//! Benchmarks: what the probes add to a call, and how long imports take.

use anyhow::Result;

use crate::cargo;
use crate::cli::BenchArgs;
use crate::setup;
use crate::speed;
use crate::vm;

/// The measured handler is called once in each operation of the load. By this many operations the result repeats within
/// an instruction or two.
const COST: &str = "\"$profiler\" cost --module hids_testbed --handler connect_syscall_entry_handler \
    --builtin connect --operations 20000 --rounds 3 --clock virtual --json \"$result\"";

/// Runs the benchmark that is asked for; returns the exit code of `profiler cost`.
pub(crate) fn run(args: &BenchArgs) -> Result<i32> {
    if let Some(megabytes) = args.import {
        setup::ensure(&[setup::PARSERS])?;
        return speed::import(&cargo::build_profiler()?, megabytes).map(|()| 0);
    }
    vm::run_with_module("bench", args.kernel, COST)
}
