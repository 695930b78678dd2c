//! An import as JSON. This is not a recording: the text says nothing about the window, the machine and
//! the load, on which readers of recordings rely.

use std::cell::Cell;
use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

use super::collect::Function;
use super::{Import, Percentile};
use crate::export::json;
use crate::recording::{Distribution, EncodeError, Tool};

/// The document's `schema` field.
pub const SCHEMA: &str = "profiler/import";
/// The document's `version` field.
pub const VERSION: u32 = 1;
/// Significant digits and longest duration (a day) of the histograms.
const DIGITS: u8 = 3;
const HIGHEST_NS: u64 = 86_400_000_000_000;
const PERCENTS: [u32; 5] = [50, 75, 90, 95, 99];

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    version: u32,
    tool: Tool,
    file: &'a str,
    bytes: u64,
    format: &'static str,
    cpus: Option<u32>,
    lines: u64,
    percentile: &'static str,
    lost_events: u64,
    lost_at_unknown: u64,
    unparsable_lines: u64,
    overlong_lines: u64,
    unmatched_returns: u64,
    unreturned_calls: u64,
    calls_beyond_functions: u64,
    cut_off: bool,
    histogram: Layout,
    functions: Rows<'a>,
    warnings: Vec<String>,
}

/// Rows that are made one at a time: all rows together may take much more memory than their source.
struct Rows<'a> {
    functions: &'a [Function],
    percentile: Percentile,
    /// Why a row could not be made; it is left out.
    failed: &'a Cell<Option<EncodeError>>,
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.functions.iter().filter_map(|function| {
            row(function, self.percentile).map_err(|error| self.failed.set(Some(error))).ok()
        }))
    }
}

#[derive(Serialize)]
struct Layout {
    precision_digits: u8,
    lowest_ns: u64,
    highest_ns: u64,
}

/// Durations in nanoseconds, with picoseconds where the text or an interpolation has them.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    count: u64,
    sum_ns: f64,
    mean_ns: Option<f64>,
    min_ns: Option<f64>,
    max_ns: Option<f64>,
    percentiles_ns: BTreeMap<String, Option<f64>>,
    exact: bool,
    unparsable_lines: u64,
    unreturned_calls: u64,
    histogram: Distribution,
}

/// The JSON of `import`, with an end of line.
///
/// # Errors
/// If a histogram cannot be stored.
pub fn document(import: &Import, percentile: Percentile) -> Result<Vec<u8>, EncodeError> {
    let counts = &import.counts;
    let failed = Cell::new(None);
    let functions = Rows { functions: &import.functions, percentile, failed: &failed };
    let bytes = json::indented(&Document {
        schema: SCHEMA,
        version: VERSION,
        tool: Tool::this(),
        file: &import.file,
        bytes: import.bytes,
        format: import.format(),
        cpus: counts.cpus,
        lines: counts.lines,
        percentile: percentile.name(),
        lost_events: counts.lost_events,
        lost_at_unknown: counts.lost_unknown,
        unparsable_lines: counts.unparsable,
        overlong_lines: counts.overlong,
        unmatched_returns: counts.unmatched_returns,
        unreturned_calls: counts.unreturned,
        calls_beyond_functions: counts.beyond_functions,
        cut_off: counts.cut_off,
        histogram: Layout { precision_digits: DIGITS, lowest_ns: 1, highest_ns: HIGHEST_NS },
        functions,
        warnings: import.warnings().iter().map(ToString::to_string).collect(),
    });
    failed.take().map_or(Ok(bytes), Err)
}

fn row(function: &Function, percentile: Percentile) -> Result<Row<'_>, EncodeError> {
    let values = &function.values;
    let nanos = |ps: u64| ps as f64 / 1e3;
    let sorted = values.sorted();
    let percentiles_ns = PERCENTS
        .map(|percent| {
            let value = sorted.percentile(percent, percentile).map(|ps| ps / 1e3);
            (format!("p{percent}"), value)
        })
        .into();
    Ok(Row {
        name: &function.name,
        count: values.count(),
        sum_ns: values.sum_ps() as f64 / 1e3,
        mean_ns: values.mean_ps().map(|ps| ps / 1e3),
        min_ns: values.min_ps().map(nanos),
        max_ns: values.max_ps().map(nanos),
        percentiles_ns,
        exact: values.is_exact(),
        unparsable_lines: function.unparsable,
        unreturned_calls: function.unreturned,
        histogram: histogram(function)?,
    })
}

/// The values rounded to nanoseconds, as an HDR histogram; a day stands for anything longer.
fn histogram(function: &Function) -> Result<Distribution, EncodeError> {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, HIGHEST_NS, DIGITS)
        .map_err(|error| EncodeError(error.to_string()))?;
    for (ps, count) in function.values.iter() {
        let ns = ps / 1000 + u64::from(ps % 1000 >= 500);
        histogram.saturating_record_n(ns.min(HIGHEST_NS), count);
    }
    Distribution::encode(&histogram)
}
