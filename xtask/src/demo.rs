//! The main job from nothing: set-up, build, boot, the testbed's ten handlers under load, table, JSON.
//!
//! Under virtual time, so that figures are nearly the same on every machine.

use anyhow::Result;

use crate::series::Series;
use crate::vm;
pub(crate) use ten::TEN;

#[path = "../../profiler/tests/common/ten.rs"]
mod ten;

/// The built-in loads that call them.
const LOADS: &str = "connect,bind,execve,open,ptrace,udp-recv";

/// Rate of each load: without one, a load would leave the others, execve above all, little of the one CPU. Not a
/// divisor of the timer interrupt's 250 Hz: at 100/s some runs had it in the same handler again and again.
const RATE: &str = "97/s";

/// Long enough for hundreds of calls of every handler.
const DURATION: &str = "15s";

/// Runs the demo; returns the exit code of `profiler run`.
pub(crate) fn run(series: Series) -> Result<i32> {
    let handlers = TEN.map(|name| format!("--handler {name}")).join(" ");
    // In the guest's memory: the execve load executes the program again and again, and each page of a file of the host
    // comes over 9p.
    let script = format!(
        "cp \"$profiler\" /run/profiler-demo || exit\n\
         /run/profiler-demo run --module hids_testbed {handlers} --builtin {LOADS} --rate {RATE} --duration {DURATION} \
         --clock virtual --json \"$result\""
    );
    vm::run_with_module("demo", series, &script)
}
