//! The part that runs in the guest: loads the driver, measures, unloads it, step by step.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module};

use super::plan::{Build, CostPlan, GuestFailure, Plan, Step};
use super::root;
use crate::error::{Failure, exit};
use crate::load::{ProfilerProgram, cpu_time_of_builtin};
use crate::profile::{DriverCost, Place, Profile};

/// What a line that tells the host how far we are begins with.
pub(super) const STEP_LINE: &str = "PROFILER-LAB-STEP ";

/// The program's own copy in the guest's memory: pages of the host's files come over 9p, at times
/// that the host decides.
pub(super) const PROGRAM: &str = "/run/profiler-lab/profiler";

/// How often a module that is still in use is asked to go.
const REMOVE_ATTEMPTS: u32 = 50;

/// Runs the plan in the file `path`; what fails is told in the file that the plan names, too.
///
/// # Errors
/// With the exit code of what failed: of `profiler run` if it was that.
pub fn run(path: &Path, time_loads: bool) -> Result<(), Failure> {
    let unreadable = |error: &dyn std::fmt::Display| {
        internal(format!("cannot read {}: {error}", path.display()))
    };
    let text = fs::read(path).map_err(|error| unreadable(&error))?;
    let plan: Plan = serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
    if let Some(cost) = plan.cost.as_ref().filter(|_| time_loads) {
        return print_times(cost);
    }
    let mut order = None;
    steps(path, &plan, &mut order).inspect_err(|failure| {
        let failure = GuestFailure { code: failure.code, message: failure.message.clone(), order };
        // Without the file the host still has our words.
        let _ = serde_json::to_vec(&failure).map(|bytes| fs::write(&plan.failure, bytes));
    })
}

fn steps(path: &Path, plan: &Plan, order: &mut Option<u32>) -> Result<(), Failure> {
    // Its helpers would start programs when the driver is loaded, in the middle of a measurement.
    let _ = Command::new("udevadm").args(["control", "--exit"]).output();
    let plan = &in_memory(plan)?;
    if plan.cost.is_some() {
        root::make(Path::new(PROGRAM)).map_err(|error| internal(error.to_string()))?;
    }
    let time = |_: &CostPlan| times(path);
    let without = plan.cost.as_ref().map(&time).transpose()?;
    for step in &plan.steps {
        *order = Some(step.order);
        say(&format!("{STEP_LINE}{}", step.order));
        let build = plan.build(step.side);
        insert(build)?;
        let warmup = Path::new("/run/profiler-lab/warmup.json");
        measure(build, &plan.warmup, warmup)?;
        let with = plan.cost.as_ref().map(&time).transpose()?;
        let mut profile = measure(build, &plan.run, Path::new("/run/profiler-lab/run.json"))?;
        profile.place = Some(Place { boot: plan.boot, order: step.order, part: None });
        if let (Some(cost), Some(without), Some(with)) = (&plan.cost, &without, &with) {
            let costs = cost.loads.iter().zip(without).zip(with);
            profile.driver_costs = costs
                .map(|((load, &without_ns), &with_ns)| DriverCost {
                    load: *load,
                    operations: cost.operations,
                    without_ns,
                    with_ns,
                })
                .collect();
        }
        keep(step, &profile)?;
        remove(&build.name)?;
    }
    Ok(())
}

