//! One recording out of several: the exact sum of what was measured, over runs, shards and hosts.
//!
//! Merging is associative and commutative, to the byte: whatever the order and the grouping, equal
//! sources give equal files. So everything is either summed, or kept where all sources agree. Sums stop at
//! 2^64 - 1, and such a recording is refused.

mod facts;
mod loads;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use itertools::Itertools as _;
use serde_json::{Value, json};
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
    sum: Option<Sum>,
}

#[derive(Debug)]
struct Sum {
    /// The name of the first recording.
    first: String,
    /// All but handlers and sources. For comparisons it has the program and the snapshot of the first recording, and one source of each
    /// kernel and CPU.
    common: Recording,
    /// By module and name.
    handlers: BTreeMap<(Option<String>, String), HandlerRecording>,
    sources: Vec<Source>,
    /// Kernels and CPUs of the sources.
    machines: HashSet<(Option<String>, Option<String>)>,
    /// How a message names each source, by its digest.
    known: HashMap<String, String>,
}

impl<'a> Merge<'a> {
    /// An empty sum; recordings may differ in `allowed`.
    pub fn new(allowed: &'a [What]) -> Self {
        Self { allowed, sum: None }
    }

    /// Adds `recording`, which must agree with itself; `name` is its file's path, with `#N` for a run of several. After an error the sum is
    /// of no use any more.
    ///
    /// # Errors
    /// If it is unlike those before, or is in the sum already.
    pub fn add(&mut self, mut recording: Recording, name: &str) -> Result<(), Failure> {
        if let Some(sum) = &self.sum {
            sum.accepts(&recording, name, self.allowed)?;
        }
        if recording.sources.is_empty() {
            recording.sources.push(source(&recording, name));
        }
        let handlers = std::mem::take(&mut recording.handlers);
        let sources = std::mem::take(&mut recording.sources);
        strip(&mut recording);
        let sum = match &mut self.sum {
            Some(sum) => {
                add_common(&mut sum.common, recording);
                sum
            }
            None => self.sum.insert(Sum {
                first: name.to_owned(),
                common: recording,
                handlers: BTreeMap::new(),
                sources: Vec::new(),
                machines: HashSet::new(),
                known: HashMap::new(),
            }),
        };
        sum.add_handlers(handlers);
        sum.add_sources(sources, name)
    }

    /// The merged recording.
    ///
    /// # Errors
    /// If there is none, or it would be more than is read.
    pub fn finish(self) -> Result<Recording, Failure> {
        let Some(Sum { first, common, handlers, sources, .. }) = self.sum else {
            bail!(USAGE, "there is nothing to merge: name at least one recording");
        };
        let mut sum = Recording {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            tool: Tool::this(),
            snapshot: None,
            handlers: handlers.into_values().collect(),
            sources,
            ..common
        };
        loads::sort(&mut sum.loads);
        sum.modules.sort_by(|a, b| a.name.cmp(&b.name));
        sum.left_out.sort();
        sum.left_out.dedup();
        sum.sources.sort();
        sum.warnings.sort();
        sum.warnings.dedup();
        sum.warn();
        let is_read = sum.check().and_then(|()| has_room(&sum));
        is_read.map_err(|error| {
            let text = format!(
                "the sum of {first} and others would not be read: {error}: merge fewer recordings at a time, or those of fewer handlers"
            );
            Failure::new(exit::BAD_INPUT, text)
        })?;
        Ok(sum)
    }
}

impl Sum {
    /// Whether `recording` is of the same kind of run.
    fn accepts(&self, recording: &Recording, name: &str, allowed: &[What]) -> Result<(), Failure> {
        let mut found = differences(&self.common, recording, Use::Merge);
        found.retain(|it| !allowed.contains(&it.what) || NEVER.contains(&it.what));
        found.extend(self.other_backend(recording));
        if found.is_empty() {
            return Ok(());
        }
        bail!(
            NOT_COMPARABLE,
            "{} and {name} cannot be merged:\n  {}\nmeasure both alike{}",
            self.first,
            found.iter().format("\n  "),
            remedy(&found)
        )
    }

    /// A handler of `recording` that was measured in another way before.
    fn other_backend(&self, recording: &Recording) -> Option<Difference> {
        recording.handlers.iter().find_map(|handler| {
            let known = self.handlers.get(&key(handler))?;
            (known.backend != handler.backend).then(|| Difference {
                what: What::Backend,
                first: format!("{} by {}", handler.name, known.way()),
                second: format!("{} by {}", handler.name, handler.way()),
            })
        })
    }

