//! The time that operations take, to compare them with and without a probe or driver.

use super::BuiltinLoad;
use crate::load::run::Load as _;
use crate::load::sandbox::ProfilerProgram;
use crate::recording::loads::{BuiltinKind, LoadFailure, LoadOutcome, LoadStatus};
use crate::stop::StopSignal;

/// Makes `operations` on `workers` threads, as fast as they go. Returns the time from the start of the
/// first to the end of the last, in nanoseconds.
///
/// # Errors
/// If the load fails, or any operation does: one that fails early would take less time.
pub async fn time_builtin(
    kind: BuiltinKind,
    operations: u64,
    workers: u32,
) -> Result<u64, LoadFailure> {
    let load = BuiltinLoad::new(kind).operations(Some(operations)).workers(workers);
    let outcome = Box::new(load).run(StopSignal::new()).await;
    whole(&outcome)?;
    Ok(outcome.elapsed_ns)
}

/// Makes `operations` in this process, which must do nothing else meanwhile. Returns the CPU time of this
/// process and its children, in nanoseconds, without waiting.
///
/// # Errors
/// As [`time_builtin`]; also if the kernel does not report the CPU time.
pub fn cpu_time_of_builtin(
    kind: BuiltinKind,
    operations: u64,
    workers: u32,
    profiler: ProfilerProgram,
) -> Result<u64, LoadFailure> {
    let load =
        BuiltinLoad::new(kind).operations(Some(operations)).workers(workers).profiler(profiler);
    let outcome = load.run_alone(&StopSignal::new());
    whole(&outcome)?;
    let cpu = outcome.cpu.ok_or_else(|| LoadFailure::BrokeOff {
        text: "the kernel does not report the CPU time of the load (getrusage)".to_owned(),
    })?;
    Ok(cpu.user_ns.saturating_add(cpu.system_ns))
}

/// Fails unless all operations were made and succeeded.
fn whole(outcome: &LoadOutcome) -> Result<(), LoadFailure> {
    match &outcome.status {
        LoadStatus::Completed if outcome.errors.is_empty() => Ok(()),
        LoadStatus::Failed(failure) => Err(failure.clone()),
        LoadStatus::Completed | LoadStatus::Stopped { .. } => {
            let first = outcome.errors.first().map(|error| error.first.as_str());
            let text = format!("operations of the load failed: {}", first.unwrap_or("unknown"));
            Err(LoadFailure::BrokeOff { text })
        }
    }
}
