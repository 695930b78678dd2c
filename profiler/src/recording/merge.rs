//! One recording out of several: the exact sum of what was measured, over runs, shards and hosts.
//!
//! Merging is associative and commutative, to the byte: whatever the order and the grouping, equal
//! sources give equal files. So everything is either summed, or kept where all sources agree.

mod durations;
mod facts;
mod handlers;
mod loads;

use std::collections::HashMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::unlike::{Difference, Use, What, differences};
use super::warning::WarningRecord;
use super::{EncodeError, HistogramLayout, Recording, SCHEMA, Source, Tool, VERSION};
use handlers::Handlers;
use loads::Loads;

/// Why recordings cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// They are of different kinds of run.
    #[error(
        "{first} and {second} cannot be merged:\n  {}\nmeasure both alike{}",
        listed(differences),
        remedy(differences)
    )]
    Unlike {
        /// A recording.
        first: String,
        /// Another.
        second: String,
        /// In what they differ.
        differences: Vec<Difference>,
    },
    /// One source is there twice.
    #[error("{second} has a run that is in the sum already, as {first}: leave one of them out")]
    Twice {
        /// The name that it was counted under.
        first: String,
        /// The name that it was found under again.
        second: String,
    },
    /// More than the format holds.
    #[error("{name}: {what} would be more than 2^64 - 1: merge fewer recordings at a time")]
    Overflow {
        /// The recording that was too much.
        name: String,
        /// What became too large.
        what: String,
    },
    /// More histograms than a recording may have.
    #[error(
        "the sum would have {handlers} handlers, more than are read at its precision: merge recordings of fewer modules, \
         or measure with fewer digits"
    )]
    TooMany {
        /// Handlers of the sum.
        handlers: usize,
    },
    /// A histogram that cannot be stored.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// No recording at all.
    #[error("there is nothing to merge: name at least one recording")]
    Nothing,
}

/// A sum that is too large: of what.
#[derive(Debug)]
struct TooLarge(String);

/// What can never be merged, whatever is allowed: the sum would mean nothing, or could not be exact.
const NEVER: [What; 3] = [What::Clock, What::Backend, What::Precision];

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}

fn remedy(differences: &[Difference]) -> String {
    if let Some(never) = differences.iter().find(|difference| NEVER.contains(&difference.what)) {
        return format!(" (recordings of different {} never add up)", never.what);
    }
    let whats: Vec<&str> = differences.iter().map(|difference| difference.what.name()).collect();
    format!(", or, if the difference does not matter, add --allow-different {}", whats.join(","))
}

/// A sum under way.
#[derive(Debug)]
pub struct Merge<'a> {
    allowed: &'a [What],
    sum: Option<Sum>,
}

#[derive(Debug)]
struct Sum {
    /// The first recording without its handlers, which the others have to be like.
    like: Recording,
    like_name: String,
    common: Recording,
    handlers: Handlers,
    loads: Loads,
    sources: Vec<Source>,
    /// How a message names each, by its digest.
    paths: HashMap<String, String>,
    warnings: Vec<WarningRecord>,
}

impl<'a> Merge<'a> {
    /// A sum of nothing so far; recordings may differ in what is `allowed`.
    #[must_use]
    pub fn new(allowed: &'a [What]) -> Self {
        Self { allowed, sum: None }
    }

    /// Adds `recording`, which must agree with itself; `name` is its file's path, with `#N` for a run of several. After an error the sum is
    /// of no use any more.
    ///
    /// # Errors
    /// If it is unlike the first one, is in the sum already, or the sum is too large.
    pub fn add(&mut self, mut recording: Recording, name: &str) -> Result<(), MergeError> {
        let sources = sources(&recording, name);
        // Those that follow from the figures will be made of the sum's.
        let own = recording.warnings.iter().filter(|warning| !warning.is_derived());
        let warnings: Vec<WarningRecord> = own.cloned().collect();
        let too_large = |TooLarge(what)| MergeError::Overflow { name: name.to_owned(), what };
        let Some(sum) = &mut self.sum else {
            // Its sources say which machines it is of.
            let like =
                Recording { sources: recording.sources.clone(), ..stripped(recording.clone()) };
            let (mut handlers, mut loads) = (Handlers::default(), Loads::default());
            handlers.add(&mut recording).map_err(too_large)?;
            loads.add(std::mem::take(&mut recording.loads)).map_err(too_large)?;
            let (like_name, common) = (name.to_owned(), stripped(recording));
            let path = |source: &Source| (source.sha256.clone(), path_of(source, name));
            let paths = sources.iter().map(path).collect();
            let sum = Sum { like, like_name, common, handlers, loads, sources, paths, warnings };
            self.sum = Some(sum);
            return Ok(());
        };
        let mut found = differences(&sum.like, &recording, Use::Merge);
        found.retain(|d| NEVER.contains(&d.what) || !self.allowed.contains(&d.what));
        if let Some(difference) = sum.handlers.other_backend(&recording) {
            found.retain(|difference| difference.what != What::Backend);
            found.insert(0, difference);
        }
        if !found.is_empty() {
            return Err(MergeError::Unlike {
                first: sum.like_name.clone(),
                second: name.to_owned(),
                differences: found,
            });
        }
        for source in &sources {
            if let Some(first) = sum.paths.get(&source.sha256) {
                let (first, second) = (first.clone(), name.to_owned());
                return Err(MergeError::Twice { first, second });
            }
            sum.paths.insert(source.sha256.clone(), path_of(source, name));
        }
        sum.handlers.add(&mut recording).map_err(too_large)?;
        sum.loads.add(std::mem::take(&mut recording.loads)).map_err(too_large)?;
        sum.sources.extend(sources);
        sum.warnings.extend(warnings);
        add_common(&mut sum.common, recording).map_err(too_large)
    }

