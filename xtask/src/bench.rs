//! Cost of a hit: instructions that the probes add to a call, counted in a VM under virtual time.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cargo;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::testbed;
use crate::vm::{self, VmSpec, word};

/// The handler that is measured, and the built-in load that calls it once an operation.
const HANDLER: &str = "connect_syscall_entry_handler";
const LOAD: &str = "connect";

/// Operations in each measurement: the result repeats within an instruction or two.
const OPERATIONS: u32 = 20_000;

/// Runs `profiler cost` under virtual time; gives its exit code.
pub(crate) fn run(paths: &Paths, series: Series) -> Result<i32> {
    setup::ensure(paths, &[Part::Vm, Part::ModuleBuild, Part::Kernel(series)])?;
    let profiler = cargo::build_profiler(paths)?;
    let testbed = testbed::build(paths, series)?;
    let out = paths.target().join("bench");
    process::create_dir(&out)?;
    let json = out.join(format!("cost-{series}.json"));
    let script = script(&profiler, &testbed, &json);
    let outcome = vm::run(paths, &VmSpec::virtual_time("bench", series, &script))?;
    if outcome.code == 0 && !json.exists() {
        bail!("profiler cost left no {}", json.display());
    }
    println!("bench: {} under virtual time, {}", series, json.display());
    Ok(outcome.code)
}

fn script(profiler: &Path, testbed: &Path, json: &Path) -> String {
    format!(
        "insmod {} || exit\n{} cost --module hids_testbed --handler {HANDLER} --builtin {LOAD} \
         --operations {OPERATIONS} --rounds 3 --clock virtual --json {}\n",
        word(testbed),
        word(profiler),
        word(json),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_virtual() {
        let script = script(Path::new("/t/profiler"), Path::new("/t/m.ko"), Path::new("/t/c.json"));
        assert!(script.starts_with("insmod '/t/m.ko' || exit\n'/t/profiler' cost --module "));
        assert!(script.contains(" --clock virtual --json '/t/c.json'"), "{script}");
    }
}
