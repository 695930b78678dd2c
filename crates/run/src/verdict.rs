//! Whether what was measured is what was asked for.

use std::collections::BTreeSet;

use profiler_base::error::{Failure, exit};
use profiler_load::LoadStatus;
use profiler_recording::Recording;

/// What is wrong with runs that have come to their end, the worst first; `max_loss` is in percent.
pub(super) fn of(recordings: &[Recording], max_loss: f64) -> Result<(), Failure> {
    for run in recordings.iter().flat_map(|recording| &recording.loads) {
        if let LoadStatus::Failed(failure) = &run.outcome.status {
            let text = format!("{failure}; the report covers what was measured");
            return Err(Failure::new(exit::LOAD_FAILED, text));
        }
    }
    let mut handlers = recordings.iter().flat_map(|recording| &recording.handlers).peekable();
    if handlers.peek().is_some() && handlers.all(|handler| handler.count == 0) {
        let text = "no handler had a single hit: the warnings above say why that may be";
        return Err(Failure::new(exit::NO_HITS, text));
    }
    let short = recordings.iter().flat_map(|recording| recording.short_of_hits());
    let short: BTreeSet<&str> = short.map(|(name, ..)| name).collect();
    if !short.is_empty() {
        let short = Vec::from_iter(short).join(", ");
        let text = format!("fewer hits than the load profile wants: {short}");
        return Err(Failure::new(exit::FEW_HITS, text));
    }
    let worst = recordings
        .iter()
        .flat_map(|recording| &recording.handlers)
        .map(|handler| (handler.losses.share(handler.count) * 100.0, handler))
        .filter(|(percent, _)| *percent > max_loss)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match worst {
        Some((percent, handler)) => {
            let text = format!(
                "{percent:.2} % of the calls of {} were not measured, and --max-loss is {max_loss} %: the report says \
                 what became of them and what to do",
                handler.name
            );
            Err(Failure::new(exit::LOSSES, text))
        }
        None => Ok(()),
    }
}
