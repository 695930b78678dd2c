//! Loads whose operations the emulator counts, in a process of their own.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::time::Duration;

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Gid, Uid, fork, pipe, setgid, setgroups, setuid};

use super::internal;
use crate::emulator::Counting;
use crate::error::{Failure, exit};
use crate::lab::plan::{Length, RunSpec};
use crate::load::{
    BuiltinKind, BuiltinLoad, Load as _, LoadFailure, LoadOutcome, LoadRun, LoadSpec, LoadStatus,
    LoadUser, ProfilerProgram,
};
use crate::stop::{StopReason, StopSignal};

/// The program in the guest.
const PROGRAM: &str = "/init";

/// Operations that warm up, as a part of those that are counted.
const WARMUP_PART: u32 = 10;

/// Makes the operations of the loads side by side, first a part of them to warm up.
pub(super) fn count(spec: &RunSpec) -> Result<Vec<LoadRun>, Failure> {
    let of_pipe = |what: &str| internal(format!("the process of the load: {what}"));
    let (reader, writer) = pipe().map_err(|errno| of_pipe(errno.desc()))?;
    // SAFETY: the guest's first process has one thread, so that the child may do all that it could.
    let child = match unsafe { fork() }.map_err(|errno| of_pipe(errno.desc()))? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            drop(reader);
            let text = serde_json::to_vec(&in_child(spec)).unwrap_or_default();
            let written = File::from(writer).write_all(&text);
            std::process::exit(i32::from(written.is_err()));
        }
    };
    drop(writer);
    let mut text = Vec::new();
    File::from(reader).read_to_end(&mut text).map_err(|error| of_pipe(&error.to_string()))?;
    let ended = waitpid(child, None).map_err(|errno| of_pipe(errno.desc()))?;
    let loads: Result<Vec<LoadRun>, String> = serde_json::from_slice(&text)
        .map_err(|error| of_pipe(&format!("it gave no outcome ({error}; {ended:?})")))?;
    let loads = loads.map_err(|text| Failure::new(exit::LOAD_FAILED, text))?;
    match loads.iter().find_map(|load| failure_of(&load.outcome)) {
        Some(failure) => Err(Failure::new(exit::LOAD_FAILED, failure.to_string())),
        None => Ok(loads),
    }
}

fn failure_of(outcome: &LoadOutcome) -> Option<&LoadFailure> {
    match &outcome.status {
        LoadStatus::Failed(failure) => Some(failure),
        _ => None,
    }
}

fn in_child(spec: &RunSpec) -> Result<Vec<LoadRun>, String> {
    let user = LoadUser::nobody();
    let needs_root = spec.loads.iter().any(|kind| kind.needs_root());
    if !needs_root && Uid::effective().is_root() {
        setgroups(&[])
            .and_then(|()| setgid(Gid::from_raw(user.gid)))
            .and_then(|()| setuid(Uid::from_raw(user.uid)))
            .map_err(|errno| format!("cannot become {}: {}", user.name, errno.desc()))?;
    }
    side_by_side(spec, spec.length.part(WARMUP_PART));
    let counting = Counting::begin();
    let outcomes = side_by_side(spec, spec.length);
    drop(counting);
    let with_spec = |(kind, outcome)| {
        let mut of_load = load(spec, spec.length, kind).describe();
        if let LoadSpec::Builtin { user: as_user, .. } = &mut of_load {
            *as_user = (!needs_root).then(|| user.name.clone());
        }
        LoadRun { spec: of_load, outcome }
    };
    Ok(spec.loads.iter().copied().zip(outcomes).map(with_spec).collect())
}

fn load(spec: &RunSpec, length: Length, kind: BuiltinKind) -> BuiltinLoad {
    let operations = match length {
        Length::Operations(count) => Some(count),
        Length::Time(_) => None,
    };
    BuiltinLoad::new(kind)
        .workers(spec.workers)
        .rate(spec.rate)
        .operations(operations)
        .profiler(ProfilerProgram::at(PROGRAM))
        .unattended()
}

/// Runs all loads; one alone in this thread, so that no other wakes up meanwhile.
fn side_by_side(spec: &RunSpec, length: Length) -> Vec<LoadOutcome> {
    let stop = StopSignal::new();
    if let Length::Time(time) = length {
        stop_after(stop.clone(), time);
    }
    let run = |kind: &BuiltinKind| load(spec, length, *kind).run_alone(&stop);
    match spec.loads.as_slice() {
        [kind] => vec![run(kind)],
        kinds => std::thread::scope(|scope| {
            let threads: Vec<_> = kinds.iter().map(|kind| scope.spawn(|| run(kind))).collect();
            let outcome = |thread: std::thread::ScopedJoinHandle<'_, LoadOutcome>| {
                thread.join().unwrap_or_else(|_| {
                    let text = "its thread panicked; this is a bug of the profiler".to_owned();
                    let failure = LoadStatus::Failed(LoadFailure::BrokeOff { text });
                    LoadOutcome::ended(failure, std::time::Instant::now())
                })
            };
            threads.into_iter().map(outcome).collect()
        }),
    }
}

fn stop_after(stop: StopSignal, time: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(time);
        stop.stop(StopReason::Duration);
    });
}
