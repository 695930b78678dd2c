//! CSV for spreadsheets and scripts: one row per handler and run, units in the header.

use profiler_recording::{HandlerRecording, Meter, Recording};

use super::cell::clean;

/// What a row is of.
struct Row<'a> {
    /// From 1.
    run: usize,
    recording: &'a Recording,
    handler: &'a HandlerRecording,
}

/// Columns with their cells; within one major version none is renamed, and new ones come last. Of exact recordings,
/// `_instructions` stands in place of `_ns`, but for `window_ns`.
type Column = (&'static str, fn(&Row<'_>) -> String);
const COLUMNS: [Column; 36] = [
    ("run", |row| row.run.to_string()),
    ("handler", |row| text(&row.handler.name)),
    ("module", |row| fact(row.handler.module.as_deref())),
    ("module_build_id", |row| fact(row.build_id())),
    ("backend", |row| row.handler.way()),
    ("clock", |row| row.recording.clock.to_string()),
    ("kernel", |row| fact(row.recording.host.kernel_release.as_deref())),
    ("arch", |row| text(&row.recording.host.arch)),
    ("started", |row| row.recording.started.to_string()),
    ("window_ns", |row| row.recording.window_ns.to_string()),
    ("interrupted", |row| row.recording.interrupted.to_string()),
    ("count", |row| row.handler.count.to_string()),
    ("calls_per_second", |row| decimals(Some(row.per_second()))),
    ("mean_ns", |row| decimals(row.handler.mean_ns())),
    ("sum_ns", |row| row.handler.sum_ns.to_string()),
    ("min_ns", |row| known(row.handler.min_ns)),
    ("p50_ns", |row| known(row.handler.quantile_ns(0.50))),
    ("p75_ns", |row| known(row.handler.quantile_ns(0.75))),
    ("p90_ns", |row| known(row.handler.quantile_ns(0.90))),
    ("p95_ns", |row| known(row.handler.quantile_ns(0.95))),
    ("p99_ns", |row| known(row.handler.quantile_ns(0.99))),
    ("p99_9_ns", |row| known(row.handler.quantile_ns(0.999))),
    ("max_ns", |row| known(row.handler.max_ns)),
    ("unmeasured_calls", |row| row.handler.losses.unmeasured().to_string()),
    ("carried_in", |row| row.handler.losses.carried_in.to_string()),
    ("entries", |row| row.handler.losses.entries.to_string()),
    ("exits", |row| row.handler.losses.exits.to_string()),
    ("in_flight", |row| row.handler.losses.in_flight.to_string()),
    ("lost", |row| row.handler.losses.lost.to_string()),
    ("unpaired_exits", |row| row.handler.losses.unpaired_exits.to_string()),
    ("missed", |row| row.handler.losses.missed.to_string()),
    ("over_range", |row| row.handler.losses.over_range.to_string()),
    ("precision_digits", |row| row.recording.histogram.precision_digits.to_string()),
    ("self_sum_instructions", |row| known(row.handler.own_instructions)),
    ("doubtful", |row| row.handler.losses.doubtful.to_string()),
    ("backwards", |row| row.handler.losses.backwards.to_string()),
];

impl Row<'_> {
    fn build_id(&self) -> Option<&str> {
        let mut modules = self.recording.modules.iter();
        let module = modules.find(|of| Some(&of.name) == self.handler.module.as_ref())?;
        module.build_id.as_deref()
    }

    fn per_second(&self) -> f64 {
        self.handler.count as f64 / (self.recording.window_ns as f64 / 1e9)
    }
}

/// A spreadsheet takes a cell that begins so for a formula, which may call out; no function or kernel has such a name.
fn text(text: &str) -> String {
    match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{}", clean(text)),
        false => clean(text).into_owned(),
    }
}

fn fact(fact: Option<&str>) -> String {
    fact.map_or_else(String::new, text)
}

fn known(value: Option<u64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn decimals(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.3}"))
}

/// One row per handler. Unknown values are empty; a count of zero is `0`.
pub(super) fn csv(runs: &[Recording]) -> Vec<u8> {
    let is_exact = runs.iter().any(|run| run.meter == Meter::Exact);
    let head = COLUMNS.iter().map(|(name, _)| match name.strip_suffix("_ns") {
        Some(of_calls) if is_exact && *name != "window_ns" => format!("{of_calls}_instructions"),
        _ => (*name).to_owned(),
    });
    let mut rows = vec![head.collect::<Vec<String>>()];
    for (at, recording) in runs.iter().enumerate() {
        for handler in &recording.handlers {
            let row = Row { run: at + 1, recording, handler };
            rows.push(COLUMNS.iter().map(|(_, cell)| cell(&row)).collect());
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    let result = rows.iter().try_for_each(|row| writer.write_record(row));
    // Memory takes every byte, and all rows have one length.
    debug_assert!(result.is_ok(), "{result:?}");
    writer.into_inner().unwrap_or_default()
}
