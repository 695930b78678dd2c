//! CSV for spreadsheets and scripts: one row per handler and run, units in the header.

use super::Exporter;
use super::cell::clean;
use crate::recording::measure::Losses;
use crate::recording::{HandlerRecording, Meter, Recording};

/// Column names; within one major version none is renamed, and new ones come last. Of exact recordings,
/// `_instructions` stands in place of `_ns`, but for `window_ns`.
const HEADER: [&str; 36] = [
    "run",
    "handler",
    "module",
    "module_build_id",
    "backend",
    "clock",
    "kernel",
    "arch",
    "started",
    "window_ns",
    "interrupted",
    "count",
    "calls_per_second",
    "mean_ns",
    "sum_ns",
    "min_ns",
    "p50_ns",
    "p75_ns",
    "p90_ns",
    "p95_ns",
    "p99_ns",
    "p99_9_ns",
    "max_ns",
    "unmeasured_calls",
    "carried_in",
    "entries",
    "exits",
    "in_flight",
    "lost",
    "unpaired_exits",
    "missed",
    "over_range",
    "precision_digits",
    "self_sum_instructions",
    "doubtful",
    "backwards",
];

/// One row per handler. Unknown values are empty; a count of zero is `0`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Csv;

impl Exporter for Csv {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        self.serialize_runs(std::slice::from_ref(recording)).unwrap_or_default()
    }

    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let mut write = |row: &mut dyn Iterator<Item = String>| {
            let result = writer.write_record(row.map(String::into_bytes));
            // Memory takes every byte, and all rows have one length.
            debug_assert!(result.is_ok(), "{result:?}");
        };
        let exact = runs.iter().any(|run| run.meter == Meter::Exact);
        write(&mut HEADER.iter().map(|head| match head.strip_suffix("_ns") {
            Some(of_calls) if exact && *head != "window_ns" => format!("{of_calls}_instructions"),
            _ => (*head).to_owned(),
        }));
        for (at, recording) in runs.iter().enumerate() {
            for handler in &recording.handlers {
                write(&mut row(at + 1, recording, handler).into_iter());
            }
        }
        Some(writer.into_inner().unwrap_or_default())
    }
}

#[expect(clippy::too_many_lines, reason = "a line a column, in the order of `HEADER`")]
fn row(run: usize, recording: &Recording, handler: &HandlerRecording) -> [String; 36] {
    // A spreadsheet takes a cell that begins so for a formula, which may call out; no function or kernel has such a name.
    let text = |text: &str| match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{}", clean(text)),
        false => clean(text).into_owned(),
    };
    let fact = |fact: Option<&str>| fact.map_or_else(String::new, text);
    let ns = |ns: Option<u64>| ns.map_or_else(String::new, |ns| ns.to_string());
    let quantile = |quantile: f64| ns(handler.quantile_ns(quantile));
    let build_id = recording
        .modules
        .iter()
        .find(|module| Some(&module.name) == handler.module.as_ref())
        .and_then(|module| module.build_id.as_deref());
    let per_second = handler.count as f64 / (recording.window_ns as f64 / 1e9);
    let Losses {
        carried_in,
        entries,
        exits,
        in_flight,
        lost,
        unpaired_exits,
        missed,
        over_range,
        doubtful,
        backwards,
        ..
    } = handler.losses;
    [
        run.to_string(),
        text(&handler.name),
        fact(handler.module.as_deref()),
        fact(build_id),
        handler.way(),
        recording.clock.to_string(),
        fact(recording.host.kernel_release.as_deref()),
        text(&recording.host.arch),
        recording.started.to_string(),
        recording.window_ns.to_string(),
        recording.interrupted.to_string(),
        handler.count.to_string(),
        format!("{per_second:.3}"),
        handler.mean_ns().map_or_else(String::new, |mean| format!("{mean:.3}")),
        handler.sum_ns.to_string(),
        ns(handler.min_ns),
        quantile(0.50),
        quantile(0.75),
        quantile(0.90),
        quantile(0.95),
        quantile(0.99),
        quantile(0.999),
        ns(handler.max_ns),
        handler.losses.unmeasured().to_string(),
        carried_in.to_string(),
        entries.to_string(),
        exits.to_string(),
        in_flight.to_string(),
        lost.to_string(),
        unpaired_exits.to_string(),
        missed.to_string(),
        over_range.to_string(),
        recording.histogram.precision_digits.to_string(),
        ns(handler.own_instructions),
        doubtful.to_string(),
        backwards.to_string(),
    ]
}
