//! The steps of one boot, in order.
//!
//! The host writes a [`Task`] as JSON, and the same program reads it in the guest.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load::{BuiltinKind, Rate};
use crate::recording::{Clock, Meter};
use crate::verdict::Side;

/// The task of a process in the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Task {
    /// All runs of a boot. The other tasks are processes that this one starts.
    Boot(Box<BootPlan>),
    /// One run on a module that is loaded, and the one before it.
    Measure(Box<Measurement>),
    /// Time the loads without probes.
    TimeLoads(CostPlan),
}

/// A module's file as the guest sees it, and how it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// The file.
    pub file: PathBuf,
    /// The file that the user gave, of which it is a copy.
    pub given: PathBuf,
    /// Name once it is loaded.
    pub name: String,
    /// Parameters, as insmod takes them.
    pub params: String,
}

/// One measurement of a module, with what loads and unloads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Which build.
    pub side: Side,
    /// Number of the run in this boot.
    pub order: u32,
    /// Index of the job that it does.
    pub job: usize,
    /// The module is loaded before it: the step before was the last of another load.
    pub loads: bool,
    /// The module is unloaded after it.
    pub unloads: bool,
    /// File for the recording.
    pub result: PathBuf,
    /// File for what the emulator counted, if it did.
    pub counts: PathBuf,
    /// File for the handlers that were counted.
    pub handlers: PathBuf,
    /// File for the costs, written before the recording, if they are measured.
    pub costs: PathBuf,
}

/// Files that the plugin in the emulator was given the names of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountingFiles {
    /// What is to be counted, and the kernel's symbols.
    pub symbols: PathBuf,
    /// What was counted; another ends in `.error`, with the reason why there is nothing.
    pub counts: PathBuf,
}

impl CountingFiles {
    /// What was counted of a job without the driver.
    #[must_use]
    pub fn without(&self, job: usize) -> PathBuf {
        self.counts.with_extension(format!("without-{job}"))
    }
}

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

/// All steps of one boot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BootPlan {
    /// Number of the boot, from 0.
    pub boot: u32,
    /// The build of [`Side::Baseline`].
    pub baseline: Build,
    /// The build of [`Side::Candidate`], if two are compared.
    pub candidate: Option<Build>,
    /// What is done one after another each time that a module is loaded; never empty.
    pub work: Vec<Job>,
    /// Loads whose operations are timed without the driver and with it, both without probes.
    pub cost: Option<CostPlan>,
    /// Files between the guest and the plugin in its emulator, if that counts.
    pub counting: Option<CountingFiles>,
    /// The runs, in order.
    pub steps: Vec<Step>,
    /// File for the guest's failure.
    pub failure: PathBuf,
}

/// A run, and the one before it that is discarded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its name where a module is measured under several loads: the `part` of its recordings' places.
    pub part: Option<String>,
    /// What it measures.
    pub run: RunSpec,
    /// The same for the run that warms up.
    pub warmup: RunSpec,
    /// Its operations are counted without the driver, too, before it is first loaded.
    pub cost: bool,
    /// Of the handlers that were counted those of which figures are wanted; `None`: all. Each takes time to store, and a
    /// driver calls a hundred functions of its own.
    #[serde(skip)]
    pub wanted: Option<Arc<BTreeSet<String>>>,
}

/// What a run measures, under which load and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The guest's clock.
    pub clock: Clock,
    /// Whether the emulator counts, or probes measure.
    pub meter: Meter,
    /// Handlers, by name or glob.
    pub handlers: Vec<String>,
    /// Built-in loads that run side by side.
    pub loads: Vec<BuiltinKind>,
    /// Threads of each load.
    pub workers: u32,
    /// Operations per second of each load; `None`: as fast as possible.
    pub rate: Option<Rate>,
    /// When it ends.
    pub length: Length,
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Length {
    /// After this many operations of each load.
    Operations(u64),
    /// After this time on the guest's clock.
    Time(Duration),
}

impl Length {
    /// A `part`-th of it, at least one operation or millisecond.
    #[must_use]
    pub fn part(self, part: u32) -> Self {
        match self {
            Self::Operations(count) => Self::Operations((count / u64::from(part)).max(1)),
            Self::Time(time) => Self::Time((time / part).max(Duration::from_millis(1))),
        }
    }
}

/// One run on one module, or without.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the module.
    pub module: Option<String>,
    /// What is measured.
    pub job: Job,
    /// The emulator counts, rather than probes.
    pub counting: bool,
}

/// Loads to time for the driver's cost per operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostPlan {
    /// Built-in loads, one after the other.
    pub loads: Vec<BuiltinKind>,
    /// Operations of each.
    pub operations: u64,
    /// Threads of each.
    pub workers: u32,
}

/// Why the guest failed, for the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFailure {
    /// Exit code of the program.
    pub code: u8,
    /// What happened.
    pub message: String,
    /// Number of the run that failed; `None` is before the first.
    pub order: Option<u32>,
}

impl BootPlan {
    /// The build of a side; the baseline if there is only one build.
    #[must_use]
    pub fn build(&self, side: Side) -> &Build {
        match (side, &self.candidate) {
            (Side::Candidate, Some(candidate)) => candidate,
            _ => &self.baseline,
        }
    }
}

/// The sides of the runs of one boot.
///
/// Two builds run as ABBA, `repeat` times, and as BAAB in every other boot: a steady drift within a boot and
/// peculiarities of its first run affect both equally.
#[must_use]
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
