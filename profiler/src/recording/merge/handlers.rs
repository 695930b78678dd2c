//! Sums of handlers: counts, durations and losses, exactly.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::super::unlike::{Difference, What};
use super::super::{HandlerRecording, HistogramLayout, Recording, way};
use super::{checked, checked_calls};
use crate::error::{Failure, exit};
use crate::recording::check::MAX_COUNTERS_IN_ALL;

/// The handlers of all sources, by module and name. What they take in memory is explained by the size of their files,
/// whatever layouts these declare.
#[derive(Debug, Default)]
pub(super) struct Handlers(BTreeMap<(Option<String>, String), HandlerRecording>);

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

    /// Adds those of one source.
    pub(super) fn add(&mut self, handlers: Vec<HandlerRecording>) -> Result<(), String> {
        for more in handlers {
            match self.0.entry(key(&more)) {
                Entry::Vacant(entry) => drop(entry.insert(more)),
                Entry::Occupied(mut sum) => add(sum.get_mut(), more)?,
            }
        }
        Ok(())
    }

    /// The sums, by module and name, of histograms of `layout`.
    pub(super) fn finish(self, layout: &HistogramLayout) -> Result<Vec<HandlerRecording>, Failure> {
        if layout.counters().saturating_mul(self.0.len() as u64) > MAX_COUNTERS_IN_ALL {
            let text = format!(
                "the sum would have {} handlers, more than are read at its precision: merge recordings of fewer modules, or \
                 measure with fewer digits",
                self.0.len()
            );
            return Err(Failure::new(exit::BAD_INPUT, text));
        }
        Ok(self.0.into_values().collect())
    }
}

fn add(sum: &mut HandlerRecording, more: HandlerRecording) -> Result<(), String> {
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
        ordering,
        losses,
        histogram,
    } = more;
    // By a glob in all of them.
    sum.by_glob &= by_glob;
    sum.count = checked_calls(sum.count, count, &format!("the number of calls of {name}"))?;
    sum.sum_ns = checked(sum.sum_ns, sum_ns, &format!("the sum of durations of {name}"))?;
    sum.min_ns = sum.min_ns.into_iter().chain(min_ns).min();
    sum.max_ns = sum.max_ns.max(max_ns);
    let what = format!("the instructions of {name}");
    sum.own_instructions = both(sum.own_instructions, own_instructions, &what)?;
    sum.repeated = both(sum.repeated, repeated, &what)?;
    sum.ordering = both(sum.ordering, ordering, &what)?;
    let losses = sum.losses.checked_add(&losses);
    sum.losses = losses.ok_or_else(|| format!("the losses of {name}"))?;
    sum.histogram.add(histogram.buckets);
    Ok(())
}

/// The sum of two figures; `None` unless both are known.
fn both(known: Option<u64>, more: Option<u64>, what: &str) -> Result<Option<u64>, String> {
    known.zip(more).map(|(known, more)| checked(known, more, what)).transpose()
}

fn key(handler: &HandlerRecording) -> (Option<String>, String) {
    (handler.module.clone(), handler.name.clone())
}