/// What an operation of each load takes, in nanoseconds of CPU time: by a process of its own, which times
/// one load after another.
fn times(plan: &Path) -> Result<Vec<f64>, Failure> {
    let output = Command::new(PROGRAM)
        .arg("__lab-guest")
        .arg(plan)
        .arg("--time-loads")
        .output()
        .map_err(|error| internal(format!("cannot run {PROGRAM}: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("error: ");
        let text = format!("timing the loads without probes: {said} ({})", output.status);
        return Err(Failure::new(exit::LOAD_FAILED, text));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| internal(format!("cannot read the times of the loads: {error}")))
}

/// That process. All that it needs is in the guest's memory: nothing waits for a file of the host.
fn print_times(cost: &CostPlan) -> Result<(), Failure> {
    root::enter().map_err(|error| internal(format!("cannot enter {}: {error}", root::FOLDER)))?;
    let time = |operations, kind| {
        cpu_time_of_builtin(kind, operations, cost.workers, ProfilerProgram::at(root::PROGRAM))
    };
    let one = |kind: &_| {
        // Once for the caches.
        time(cost.operations / 10 + 1, *kind)?;
        time(cost.operations, *kind).map(|ns| ns as f64 / cost.operations as f64)
    };
    let times: Vec<f64> = cost
        .loads
        .iter()
        .map(one)
        .collect::<Result<_, crate::load::LoadFailure>>()
        .map_err(|failure| Failure::new(exit::LOAD_FAILED, failure.to_string()))?;
    let text = serde_json::to_string(&times).map_err(|error| internal(error.to_string()))?;
    say(&text);
    Ok(())
}

/// The plan with the modules' files in the guest's own memory.
fn in_memory(plan: &Plan) -> Result<Plan, Failure> {
    let copy = |build: &Build, name: &str| -> Result<Build, Failure> {
        let file = PathBuf::from("/run/profiler-lab").join(name);
        fs::copy(&build.file, &file).map_err(|error| {
            internal(format!("cannot copy {} to {}: {error}", build.file.display(), file.display()))
        })?;
        Ok(Build { file, ..build.clone() })
    };
    let baseline = copy(&plan.baseline, "baseline.ko")?;
    let candidate = plan.candidate.as_ref().map(|build| copy(build, "candidate.ko")).transpose()?;
    Ok(Plan { baseline, candidate, ..plan.clone() })
}

/// Loads the module.
fn insert(build: &Build) -> Result<(), Failure> {
    let refused = |what: &dyn std::fmt::Display| {
        let params = if build.params.is_empty() {
            String::new()
        } else {
            format!(" with `{}`", build.params)
        };
        Failure::new(
            exit::LAB_FAILED,
            format!(
                "the kernel did not load {}{params}: {what}; it said:\n{}",
                build.name,
                kernel_log(&build.name)
            ),
        )
    };
    let file = File::open(&build.file).map_err(|error| refused(&error))?;
    let params = std::ffi::CString::new(build.params.as_str()).map_err(|error| refused(&error))?;
    finit_module(&file, &params, ModuleInitFlags::empty()).map_err(|errno| refused(&errno.desc()))
}

/// Unloads it. What still holds it, such as a probe on its way out, gets a moment to let go.
fn remove(name: &str) -> Result<(), Failure> {
    let refused = |what: &str| {
        let text = format!("the kernel did not unload {name}: {what}");
        Failure::new(exit::LAB_FAILED, text)
    };
    let c_name = std::ffi::CString::new(name).map_err(|error| refused(&error.to_string()))?;
    for attempt in 1.. {
        match delete_module(&c_name, DeleteModuleFlags::O_NONBLOCK) {
            Ok(()) => break,
            Err(Errno::EAGAIN | Errno::EBUSY) if attempt < REMOVE_ATTEMPTS => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(errno) => return Err(refused(errno.desc())),
        }
    }
    Ok(())
}

/// One `profiler run` on the module, in a process of its own as outside of the lab. Its words go
/// through a pipe, so that nothing is written to the console meanwhile.
fn measure(build: &Build, args: &[String], result: &Path) -> Result<Profile, Failure> {
    let output = Command::new(PROGRAM)
        .args(["run", "--quiet", "--module", &build.name, "--json"])
        .arg(result)
        .args(args)
        .output()
        .map_err(|error| internal(format!("cannot run {PROGRAM}: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("error: ").to_owned();
        let code = output.status.code().and_then(|code| u8::try_from(code).ok());
        let message = if code.is_some() { said } else { format!("{}: {said}", output.status) };
        return Err(Failure::new(code.unwrap_or(exit::LAB_FAILED), message));
    }
    let profile = Profile::read(result).map_err(Failure::from)?;
    // A name for the next one.
    let _ = fs::remove_file(result);
    Ok(profile)
}

fn keep(step: &Step, profile: &Profile) -> Result<(), Failure> {
    let bytes = serde_json::to_vec(profile).map_err(|error| internal(error.to_string()))?;
    fs::write(&step.result, bytes)
        .map_err(|error| internal(format!("cannot write {}: {error}", step.result.display())))
}

/// The last lines of the kernel's log that name the module.
fn kernel_log(module: &str) -> String {
    let text = Command::new("dmesg").output().map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(module)).collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The host does without.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn internal(what: impl Into<String>) -> Failure {
    Failure::new(exit::INTERNAL, what)
}