    fn add_handlers(&mut self, handlers: Vec<HandlerRecording>) {
        for handler in handlers {
            match self.handlers.entry(key(&handler)) {
                Entry::Occupied(known) => add_handler(known.into_mut(), handler),
                Entry::Vacant(free) => {
                    free.insert(handler);
                }
            }
        }
    }

    /// Adds what the recording of this name is the sum of.
    fn add_sources(&mut self, sources: Vec<Source>, name: &str) -> Result<(), Failure> {
        for source in sources {
            // Of a part of a sum, the name that it was merged by.
            let path = if file_name(name) == source.name { name } else { &source.name };
            if let Some(first) = self.known.insert(source.sha256.clone(), path.to_owned()) {
                bail!(
                    NOT_COMPARABLE,
                    "{name} has a run that is in the sum already, as {first}: leave one of them out"
                );
            }
            let machine = (source.kernel_release.clone(), source.cpu_model.clone());
            if self.machines.insert(machine) {
                self.common.sources.push(source.clone());
            }
            self.sources.push(source);
        }
        Ok(())
    }
}

fn key(handler: &HandlerRecording) -> (Option<String>, String) {
    (handler.module.clone(), handler.name.clone())
}

/// Without folders, so that equal sums are equal wherever they were made.
fn file_name(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, name)| name)
}

/// Removes what no sum has, and no comparison needs.
fn strip(recording: &mut Recording) {
    // Those that follow from the figures will be made of the sum's.
    recording.warnings.retain(|warning| !warning.is_derived());
    // The sum may have other handlers.
    let tests = recording.loads.iter_mut().flat_map(|load| &mut load.outcome.tests);
    tests.for_each(|test| test.hits = None);
    recording.place = None;
    // What it wants is wanted of one run.
    recording.load_profile = None;
    // Averages of single runs: each stays with its run.
    recording.driver_costs.clear();
    recording.call_tree = None;
}

fn source(recording: &Recording, name: &str) -> Source {
    let digest = Sha256::digest(recording.to_json());
    Source {
        started: recording.started,
        sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        name: file_name(name).to_owned(),
        window_ns: recording.window_ns,
        calls: recording.calls(),
        kernel_release: recording.host.kernel_release.clone(),
        cpu_model: recording.host.cpu_model.clone(),
        boot_id: recording.host.boot_id.clone(),
    }
}

/// Adds all but handlers and sources.
fn add_common(sum: &mut Recording, more: Recording) {
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
    sum.left_out.extend(more.left_out);
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

/// Whether no figure stopped at the most that 64 bits hold.
fn has_room(sum: &Recording) -> Result<(), String> {
    let windows = [("window_ns", sum.window_ns.into()), ("warmup_ns", sum.warmup_ns.into())];
    let windows = windows.map(|(what, figure)| (what.to_owned(), figure));
    let handlers = sum.handlers.iter().map(|of| {
        let figures = json!([of.sum_ns, of.own_instructions, of.repeated, of.ordering, of.losses]);
        (format!("handler `{}`", of.name.escape_debug()), figures)
    });
    let loads = sum.loads.iter().map(|load| (load.spec.to_string(), json!(load.outcome)));
    let mut figures = windows.into_iter().chain(handlers).chain(loads);
    let full = figures.find(|(_, figures)| is_full(figures));
    full.map_or(Ok(()), |(what, _)| Err(format!("{what}: a figure is beyond 2^64")))
}

fn is_full(figures: &Value) -> bool {
    match figures {
        Value::Array(all) => all.iter().any(is_full),
        Value::Object(all) => all.values().any(is_full),
        figure => figure.as_u64() == Some(u64::MAX),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, HistogramLayout, Meter};

    /// Each comparison sorts what it is compared with: with all sources that would be quadratic.
    #[test]
    fn comparisons_are_with_one_source_of_a_kind() {
        let mut merge = Merge::new(&[]);
        for second in 0..50 {
            let started = jiff::Timestamp::from_second(second).unwrap();
            let layout = HistogramLayout::of_digits(3);
            let recording = Recording::new(started, Clock::Wall, Meter::Probes, layout);
            merge.add(Recording { window_ns: 1, ..recording }, "run.json").unwrap();
        }
        assert_eq!(merge.sum.as_ref().unwrap().common.sources.len(), 1);
        let mut sum = merge.finish().unwrap();
        assert_eq!(sum.sources.len(), 50);
        sum.sources.push(sum.sources[7].clone());
        assert_eq!(sum.check(), Err("sources: `run.json` is there twice".to_owned()));
    }
}
