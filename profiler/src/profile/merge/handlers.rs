//! Sums of handlers: counts, durations and losses, exactly.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::super::unlike::{Difference, What};
use super::super::{Backend, EncodeError, HandlerProfile, Profile, SelfTimeProfile};
use super::durations::{Durations, Stored};
use super::{TooLarge, checked};
use crate::profile::measure::Losses;

/// The handlers of all sources, by module and name.
#[derive(Debug, Default)]
pub(super) struct Handlers(BTreeMap<(Option<String>, String), Handler>);

#[derive(Debug)]
struct Handler {
    /// In all of them.
    by_glob: bool,
    backend: Backend,
    losses: Losses,
    durations: Durations,
    self_time: Option<SelfSum>,
}

/// Own time, where it is told.
#[derive(Debug)]
struct SelfSum {
    durations: Durations,
    probes_ns: u64,
}

impl SelfSum {
    fn add(&mut self, more: SelfTimeProfile, count: u64, of: &str) -> Result<(), TooLarge> {
        let SelfTimeProfile { sum_ns, min_ns, max_ns, probes_ns, histogram } = more;
        self.probes_ns =
            checked(self.probes_ns, probes_ns, &format!("the time of probes within {of}"))?;
        self.durations.add(&Stored { count, sum_ns, min_ns, max_ns, histogram }, of)
    }

    fn finish(self) -> Result<SelfTimeProfile, EncodeError> {
        let Self { durations, probes_ns } = self;
        let Stored { count: _, sum_ns, min_ns, max_ns, histogram } = durations.finish()?;
        Ok(SelfTimeProfile { sum_ns, min_ns, max_ns, probes_ns, histogram })
    }
}

impl Handlers {
    /// A handler of `profile` that was measured in another way before.
    pub(super) fn other_backend(&self, profile: &Profile) -> Option<Difference> {
        profile.handlers.iter().find_map(|handler| {
            let known = self.0.get(&key(handler))?;
            (known.backend != handler.backend)
                .then(|| Difference {
                    what: What::Backend,
                    first: format!("{} by {}", handler.name, known.backend),
                    second: format!("{} by {}", handler.name, handler.backend),
                })
                .or_else(|| {
                    let words =
                        |told| if told { "with --self-time" } else { "without --self-time" };
                    let (first, second) = (known.self_time.is_some(), handler.self_time.is_some());
                    (first != second).then(|| Difference {
                        what: What::Backend,
                        first: format!("{} {}", handler.name, words(first)),
                        second: format!("{} {}", handler.name, words(second)),
                    })
                })
        })
    }

    /// Adds those of `profile`.
    pub(super) fn add(&mut self, profile: &mut Profile) -> Result<(), TooLarge> {
        for more in profile.handlers.drain(..) {
            let sum = match self.0.entry(key(&more)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let empty = profile.histogram.empty().map_err(TooLarge)?;
                    let (backend, losses) = (more.backend, Losses::default());
                    let self_time = more.self_time.is_some().then(|| SelfSum {
                        durations: Durations::new(empty.clone()),
                        probes_ns: 0,
                    });
                    let durations = Durations::new(empty);
                    entry.insert(Handler { by_glob: true, backend, losses, durations, self_time })
                }
            };
            // Taken apart by name, so that a new field cannot be forgotten here.
            let HandlerProfile {
                name,
                module: _,
                by_glob,
                backend: _,
                count,
                sum_ns,
                min_ns,
                max_ns,
                self_time,
                losses,
                histogram,
            } = more;
            sum.by_glob &= by_glob;
            if let (Some(sum), Some(more)) = (&mut sum.self_time, self_time) {
                sum.add(more, count, &name)?;
            }
            sum.losses = add_losses(&sum.losses, &losses)
                .ok_or_else(|| TooLarge(format!("the losses of {name}")))?;
            sum.durations.add(&Stored { count, sum_ns, min_ns, max_ns, histogram }, &name)?;
        }
        Ok(())
    }

    /// The sums, by module and name.
    pub(super) fn finish(self) -> Result<Vec<HandlerProfile>, EncodeError> {
        let finish = |((module, name), sum): (_, Handler)| {
            let Handler { by_glob, backend, losses, durations, self_time } = sum;
            let Stored { count, sum_ns, min_ns, max_ns, histogram } = durations.finish()?;
            Ok(HandlerProfile {
                name,
                module,
                by_glob,
                backend,
                count,
                sum_ns,
                min_ns,
                max_ns,
                self_time: self_time.map(SelfSum::finish).transpose()?,
                losses,
                histogram,
            })
        };
        self.0.into_iter().map(finish).collect()
    }
}

fn key(handler: &HandlerProfile) -> (Option<String>, String) {
    (handler.module.clone(), handler.name.clone())
}

/// The sum of two accounts; `None` beyond 2^64 - 1.
fn add_losses(a: &Losses, b: &Losses) -> Option<Losses> {
    // Written out by name, so that a new field cannot be forgotten here.
    Some(Losses {
        carried_in: a.carried_in.checked_add(b.carried_in)?,
        entries: a.entries.checked_add(b.entries)?,
        exits: a.exits.checked_add(b.exits)?,
        in_flight: a.in_flight.checked_add(b.in_flight)?,
        lost: a.lost.checked_add(b.lost)?,
        unpaired_exits: a.unpaired_exits.checked_add(b.unpaired_exits)?,
        missed: a.missed.checked_add(b.missed)?,
        missed_unknown: a.missed_unknown || b.missed_unknown,
        overrun: a.overrun.checked_add(b.overrun)?,
        over_range: a.over_range.checked_add(b.over_range)?,
        doubtful: a.doubtful.checked_add(b.doubtful)?,
        backwards: a.backwards.checked_add(b.backwards)?,
    })
}
