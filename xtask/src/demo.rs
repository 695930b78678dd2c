//! The main job from nothing: set-up, build, boot, the testbed's ten handlers under load, table, JSON.
//!
//! Under virtual time, so that figures are nearly the same on every machine.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::cargo;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::testbed;
use crate::vm::{self, VmSpec, word};
use ten::TEN;

#[path = "../../profiler/tests/common/ten.rs"]
mod ten;

/// The built-in loads that call them.
const LOADS: &str = "connect,bind,execve,open,ptrace,udp-recv";

/// Rate of each load: without one, a load would leave the others, execve above all, little of the one CPU. Not a
/// divisor of the timer interrupt's 250 Hz: at 100/s some runs had it in the same handler again and again.
const RATE: &str = "97/s";

/// Long enough for hundreds of calls of every handler.
const DURATION: &str = "15s";

/// Runs the demo; gives the exit code of `profiler run`.
pub(crate) fn run(paths: &Paths, series: Series) -> Result<i32> {
    setup::ensure(paths, &[Part::Vm, Part::ModuleBuild, Part::Kernel(series)])?;
    let profiler = cargo::build_profiler(paths)?;
    let module = testbed::build(paths, series)?;
    let out = paths.target().join("demo");
    process::empty_dir(&out)?;
    let result = out.join("result.json");
    let script = script(&profiler, &module, &result);
    let outcome = vm::run(paths, &VmSpec::virtual_time("demo", series, &script))?;
    if outcome.code == 0 {
        let size = fs::metadata(&result);
        let size = size.with_context(|| format!("profiler left no {}", result.display()))?.len();
        ensure!(size > 0, "{} is empty", result.display());
        println!("demo: {} ({size} bytes)", result.display());
    } else {
        eprintln!("error: demo: exit code {}; log: {}", outcome.code, outcome.log.display());
    }
    Ok(outcome.code)
}

/// The guest's script. The program is copied to the guest's memory: the execve load executes it again and again, and
/// each page of a file of the host comes over 9p.
fn script(profiler: &Path, testbed: &Path, result: &Path) -> String {
    let handlers: String = TEN.iter().map(|name| format!(" --handler {name}")).collect();
    format!(
        "insmod {} || exit\n\
         cp {} /run/profiler-demo || exit\n\
         /run/profiler-demo run --module hids_testbed{handlers} --builtin {LOADS} --rate {RATE} --duration {DURATION} \
         --clock virtual --json {}\n",
        word(testbed),
        word(profiler),
        word(result),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_gets_all_ten_handlers() {
        let script = script(Path::new("/t/profiler"), Path::new("/t/m.ko"), Path::new("/t/r.json"));
        assert!(script.starts_with(
            "insmod '/t/m.ko' || exit\ncp '/t/profiler' /run/profiler-demo || exit\n"
        ));
        assert_eq!(script.matches(" --handler ").count(), 10);
        assert!(script.contains(" --json '/t/r.json'"));
    }
}
