//! The cost of a hit on this machine, by backend and precision: a histogram of three digits takes more of the caches.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{info, warn};

use profiler_probe::{self as probe, Precision, hit_cost};
use profiler_recording::Backend;

/// Costs that were measured so far.
#[derive(Debug, Default)]
pub(super) struct Costs(BTreeMap<(Backend, u8), f64>);

impl Costs {
    /// The cost of a hit by the dearest of these backends, in nanoseconds of CPU time; `None` if none could be measured. A
    /// failure is logged, and measured again the next time; the others are still held to the budget.
    pub(super) fn dearest(
        &mut self,
        backends: impl Iterator<Item = Backend>,
        precision: Precision,
    ) -> Option<f64> {
        let backends: BTreeSet<Backend> = backends.collect();
        let costs = backends.into_iter().filter_map(|backend| {
            let key = (backend, precision.digits());
            let cost = self.0.get(&key).copied().or_else(|| measure(backend, precision))?;
            self.0.insert(key, cost);
            Some(cost)
        });
        costs.reduce(f64::max)
    }

    /// Whether the cost of a hit is known for each of these backends.
    pub(super) fn are_known(
        &self,
        mut backends: impl Iterator<Item = Backend>,
        precision: Precision,
    ) -> bool {
        backends.all(|backend| self.0.contains_key(&(backend, precision.digits())))
    }
}

fn measure(backend: Backend, precision: Precision) -> Option<f64> {
    let options = probe::Options { precision, keeper: true, ..probe::Options::default() };
    match hit_cost::measure(backend, options) {
        Ok(cost) => {
            info!("a hit costs {cost:.0} ns by {backend}, with {} digits", precision.digits());
            Some(cost)
        }
        Err(error) => {
            warn!(
                "what a hit costs by {backend} is not known, so a handler that it measures has no budget of its own \
                 (profiler_budget_enforced is 0): {error}: name another backend in the configuration, or do without `max-overhead`"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_known_by_backend_and_precision() {
        let key = (Backend::Fentry, Precision::Two.digits());
        let mut costs = Costs(BTreeMap::from([(key, 120.0)]));
        let fentry = || [Backend::Fentry].into_iter();
        assert_eq!(costs.dearest(fentry(), Precision::Two), Some(120.0));
        assert!(costs.are_known(fentry(), Precision::Two));
        assert!(!costs.are_known(fentry(), Precision::Three));
        let both = [Backend::Fentry, Backend::Kprobe].into_iter();
        assert!(!costs.are_known(both, Precision::Two));
    }
}
