//! The main job from nothing: set-up, build, boot, testbed, ten handlers under load, table, JSON.
//!
//! Under virtual time, so that whoever runs it sees nearly the same figures, whatever the machine.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::cargo;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::testbed;
use crate::vm::{self, VmSpec, quote};

/// The handlers of Elkeid's table, in its order; the testbed has them all.
const HANDLERS: [&str; 10] = [
    "connect_syscall_handler",
    "connect_syscall_entry_handler",
    "udp_recvmsg_handler",
    "udp_recvmsg_entry_handler",
    "bind_handler",
    "bind_entry_handler",
    "execve_entry_handler",
    "execve_handler",
    "security_inode_create_pre_handler",
    "ptrace_pre_handler",
];

/// The built-in loads that call them.
const LOADS: &str = "connect,bind,execve,open,ptrace,udp-recv";

/// Rate of each load: one that goes as fast as it can would leave the others, execve above all, little
/// of the one CPU. Out of step with the timer interrupt (250 Hz): at 100/s it came into the same
/// handler over and over, in some runs and not in others.
const RATE: &str = "97/s";

/// Long enough for hundreds of calls of every handler.
const DURATION: &str = "15s";

/// Runs the demo; gives the exit code of `profiler run`.
pub(crate) fn run(paths: &Paths, series: Series) -> Result<i32> {
    setup::ensure(paths, &[Part::Vm, Part::ModuleBuild, Part::Kernel(series)])?;
    let profiler = cargo::build_profiler(paths)?;
    let testbed = testbed::build(paths, series)?;
    let out = paths.target().join("demo");
    process::remove_dir(&out)?;
    process::create_dir(&out)?;
    let result = out.join("result.json");

    let script = script(&profiler, &testbed, &result);
    let spec = VmSpec {
        cpus: 1,
        icount: true,
        timeout: Duration::from_secs(300),
        ..VmSpec::new("demo", series, ["sh", "-c", &script])
    };
    let outcome = vm::run(paths, &spec)?;
    if outcome.code == 0 {
        let size = std::fs::metadata(&result)
            .with_context(|| format!("profiler left no {}", result.display()))?
            .len();
        if size == 0 {
            bail!("{} is empty", result.display());
        }
        println!("demo: {} ({size} bytes)", result.display());
    } else {
        eprintln!("error: demo: exit code {}; log: {}", outcome.code, outcome.log.display());
    }
    Ok(outcome.code)
}

/// What runs in the guest. The program runs from the guest's memory: the execve load executes it over
/// and over, and every page of a file of the host comes over 9p.
fn script(profiler: &Path, testbed: &Path, result: &Path) -> String {
    let word = |path: &Path| quote(&path.to_string_lossy());
    let handlers: String = HANDLERS.iter().map(|name| format!(" --handler {name}")).collect();
    format!(
        "insmod {} || exit\n\
         cp {} /run/profiler || exit\n\
         /run/profiler run --module hids_testbed{handlers} --builtin {LOADS} --rate {RATE} --duration {DURATION} \
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
        assert!(
            script
                .starts_with("insmod '/t/m.ko' || exit\ncp '/t/profiler' /run/profiler || exit\n")
        );
        assert_eq!(script.matches(" --handler ").count(), 10);
        assert!(script.contains(" --json '/t/r.json'"));
    }
}
