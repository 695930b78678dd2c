//! From arguments to settings.

use std::path::Path;
use std::thread::available_parallelism;

use super::absolute;
use super::work::Work;
use crate::cli::LabArgs;
use crate::error::{Failure, exit};
use crate::lab::Settings;
use crate::lab::plan::CostPlan;
use crate::load::BuiltinKind;
use crate::profile::Clock;

/// Operations of a run where none were asked for: enough calls for a TP99, and so many timer
/// interrupts that one more or less in a handler hardly moves its average.
const OPERATIONS: u64 = 20_000;

/// Operations that start a process or mount, of which one takes the guest a thousand times as long.
const SLOW: [BuiltinKind; 4] =
    [BuiltinKind::Execve, BuiltinKind::Setsid, BuiltinKind::CallUsermodehelper, BuiltinKind::Mount];

/// Operations of a run with one of these.
const OPERATIONS_IF_SLOW: u64 = 400;

/// Operations that warm up, as a part of those that are measured.
const WARMUP_PART: u64 = 10;

/// CPUs under wall clock: the fewest that can get in each other's way.
const CPUS: u32 = 2;

/// Checks what clap cannot.
pub(super) fn check(args: &LabArgs) -> Result<(), Failure> {
    let usage = |text: &str| Err(Failure::new(exit::USAGE, text));
    let is_virtual = Clock::from(args.clock) == Clock::Virtual;
    if is_virtual && args.cpus.is_some_and(|cpus| cpus != 1) {
        return usage("virtual time needs one CPU: leave out --cpus, or say --clock wall");
    }
    if !args.baseline.is_empty() && args.baseline.len() != args.candidate.len() {
        return usage("give as many --candidate as --baseline: one of each for each kernel");
    }
    Ok(())
}

/// Operations of each run; `None` where its length is given.
fn operations(args: &LabArgs, work: &Work) -> Option<u64> {
    let usual = if work.builtin.iter().any(|kind| SLOW.contains(kind)) {
        OPERATIONS_IF_SLOW
    } else {
        OPERATIONS
    };
    match args.duration {
        Some(_) => None,
        None => Some(args.operations.unwrap_or(usual)),
    }
}

/// Whether the CPU time of an operation is the load's: the kernel starts modprobe as its own.
pub(super) fn has_cost(kind: BuiltinKind) -> bool {
    kind != BuiltinKind::CallUsermodehelper
}

/// The settings for one kernel; `folder` is the one that guests share, `below` the kernel's part.
pub(super) fn of(args: &LabArgs, work: &Work, vng: &Path, folder: &Path, below: &Path) -> Settings {
    let clock = Clock::from(args.clock);
    let cpus = match clock {
        Clock::Virtual => 1,
        Clock::Wall => args.cpus.unwrap_or(CPUS),
    };
    let side_by_side = match clock {
        Clock::Virtual => {
            available_parallelism().map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(1))
        }
        Clock::Wall => 1,
    };
    // Two rounds of ABBA in two boots: enough runs for a gate over many handlers.
    let usual = if args.baseline.is_empty() { 1 } else { 2 };
    let boots = args.boots.unwrap_or(usual);
    let operations = operations(args, work);
    let loads: Vec<BuiltinKind> =
        work.builtin.iter().copied().filter(|kind| has_cost(*kind)).collect();
    let cost = operations
        .filter(|_| !args.no_cost && args.rate.is_none() && !loads.is_empty())
        .map(|operations| CostPlan { loads, operations, workers: args.workers });
    Settings {
        clock,
        cpus,
        memory: args.memory.clone(),
        timeout: args.timeout,
        vng: vng.to_owned(),
        boots,
        jobs: args.jobs.unwrap_or(side_by_side).min(boots),
        repeat: args.repeat.unwrap_or(usual),
        run: run_args(args, work, clock, operations, 1),
        warmup: run_args(args, work, clock, operations, WARMUP_PART),
        cost,
        program: folder.join("profiler"),
        shared: folder.to_owned(),
        folder: below.to_owned(),
        logs: args.logs.as_deref().map_or_else(|| below.join("logs"), absolute),
    }
}

