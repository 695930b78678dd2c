//! Sums of handlers: counts, durations and losses, exactly.

use std::collections::BTreeMap;

use super::super::unlike::{Difference, What};
use super::super::{HandlerRecording, HistogramLayout, Recording, way};
use super::{both, checked, checked_calls};
use crate::check::MAX_COUNTERS_IN_ALL;
use profiler_base::error::{Failure, bail};

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
            let sum = match self.0.remove(&key(&more)) {
                Some(sum) => add(sum, more)?,
                None => more,
            };
            self.0.insert(key(&sum), sum);
        }
        Ok(())
    }

    /// The sums, by module and name, of histograms of `layout`.
    pub(super) fn finish(self, layout: &HistogramLayout) -> Result<Vec<HandlerRecording>, Failure> {
        if layout.counters().saturating_mul(self.0.len()) > MAX_COUNTERS_IN_ALL {
            bail!(
                BAD_INPUT,
                "the sum would have {} handlers, more than are read at its precision: merge recordings of fewer modules, or \
                 measure with fewer digits",
                self.0.len()
            );
        }
        Ok(self.0.into_values().collect())
    }
}

fn add(sum: HandlerRecording, more: HandlerRecording) -> Result<HandlerRecording, String> {
    let (name, mut histogram) = (sum.name, sum.histogram);
    histogram.add(more.histogram.buckets);
    let losses = sum.losses.checked_add(&more.losses);
    let what = format!("the instructions of {name}");
    Ok(HandlerRecording {
        module: sum.module,
        // By a glob in all of them.
        by_glob: sum.by_glob && more.by_glob,
        backend: sum.backend,
        count: checked_calls(sum.count, more.count, &format!("the number of calls of {name}"))?,
        sum_ns: checked(sum.sum_ns, more.sum_ns, &format!("the sum of durations of {name}"))?,
        min_ns: sum.min_ns.into_iter().chain(more.min_ns).min(),
        max_ns: sum.max_ns.max(more.max_ns),
        own_instructions: both(sum.own_instructions, more.own_instructions, &what)?,
        repeated: both(sum.repeated, more.repeated, &what)?,
        ordering: both(sum.ordering, more.ordering, &what)?,
        losses: losses.ok_or_else(|| format!("the losses of {name}"))?,
        histogram,
        name,
    })
}

fn key(handler: &HandlerRecording) -> (Option<String>, String) {
    (handler.module.clone(), handler.name.clone())
}
