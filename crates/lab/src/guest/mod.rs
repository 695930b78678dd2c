//! The first process of a lab's guest: it prepares the machine, and does the host's jobs one after another.
//!
//! There is nothing else in the guest: no shell, no udev, no file of the host.

mod agent;
#[cfg_attr(target_arch = "aarch64", path = "arm64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86.rs")]
mod arch;
mod arguments;
mod audit;
mod bpf;
mod channel;
mod init;
mod install;
mod kallsyms;
mod load;
mod load_module;
mod log;
mod object;
mod placement;
mod program;

use nix::errno::Errno;
use nix::sys::mman::{MlockAllFlags, mlockall, munlockall};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_kernel::{host, module};
use profiler_run::Run;
use profiler_run::args::RunArgs;
use profiler_vm::{Trouble, is_fault};

use super::plan::{Length, RunSpec};
use super::wire::{Answer, Job, REPORT_LINES, THREE_DIGITS};
use channel::Channel;
use kallsyms::Kallsyms;
use log::Log;

/// The argument that makes this program the first process of a guest.
pub(super) const ARGUMENT: &str = "__lab-guest";

/// Does the host's jobs; it ends by an error alone, at which the kernel panics.
///
/// # Errors
/// If this is no guest of a lab, the machine cannot be prepared, or the jobs cannot be read.
pub fn run() -> Result<(), Failure> {
    if std::process::id() != 1 {
        let text = "this command is the first process of a lab's guest, which `profiler lab` and `profiler gate` start";
        return Err(Failure::new(exit::USAGE, text));
    }
    // The kernel closes a first process's output if it has no console; panics end up there.
    let prepared = init::prepare().and_then(|()| Channel::open());
    let mut channel = prepared.map_err(|error| internal(format!("the guest: {error}")))?;
    let booted = Answer::Booted(Box::new(host::collect()));
    let (text, mut kallsyms) = Kallsyms::read();
    let mut log = Log::from_here();
    stand_by(&mut channel, &mut log, &mut kallsyms, &booted, text)?;
    loop {
        // From a snapshot these are other jobs than before.
        let jobs = channel.jobs();
        for job in &jobs.map_err(|error| internal(format!("cannot read the jobs: {error}")))? {
            let (answer, attachment) = do_job(job, &channel, &mut kallsyms)
                .unwrap_or_else(|failure| (Answer::Failed(failure), Vec::new()));
            match unless_warned(&mut log, answer) {
                answer @ (Answer::Installed(_) | Answer::Placed) => {
                    stand_by(&mut channel, &mut log, &mut kallsyms, &answer, attachment)?;
                }
                answer => channel.answer(&answer, &attachment),
            }
        }
    }
}

/// Answers from a child, which makes the operations of a load if the host has it do that next, and ends otherwise.
///
/// A snapshot is taken where the child answers. So a run that is restored from there starts no process and waits for none: to
/// translate the kernel's code for that would take QEMU longer than the operations do.
fn stand_by(
    channel: &mut Channel,
    log: &mut Log,
    kallsyms: &mut Kallsyms,
    answer: &Answer,
    attachment: Vec<u8>,
) -> Result<(), Failure> {
    // SAFETY: the first process has one thread, so that the child may do all that it could.
    match unsafe { fork() }.map_err(of_child)? {
        ForkResult::Parent { child } => waitpid(child, None).map(drop).map_err(of_child),
        ForkResult::Child => {
            kallsyms.close();
            own_memory().map_err(of_child)?;
            channel.answer(answer, &attachment);
            // With a driver and without it the load finds the same memory: what is copied or mapped takes instructions.
            drop(attachment);
            if let Ok([Job::Count(runs, program, first)]) = channel.jobs().as_deref() {
                let ancestors = runs.iter().map(|run| run.dimensions.ancestors).max();
                let descended = descend(ancestors.unwrap_or(0)).map_err(of_child);
                let loads = descended.and_then(|()| match program {
                    Some(program) => program::repeat(runs, program, channel),
                    None => {
                        let first = first.saturating_sub(THREE_DIGITS);
                        runs.iter().take(first).map(load::count).collect()
                    }
                });
                let answer = loads.map_or_else(Answer::Failed, Answer::Counted);
                channel.answer(&unless_warned(log, answer), &[]);
            }
            std::process::exit(0)
        }
    }
}

