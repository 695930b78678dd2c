//! What was measured, and how: the facts of recordings.

use super::cell::{Unit, bytes};
use super::document::Fact;
use crate::kernel::host::HostFacts;
use crate::kernel::module::ModuleFacts;
use crate::load::{LoadRun, LoadStatus, StopReason};
use crate::recording::{Meter, Recording, Source};
use crate::text::{listed, plural};

/// Runs that have a fact of their own.
const NAMED: usize = 20;

/// Labels that differ from run to run.
const OF_EACH_RUN: [&str; 4] = ["window", "sum of", "load", "histograms"];

/// The facts of a recording.
pub(super) fn of(recording: &Recording, unit: Unit) -> Vec<Fact> {
    let facts = facts(recording, unit).into_iter();
    facts.map(|(label, value)| Fact::new(label, value)).collect()
}

/// What runs have in common, and a fact for each.
pub(super) fn of_runs(runs: &[Recording], unit: Unit) -> Vec<Fact> {
    let Some(first) = runs.first() else { return Vec::new() };
    let mut all = Vec::new();
    for (label, value) in facts(first, unit) {
        if label == "unit" {
            let numbered = runs.iter().take(NAMED).enumerate();
            all.extend(
                numbered.map(|(at, run)| Fact::new(format!("run {}", at + 1), describe(run))),
            );
            if runs.len() > NAMED {
                all.push(Fact::new("runs", format!("{} more", runs.len() - NAMED)));
            }
            let unit = value.split(';').next().unwrap_or_default();
            let medians = "medians over the runs, max is the largest; spread is the largest less the smallest over the median";
            all.push(Fact::new(label, format!("{unit}; {medians}")));
        } else if !OF_EACH_RUN.contains(&label) {
            all.push(Fact::new(label, value));
        }
    }
    all
}

/// What the parts of a run have in common, and a fact for each.
pub(super) fn of_parts(parts: &[Recording], unit: Unit) -> Vec<Fact> {
    let Some(first) = parts.first() else { return Vec::new() };
    let mut all = facts(first, unit);
    all.retain(|(label, _)| *label == "sum of" || !OF_EACH_RUN.contains(label));
    let before_unit = all.len().saturating_sub(1);
    all.splice(before_unit..before_unit, parts.iter().map(|part| ("part", describe_part(part))));
    all.into_iter().map(|(label, value)| Fact::new(label, value)).collect()
}

fn describe(run: &Recording) -> String {
    let mut text = seconds(run.window_ns);
    if run.warmup_ns > 0 {
        text.push_str(&format!(", after {} of warm-up", seconds(run.warmup_ns)));
    }
    if let Some(place) = &run.place {
        text.push_str(&format!(", boot {}, order {}", place.boot, place.order));
        if let Some(part) = &place.part {
            text.push_str(&format!(", {part}"));
        }
    }
    text + &how_it_ended(run)
}

fn describe_part(run: &Recording) -> String {
    let name = run.part().unwrap_or_default();
    format!("{name}: {}{}", seconds(run.window_ns), how_it_ended(run))
}

/// Whether a run was interrupted, and its loads.
fn how_it_ended(run: &Recording) -> String {
    let interrupted = if run.interrupted { ", interrupted" } else { "" };
    let loads: Vec<String> = run.loads.iter().map(describe_load).collect();
    format!("{interrupted}; {}", loads.join("; "))
}

/// Labels and values; the unit is the last.
fn facts(recording: &Recording, unit: Unit) -> Vec<(&'static str, String)> {
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
    let names: Vec<&str> = sources.iter().map(|source| source.name.as_str()).collect();
    format!("{} run{}: {}", names.len(), plural(names.len()), listed(&names))
}

fn describe_module(module: &ModuleFacts) -> String {
    let version = module.version.as_ref().map_or(String::new(), |version| format!(" {version}"));
    let facts = [
        ("srcversion", &module.srcversion),
        ("build id", &module.build_id),
        ("taint", &module.taint),
    ];
    let known =
        facts.into_iter().filter_map(|(what, fact)| Some(format!("{what} {}", fact.as_ref()?)));
    // What decides how the kernel compiles BPF programs.
    let settings = module.parameters.iter().filter(|_| module.command.is_some());
    let known = known.chain(settings.map(|(name, value)| format!("{name} {value}")));
    let known = known.collect::<Vec<_>>().join(", ");
    let facts = if known.is_empty() { known } else { format!(" ({known})") };
    let command = module.command.as_ref();
    let command = command.map_or(String::new(), |command| format!(", loaded by `{command}`"));
    format!("{}{version}{command}{facts}", module.name)
}

fn describe_load(load: &LoadRun) -> String {
    format!("{}{}", load.spec, describe_outcome(load))
}

/// The outcome of a load, to follow its description.
fn describe_outcome(load: &LoadRun) -> String {
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

/// Seconds to the millisecond; whole seconds without decimals.
fn seconds(ns: u64) -> String {
    if ns.is_multiple_of(1_000_000_000) {
        format!("{} s", ns / 1_000_000_000)
    } else {
        format!("{:.3} s", ns as f64 / 1e9)
    }
}
