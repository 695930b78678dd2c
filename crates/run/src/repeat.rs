//! All runs of one command: the parts of a load profile in turn, and that as often as asked for.

use profiler_base::progress::Progress;
use profiler_load::LoadStatus;
use profiler_recording::SeriesPosition;

use super::signals::{Signals, ended_by, was_ended};
use super::{Measured, Run, driver, verdict};
use crate::args::RunArgs;

/// Measures until all is done, or a signal, an error or a failed load ends it: what the runs before have
/// measured is not lost by it.
pub(super) fn all(run: &Run<'_>, signals: &mut Signals, progress: &mut Progress) -> Measured {
    let Run { args: RunArgs { repeat, max_loss, .. }, jobs, .. } = run;
    let (repeat, parts) = (*repeat, jobs.len());
    let mut all = Measured { recordings: Vec::new(), end: Ok(()) };
    let mut changed = Ok(());
    let runs = (1..=repeat).flat_map(|round| jobs.iter().enumerate().map(move |job| (round, job)));
    for (order, (round, (number, job))) in runs.enumerate() {
        // One that came while probes were taken off or put on. Before the first run it stays pending: the run
        // ends by it at once, with an empty report.
        if !all.recordings.is_empty()
            && let Some(caught) = run.runtime.block_on(signals.pending())
        {
            all.end = Err(ended_by(caught));
            break;
        }
        if repeat > 1 && number == 0 {
            progress.say(&format!("run {round} of {repeat}"));
        }
        let part = job.profile.as_ref().filter(|_| parts > 1).map(|profile| &profile.name);
        if let Some(name) = part {
            progress.say(&format!("part {} of {parts}: {name}", number + 1));
        }
        let (mut recording, error) = match run.one(job, signals, progress) {
            Ok(done) => done,
            Err(error) => {
                all.end = Err(error);
                break;
            }
        };
        if let Some((warning, error)) = driver::changed_between(&all.recordings, &recording) {
            recording.warnings.push(warning);
            changed = changed.and(Err(error));
        }
        if part.is_some() {
            let order = u32::try_from(order).unwrap_or(u32::MAX);
            recording.place = Some(SeriesPosition { boot: 0, order, part: part.cloned() });
        }
        let failed =
            recording.loads.iter().any(|run| matches!(run.outcome.status, LoadStatus::Failed(_)));
        if error.as_ref().is_some_and(was_ended) && repeat > 1 && !all.recordings.is_empty() {
            // Its window is shorter than the others', so no comparison would take them together.
            progress.say(&format!(
                "run {round} of {repeat} was cut short after {:.1} s and is left out",
                recording.window_ns as f64 / 1e9
            ));
        } else {
            all.recordings.push(recording);
        }
        all.end = error.map_or(Ok(()), Err);
        if all.end.is_err() || (failed && repeat > 1) {
            break;
        }
    }
    all.end = all.end.and(changed).and_then(|()| verdict::of(&all.recordings, *max_loss));
    all
}
