//! The time that operations take, for comparisons with and without something.

use super::{
    BuiltinKind, BuiltinLoad, HelperProgram, Load, LoadFailure, LoadOutcome, LoadStatus, StopSignal,
};

/// Makes so many operations on so many workers, as fast as they go, and gives the time from the begin
/// of the first to the end of the last, in nanoseconds.
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

/// Makes so many operations in this process, which must do nothing else meanwhile, and gives the CPU time
/// that they took it and its children, in nanoseconds. Waiting is no CPU time.
///
/// # Errors
/// As [`time_builtin`]; and if the kernel does not tell the CPU time.
pub fn cpu_time_of_builtin(
    kind: BuiltinKind,
    operations: u64,
    workers: u32,
    helper: HelperProgram,
) -> Result<u64, LoadFailure> {
    let load = BuiltinLoad::new(kind).operations(Some(operations)).workers(workers).helper(helper);
    let outcome = load.run_alone(&StopSignal::new());
    whole(&outcome)?;
    let cpu = outcome.cpu.ok_or_else(|| LoadFailure::BrokeOff {
        text: "the kernel does not tell the CPU time of the load (getrusage)".to_owned(),
    })?;
    Ok(cpu.user_ns.saturating_add(cpu.system_ns))
}

/// Whether all operations were made and succeeded.
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