/// Arguments of `profiler run` for one part in `part` of the work.
fn run_args(
    args: &LabArgs,
    work: &Work,
    clock: Clock,
    operations: Option<u64>,
    part: u64,
) -> Vec<String> {
    let mut words = vec!["--clock".to_owned(), clock.to_string()];
    let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
    for handler in &work.handlers {
        add("--handler", handler.clone());
    }
    for kind in &work.builtin {
        add("--builtin", kind.to_string());
    }
    add("--workers", args.workers.to_string());
    if let Some(rate) = args.rate {
        add("--rate", rate.to_string());
    }
    if let Some(operations) = operations {
        add("--operations", (operations / part).max(1).to_string());
    }
    if let Some(duration) = args.duration {
        let part = u32::try_from(part).unwrap_or(1);
        add("--duration", format!("{}ms", (duration / part).as_millis().max(1)));
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(more: &str) -> LabArgs {
        let line = format!("profiler lab -H bind_* --builtin bind {more}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Lab(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn settings(more: &str) -> Settings {
        let args = args(more);
        let work = Work::of(&args).unwrap();
        of(&args, &work, Path::new("/vng"), Path::new("/lab"), Path::new("/lab/kernel-0"))
    }

    #[test]
    fn virtual_time_counts_operations() {
        let two = settings("--baseline a.ko --candidate b.ko");
        assert_eq!((two.boots, two.repeat), (2, 2));
        let settings = settings("-m d.ko --boots 2");
        let expected =
            "--clock virtual --handler bind_* --builtin bind --workers 1 --operations 20000";
        assert_eq!(settings.run.join(" "), expected);
        assert!(settings.warmup.join(" ").ends_with("--operations 2000"));
        assert_eq!((settings.cpus, settings.boots), (1, 2));
        assert_eq!(settings.cost.unwrap().operations, 20_000);
        let helper = super::tests::settings("-m d.ko --builtin call-usermodehelper");
        assert_eq!(helper.cost.unwrap().loads, [BuiltinKind::Bind]);
        let execve = super::tests::settings("-m d.ko --builtin execve");
        assert!(execve.run.join(" ").ends_with("--operations 400"));
    }

    #[test]
    fn wall_clock_runs_one_vm_at_a_time() {
        let settings = settings("-m d.ko --clock wall --duration 10s --boots 3 --no-cost");
        assert_eq!((settings.cpus, settings.jobs), (2, 1));
        assert!(settings.run.join(" ").ends_with("--workers 1 --duration 10000ms"));
        assert!(settings.warmup.join(" ").ends_with("--duration 1000ms"));
        assert!(settings.cost.is_none());
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |more: &str| {
            let failure = check(&args(more)).unwrap_err();
            assert_eq!(failure.code, exit::USAGE);
            failure.message
        };
        assert!(refused("-m d.ko --cpus 2").contains("virtual time needs one CPU"));
        assert!(refused("--baseline a.ko --baseline b.ko --candidate c.ko").contains("as many"));
        let parse = |more: &str| {
            let line = format!("profiler lab -H x --builtin bind {more}");
            Cli::try_parse_from(line.split_whitespace()).map(|_| ())
        };
        for wrong in [
            "",
            "--baseline a.ko",
            "--candidate a.ko",
            "-m a.ko --baseline a.ko --candidate b.ko",
            "-m a.ko --baseline-params x=1",
            "-m a.ko --operations 0",
            "-m a.ko --operations 5 --duration 1s",
            "--baseline a.ko --candidate b.ko --json x.json",
            "-m a.ko --repeat 0",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("-m a.ko --profile connect").is_err(), "a profile has its own load");
        assert!(parse("--baseline a.ko --candidate b.ko --candidate-params x=1 --out o").is_ok());
    }
}
