//! One recording out of several: the exact sum of what was measured, over runs, shards and hosts.
//!
//! Merging is associative and commutative, to the byte: whatever the order and the grouping, equal
//! sources give equal files. So everything is either summed, or kept where all sources agree.

mod facts;
mod handlers;
mod loads;

use std::collections::{HashMap, HashSet};

use sha2::{Digest as _, Sha256};

use super::distribution::MAX_COUNT;
use super::unlike::{Difference, Use, What, differences};
use super::{HistogramLayout, Recording, SCHEMA, Source, Tool, VERSION};
use handlers::Handlers;
use profiler_base::error::{Failure, bail, exit};

/// Differences that never merge, even if allowed: the sum would mean nothing or not be exact.
const NEVER: [What; 3] = [What::Clock, What::Backend, What::Precision];

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
    /// Name of the first recording.
    first: String,
    /// All but handlers and sources; for comparisons it has one source for each kernel and CPU.
    common: Recording,
    handlers: Handlers,
    sources: Vec<Source>,
    /// Kernels and CPUs of the sources.
    machines: HashSet<(Option<String>, Option<String>)>,
    /// How a message names each source, by its digest.
    paths: HashMap<String, String>,
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
    /// If it is unlike those before, is in the sum already, or the sum is too large.
    pub fn add(&mut self, mut recording: Recording, name: &str) -> Result<(), Failure> {
        let sources = sources(&recording, name);
        // Those that follow from the figures will be made of the sum's.
        recording.warnings.retain(|warning| !warning.is_derived());
        if let Some(sum) = &self.sum {
            sum.accepts(&recording, name, self.allowed)?;
        }
        let handlers = std::mem::take(&mut recording.handlers);
        // The sum may have other handlers.
        let tests = recording.loads.iter_mut().flat_map(|load| &mut load.outcome.tests);
        tests.for_each(|test| test.hits = None);
        let sum = match &mut self.sum {
            Some(sum) => {
                let common = add_common(std::mem::take(&mut sum.common), recording);
                sum.common = common.map_err(|what| too_large(name, &what))?;
                sum
            }
            None => self.sum.insert(Sum {
                first: name.to_owned(),
                common: stripped(recording),
                handlers: Handlers::default(),
                sources: Vec::new(),
                machines: HashSet::new(),
                paths: HashMap::new(),
            }),
        };
        sum.handlers.add(handlers).map_err(|what| too_large(name, &what))?;
        for source in sources {
            let path = path_of(&source, name);
            if let Some(first) = sum.paths.insert(source.sha256.clone(), path) {
                bail!(
                    NOT_COMPARABLE,
                    "{name} has a run that is in the sum already, as {first}: leave one of them out"
                );
            }
            let machine = (source.kernel_release.clone(), source.cpu_model.clone());
            if sum.machines.insert(machine) {
                sum.common.sources.push(source.clone());
            }
            sum.sources.push(source);
        }
        Ok(())
    }

    /// The merged recording.
    ///
    /// # Errors
    /// If there is none, or it has too many handlers.
    pub fn finish(self) -> Result<Recording, Failure> {
        let Some(Sum { mut common, handlers, sources, .. }) = self.sum else {
            bail!(USAGE, "there is nothing to merge: name at least one recording");
        };
        common.handlers = handlers.finish(&common.histogram)?;
        common.sources = sources;
        loads::sort(&mut common.loads);
        common.modules.sort_by(|a, b| a.name.cmp(&b.name));
        common.left_out.sort();
        common.left_out.dedup();
        common.sources.sort();
        common.warnings.sort();
        common.warnings.dedup();
        common.warn();
        Ok(common)
    }
}

