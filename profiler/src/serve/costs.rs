//! What a hit costs on this machine, by backend.

use std::collections::BTreeMap;

use tracing::{info, warn};

use crate::probe::{self, Precision, hit_cost};
use crate::profile::Backend;

/// Costs that were measured so far.
#[derive(Debug, Default)]
pub(super) struct Costs(BTreeMap<Backend, Option<f64>>);

impl Costs {
    /// What a hit costs by the dearest of these backends, in nanoseconds of CPU time; `None` if one could not be measured.
    pub(super) fn dearest(
        &mut self,
        backends: impl Iterator<Item = Backend>,
        precision: Precision,
    ) -> Option<f64> {
        let mut dearest = Some(0.0_f64);
        for backend in backends {
            let cost = *self.0.entry(backend).or_insert_with(|| measure(backend, precision));
            dearest = dearest.zip(cost).map(|(dearest, cost)| dearest.max(cost));
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
                "what a hit costs by {backend} is not known, so its handlers have no budget: {error}"
            );
            None
        }
    }
}
