//! Whether a recording agrees with itself. A file may be damaged or edited: what does not add up is
//! refused, so that nobody draws conclusions from it.

use std::collections::HashSet;

use super::loads::{LoadRun, OperationTimes};
use super::{DriverCost, HandlerRecording, HistogramLayout, Recording, SCHEMA, VERSION};

/// Longest name of a function or module (`KSYM_NAME_LEN` of the kernel is 512 with its end mark).
pub(super) const MAX_NAME_BYTES: usize = 512;
/// Most histogram counters in one file: over 30,000 handlers at three digits.
pub(super) const MAX_COUNTERS_IN_ALL: u64 = 1 << 30;
/// Most instructions of an operation: whole numbers up to here are exact in floating point.
const MAX_INSTRUCTIONS: f64 = 9e15;

/// A part of a recording that contradicts another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {reason}")]
pub struct Inconsistent {
    /// What is wrong: a handler by name, or a part of the file.
    pub subject: String,
    /// What disagrees with what.
    pub reason: String,
}

impl Inconsistent {
    pub(super) fn new(subject: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { subject: subject.into(), reason: reason.into() }
    }
}

impl Recording {
    /// Checks that histograms are of the layout, and everything that is stored twice: counts, sums, ranges.
    ///
    /// Losses that do not balance are no error here: they are a finding, and a warning names them.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), Inconsistent> {
        if self.schema != SCHEMA || self.version != VERSION {
            return Err(Inconsistent::new("schema", format!("is not {SCHEMA} version {VERSION}")));
        }
        if self.window_ns == 0 {
            return Err(Inconsistent::new("window_ns", "is 0: nothing can have been measured"));
        }
        self.histogram.check().map_err(|reason| Inconsistent::new("histogram", reason))?;
        // Exports and sums make each histogram whole: bounds the time that a small file of many can take.
        let counters = self.histogram.counters().saturating_mul(self.handlers.len() as u64);
        if counters > MAX_COUNTERS_IN_ALL {
            return Err(Inconsistent::new(
                "handlers",
                format!("{} histograms of that layout are more than are read", self.handlers.len()),
            ));
        }
        let mut seen = HashSet::new();
        for handler in &self.handlers {
            let subject = format!("handler `{}`", handler.name.escape_debug());
            let bad_name = |name: &str| name.is_empty() || name.len() > MAX_NAME_BYTES;
            if bad_name(&handler.name) || handler.module.as_deref().is_some_and(bad_name) {
                return Err(Inconsistent::new("handlers", "a name is empty or too long"));
            }
            if !seen.insert((&handler.module, &handler.name)) {
                return Err(Inconsistent::new(subject, "is there twice"));
            }
            check_handler(handler, &self.histogram)
                .map_err(|reason| Inconsistent::new(subject, reason))?;
        }
        if let Some(tree) = &self.call_tree {
            tree.check().map_err(|reason| Inconsistent::new("call_tree", reason))?;
        }
        let of_sources = self.sources.iter().try_fold(0_u64, |sum, s| sum.checked_add(s.calls));
        // A report of some of the handlers has fewer.
        if !self.sources.is_empty() && of_sources.is_none_or(|calls| calls < self.calls()) {
            let reason = "have fewer calls than the handlers";
            return Err(Inconsistent::new("sources", reason));
        }
        self.check_loads().map_err(|reason| Inconsistent::new("load", reason))?;
        for cost in &self.driver_costs {
            check_driver_cost(cost).map_err(|reason| Inconsistent::new("driver_costs", reason))?;
        }
        Ok(())
    }

    /// Checks what came of the loads, and that hits are of the handlers.
    fn check_loads(&self) -> Result<(), String> {
        let handlers = self.handlers.len();
        let used = self.load_profile.as_ref();
        if used.is_some_and(|used| used.least_hits.len() != handlers) {
            return Err(format!("least_hits are not those of the {handlers} handlers"));
        }
        self.loads.iter().try_for_each(check_load)?;
        let tests = || self.loads.iter().flat_map(|load| &load.outcome.tests);
        fit("runs of tests", tests().map(|test| test.runs))?;
        fit("processes that tests left", tests().map(|test| test.left_running))?;
        let mut hits = tests().filter_map(|test| test.hits.as_ref());
        match hits.any(|hits| hits.len() != handlers) {
            true => Err(format!("the hits of a test are not those of the {handlers} handlers")),
            false => Ok(()),
        }
    }
}

/// Whether 64 bits hold the sum of these figures.
fn fit(what: &str, mut figures: impl Iterator<Item = u64>) -> Result<(), String> {
    let sum = figures.try_fold(0_u64, u64::checked_add);
    sum.map(drop).ok_or_else(|| format!("its {what} add up to more than 2^64 - 1"))
}