    /// The merged recording.
    ///
    /// # Errors
    /// If there is none, or a histogram cannot be stored.
    pub fn finish(self) -> Result<Recording, MergeError> {
        let Sum { mut common, handlers, loads, mut sources, mut warnings, .. } =
            self.sum.ok_or(MergeError::Nothing)?;
        sources.sort();
        warnings
            .sort_by(|a, b| (&a.code, &a.text, &a.handlers).cmp(&(&b.code, &b.text, &b.handlers)));
        warnings.dedup();
        common.handlers = handlers.finish(&common.histogram)?;
        common.loads = loads.finish()?;
        common.modules.sort_by(|a, b| a.name.cmp(&b.name));
        common.left_out.sort();
        common.left_out.dedup();
        common.sources = sources;
        common.warnings = warnings;
        common.warn();
        Ok(common)
    }
}

/// The file as it was given; of a part of a sum, the name that it was merged by.
fn path_of(source: &Source, given: &str) -> String {
    if file_name(given) == source.name { given.to_owned() } else { source.name.clone() }
}

/// Without folders, so that equal sums are equal wherever they were made.
fn file_name(given: &str) -> &str {
    given.rsplit_once('/').map_or(given, |(_, name)| name)
}

/// What a recording is the sum of: itself, unless it is merged.
fn sources(recording: &Recording, name: &str) -> Vec<Source> {
    if !recording.sources.is_empty() {
        return recording.sources.clone();
    }
    let mut sha256 = String::with_capacity(64);
    for byte in Sha256::digest(recording.to_json()) {
        // Writing to a String cannot fail.
        let _ = write!(sha256, "{byte:02x}");
    }
    vec![Source {
        started: recording.started,
        sha256,
        name: file_name(name).to_owned(),
        window_ns: recording.window_ns,
        calls: recording.calls(),
        kernel_release: recording.host.kernel_release.clone(),
        cpu_model: recording.host.cpu_model.clone(),
        boot_id: recording.host.boot_id.clone(),
    }]
}

/// A recording without what the sum keeps elsewhere, or not at all. Its handlers and loads are needed
/// by comparisons, without their histograms.
fn stripped(mut recording: Recording) -> Recording {
    recording.schema = SCHEMA.to_owned();
    recording.version = VERSION;
    recording.tool = Tool::this();
    recording.place = None;
    // What it wants is wanted of one run.
    recording.load_profile = None;
    // Averages of single runs: each stays with its run.
    recording.driver_costs.clear();
    recording.snapshot = None;
    // Samples of different times make no series.
    recording.costs = None;
    recording.intervals.clear();
    recording.call_tree = None;
    recording.sources.clear();
    recording.warnings.clear();
    for handler in &mut recording.handlers {
        handler.histogram.buckets.clear();
        handler.histogram.v2_deflate_base64.clear();
    }
    recording
}

/// Adds everything but handlers, loads, sources and warnings.
fn add_common(sum: &mut Recording, more: Recording) -> Result<(), TooLarge> {
    // Taken apart by name, so that a new field cannot be forgotten here.
    let Recording {
        schema: _,
        version: _,
        tool: _,
        imported,
        started,
        place: _,
        load_profile: _,
        clock: _,
        meter: _,
        window_ns,
        warmup_ns,
        interrupted,
        histogram: HistogramLayout { kernel_memory_bytes, direct, .. },
        host,
        modules,
        loads: _,
        handlers: _,
        left_out,
        driver_costs: _,
        costs: _,
        intervals: _,
        call_tree: _,
        snapshot: _,
        sources: _,
        warnings: _,
    } = more;
    sum.imported = sum.imported.take().filter(|of_sum| imported.as_ref() == Some(of_sum));
    sum.started = sum.started.min(started);
    sum.window_ns = checked(sum.window_ns, window_ns, "the length of the window")?;
    sum.warmup_ns = checked(sum.warmup_ns, warmup_ns, "the length of the warm-up")?;
    sum.interrupted |= interrupted;
    sum.left_out.extend(left_out);
    let most = &mut sum.histogram.kernel_memory_bytes;
    *most = (*most).max(kernel_memory_bytes);
    // Of runs that differ nothing is said.
    sum.histogram.direct = sum.histogram.direct.filter(|&of_sum| direct == Some(of_sum));
    facts::add_host(&mut sum.host, host);
    facts::add_modules(&mut sum.modules, modules);
    Ok(())
}

fn checked(a: u64, b: u64, what: &str) -> Result<u64, TooLarge> {
    a.checked_add(b).ok_or_else(|| TooLarge(what.to_owned()))
}
