//! All runs of one command: the parts of a load profile in turn, and that as often as asked for.

use super::jobs::Job;
use super::signals::Signals;
use super::{Bench, Done, driver};
use crate::error::Failure;
use crate::load::LoadStatus;
use crate::profile::{Place, Profile};
use crate::progress::Progress;

/// What came of them.
pub(super) struct Measured {
    /// The runs, in order.
    pub(super) profiles: Vec<Profile>,
    /// The signal that ended it all, if one did: its exit code and name.
    pub(super) signal: Option<(u8, &'static str)>,
    /// The error that did.
    pub(super) failure: Option<Failure>,
    /// The driver was replaced or unloaded, during a run, which ended it all, or between two.
    pub(super) changed: Option<Failure>,
}

/// Measures until all is done, or a signal, an error or a failed load ends it: what the runs before have
/// measured is not lost by it.
pub(super) fn measure(
    bench: &mut Bench<'_>,
    jobs: &[Job],
    signals: &mut Signals,
    progress: &mut Progress,
) -> Measured {
    let (repeat, parts) = (bench.args.repeat, jobs.len());
    let mut all = Measured { profiles: Vec::new(), signal: None, failure: None, changed: None };
    let runs = (1..=repeat).flat_map(|round| jobs.iter().enumerate().map(move |job| (round, job)));
    for (order, (round, (number, job))) in runs.enumerate() {
        // One that came while probes were taken off or put on. Before the first run it stays pending: the run
        // ends by it at once, with what there is to tell.
        if !all.profiles.is_empty()
            && let Some(caught) = bench.runtime.block_on(signals.pending())
        {
            all.signal = Some(caught);
            break;
        }
        if repeat > 1 && number == 0 {
            progress.say(&format!("run {round} of {repeat}"));
        }
        if parts > 1 {
            let name = job.profile.as_deref().unwrap_or_default();
            progress.say(&format!("part {} of {parts}: {name}", number + 1));
        }
        let done = match bench.measure(job, signals, progress) {
            Ok(done) => done,
            Err(error) => {
                all.failure = Some(error);
                break;
            }
        };
        let Done { mut profile, signal, failure, replaced } = done;
        if let Some((warning, failure)) = driver::changed_between(&all.profiles, &profile) {
            profile.warnings.push(warning);
            all.changed.get_or_insert(failure);
        }
        let replaced = replaced.map(|failure| all.changed.insert(failure)).is_some();
        if parts > 1 {
            let order = u32::try_from(order).unwrap_or(u32::MAX);
            profile.place = Some(Place { boot: 0, order, part: job.profile.clone() });
        }
        let failed =
            profile.loads.iter().any(|run| matches!(run.outcome.status, LoadStatus::Failed(_)));
        let cut_short = signal.is_some() && repeat > 1 && !all.profiles.is_empty();
        if cut_short {
            // It is no repetition of the others, and no comparison would take them with it.
            progress.say(&format!(
                "run {round} of {repeat} was cut short after {:.1} s and is left out",
                profile.window_ns as f64 / 1e9
            ));
        } else {
            all.profiles.push(profile);
        }
        all.signal = signal;
        all.failure = failure;
        let failed = failed && repeat > 1;
        if all.signal.is_some() || all.failure.is_some() || failed || replaced {
            break;
        }
    }
    all
}
