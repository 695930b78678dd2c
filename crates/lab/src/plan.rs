//! What is measured: builds, and runs of loads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use profiler_load::{BuiltinKind, Dimensions, Rate};
use profiler_recording::{Backend, Clock, Meter, Recording};
use profiler_verdict::{Side, called};

use super::agent::Agent;

/// A function whose calls were counted one by one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedHandler {
    /// As a recording names it.
    pub name: String,
    /// Module that holds it.
    pub module: Option<String>,
    /// Matched by a glob.
    pub by_glob: bool,
    /// Where it was loaded.
    pub address: u64,
}

/// What a run measures, under which load and for how long.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The guest's clock.
    pub clock: Clock,
    /// Whether the emulator counts, or probes measure.
    pub meter: Meter,
    /// The backend of all probes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Handlers, by name or glob.
    pub handlers: Vec<String>,
    /// Built-in loads that run side by side.
    pub loads: Vec<BuiltinKind>,
    /// Threads of each load.
    pub workers: u32,
    /// Operations per second of each load; `None`: as fast as possible.
    pub rate: Option<Rate>,
    /// What operations give handlers to walk over.
    #[serde(default, skip_serializing_if = "Dimensions::is_none")]
    pub dimensions: Dimensions,
    /// When it ends.
    pub length: Length,
}

impl RunSpec {
    /// All functions of a driver counted, under one thread of each load.
    pub fn counted(loads: Vec<BuiltinKind>, operations: u64) -> Self {
        Self {
            clock: Clock::Virtual,
            meter: Meter::Exact,
            handlers: vec!["*".to_owned()],
            loads,
            workers: 1,
            length: Length::Operations(operations),
            ..Self::default()
        }
    }
}

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
        called(baseline).any(|name| wanted.contains(stem(name)))
    }
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Length {
    /// After this many operations of each load.
    Operations(u64),
    /// After this time on the guest's clock.
    Time(Duration),
}

impl Default for Length {
    fn default() -> Self {
        Self::Operations(1)
    }
}

impl Length {
    /// The operations of each load, if they end it.
    pub(super) fn operations(self) -> Option<u64> {
        match self {
            Self::Operations(count) => Some(count),
            Self::Time(_) => None,
        }
    }

    /// A `part`-th of it, at least one operation or millisecond.
    pub fn part(self, part: u32) -> Self {
        match self {
            Self::Operations(count) => Self::Operations((count / u64::from(part)).max(1)),
            Self::Time(time) => Self::Time((time / part).max(Duration::from_millis(1))),
        }
    }
}

/// The sides of the runs of one boot where probes measure.
///
/// Two builds run as ABBA, `repeat` times, and as BAAB in every other boot: a steady drift within a boot and
/// peculiarities of its first run affect both equally.
pub fn sides(boot: u32, repeat: u32, two: bool) -> Vec<Side> {
    use Side::{Baseline as A, Candidate as B};
    if !two {
        return vec![A; repeat as usize];
    }
    let block = if boot.is_multiple_of(2) { [A, B, B, A] } else { [B, A, A, B] };
    block.repeat(repeat as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_builds_come_first_and_last_equally_often() {
        let text = |boot, repeat| -> String {
            let letter = |side: &Side| if *side == Side::Baseline { 'A' } else { 'B' };
            sides(boot, repeat, true).iter().map(letter).collect()
        };
        assert_eq!(text(0, 1), "ABBA");
        assert_eq!(text(1, 1), "BAAB");
        assert_eq!(text(2, 2), "ABBAABBA");
        assert_eq!(sides(1, 3, false), [Side::Baseline; 3]);
    }
}
