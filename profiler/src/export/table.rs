//! Text tables, made from the recording alone, so that a run and a later report on its file print the
//! same bytes.

use comfy_table::Row;

use super::cell::{Unit, bytes, clean, full_name};
use super::{Exporter, books, grid, loads, own, unseen};
use crate::kernel::host::HostFacts;
use crate::kernel::module::ModuleFacts;
use crate::load::{LoadRun, LoadStatus, StopReason};
use crate::recording::{HandlerRecording, Meter, Recording, Source};
use crate::text::plural;

/// All tables, below lines on what was measured and above warnings.
#[derive(Debug, Clone, Copy, Default)]
pub struct Table {
    /// Unit of the durations.
    pub unit: Unit,
    /// Columns of the terminal; `None` lets lines be as long as they are, for files and pipes.
    pub width: Option<u16>,
}

impl Exporter for Table {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        let mut text = String::new();
        let unit = self.unit.resolve(recording);
        for (label, value) in heading(recording, unit) {
            text.push_str(format!("{label:<10} {}", clean(&value)).trim_end());
            text.push('\n');
        }
        let handlers = (!recording.handlers.is_empty()).then(|| grid(recording, unit, self.width));
        let books = (!recording.handlers.is_empty()).then(|| books::books(recording, self.width));
        let own = own::table(recording, unit, self.width);
        let operations = loads::operations(recording, unit.for_operations(recording), self.width);
        let costs = loads::costs(recording, self.width);
        for table in [handlers, own, books, operations, costs].into_iter().flatten() {
            text.push('\n');
            for line in table.lines() {
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
        text.push_str(&paragraph(unseen::lines(recording)));
        let warnings =
            recording.warnings.iter().map(|warning| format!("warning: {}", warning.text));
        text.push_str(&paragraph(warnings));
        text.into_bytes()
    }
}

/// One table of the parts of a run, each with its own window; loads and warnings are listed by part.
#[must_use]
pub fn of_parts(recordings: &[Recording], unit: Unit, width: Option<u16>) -> Vec<u8> {
    let Some(first) = recordings.first() else { return Vec::new() };
    let unit = unit.for_handlers(recordings);
    let mut text = String::new();
    let mut line = |label: &str, value: &str| {
        text.push_str(format!("{label:<10} {}", clean(value)).trim_end());
        text.push('\n');
    };
    for (label, value) in heading(first, unit) {
        // These differ from part to part.
        if ["window", "load", "histograms"].contains(&label) {
            continue;
        }
        if label == "unit" {
            for recording in recordings {
                line("part", &describe_part(recording));
            }
        }
        line(label, &value);
    }
    text.push('\n');
    let rows = recordings.iter().flat_map(|recording| {
        let of_part = recording.shown();
        of_part.map(move |handler| Row::from(cells(recording, handler, unit)))
    });
    for line in grid::figures(&HEADER, rows, width).lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let unseen = recordings.iter().flat_map(|recording| {
        let lines = unseen::lines(recording).into_iter();
        lines.map(move |line| format!("{}: {line}", part_name(recording)))
    });
    let warnings = recordings.iter().flat_map(|recording| {
        let warnings = recording.warnings.iter();
        warnings.map(move |warning| format!("warning: {}: {}", part_name(recording), warning.text))
    });
    text.push_str(&paragraph(unseen));
    text.push_str(&paragraph(warnings));
    text.into_bytes()
}

fn part_name(recording: &Recording) -> &str {
    recording.place.as_ref().and_then(|place| place.part.as_deref()).unwrap_or_default()
}

fn describe_part(recording: &Recording) -> String {
    let loads: Vec<String> = recording.loads.iter().map(describe_load).collect();
    let mut text = format!("{}: {}", part_name(recording), seconds(recording.window_ns));
    if recording.interrupted {
        text.push_str(", interrupted");
    }
    format!("{text}; {}", loads.join("; "))
}

/// `lines` below an empty one; nothing if there are none.
pub(super) fn paragraph(lines: impl IntoIterator<Item = String>) -> String {
    let text: String = lines.into_iter().map(|line| format!("{}\n", clean(&line))).collect();
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Lines of `label value` above the table.
pub(super) fn heading(recording: &Recording, unit: Unit) -> Vec<(&'static str, String)> {
    let host = &recording.host;
    let known = |fact: &Option<String>| fact.clone().unwrap_or_else(|| "unknown".to_owned());
    let mut kernel = format!("{} {}", known(&host.kernel_release), host.arch);
    if let Some(model) = &host.preemption {
        kernel.push_str(&format!(", preemption {model}"));
    }
    let mut window = format!("{} from {:.0}", seconds(recording.window_ns), recording.started);
    if recording.warmup_ns > 0 {
        window.push_str(&format!(", after {} of warm-up", seconds(recording.warmup_ns)));
    }
    if recording.interrupted {
        window.push_str(", interrupted");
    }
    let layout = &recording.histogram;
    let digits = layout.precision_digits;
    let histogram = match recording.meter {
        Meter::Exact => format!(
            "{digits} significant digits, {} to {} instructions",
            layout.lowest_ns, layout.highest_ns
        ),
        Meter::Probes => format!(
            "{digits} significant digits, {} ns to {}, {} in the kernel",
            layout.lowest_ns,
            seconds(layout.highest_ns),
            bytes(layout.kernel_memory_bytes)
        ),
    };
    let clock = match &host.clock_source {
        Some(source) => format!("{} ({source})", recording.clock),
        None => recording.clock.to_string(),
    };

    let mut lines = vec![
        ("profiler", recording.tool.version.clone()),
        ("backend", measured_by(recording)),
        ("clock", clock),
        ("kernel", kernel),
        ("machine", describe_machine(host)),
    ];
    lines.extend(recording.modules.iter().map(|module| ("module", describe_module(module))));
    lines.push(("window", window));
    if !recording.sources.is_empty() {
        lines.push(("sum of", describe_sources(&recording.sources)));
    }
    lines.extend(recording.loads.iter().map(|load| ("load", describe_load(load))));
    lines.push(("histograms", histogram));
    let unit = match unit {
        Unit::Auto | Unit::Ns => "nanoseconds",
        Unit::Us => "microseconds",
        Unit::Ms => "milliseconds",
        Unit::Instructions => "instructions, those of interrupts left out",
    };
    lines.push(("unit", format!("{unit}; average and max are exact")));
    lines
}

fn describe_machine(host: &HostFacts) -> String {
    let mut machine = host.cpu_model.clone().unwrap_or_else(|| "unknown".to_owned());
    if let Some(cpus) = host.cpus_online {
        machine.push_str(&format!(", {cpus} CPU{}", plural(cpus)));
    }
    if let Some(hypervisor) = &host.hypervisor {
        let vendor = hypervisor.vendor.as_deref().unwrap_or("an unknown hypervisor");
        machine.push_str(&format!(", virtual ({vendor})"));
    }
    machine
}

/// What measured the handlers.
fn measured_by(recording: &Recording) -> String {
    let backends: Vec<String> = recording.backends().iter().map(ToString::to_string).collect();
    if let Some(text) = &recording.imported {
        return format!("{}, imported from {text}", backends.join(", "));
    }
    match (recording.meter, backends.is_empty()) {
        (Meter::Exact, _) => "none: the emulator counted each instruction".to_owned(),
        (Meter::Probes, true) => "none".to_owned(),
        (Meter::Probes, false) => backends.join(", "),
    }
}

fn describe_sources(sources: &[Source]) -> String {
    const NAMED: usize = 4;
    let names: Vec<&str> = sources.iter().take(NAMED).map(|source| source.name.as_str()).collect();
    let mut text = format!("{} run{}: {}", sources.len(), plural(sources.len()), names.join(", "));
    if sources.len() > NAMED {
        text.push_str(", ...");
    }
    text
}

fn describe_module(module: &ModuleFacts) -> String {
    let mut text = module.name.clone();
    if let Some(version) = &module.version {
        text.push_str(&format!(" {version}"));
    }
    let mut facts = Vec::new();
    if let Some(srcversion) = &module.srcversion {
        facts.push(format!("srcversion {srcversion}"));
    }
    if let Some(build_id) = &module.build_id {
        facts.push(format!("build id {build_id}"));
    }
    if let Some(taint) = &module.taint {
        facts.push(format!("taint {taint}"));
    }
    if !facts.is_empty() {
        text.push_str(&format!(" ({})", facts.join(", ")));
    }
    text
}

fn describe_load(load: &LoadRun) -> String {
    format!("{}{}", load.spec, describe_outcome(load))
}

/// The outcome of a load, to follow its description.
pub(super) fn describe_outcome(load: &LoadRun) -> String {
    let mut text = String::new();
    let outcome = &load.outcome;
    match &outcome.status {
        LoadStatus::Completed => text.push_str(": completed"),
        LoadStatus::Stopped { by } => text.push_str(match by {
            StopReason::Duration => ": until the window's end",
            StopReason::Interrupted => ": interrupted",
            StopReason::LoadFailed => ": stopped because another load failed",
        }),
        LoadStatus::Failed(failure) => text.push_str(&format!(": FAILED: {failure}")),
    }
    text.push_str(&format!(" after {}", seconds(outcome.elapsed_ns)));
    if let Some(operations) = outcome.operations {
        text.push_str(&format!(", {operations} operations"));
    }
    if let Some(rate) = outcome.held_rate_per_s {
        text.push_str(&format!(" at {rate:.1}/s"));
    }
    for errors in &outcome.errors {
        text.push_str(&format!(", {} x {}", errors.count, errors.kind));
    }
    text
}

/// Column headers of [`cells`].
pub(super) const HEADER: [&str; 9] =
    ["handler", "count", "calls/s", "average", "TP90", "TP95", "TP99", "max", "lost"];

fn grid(recording: &Recording, unit: Unit, width: Option<u16>) -> String {
    let rows = recording.shown().map(|handler| Row::from(cells(recording, handler, unit)));
    grid::figures(&HEADER, rows, width)
}

/// The row of one handler.
pub(super) fn cells(recording: &Recording, handler: &HandlerRecording, unit: Unit) -> [String; 9] {
    let duration = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| unit.exact(ns));
    let per_second = handler.count as f64 / (recording.window_ns as f64 / 1e9);
    [
        clean(&full_name(recording, handler)).into_owned(),
        handler.count.to_string(),
        format!("{per_second:.1}"),
        handler.mean_ns().map_or("-".to_owned(), |ns| unit.average(ns)),
        duration(handler.quantile_ns(0.90)),
        duration(handler.quantile_ns(0.95)),
        duration(handler.quantile_ns(0.99)),
        duration(handler.max_ns),
        lost(handler),
    ]
}

/// Lost calls, with their share of all calls.
fn lost(handler: &HandlerRecording) -> String {
    let lost = handler.losses.unmeasured();
    if lost == 0 {
        return "0".to_owned();
    }
    let share = handler.losses.share(handler.count) * 100.0;
    if share < 0.01 { format!("{lost} (<0.01%)") } else { format!("{lost} ({share:.2}%)") }
}

/// Seconds to the millisecond; whole seconds without decimals.
pub(super) fn seconds(ns: u64) -> String {
    if ns.is_multiple_of(1_000_000_000) {
        format!("{} s", ns / 1_000_000_000)
    } else {
        format!("{:.3} s", ns as f64 / 1e9)
    }
}
