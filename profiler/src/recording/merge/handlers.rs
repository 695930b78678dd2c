//! Sums of handlers: counts, durations and losses, exactly.

use std::collections::BTreeMap;

use super::super::unlike::{Difference, What};
use super::super::{EncodeError, HandlerRecording, HistogramLayout, Recording, way};
use super::durations::{Stored, Sum};
use super::{MergeError, TooLarge, checked};
use crate::recording::Backend;
use crate::recording::check::MAX_COUNTERS_IN_ALL;
use crate::recording::measure::Losses;

/// The handlers of all sources, by module and name.
#[derive(Debug, Default)]
pub(super) struct Handlers(BTreeMap<(Option<String>, String), Handler>);

#[derive(Debug)]
struct Handler {
    by_glob: bool,
    backend: Option<Backend>,
    durations: Sum,
    own_instructions: Option<u64>,
    repeated: Option<u64>,
    losses: Losses,
}

impl Handlers {
    /// A handler of `recording` that was measured in another way before.
    pub(super) fn other_backend(&self, recording: &Recording) -> Option<Difference> {
        recording.handlers.iter().find_map(|handler| {
            let known = self.0.get(&key(handler))?;
            (known.backend != handler.backend).then(|| Difference {
                what: What::Backend,
                first: format!("{} by {}", handler.name, way(known.backend)),
                second: format!("{} by {}", handler.name, way(handler.backend)),
            })
        })
    }

    /// Adds those of `recording`.
    pub(super) fn add(&mut self, recording: &mut Recording) -> Result<(), TooLarge> {
        for more in recording.handlers.drain(..) {
            let sum = self.0.entry(key(&more)).or_insert_with(|| Handler {
                // By a glob in all of them.
                by_glob: true,
                backend: more.backend,
                durations: Sum::default(),
                own_instructions: Some(0),
                repeated: Some(0),
                losses: Losses::default(),
            });
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
                own_instructions,
                repeated,
                losses,
                histogram,
            } = more;
            sum.by_glob &= by_glob;
            sum.losses = sum
                .losses
                .checked_add(&losses)
                .ok_or_else(|| TooLarge(format!("the losses of {name}")))?;
            sum.own_instructions = both(sum.own_instructions, own_instructions, || {
                format!("the own instructions of {name}")
            })?;
            sum.repeated = both(sum.repeated, repeated, || format!("the iterations of {name}"))?;
            let stored = Stored { count, sum_ns, min_ns, max_ns, histogram: &histogram };
            sum.durations.add(&stored, &name)?;
        }
        Ok(())
    }

    /// The sums, by module and name, in `layout`.
    pub(super) fn finish(
        self,
        layout: &HistogramLayout,
    ) -> Result<Vec<HandlerRecording>, MergeError> {
        if layout.counters().saturating_mul(self.0.len() as u64) > MAX_COUNTERS_IN_ALL {
            return Err(MergeError::TooMany { handlers: self.0.len() });
        }
        // A day at five digits takes 31 MiB: one for all.
        let mut scratch = layout.empty().map_err(EncodeError)?;
        let mut encode = |sum: &Sum| sum.encode(&mut scratch);
        let finish = |((module, name), sum): ((Option<String>, String), Handler)| {
            let histogram = encode(&sum.durations)?;
            let Handler { by_glob, backend, own_instructions, repeated, losses, .. } = sum;
            let Sum { count, sum_ns, min_ns, max_ns, .. } = sum.durations;
            Ok(HandlerRecording {
                name,
                module,
                by_glob,
                backend,
                count,
                sum_ns,
                min_ns,
                max_ns,
                own_instructions,
                repeated,
                losses,
                histogram,
            })
        };
        self.0.into_iter().map(finish).collect()
    }
}

/// The sum of two figures; `None` unless both are known.
fn both(
    known: Option<u64>,
    more: Option<u64>,
    what: impl FnOnce() -> String,
) -> Result<Option<u64>, TooLarge> {
    known.zip(more).map(|(known, more)| checked(known, more, &what())).transpose()
}

fn key(handler: &HandlerRecording) -> (Option<String>, String) {
    (handler.module.clone(), handler.name.clone())
}
