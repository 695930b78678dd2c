//! Whether what was measured is what was asked for.

use super::Error;
use crate::load::LoadStatus;
use crate::recording::Recording;

/// What is wrong with runs that have come to their end, the worst first; `max_loss` is in percent.
pub(super) fn of(recordings: &[Recording], max_loss: f64) -> Result<(), Error> {
    for run in recordings.iter().flat_map(|recording| &recording.loads) {
        if let LoadStatus::Failed(failure) = &run.outcome.status {
            return Err(Error::LoadFailed(failure.to_string()));
        }
    }
    let mut handlers = recordings.iter().flat_map(|recording| &recording.handlers).peekable();
    if handlers.peek().is_some() && handlers.all(|handler| handler.count == 0) {
        return Err(Error::NoHits);
    }
    let mut short: Vec<&str> = Vec::new();
    for (name, ..) in recordings.iter().flat_map(|recording| recording.short_of_hits()) {
        if !short.contains(&name) {
            short.push(name);
        }
    }
    if !short.is_empty() {
        return Err(Error::FewHits(short.join(", ")));
    }
    let worst = recordings
        .iter()
        .flat_map(|recording| &recording.handlers)
        .map(|handler| (handler.losses.share(handler.count) * 100.0, handler))
        .filter(|(percent, _)| *percent > max_loss)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match worst {
        Some((percent, handler)) => {
            let handler = handler.name.clone();
            Err(Error::Losses { handler, percent, allowed: max_loss })
        }
        None => Ok(()),
    }
}
