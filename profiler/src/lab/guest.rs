//! The part that runs in the guest: loads the driver, measures, unloads it, step by step.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module};

use super::plan::{
    BootPlan, Build, CostPlan, CountedHandler, CountingFiles, GuestFailure, Job, Length,
    Measurement, RunSpec, Step, Task,
};
use super::root;
use crate::atomic_file::OutputFile;
use crate::emulator;
use crate::error::{Failure, exit};
use crate::export::{Exporter as _, Json};
use crate::kernel::target::KernelFiles;
use crate::kernel::{module, privileges};
use crate::load::{BuiltinKind, ProfilerProgram, cpu_time_of_builtin};
use crate::progress::Progress;
use crate::recording::{DriverCost, Meter};
use crate::run::{Options, Run};

/// Prefix of the line that announces a run to the host.
pub(super) const STEP_LINE: &str = "PROFILER-LAB-STEP ";

/// Copy of the program in the guest's memory: pages of the host's files come over 9p, at times
/// that depend on the host.
pub(super) const PROGRAM: &str = "/run/profiler-lab/profiler";

/// The task of a process that [`child`] starts.
const TASK: &str = "/run/profiler-lab/task.json";

/// Process ids in the guest start here: below 32,768, the kernel's limit on few CPUs, and far above the numbers of its boot.
const FIRST_PID: u32 = 10_000;

/// The recording of the last run, in memory for the same reason as [`PROGRAM`].
const RESULT: &str = "/run/profiler-lab/run.json";

/// Attempts to unload a module that is still in use.
const REMOVE_ATTEMPTS: u32 = 50;

/// Runs the task in the file `path`.
///
/// # Errors
/// With the exit code of what failed.
pub fn run(path: &Path) -> Result<(), Failure> {
    let unreadable = |error: &dyn std::fmt::Display| {
        internal(format!("cannot read {}: {error}", path.display()))
    };
    let text = fs::read(path).map_err(|error| unreadable(&error))?;
    match serde_json::from_slice(&text).map_err(|error| unreadable(&error))? {
        Task::Boot(plan) => boot(&plan),
        Task::Measure(measurement) => measure(&measurement),
        Task::TimeLoads(cost) => print_times(&cost),
    }
}

/// All runs of a boot. A failure is also written to the file that the plan names.
fn boot(plan: &BootPlan) -> Result<(), Failure> {
    let mut order = None;
    steps(plan, &mut order).inspect_err(|failure| {
        let failure = GuestFailure { code: failure.code, message: failure.message.clone(), order };
        // Without the file the host still has the output.
        let _ = serde_json::to_vec(&failure).map(|bytes| fs::write(&plan.failure, bytes));
    })
}

fn steps(plan: &BootPlan, order: &mut Option<u32>) -> Result<(), Failure> {
    // udevd would start programs when the driver is loaded, in the middle of a measurement.
    let _ = Command::new("udevadm").args(["control", "--exit"]).output();
    // A driver that writes process ids in decimal digits takes longer for one more: all that follow have five. Where the
    // kernel cannot set it (CONFIG_CHECKPOINT_RESTORE), they are as they come.
    let _ = fs::write("/proc/sys/kernel/ns_last_pid", FIRST_PID.to_string());
    let plan = &in_memory(plan)?;
    root::keep_libraries(Path::new(PROGRAM)).map_err(|error| internal(error.to_string()))?;
    if plan.cost.is_some() {
        root::make(Path::new(PROGRAM)).map_err(|error| internal(error.to_string()))?;
    }
    let without = plan.cost.as_ref().map(times).transpose()?;
    if let Some(files) = &plan.counting {
        count_without(plan, files)?;
    }
    let mut counted = None;
    for step in &plan.steps {
        *order = Some(step.order);
        say(&format!("{STEP_LINE}{}", step.order));
        let build = plan.build(step.side);
        let Some(job) = plan.work.get(step.job) else {
            return Err(internal(format!("run {} has no job", step.order)));
        };
        if step.loads {
            emulator::rest();
            insert(build)?;
            counted = None;
        }
        let with = plan.cost.as_ref().map(times).transpose()?;
        match &plan.counting {
            None => measure_on(Some(build), job, false)?,
            Some(files) => count_on(build, job, files, step, &mut counted)?,
        }
        if let (Some(cost), Some(without), Some(with)) = (&plan.cost, &without, &with) {
            keep_costs(step, cost, without, with)?;
        }
        // Unparsed: the host parses it.
        copy(Path::new(RESULT), &step.result)?;
        if step.unloads {
            emulator::rest();
            remove(&build.name)?;
        }
    }
    Ok(())
}

