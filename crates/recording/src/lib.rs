//! The one artefact: everything that a run measured, and on what.
//!
//! Reports, comparisons and gates read a [`Recording`] and nothing else. In a file it is JSON, laid
//! down in `profiler/schema/recording-v1.schema.json`. All durations are whole nanoseconds. Figures of handlers are in
//! the unit of the recording's `meter`, so the names of their fields have none. Counts and sums are integers up to 2^64 - 1: readers that turn JSON numbers into floating point lose digits
//! beyond 2^53.
//!
//! Within one version fields may be added and none changes its meaning; readers ignore fields
//! that they do not know.

mod backend;
pub mod call_tree;
mod check;
mod distribution;
pub mod json;
pub mod loads;
pub mod measure;
mod merge;
mod read;
mod series;
pub mod unlike;
pub mod warning;

use std::collections::HashSet;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use backend::{Backend, Clock, Meter};
pub use call_tree::CallTree;
pub use distribution::{Bucket, Distribution, HistogramLayout};
pub use merge::Merge;
pub use read::MAX_FILE_BYTES;
pub use series::{SERIES_SCHEMA, Series};

use loads::{BuiltinKind, LoadRun};
use measure::{HandlerMeasure, Losses};
use profiler_kernel::host::HostFacts;
use profiler_kernel::module::ModuleFacts;
use profiler_kernel::target::LeftOut;
use warning::{Warning, WarningRecord};

/// How recordings write a time: RFC 3339, in UTC.
const TIMESTAMP: &str = r"^-?\d{4,6}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z$";

/// What the field `schema` of every recording says.
pub const SCHEMA: &str = "profiler/recording";
/// Newest version of the formats that this program reads, and the one that it writes.
pub const VERSION: u32 = 1;

/// One run: what was measured, how, and on what machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recording {
    /// Always `profiler/recording`.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// Version of the format.
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The program that wrote this.
    pub tool: Tool,
    /// The text of another tracer that this was imported from, such as `trace-cmd report`; absent where this program
    /// measured. Its times are those since boot, as if that had been at the start of 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<String>,
    /// When the measured window began, in UTC.
    #[schemars(with = "String", extend("pattern" = TIMESTAMP))]
    pub started: jiff::Timestamp,
    /// Where among the runs of a [`Series`] this one stands; absent for a run on its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<SeriesPosition>,
    /// The load profile that handlers and load are of; absent where they were named one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_profile: Option<LoadProfileUsed>,
    /// What a nanosecond means here.
    pub clock: Clock,
    /// Unit of the handlers' figures and histograms: nanoseconds of that clock (`probes`, or absent), or instructions (`exact`).
    #[serde(default, skip_serializing_if = "Meter::is_probes")]
    pub meter: Meter,
    /// Length of the measured window, in nanoseconds of that clock.
    pub window_ns: u64,
    /// Time before the window in which the load ran and nothing was kept.
    pub warmup_ns: u64,
    /// Whether a signal ended the run before its time.
    pub interrupted: bool,
    /// Layout that all histograms share.
    pub histogram: HistogramLayout,
    /// The machine.
    pub host: HostFacts,
    /// The modules that hold the handlers; none if all are of the kernel image.
    pub modules: Vec<ModuleFacts>,
    /// The loads that ran side by side during warm-up and window.
    pub loads: Vec<LoadRun>,
    /// The handlers, in the order in which they were asked for.
    pub handlers: Vec<HandlerRecording>,
    /// Functions that a pattern matches and that were not measured, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// What the driver costs an operation of each load, where that was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub driver_costs: Vec<DriverCost>,
    /// What the handlers called, where instructions were counted from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_tree: Option<CallTree>,
    /// Where an exact run began, and what it counted as a checksum; absent where probes measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// The recordings that this one is the sum of, by their start; empty for a run itself. The window
    /// of a merged recording is the sum of theirs, so that its rates are those of one run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    /// What a reader of the numbers has to know.
    pub warnings: Vec<WarningRecord>,
}

/// Where among the runs of a [`Series`] one stands. Runs of a baseline and of a candidate that have
/// the boot in common ran in turns on one machine, and pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesPosition {
    /// Number of the boot of the machine, from 0: all runs of one boot saw the same kernel layout. Where calls were counted, the
    /// number of the placement: builds are installed from one snapshot, each placement after another history.
    pub boot: u32,
    /// Number of the run within that boot, from 0, counting the runs of every series. Where calls were counted, 0 is the baseline
    /// and 1 the candidate.
    pub order: u32,
    /// What it was a run of, where a series is made of unlike parts: the name of a load profile, or of a load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
}

