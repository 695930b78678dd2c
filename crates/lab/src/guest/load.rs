//! Loads whose operations the emulator counts.

use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

use profiler_base::emulator::Counting;
use profiler_base::error::{Failure, exit};
use profiler_base::stop::StopSignal;
use profiler_load::builtin::Remover;
use profiler_load::{
    BuiltinKind, BuiltinLoad, LoadOutcome, LoadRun, LoadSpec, LoadUser, ProfilerProgram,
};

use super::load_module;
use crate::plan::RunSpec;

/// The program in the guest, and one that does nothing: what a large one does before it ends would take most of an `execve`'s
/// operation, and vary with the memory that is free.
const PROGRAM: &str = "/init";
const NOTHING: &str = "/bin/true";

/// Operations that warm up, as a part of those that are counted.
pub(super) const WARMUP_PART: u32 = 10;

/// Makes the operations of the loads side by side, first a part of them to warm up. This process may not become root again.
///
/// # Errors
/// If it cannot become another user. A load that fails says so itself.
pub(super) fn count(spec: &RunSpec) -> Result<Vec<LoadRun>, Failure> {
    let user = LoadUser::nobody();
    let needs_root = spec.loads.iter().any(|kind| kind.needs_root());
    if !needs_root && Uid::effective().is_root() {
        setgroups(&[])
            .and_then(|()| setgid(Gid::from_raw(user.gid)))
            .and_then(|()| setuid(Uid::from_raw(user.uid)))
            .map_err(|errno| {
                let text = format!("cannot become {}: {}", user.name, errno.desc());
                Failure::new(exit::LOAD_FAILED, text)
            })?;
    }
    side_by_side(spec, spec.length.part(WARMUP_PART).operations());
    let operations = spec.length.operations();
    let counting = Counting::begin();
    let outcomes = side_by_side(spec, operations);
    drop(counting);
    let runs = spec.loads.iter().zip(outcomes).map(|(kind, outcome)| {
        let mut of_load = load(spec, operations, *kind).describe();
        if let LoadSpec::Builtin { user: as_user, .. } = &mut of_load {
            *as_user = (!needs_root).then(|| user.name.clone());
        }
        LoadRun { spec: of_load, outcome }
    });
    Ok(runs.collect())
}

fn load(spec: &RunSpec, operations: Option<u64>, kind: BuiltinKind) -> BuiltinLoad {
    let program = if kind == BuiltinKind::Execve { NOTHING } else { PROGRAM };
    BuiltinLoad {
        workers: spec.workers,
        rate: spec.rate,
        dimensions: spec.dimensions,
        operations,
        profiler: ProfilerProgram::at(program),
        module: load_module::file(),
        remover: Remover::Nothing,
        ..BuiltinLoad::new(kind)
    }
}

/// Runs all loads; one alone in this thread, so that no other wakes up meanwhile.
fn side_by_side(spec: &RunSpec, operations: Option<u64>) -> Vec<LoadOutcome> {
    let stop = StopSignal::new();
    let run = |kind: &BuiltinKind| load(spec, operations, *kind).run(&stop);
    match spec.loads.as_slice() {
        [kind] => vec![run(kind)],
        kinds => std::thread::scope(|scope| {
            let threads: Vec<_> = kinds.iter().map(|kind| scope.spawn(|| run(kind))).collect();
            // A panic ends this process, as in one thread.
            let outcomes = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            outcomes.collect()
        }),
    }
}
