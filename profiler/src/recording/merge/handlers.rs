//! Sums of handlers: counts, durations and losses, exactly.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::super::unlike::{Difference, What};
use super::super::{
    EncodeError, HandlerRecording, HistogramLayout, Recording, SelfTimeRecording, way,
};
use super::durations::Stored;
use super::{TooLarge, checked};
use crate::kernel::target::Target;
use crate::recording::measure::{HandlerMeasure, Losses, SelfTime};
use crate::stats::Durations;

/// The handlers of all sources, by module and name.
#[derive(Debug, Default)]
pub(super) struct Handlers(BTreeMap<(Option<String>, String), HandlerMeasure>);

impl Handlers {
    /// A handler of `recording` that was measured in another way before.
    pub(super) fn other_backend(&self, recording: &Recording) -> Option<Difference> {
        recording.handlers.iter().find_map(|handler| {
            let known = self.0.get(&key(handler))?;
            (known.backend != handler.backend)
                .then(|| Difference {
                    what: What::Backend,
                    first: format!("{} by {}", handler.name, way(known.backend)),
                    second: format!("{} by {}", handler.name, way(handler.backend)),
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

    /// Adds those of `recording`.
    pub(super) fn add(&mut self, recording: &mut Recording) -> Result<(), TooLarge> {
        for more in recording.handlers.drain(..) {
            let sum = match self.0.entry(key(&more)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let empty = Durations::new(recording.histogram.empty().map_err(TooLarge)?);
                    let (module, name) = entry.key().clone();
                    let self_time = more
                        .self_time
                        .is_some()
                        .then(|| SelfTime { durations: empty.clone(), probes_ns: 0 });
                    entry.insert(HandlerMeasure {
                        // By a glob in all of them.
                        target: Target { name, module, by_glob: true, ..Target::default() },
                        backend: more.backend,
                        durations: empty,
                        self_time,
                        losses: Losses::default(),
                    })
                }
            };
            // Taken apart by name, so that a new field cannot be forgotten here.
            let HandlerRecording {
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
            sum.target.by_glob &= by_glob;
            if let (Some(sum), Some(more)) = (&mut sum.self_time, self_time) {
                let SelfTimeRecording { sum_ns, min_ns, max_ns, probes_ns, histogram } = more;
                let what = format!("the time of probes within {name}");
                sum.probes_ns = checked(sum.probes_ns, probes_ns, &what)?;
                let stored = Stored { count, sum_ns, min_ns, max_ns, histogram: &histogram };
                stored.add_to(&mut sum.durations, &name)?;
            }
            sum.losses = sum
                .losses
                .checked_add(&losses)
                .ok_or_else(|| TooLarge(format!("the losses of {name}")))?;
            let stored = Stored { count, sum_ns, min_ns, max_ns, histogram: &histogram };
            stored.add_to(&mut sum.durations, &name)?;
        }
        Ok(())
    }

    /// The sums, by module and name.
    pub(super) fn finish(self) -> Result<Vec<HandlerRecording>, EncodeError> {
        self.0.values().map(HandlerRecording::from_measure).collect()
    }
}

impl HandlerRecording {
    /// Its durations, to add more of them to; `layout` is that of its recording.
    ///
    /// # Errors
    /// If they are not of that layout.
    pub(crate) fn durations(&self, layout: &HistogramLayout) -> Result<Durations, EncodeError> {
        let mut sum = Durations::new(layout.empty().map_err(EncodeError)?);
        let Self { count, sum_ns, min_ns, max_ns, ref histogram, .. } = *self;
        let stored = Stored { count, sum_ns, min_ns, max_ns, histogram };
        stored.add_to(&mut sum, &self.name).map_err(|TooLarge(what)| EncodeError(what))?;
        Ok(sum)
    }
}

fn key(handler: &HandlerRecording) -> (Option<String>, String) {
    (handler.module.clone(), handler.name.clone())
}