/// The snapshot that an exact run was restored from. A run of the same program, QEMU, build, placement and load counts the same
/// to the bit, on any machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// What the guest that had booted depends on: this program, the kernel, QEMU, memory and CPU, as SHA-256 in hexadecimal.
    pub base: String,
    /// Number of the placement: which history the guest had before the driver was installed.
    pub placement: u32,
    /// SHA-256 of all that was counted, in hexadecimal.
    pub counts_sha256: String,
    /// The program that ran beside the driver, with its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// One of the recordings that a merged one is the sum of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// When its window began.
    #[schemars(with = "String", extend("pattern" = TIMESTAMP))]
    pub started: jiff::Timestamp,
    /// SHA-256 of the recording as this program writes it, in hexadecimal: equal for
    /// a source that is there twice, and for no other.
    #[schemars(length(min = 64, max = 64))]
    pub sha256: String,
    /// Name of its file when it was merged, without folders; with the number of the run for one
    /// of a series.
    pub name: String,
    /// Length of its window.
    pub window_ns: u64,
    /// Calls in its histograms, over all handlers.
    pub calls: u64,
    /// Kernel release of its machine.
    pub kernel_release: Option<String>,
    /// CPU model of its machine.
    pub cpu_model: Option<String>,
    /// Id of the boot that it was measured in.
    pub boot_id: Option<String>,
}

/// The program that wrote a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    pub name: String,
    pub version: String,
}

impl Tool {
    /// This program.
    pub fn this() -> Self {
        Self { name: "profiler".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// The load profile of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoadProfileUsed {
    pub name: String,
    /// How many hits it wants of each handler, in the order of the recording's `handlers`; `null` where it
    /// wants none.
    pub least_hits: Vec<Option<u64>>,
}

/// What a loaded driver costs one operation of a built-in load: its handlers, and all that the
/// kernel does to call them. No probes were on.
///
/// It is what all system calls take while the load makes its operations, in any process: see docs/counting.md for what that
/// leaves out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DriverCost {
    /// The load, on its own, as fast as possible.
    pub load: BuiltinKind,
    /// Operations that were measured each time.
    pub operations: u64,
    /// Instructions of one operation without the driver, on average.
    #[serde(rename = "without_instructions")]
    pub without_ns: f64,
    /// The same with the driver loaded.
    #[serde(rename = "with_instructions")]
    pub with_ns: f64,
    /// Iterations of instructions that repeat (`rep`) in an operation with the driver, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<f64>,
    /// Instructions of the driver's functions and of what they called that ran outside of system calls, for each operation: in
    /// threads of the kernel, interrupts and faults of user space. They are not in the figure above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<f64>,
    /// Instructions of an operation with the driver that the driver's functions and what they call took, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<f64>,
    /// The operations with the driver that take most, by percentile; empty of fewer than 200.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tail: Vec<OperationPercentile>,
}

/// A percentile of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationPercentile {
    /// From 90 to 99.
    pub percent: u8,
    /// Of the instructions of whole operations.
    #[serde(flatten)]
    pub whole: Percentile,
    /// Of the instructions that the driver's functions and what they call took of each operation.
    pub within: Percentile,
}

/// Instructions at a percentile and beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Percentile {
    /// At the percentile.
    pub instructions: u64,
    /// Of the operation that is half a percent, or one, before it.
    pub before: u64,
    /// Of the operation that is as many behind it.
    pub behind: u64,
}

impl DriverCost {
    /// Instructions that the driver adds to one operation.
    pub fn added_ns(&self) -> f64 {
        self.with_ns - self.without_ns
    }
}

/// One handler's measurements over the whole window.
///
/// Its address is left out: it changes with every load of the module, and would undo the kernel's
/// address randomisation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HandlerRecording {
    /// Name of the function.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    /// Module that holds it; `null` is the kernel image.
    pub module: Option<String>,
    /// Whether only a pattern matches it; absent if it was named.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_glob: bool,
    /// How it was probed; absent where the emulator counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Exact number of durations in the histogram.
    pub count: u64,
    /// Exact sum of all durations.
    #[serde(rename = "sum")]
    pub sum_ns: u64,
    /// Exact shortest duration; `null` without a call.
    #[serde(rename = "min")]
    pub min_ns: Option<u64>,
    /// Exact longest duration; `null` without a call.
    #[serde(rename = "max")]
    pub max_ns: Option<u64>,
    /// Instructions of the function's own in all calls, without what it called; absent where instructions were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_instructions: Option<u64>,
    /// Iterations of instructions that repeat (`rep`) in all calls, with what they called; absent where instructions were not
    /// counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
    /// Of all instructions of all calls, with what they called, those that wait for others or have others wait: with `lock`, exchanges
    /// with memory, fences, and those that serialise; on arm64 exclusive and ordered accesses, atomic operations, and barriers. Absent
    /// where instructions were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering: Option<u64>,
    /// What was not measured, and why.
    pub losses: Losses,
    /// All durations, to the layout's precision.
    pub histogram: Distribution,
}