fn check_load(load: &LoadRun) -> Result<(), String> {
    let of = &load.outcome;
    for times in of.latency.iter().flat_map(|it| [Some(&it.service), it.response.as_ref()]) {
        times.map_or(Ok(()), check_times)?;
    }
    fit("CPU times", of.cpu.iter().flat_map(|cpu| [cpu.user_ns, cpu.system_ns]))?;
    let failed = of.errors.iter().map(|errors| errors.count);
    fit("operations", of.operations.into_iter().chain(failed))
}

fn check_driver_cost(cost: &DriverCost) -> Result<(), String> {
    let known = [cost.repeated, cost.elsewhere, cost.within].into_iter().flatten();
    let mut figures = [cost.without_ns, cost.with_ns].into_iter().chain(known);
    if let Some(figure) = figures.find(|figure| !(0.0..=MAX_INSTRUCTIONS).contains(figure)) {
        return Err(format!("has {figure:e} for an operation, which is less than 0 or too much"));
    }
    match cost.tail.iter().find(|tail| !(90..=99).contains(&tail.percent)) {
        Some(tail) => Err(format!("has a percentile of {} %, not of 90 to 99", tail.percent)),
        None => Ok(()),
    }
}

fn check_handler(handler: &HandlerRecording, layout: &HistogramLayout) -> Result<(), String> {
    handler.histogram.check(layout)?;
    if handler.own_instructions > Some(handler.sum_ns) {
        return Err("has more instructions of its own than in all".to_owned());
    }
    let held = handler.histogram.count();
    if held != Some(handler.count) {
        return Err(format!(
            "count is {} and the histogram holds {}",
            handler.count,
            held.map_or("more than 2^64".to_owned(), |held| held.to_string())
        ));
    }
    let buckets = &handler.histogram.buckets;
    let over_range = handler.losses.over_range;
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else {
        let exact = (handler.sum_ns, handler.min_ns, handler.max_ns, over_range);
        let what = "count is 0, and yet there is a sum, a min, a max or an over_range";
        return if exact == (0, None, None, 0) { Ok(()) } else { Err(what.to_owned()) };
    };
    let (Some(min), Some(max)) = (handler.min_ns, handler.max_ns) else {
        return Err("has calls and no min or max".to_owned());
    };
    if min > max {
        return Err(format!("min ({min}) is more than max ({max})"));
    }
    let is_last = (last.from_ns..=last.to_ns).contains(&layout.highest_ns);
    if over_range > 0 && !(is_last && over_range <= last.count) {
        return Err(format!("over_range is {over_range} and the last bucket holds fewer calls"));
    }
    // Calls beyond the range are in the last bucket, and only min, max and sum know their duration.
    let beyond = |ns: u64| over_range > 0 && ns > last.to_ns;
    let in_first = (first.from_ns..=first.to_ns).contains(&min);
    let in_last = (last.from_ns..=last.to_ns).contains(&max);
    if !in_first && (buckets.len() > 1 || !beyond(min)) {
        return Err(format!(
            "min is {min} and the shortest call in the histogram took {} to {}",
            first.from_ns, first.to_ns
        ));
    }
    if !in_last && !beyond(max) {
        return Err(format!(
            "max is {max} and the longest call in the histogram took {} to {}",
            last.from_ns, last.to_ns
        ));
    }
    check_sum(handler, min, max)
}

/// The sum must lie between what the buckets allow; a sum that wrapped or was edited does not.
fn check_sum(handler: &HandlerRecording, min: u64, max: u64) -> Result<(), String> {
    let bound = |edge: fn(&super::Bucket) -> u64| -> u128 {
        handler
            .histogram
            .buckets
            .iter()
            .map(|bucket| u128::from(edge(bucket).clamp(min, max)) * u128::from(bucket.count))
            .sum()
    };
    let lowest = bound(|bucket| bucket.from_ns);
    // Calls beyond the range may be as long as the longest one.
    let beyond = u128::from(handler.losses.over_range) * u128::from(max);
    let highest = bound(|bucket| bucket.to_ns) + beyond;
    if (lowest..=highest).contains(&u128::from(handler.sum_ns)) {
        Ok(())
    } else {
        Err(format!(
            "sum is {} and the histogram's calls took {lowest} to {highest} in all",
            handler.sum_ns
        ))
    }
}

/// Times of operations agree with their histogram.
fn check_times(times: &OperationTimes) -> Result<(), String> {
    times.histogram.check(&HistogramLayout::of_operations())?;
    let held = times.histogram.count();
    if held != Some(times.count) {
        return Err(format!("{} operations, and the histogram holds {held:?}", times.count));
    }
    match (times.count, times.min_ns, times.max_ns) {
        (0, None, None) => Ok(()),
        (1.., Some(min), Some(max)) if min <= max => Ok(()),
        _ => Err("its operations have a count, a min_ns and a max_ns that contradict each other"
            .to_owned()),
    }
}
