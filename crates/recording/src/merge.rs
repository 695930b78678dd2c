//! One recording out of several: the exact sum of what was measured, over runs, shards and hosts.
//!
//! Merging is associative and commutative, to the byte: whatever the order and the grouping, equal
//! sources give equal files. So everything is either summed, or kept where all sources agree. Sums stop at
//! 2^64 - 1, which no count reaches.

mod facts;
mod loads;

use itertools::Itertools as _;
use sha2::{Digest as _, Sha256};

use profiler_base::error::{Failure, bail, exit};

use super::unlike::{Difference, Use, What, differences};
use super::{HandlerRecording, Recording, SCHEMA, Source, Tool, VERSION};

/// Differences that never merge, even if allowed: the sum would mean nothing or not be exact.
const NEVER: [What; 3] = [What::Clock, What::Backend, What::Precision];

fn remedy(differences: &[Difference]) -> String {
    if let Some(never) = differences.iter().find(|difference| NEVER.contains(&difference.what)) {
        return format!(" (recordings of different {} never add up)", never.what);
    }
    let whats = differences.iter().map(|difference| difference.what).format(",");
    format!(", or, if the difference does not matter, add --allow-different {whats}")
}

/// A sum under way.
#[derive(Debug)]
pub struct Merge<'a> {
    allowed: &'a [What],
    /// The name of the first recording, and the sum from it on.
    sum: Option<(String, Recording)>,
}

impl<'a> Merge<'a> {
    /// An empty sum; recordings may differ in `allowed`.
    pub fn new(allowed: &'a [What]) -> Self {
        Self { allowed, sum: None }
    }

    /// Adds `recording`, which must agree with itself; `name` is its file's path, with `#N` for a run of several.
    ///
    /// # Errors
    /// If it is unlike those before, or is in the sum already.
    pub fn add(&mut self, recording: Recording, name: &str) -> Result<(), Failure> {
        let recording = prepared(recording, name);
        let Some((first, sum)) = &mut self.sum else {
            self.sum = Some((name.to_owned(), recording));
            return Ok(());
        };
        let mut found = differences(sum, &recording, Use::Merge);
        found.retain(|it| NEVER.contains(&it.what) || !self.allowed.contains(&it.what));
        if !found.is_empty() {
            bail!(
                NOT_COMPARABLE,
                "{first} and {name} cannot be merged:\n  {}\nmeasure both alike{}",
                found.iter().format("\n  "),
                remedy(&found)
            );
        }
        let mut known = sum.sources.iter();
        let is_known = |it: &&Source| recording.sources.iter().any(|new| new.sha256 == it.sha256);
        if let Some(known) = known.find(is_known) {
            bail!(
                NOT_COMPARABLE,
                "{name} has a run that is in the sum already, as {}: leave one of them out",
                known.name
            );
        }
        add(sum, recording);
        Ok(())
    }

    /// The merged recording.
    ///
    /// # Errors
    /// If there is none, or it would be more than is read.
    pub fn finish(self) -> Result<Recording, Failure> {
        let Some((_, mut sum)) = self.sum else {
            bail!(USAGE, "there is nothing to merge: name at least one recording");
        };
        sum.handlers.sort_by(|a, b| (&a.module, &a.name).cmp(&(&b.module, &b.name)));
        loads::sort(&mut sum.loads);
        sum.modules.sort_by(|a, b| a.name.cmp(&b.name));
        sum.left_out.sort();
        sum.left_out.dedup();
        sum.sources.sort();
        sum.warnings.sort();
        sum.warnings.dedup();
        sum.warn();
        sum.check().map_err(|error| {
            let text = format!("the sum would not be read: {error}: merge fewer recordings");
            Failure::new(exit::BAD_INPUT, text)
        })?;
        Ok(sum)
    }
}

/// A recording with its sources, and without what no sum has.
fn prepared(mut recording: Recording, name: &str) -> Recording {
    if recording.sources.is_empty() {
        recording.sources.push(source(&recording, name));
    }
    // Those that follow from the figures will be made of the sum's.
    recording.warnings.retain(|warning| !warning.is_derived());
    // The sum may have other handlers.
    let tests = recording.loads.iter_mut().flat_map(|load| &mut load.outcome.tests);
    tests.for_each(|test| test.hits = None);
    Recording {
        schema: SCHEMA.to_owned(),
        version: VERSION,
        tool: Tool::this(),
        place: None,
        // What it wants is wanted of one run.
        load_profile: None,
        // Averages of single runs: each stays with its run.
        driver_costs: Vec::new(),
        snapshot: None,
        call_tree: None,
        ..recording
    }
}

fn source(recording: &Recording, name: &str) -> Source {
    let digest = Sha256::digest(recording.to_json());
    Source {
        started: recording.started,
        sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        // Without folders, so that equal sums are equal wherever they were made.
        name: name.rsplit_once('/').map_or(name, |(_, name)| name).to_owned(),
        window_ns: recording.window_ns,
        calls: recording.calls(),
        kernel_release: recording.host.kernel_release.clone(),
        cpu_model: recording.host.cpu_model.clone(),
        boot_id: recording.host.boot_id.clone(),
    }
}

/// Adds a recording that is prepared to one that is.
fn add(sum: &mut Recording, more: Recording) {
    facts::agree(&mut sum.imported, &more.imported);
    sum.started = sum.started.min(more.started);
    plus(&mut sum.window_ns, more.window_ns);
    plus(&mut sum.warmup_ns, more.warmup_ns);
    sum.interrupted |= more.interrupted;
    let (layout, of_more) = (&mut sum.histogram, more.histogram);
    layout.kernel_memory_bytes = layout.kernel_memory_bytes.max(of_more.kernel_memory_bytes);
    facts::agree(&mut layout.direct, &of_more.direct);
    facts::add_host(&mut sum.host, more.host);
    by_key(&mut sum.modules, more.modules, |a, b| a.name == b.name, facts::add_module);
    loads::add(&mut sum.loads, more.loads);
    let is_same =
        |a: &HandlerRecording, b: &HandlerRecording| a.name == b.name && a.module == b.module;
    by_key(&mut sum.handlers, more.handlers, is_same, add_handler);
    sum.left_out.extend(more.left_out);
    sum.sources.extend(more.sources);
    sum.warnings.extend(more.warnings);
}

fn add_handler(sum: &mut HandlerRecording, more: HandlerRecording) {
    // By a glob in all of them.
    sum.by_glob &= more.by_glob;
    plus(&mut sum.count, more.count);
    plus(&mut sum.sum_ns, more.sum_ns);
    sum.min_ns = least(sum.min_ns, more.min_ns);
    sum.max_ns = sum.max_ns.max(more.max_ns);
    sum.own_instructions = both(sum.own_instructions, more.own_instructions);
    sum.repeated = both(sum.repeated, more.repeated);
    sum.ordering = both(sum.ordering, more.ordering);
    sum.losses += more.losses;
    sum.histogram.add(more.histogram.buckets);
}

/// Adds each to that of the sum which is the same, or else behind the others.
fn by_key<T>(sum: &mut Vec<T>, more: Vec<T>, is_same: fn(&T, &T) -> bool, add: fn(&mut T, T)) {
    for each in more {
        match sum.iter_mut().find(|known| is_same(known, &each)) {
            Some(known) => add(known, each),
            None => sum.push(each),
        }
    }
}

/// Adds to a figure.
pub(super) fn plus(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// The sum of two figures; `None` unless both are known.
fn both(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a?.saturating_add(b?))
}

/// The lesser of two figures, or the one that is known.
pub(super) fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}