impl HandlerRecording {
    /// The stored form of what a session measured.
    pub fn from_measure(measure: &HandlerMeasure) -> Self {
        Self {
            name: measure.target.label(),
            module: measure.target.module.clone(),
            by_glob: measure.target.by_glob,
            backend: measure.backend,
            count: measure.durations.len(),
            sum_ns: measure.durations.sum_ns(),
            min_ns: measure.durations.min_ns(),
            max_ns: measure.durations.max_ns(),
            losses: measure.losses,
            histogram: Distribution::of(measure.durations.histogram()),
            ..Self::default()
        }
    }

    /// How it was measured, in a word: by a backend, or exactly.
    pub fn way(&self) -> String {
        self.backend.map_or(Meter::Exact.to_string(), |backend| backend.to_string())
    }

    /// Whether nothing at all was seen of it: no call, and none that was lost.
    pub fn is_idle(&self) -> bool {
        self.count == 0 && self.losses.is_idle()
    }

    /// Exact average in nanoseconds; `None` without a call.
    pub fn mean_ns(&self) -> Option<f64> {
        profiler_base::stats::mean(self.sum_ns, self.count)
    }

    /// Duration in nanoseconds that the share `quantile` (0 to 1) of the calls did not exceed:
    /// see [`profiler_base::stats::quantile`]. Never above the exact longest one; `None` without a call.
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        profiler_base::stats::quantile(&self.histogram.buckets, quantile, self.max_ns)
    }
}

/// Leaves out what is of a handler that is not `kept`.
fn retain<T>(of_handlers: &mut Vec<T>, kept: &[bool]) {
    let mut at = kept.iter();
    of_handlers.retain(|_| at.next().is_some_and(|kept| *kept));
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Recording {
    /// The name of its part of a session, if it has one.
    pub fn part(&self) -> Option<&str> {
        self.place.as_ref()?.part.as_deref()
    }

    /// A recording of this program in which nothing was measured yet; its window is to be set.
    pub fn new(
        started: jiff::Timestamp,
        clock: Clock,
        meter: Meter,
        histogram: HistogramLayout,
    ) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            tool: Tool::this(),
            started,
            clock,
            meter,
            histogram,
            ..Self::default()
        }
    }

    /// Adds the warnings that follow from the measurements themselves, after those in place.
    /// To be called once, when all other fields are filled in.
    pub fn warn(&mut self) {
        self.warnings.extend(Warning::of(self).into_iter().map(WarningRecord::from));
    }

    /// Handlers that have rows in reports. Those that a pattern found and that did nothing have none, but
    /// for one line together: see [`Self::without_a_hit`].
    pub fn shown(&self) -> impl Iterator<Item = &HandlerRecording> {
        self.handlers.iter().filter(|handler| !handler.by_glob || !handler.is_idle())
    }

    /// Handlers that a pattern found and that were not called.
    pub fn without_a_hit(&self) -> impl Iterator<Item = &HandlerRecording> {
        self.handlers.iter().filter(|handler| handler.by_glob && handler.is_idle())
    }

    /// Its loads in an order of their own: they run side by side, so that how they were given means nothing.
    pub fn loads_in_order(&self) -> Vec<&LoadRun> {
        self.loads.iter().sorted_by_cached_key(|load| load.spec.to_string()).collect()
    }

    /// Calls in the histograms of all handlers.
    pub fn calls(&self) -> u64 {
        self.handlers.iter().fold(0, |sum, handler| sum.saturating_add(handler.count))
    }

    /// Leaves out all handlers but those that `keep` is true of, with their hits, and the
    /// warnings that are about them alone.
    pub fn keep_handlers(&mut self, keep: impl Fn(&HandlerRecording) -> bool) {
        let kept: Vec<bool> = self.handlers.iter().map(keep).collect();
        retain(&mut self.handlers, &kept);
        self.load_profile.iter_mut().for_each(|used| retain(&mut used.least_hits, &kept));
        let tests = self.loads.iter_mut().flat_map(|load| &mut load.outcome.tests);
        tests.filter_map(|test| test.hits.as_mut()).for_each(|hits| retain(hits, &kept));
        let names: HashSet<&String> = self.handlers.iter().map(|handler| &handler.name).collect();
        self.warnings
            .retain(|w| w.handlers.is_empty() || w.handlers.iter().any(|n| names.contains(n)));
    }

    /// Handlers with fewer hits than the load profile wants: name, hits, and how many it wants.
    pub fn short_of_hits(&self) -> Vec<(&str, u64, u64)> {
        let Some(used) = &self.load_profile else { return Vec::new() };
        let short = self.handlers.iter().zip(&used.least_hits).filter_map(|(handler, least)| {
            let least = least.filter(|least| handler.count < *least)?;
            Some((handler.name.as_str(), handler.count, least))
        });
        short.collect()
    }

    /// The backends in use, in the order of the handlers, each once.
    pub fn backends(&self) -> Vec<Backend> {
        self.handlers.iter().filter_map(|handler| handler.backend).unique().collect()
    }
}