fn of_child(errno: Errno) -> Failure {
    internal(format!("the process of the load: {}", errno.desc()))
}

/// Copies the pages that are shared with the first process since fork(2), as mlock(2) writes to each: how many a load would be the
/// first to write to depends on where the heap has room, and that on the length of a build's symbols.
fn own_memory() -> nix::Result<()> {
    mlockall(MlockAllFlags::MCL_CURRENT)?;
    munlockall()
}

/// Goes on in a descendant of so many generations; each process before it waits for the next.
fn descend(generations: u32) -> nix::Result<()> {
    for _ in 0..generations {
        // SAFETY: this process has one thread, so that the child may do all that it could.
        if let ForkResult::Parent { child } = unsafe { fork() }? {
            waitpid(child, None)?;
            std::process::exit(0)
        }
    }
    Ok(())
}

fn do_job(
    job: &Job,
    channel: &Channel,
    kallsyms: &mut Kallsyms,
) -> Result<(Answer, Vec<u8>), Failure> {
    match job {
        Job::Install(install) => install::install(install, channel, kallsyms),
        Job::Place(number) => install::place(*number).map(|()| (Answer::Placed, Vec::new())),
        Job::Count(..) => Err(internal("the process that makes the load's operations has ended")),
        Job::Measure { install, run } => {
            install::install(install, channel, kallsyms)?;
            let module = install.modules.last().map_or("", |module| &module.name);
            let recording = measure(module, run)?;
            install::remove(module)?;
            Ok((Answer::Measured, recording))
        }
    }
}

/// Warms up, then measures; returns the recording.
fn measure(name: &str, spec: &RunSpec) -> Result<Vec<u8>, Failure> {
    let warmup = RunSpec { length: spec.length.part(load::WARMUP_PART), ..spec.clone() };
    Run::prepare(&run_args(name, &warmup))?.measure(&mut Progress::new(true))?.end?;
    let mut measured = Run::prepare(&run_args(name, spec))?.measure(&mut Progress::new(true))?;
    measured.end?;
    let Some(mut recording) = measured.recordings.pop() else {
        return Err(internal("the run made no recording"));
    };
    if recording.modules.is_empty() {
        recording.modules = vec![module::collect(name)?];
    }
    Ok(recording.to_json())
}

/// What is measured, as `profiler run` would.
pub fn run_args(module: &str, spec: &RunSpec) -> RunArgs {
    let duration = match spec.length {
        Length::Operations(_) => None,
        Length::Time(time) => Some(time),
    };
    RunArgs {
        module: Some(module.to_owned()),
        handlers: spec.handlers.clone(),
        clock: spec.clock,
        builtin: Some(spec.loads.clone()),
        workers: Some(spec.workers),
        backend: spec.backend,
        rate: spec.rate,
        operations: spec.length.operations(),
        duration,
        ..RunArgs::default()
    }
}

/// The answer, unless the kernel has reported a fault since the last one: then the first lines of the report.
fn unless_warned(log: &mut Log, answer: Answer) -> Answer {
    let trouble = Trouble::find(log.lines().iter().map(String::as_str), is_fault);
    match (trouble, answer) {
        (_, Answer::Failed(failure)) => Answer::Failed(failure),
        (Some(mut trouble), _) => {
            trouble.lines.truncate(REPORT_LINES);
            Answer::Warned(trouble.lines)
        }
        (None, answer) => answer,
    }
}

fn internal(what: impl Into<String>) -> Failure {
    Failure::new(exit::INTERNAL, what)
}
