//! Runs that guests make.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::agent::Agent;
use super::plan::RunSpec;
use profiler_recording::Recording;
use profiler_verdict as verdict;

/// A run. By default it is alone, with the driver, and its figures are all wanted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Job {
    /// Its name where a module is measured under several loads: the `part` of its recordings' places.
    pub part: Option<String>,
    /// What it measures.
    pub run: RunSpec,
    /// Its operations are counted without the driver, too.
    pub cost: bool,
    /// Number of the restored guest that it is counted in: jobs of one number follow each other there, as most operations take
    /// less time than QEMU takes to start and to translate the kernel's code.
    pub guest: u32,
    /// Of the handlers that were counted those of which figures are wanted; `None`: all. Each takes time to store, and a
    /// driver calls a hundred functions of its own.
    pub wanted: Option<Arc<BTreeSet<String>>>,
    /// What its operations are runs of, if not of its loads.
    pub program: Option<Agent>,
    /// The candidate's run is left out if the baseline's in the same guest calls none of these functions.
    pub only_if_called: Option<Arc<BTreeSet<String>>>,
    /// It comes last in its guest, which is ended before it: the others there run as if it were made, too.
    pub left_out: bool,
}

impl Job {
    /// Whether a baseline's run says that the candidate's is not left out. What the compiler has split off a function counts as that.
    pub(super) fn is_called_in(&self, baseline: &Recording) -> bool {
        fn stem(name: &str) -> &str {
            name.split(['.', '#']).next().unwrap_or(name)
        }
        let (Some(wanted), Some(_)) = (&self.only_if_called, &baseline.call_tree) else {
            return true;
        };
        let wanted: BTreeSet<&str> = wanted.iter().map(|name| stem(name)).collect();
        verdict::called(baseline).any(|name| wanted.contains(stem(name)))
    }
}