/// Runs `task` in a separate process, as outside of the lab. Its output goes to a pipe, so that nothing is
/// written to the console meanwhile.
fn child(task: &Task) -> Result<Output, Failure> {
    write_json(Path::new(TASK), task)?;
    Command::new(PROGRAM)
        .args(["__lab-guest", TASK])
        .output()
        .map_err(|error| internal(format!("cannot run {PROGRAM}: {error}")))
}

/// The error message of a process that failed.
fn message_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.trim().trim_start_matches("error: ").to_owned()
}

/// CPU time of an operation of each load, in nanoseconds. One process times them one after another.
fn times(cost: &CostPlan) -> Result<Vec<f64>, Failure> {
    let output = child(&Task::TimeLoads(cost.clone()))?;
    if !output.status.success() {
        let message = message_of(&output);
        let text = format!("timing the loads without probes: {message} ({})", output.status);
        return Err(Failure::new(exit::LOAD_FAILED, text));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| internal(format!("cannot read the times of the loads: {error}")))
}

/// The process that times operations, with all files in the guest's memory, so that nothing waits for the host.
fn print_times(cost: &CostPlan) -> Result<(), Failure> {
    root::enter().map_err(|error| internal(format!("cannot enter {}: {error}", root::FOLDER)))?;
    let time = |operations, kind| {
        cpu_time_of_builtin(kind, operations, cost.workers, ProfilerProgram::at(root::PROGRAM))
    };
    let one = |kind: &_| {
        // Warms the caches.
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

/// The process that measures: a run that warms up, and one whose recording is then in [`RESULT`].
fn measure(Measurement { module, job, counting }: &Measurement) -> Result<(), Failure> {
    privileges::check()?;
    let file = OutputFile::open(Path::new(RESULT))?;
    let run = |spec, counting| {
        Run::prepare(options(module.as_deref(), spec, counting))?.measure(&mut Progress::new(true))
    };
    run(&job.warmup, false)?.end?;
    let mut measured = run(&job.run, *counting)?;
    if let Some(mut recording) = measured.recordings.pop() {
        if let (true, Some(module)) = (*counting, module) {
            recording.modules = vec![module::collect(module)?];
        }
        file.commit(&Json.serialize(&recording))?;
    }
    Ok(measured.end?)
}

/// What is measured, as `profiler run` would; `counting` tells the emulator when.
pub(crate) fn options(module: Option<&str>, spec: &RunSpec, counting: bool) -> Options {
    let probes = spec.meter == Meter::Probes;
    let (operations, duration) = match spec.length {
        Length::Operations(count) => (Some(count), None),
        Length::Time(time) => (None, Some(time)),
    };
    Options {
        module: module.filter(|_| probes).map(str::to_owned),
        handlers: if probes { spec.handlers.clone() } else { Vec::new() },
        no_probe: !probes,
        counting,
        clock: spec.clock,
        builtin: Some(spec.loads.clone()),
        workers: Some(spec.workers),
        rate: spec.rate,
        operations,
        duration,
        ..Options::default()
    }
}

/// The plan with the modules' files in the guest's own memory.
fn in_memory(plan: &BootPlan) -> Result<BootPlan, Failure> {
    let copy = |build: &Build, name: &str| -> Result<Build, Failure> {
        let file = PathBuf::from("/run/profiler-lab").join(name);
        copy(&build.file, &file)?;
        Ok(Build { file, ..build.clone() })
    };
    let baseline = copy(&plan.baseline, "baseline.ko")?;
    let candidate = plan.candidate.as_ref().map(|build| copy(build, "candidate.ko")).transpose()?;
    Ok(BootPlan { baseline, candidate, ..plan.clone() })
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

/// Unloads it. A probe that is still being removed may hold it for a moment.
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

/// One run on the module that the emulator counts.
fn count_on(
    build: &Build,
    job: &Job,
    files: &CountingFiles,
    step: &Step,
    known: &mut Option<Wanted>,
) -> Result<(), Failure> {
    let spec = &job.run;
    let wanted = match known.take().filter(|wanted| wanted.patterns == spec.handlers) {
        Some(wanted) => wanted,
        None => want(build, spec, files)?,
    };
    write_json(&step.handlers, &wanted.handlers)?;
    *known = Some(wanted);
    count(Some(build), job, files, &step.counts)
}

/// The operations of the jobs that are to be counted without the driver.
fn count_without(plan: &BootPlan, files: &CountingFiles) -> Result<(), Failure> {
    let jobs = || plan.work.iter().enumerate().filter(|(_, job)| job.cost);
    if jobs().next().is_some() {
        request(files, String::new())?;
    }
    for (number, job) in jobs() {
        count(None, job, files, &files.without(number))?;
    }
    Ok(())
}

/// One run that the emulator counts into the file `to`.
fn count(
    build: Option<&Build>,
    job: &Job,
    files: &CountingFiles,
    to: &Path,
) -> Result<(), Failure> {
    measure_on(build, job, true)?;
    if let Ok(why) = fs::read_to_string(files.counts.with_extension("error")) {
        let text = format!("the plugin in QEMU could not count: {why}");
        return Err(Failure::new(exit::LAB_FAILED, text));
    }
    fs::rename(&files.counts, to).map_err(|error| {
        let text = format!(
            "the plugin in QEMU has written no counts ({error}): it was not asked to, or its disk is full; \
             --logs FOLDER keeps what it said, --meter probes does without it"
        );
        Failure::new(exit::LAB_FAILED, text)
    })
}

/// What the plugin was told to count, which holds until the module is unloaded.
struct Wanted {
    /// Names or globs.
    patterns: Vec<String>,
    /// The functions that they match.
    handlers: Vec<CountedHandler>,
}

/// Writes what is to be counted to the file that the plugin reads whenever it begins. The symbols of a kernel take
/// seconds to read under a translator.
fn want(build: &Build, spec: &RunSpec, files: &CountingFiles) -> Result<Wanted, Failure> {
    let handlers = counted(&build.name, &spec.handlers)?;
    let mut wanted = format!("module {}\n", place(&build.name)?);
    for handler in handlers.iter().filter(|handler| handler.module.is_none()) {
        wanted.push_str(&format!("function {}\n", handler.name));
    }
    request(files, wanted)?;
    Ok(Wanted { patterns: spec.handlers.clone(), handlers })
}

fn request(files: &CountingFiles, wanted: String) -> Result<(), Failure> {
    let symbols = fs::read_to_string("/proc/kallsyms")
        .map_err(|error| internal(format!("cannot read /proc/kallsyms: {error}")))?;
    let unwritable = |error| internal(format!("cannot write {}: {error}", files.symbols.display()));
    fs::write(&files.symbols, wanted + &symbols).map_err(unwritable)
}

/// The module's name, where it was loaded and its bytes, to know its code where symbols are missing.
fn place(module: &str) -> Result<String, Failure> {
    let modules = fs::read_to_string("/proc/modules")
        .map_err(|error| internal(format!("cannot read /proc/modules: {error}")))?;
    let of = |line: &str| match line.split_ascii_whitespace().collect::<Vec<_>>().as_slice() {
        [name, bytes, _, _, _, address, ..] if *name == module => {
            Some(format!("{name} {} {bytes}", address.trim_start_matches("0x")))
        }
        _ => None,
    };
    Ok(modules.lines().find_map(of).unwrap_or_else(|| module.to_owned()))
}

/// The functions whose calls are counted one by one: of the module, or named ones of the kernel.
fn counted(module: &str, patterns: &[String]) -> Result<Vec<CountedHandler>, Failure> {
    let files = KernelFiles::default();
    // The kernel takes most of a second, under a translator, to list its symbols: they are read once if all is in the module.
    let targets = match files.resolve_all(Some(module), patterns) {
        Ok(found) => found.targets,
        Err(_) => {
            let of = |pattern: &String| {
                let one = std::slice::from_ref(pattern);
                files
                    .resolve_all(Some(module), one)
                    .or_else(|error| files.resolve_all(None, one).map_err(|_| error))
            };
            let found = patterns.iter().map(of).collect::<Result<Vec<_>, _>>()?;
            let mut seen = HashSet::new();
            let all = found.into_iter().flat_map(|found| found.targets);
            all.filter(|target| seen.insert((target.module.clone(), target.label()))).collect()
        }
    };
    let handlers = targets.into_iter().map(|target| CountedHandler {
        name: target.label(),
        module: target.module,
        by_glob: target.by_glob,
        address: target.address,
    });
    Ok(handlers.collect())
}

/// Warms up and measures the module, in a process of its own.
fn measure_on(build: Option<&Build>, job: &Job, counting: bool) -> Result<(), Failure> {
    let module = build.map(|build| build.name.clone());
    let measurement = Measurement { module, job: job.clone(), counting };
    let modprobe = job.run.loads.contains(&BuiltinKind::CallUsermodehelper).then(Modprobe::light);
    let output = child(&Task::Measure(Box::new(measurement)))?;
    drop(modprobe);
    if output.status.success() {
        return Ok(());
    }
    let message = message_of(&output);
    match output.status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Err(Failure::new(code, message)),
        None => Err(Failure::new(exit::LAB_FAILED, format!("{}: {message}", output.status))),
    }
}

/// While it lives the kernel starts a program that does nothing in place of modprobe, which looks through files of the host for
/// most of a second.
struct Modprobe(Option<String>);

impl Modprobe {
    const SETTING: &str = "/proc/sys/kernel/modprobe";
    /// In memory.
    const LIGHT: &str = "/run/profiler-lab/modprobe";

    /// Where that is not possible, modprobe stays.
    fn light() -> Self {
        let there = || fs::copy("/bin/true", Self::LIGHT).is_ok();
        let was = fs::read_to_string(Self::SETTING).ok().filter(|_| there());
        Self(was.filter(|_| fs::write(Self::SETTING, Self::LIGHT).is_ok()))
    }
}

impl Drop for Modprobe {
    fn drop(&mut self) {
        if let Some(was) = &self.0 {
            let _ = fs::write(Self::SETTING, was);
        }
    }
}

fn keep_costs(step: &Step, cost: &CostPlan, without: &[f64], with: &[f64]) -> Result<(), Failure> {
    let costs = cost.loads.iter().zip(without).zip(with);
    let costs: Vec<DriverCost> = costs
        .map(|((&load, &without_ns), &with_ns)| DriverCost {
            load,
            operations: cost.operations,
            meter: Meter::Probes,
            without_ns,
            with_ns,
        })
        .collect();
    write_json(&step.costs, &costs)
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), Failure> {
    let bytes = serde_json::to_vec(value).map_err(|error| internal(error.to_string()))?;
    fs::write(path, bytes)
        .map_err(|error| internal(format!("cannot write {}: {error}", path.display())))
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map(drop).map_err(|error| {
        internal(format!("cannot copy {} to {}: {error}", from.display(), to.display()))
    })
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
    // The line is optional for the host.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn internal(what: impl Into<String>) -> Failure {
    Failure::new(exit::INTERNAL, what)
}
