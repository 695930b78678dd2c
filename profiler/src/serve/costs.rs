//! What a hit costs on this machine, by backend.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{info, warn};

use crate::probe::{self, Precision, hit_cost};
use crate::recording::Backend;

/// Costs that were measured so far.
#[derive(Debug, Default)]
pub(super) struct Costs(BTreeMap<Backend, f64>);

impl Costs {
    /// What a hit costs by the dearest of these backends, in nanoseconds of CPU time; `None` if none could be measured. One
    /// that could not is said, and tried again the next time; it does not free the others of the budget.
    pub(super) fn dearest(
        &mut self,
        backends: impl Iterator<Item = Backend>,
        precision: Precision,
    ) -> Option<f64> {
        let backends: BTreeSet<Backend> = backends.collect();
        let mut dearest: Option<f64> = None;
        for backend in backends {
            let known = self.0.get(&backend).copied();
            let Some(cost) = known.or_else(|| measure(backend, precision)) else { continue };
            self.0.insert(backend, cost);
            dearest = Some(dearest.map_or(cost, |dearest| dearest.max(cost)));
        }
        dearest
    }
}

fn measure(backend: Backend, precision: Precision) -> Option<f64> {
    let options = probe::Options { precision, keeper: true, ..probe::Options::default() };
    match hit_cost::measure(backend, options) {
        Ok(cost) => {
            info!("a hit costs {cost:.0} ns by {backend}");
            Some(cost)
        }
        Err(error) => {
            warn!(
                "what a hit costs by {backend} is not known, so a handler that it measures has no budget of its own: {error}"
            );
            None
        }
    }
}
