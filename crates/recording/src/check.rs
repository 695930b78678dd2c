//! Whether a recording agrees with itself. A file may be damaged or edited: what does not add up is
//! refused, so that nobody draws conclusions from it.

use std::collections::HashSet;

use hdrhistogram::Histogram;

use super::loads::{LATENCY_DIGITS, LoadRun, OperationTimes};
use super::{
    Bucket, Distribution, DriverCost, HandlerRecording, HistogramLayout, Recording, SCHEMA, VERSION,
};

/// Longest name of a function or module (`KSYM_NAME_LEN` of the kernel is 512 with its end mark).
const MAX_NAME_BYTES: usize = 512;
/// Most histogram counters in one file: over 30,000 handlers at three digits.
pub(super) const MAX_COUNTERS_IN_ALL: usize = 1 << 30;
/// Most instructions of an operation: whole numbers up to here are exact in floating point.
const MAX_INSTRUCTIONS: f64 = 9e15;

impl Recording {
    /// Checks that histograms are of the layout, and everything that is stored twice: counts, sums, ranges.
    ///
    /// Losses that do not balance are no error here: they are a finding, and a warning names them.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), String> {
        if self.schema != SCHEMA || self.version != VERSION {
            return Err(format!("schema: is not {SCHEMA} version {VERSION}"));
        }
        if self.window_ns == 0 {
            return Err("window_ns: is 0: nothing can have been measured".to_owned());
        }
        let empty = self.histogram.empty().map_err(within("histogram"))?;
        // Exports and sums make each histogram whole: bounds the time that a small file of many can take.
        if empty.distinct_values().saturating_mul(self.handlers.len()) > MAX_COUNTERS_IN_ALL {
            return Err(format!(
                "handlers: {} histograms of that layout are more than are read",
                self.handlers.len()
            ));
        }
        let mut seen = HashSet::new();
        for handler in &self.handlers {
            if is_bad_name(&handler.name, handler.module.as_ref()) {
                return Err("handlers: a name is empty or too long".to_owned());
            }
            let subject = format!("handler `{}`", handler.name.escape_debug());
            if !seen.insert((&handler.module, &handler.name)) {
                return Err(format!("{subject}: is there twice"));
            }
            check_handler(handler, &empty).map_err(within(&subject))?;
        }
        if let Some(tree) = &self.call_tree {
            tree.check().map_err(within("call_tree"))?;
        }
        let mut digests = HashSet::new();
        if let Some(twice) = self.sources.iter().find(|source| !digests.insert(&source.sha256)) {
            return Err(format!("sources: `{}` is there twice", twice.name.escape_debug()));
        }
        let of_sources = self.sources.iter().try_fold(0_u64, |sum, s| sum.checked_add(s.calls));
        // A report of some of the handlers has fewer.
        if !self.sources.is_empty() && of_sources.is_none_or(|calls| calls < self.calls()) {
            return Err("sources: have fewer calls than the handlers".to_owned());
        }
        self.check_loads().map_err(within("load"))?;
        self.driver_costs.iter().try_for_each(check_driver_cost).map_err(within("driver_costs"))
    }

    /// Checks the loads' outcomes, and that there is one number of hits for each handler.
    fn check_loads(&self) -> Result<(), String> {
        let handlers = self.handlers.len();
        let used = self.load_profile.as_ref();
        if used.is_some_and(|used| used.least_hits.len() != handlers) {
            return Err(format!("least_hits are not those of the {handlers} handlers"));
        }
        self.loads.iter().try_for_each(check_load)?;
        let tests = self.loads.iter().flat_map(|load| &load.outcome.tests);
        fit("runs of tests", tests.clone().map(|test| test.runs))?;
        fit("processes that tests left", tests.clone().map(|test| test.left_running))?;
        let mut hits = tests.filter_map(|test| test.hits.as_ref());
        match hits.any(|hits| hits.len() != handlers) {
            true => Err(format!("the hits of a test are not those of the {handlers} handlers")),
            false => Ok(()),
        }
    }
}

/// Whether the name of a function, or its module's, is empty or too long.
pub(super) fn is_bad_name(name: &str, module: Option<&String>) -> bool {
    let mut names = [Some(name), module.map(String::as_str)].into_iter().flatten();
    names.any(|name| name.is_empty() || name.len() > MAX_NAME_BYTES)
}

/// Says in which part of a recording something is wrong.
fn within(subject: &str) -> impl Fn(String) -> String {
    move |reason| format!("{subject}: {reason}")
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

fn check_handler(handler: &HandlerRecording, empty: &Histogram<u8>) -> Result<(), String> {
    if handler.own_instructions > Some(handler.sum_ns) {
        return Err("has more instructions of its own than in all".to_owned());
    }
    let HandlerRecording { count, sum_ns, min_ns, max_ns, ref histogram, losses, .. } = *handler;
    Figures { count, sum_ns, min_ns, max_ns, over_range: losses.over_range }.check(histogram, empty)
}

/// Times of operations agree with their histogram.
fn check_times(times: &OperationTimes) -> Result<(), String> {
    let OperationTimes { count, sum_ns, min_ns, max_ns, over_range, ref histogram } = *times;
    let empty = HistogramLayout::of_digits(LATENCY_DIGITS).empty()?;
    Figures { count, sum_ns, min_ns, max_ns, over_range }.check(histogram, &empty)
}

/// Exact figures beside a histogram.
struct Figures {
    count: u64,
    sum_ns: u64,
    min_ns: Option<u64>,
    max_ns: Option<u64>,
    over_range: u64,
}

impl Figures {
    fn check(&self, histogram: &Distribution, empty: &Histogram<u8>) -> Result<(), String> {
        histogram.check(empty)?;
        if histogram.count() != Some(self.count) {
            return Err(format!("count is {}, and its histogram holds another number", self.count));
        }
        match self.agrees(&histogram.buckets, empty.high()) {
            true => Ok(()),
            false => Err("sum, min, max or over_range contradict its histogram".to_owned()),
        }
    }

    /// Whether they are possible by the histogram, which reaches up to `highest`.
    fn agrees(&self, buckets: &[Bucket], highest: u64) -> bool {
        let Self { sum_ns, min_ns, max_ns, over_range, .. } = *self;
        let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else {
            return (sum_ns, min_ns, max_ns, over_range) == (0, None, None, 0);
        };
        let (Some(min), Some(max)) = (min_ns, max_ns) else { return false };
        if min > max {
            return false;
        }
        let holds_highest = (last.from_ns..=last.to_ns).contains(&highest);
        if over_range > 0 && !(holds_highest && over_range <= last.count) {
            return false;
        }
        // Calls beyond the range are in the last bucket, and only min, max and sum know their duration.
        let longest = if over_range > 0 { u64::MAX } else { last.to_ns };
        let longest_min = if buckets.len() == 1 { longest } else { first.to_ns };
        let is_min = (first.from_ns..=longest_min).contains(&min);
        let is_max = (last.from_ns..=longest).contains(&max);
        // Calls beyond the range may be as long as the longest one.
        let (mut least, mut most) = (0, u128::from(over_range) * u128::from(max));
        for bucket in buckets {
            least += u128::from(bucket.from_ns.clamp(min, max)) * u128::from(bucket.count);
            most += u128::from(bucket.to_ns.clamp(min, max)) * u128::from(bucket.count);
        }
        is_min && is_max && (least..=most).contains(&u128::from(sum_ns))
    }
}
