//! All runs of one command: the parts of a load profile in turn, and that as often as asked for.

use super::jobs::Job;
use super::signals::Signals;
use super::{Bench, Done};
use crate::error::Failure;
use crate::load::LoadStatus;
use crate::probe::Probes;
use crate::profile::{Place, Profile};
use crate::progress::Progress;

/// What came of them.
pub(super) struct Measured {
    /// The runs, in order.
    pub(super) profiles: Vec<Profile>,
    /// Probes that are still on.
    pub(super) sessions: Vec<Probes>,
    /// The signal that ended it all, if one did: its exit code and name.
    pub(super) signal: Option<(u8, &'static str)>,
    /// The error that did.
    pub(super) failure: Option<Failure>,
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
    let mut all =
        Measured { profiles: Vec::new(), sessions: Vec::new(), signal: None, failure: None };
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
        let Done { mut profile, session, signal, failure } = done;
        if parts > 1 {
            let order = u32::try_from(order).unwrap_or(u32::MAX);
            profile.place = Some(Place { boot: 0, order, part: job.profile.clone() });
        }
        if parts > 1 || repeat > 1 {
            // Probes of one run would be a cost of the next.
            drop(session);
        } else {
            all.sessions.push(session);
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
        if all.signal.is_some() || all.failure.is_some() || (failed && repeat > 1) {
            break;
        }
    }
    all
}