impl Sum {
    /// Whether `recording` is of the same kind of run.
    fn accepts(&self, recording: &Recording, name: &str, allowed: &[What]) -> Result<(), Failure> {
        let mut found = differences(&self.common, recording, Use::Merge);
        found.retain(|d| NEVER.contains(&d.what) || !allowed.contains(&d.what));
        if let Some(difference) = self.handlers.other_backend(recording) {
            found.insert(0, difference);
        }
        if found.is_empty() {
            return Ok(());
        }
        let listed = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ");
        bail!(
            NOT_COMPARABLE,
            "{} and {name} cannot be merged:\n  {listed}\nmeasure both alike{}",
            self.first,
            remedy(&found)
        )
    }
}

fn too_large(name: &str, what: &str) -> Failure {
    let text = format!(
        "{name}: {what} would be more than a recording holds: merge fewer recordings at a time"
    );
    Failure::new(exit::BAD_INPUT, text)
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
    let digest = Sha256::digest(recording.to_json());
    let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
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

/// A recording without what no sum has.
fn stripped(recording: Recording) -> Recording {
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
        sources: Vec::new(),
        ..recording
    }
}

/// The sum of everything but handlers and sources. The error names the figure that became too large.
fn add_common(sum: Recording, more: Recording) -> Result<Recording, String> {
    let (a, b) = (sum.histogram, more.histogram);
    // Here and in the functions below each field is named, so that a new one cannot be forgotten.
    Ok(Recording {
        schema: sum.schema,
        version: sum.version,
        tool: sum.tool,
        imported: sum.imported.filter(|of_sum| more.imported.as_ref() == Some(of_sum)),
        started: sum.started.min(more.started),
        place: sum.place,
        load_profile: sum.load_profile,
        clock: sum.clock,
        meter: sum.meter,
        window_ns: checked(sum.window_ns, more.window_ns, "the length of the window")?,
        warmup_ns: checked(sum.warmup_ns, more.warmup_ns, "the length of the warm-up")?,
        interrupted: sum.interrupted || more.interrupted,
        histogram: HistogramLayout {
            kernel_memory_bytes: a.kernel_memory_bytes.max(b.kernel_memory_bytes),
            // Unknown if the runs differ.
            direct: a.direct.filter(|_| a.direct == b.direct),
            ..a
        },
        host: facts::of_hosts(sum.host, more.host),
        modules: by_name(sum.modules, more.modules, |it| &it.name, facts::of_modules)?,
        loads: loads::add(sum.loads, more.loads)?,
        handlers: sum.handlers,
        left_out: joined(sum.left_out, more.left_out),
        driver_costs: sum.driver_costs,
        call_tree: sum.call_tree,
        snapshot: sum.snapshot,
        sources: sum.sources,
        warnings: joined(sum.warnings, more.warnings),
    })
}

fn joined<T>(mut sum: Vec<T>, more: Vec<T>) -> Vec<T> {
    sum.extend(more);
    sum
}

/// The sum, where it has one of the name, or else that as it is, behind the others.
fn by_name<T: Default>(
    mut sum: Vec<T>,
    more: Vec<T>,
    name: fn(&T) -> &str,
    add: fn(T, T) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    for each in more {
        match sum.iter_mut().find(|known| name(known) == name(&each)) {
            Some(known) => *known = add(std::mem::take(known), each)?,
            None => sum.push(each),
        }
    }
    Ok(sum)
}

fn checked(a: u64, b: u64, what: &str) -> Result<u64, String> {
    a.checked_add(b).ok_or_else(|| what.to_owned())
}

/// The same of calls, of which a bucket may have to hold all.
fn checked_calls(a: u64, b: u64, what: &str) -> Result<u64, String> {
    let sum = a.checked_add(b).filter(|sum| *sum <= MAX_COUNT);
    sum.ok_or_else(|| what.to_owned())
}

/// The sum of two figures; `None` unless both are known.
fn both(a: Option<u64>, b: Option<u64>, what: &str) -> Result<Option<u64>, String> {
    a.zip(b).map(|(a, b)| checked(a, b, what)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, Meter};

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
        assert_eq!(merge.finish().unwrap().sources.len(), 50);
    }
}
