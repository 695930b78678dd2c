//! The time that operations take, for comparisons with and without something.

use super::{BuiltinKind, BuiltinLoad, Load, LoadFailure, LoadStatus, StopSignal};

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
    match outcome.status {
        LoadStatus::Completed if outcome.errors.is_empty() => Ok(outcome.elapsed_ns),
        LoadStatus::Failed(failure) => Err(failure),
        LoadStatus::Completed | LoadStatus::Stopped { .. } => {
            let first = outcome.errors.first().map(|error| error.first.as_str());
            let text = format!("operations of the load failed: {}", first.unwrap_or("unknown"));
            Err(LoadFailure::BrokeOff { text })
        }
    }
}
