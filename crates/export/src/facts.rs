//! What was measured, and how: the facts of recordings.

use itertools::Itertools as _;

use profiler_base::text::{listed, plural};
use profiler_kernel::host::HostFacts;
use profiler_kernel::module::ModuleFacts;
use profiler_load::{LoadRun, LoadStatus, StopReason};
use profiler_recording::{Meter, Recording, Source};

use super::cell::{Unit, bytes};
use super::document::Note;

/// Runs that have a fact of their own.
const NAMED: usize = 20;

const MEDIANS: &str = "medians over the runs, max is the largest; spread is the largest less the smallest over the median";

/// The facts of the only run, or what several runs or the parts of one have in common, and a fact for each.
pub(super) fn of(runs: &[Recording], unit: Unit, several: bool) -> Vec<Note> {
    let Some(first) = runs.first() else { return Vec::new() };
    let mut facts = common(first);
    let sources = (!several && !first.sources.is_empty()).then(|| sum_of(&first.sources));
    match runs {
        [run] => {
            let began = format!("{} from {:.0}", seconds(run.window_ns), run.started);
            let interrupted = if run.interrupted { ", interrupted" } else { "" };
            facts.push(Note::new("window", began + &warmup(run) + interrupted));
            facts.extend(sources);
            facts.extend(run.loads.iter().map(|load| Note::new("load", describe_load(load))));
            facts.push(Note::new("histograms", histograms(run)));
        }
        _ => {
            facts.extend(sources);
            // What happened in a part is nowhere else.
            let named = if several { NAMED } else { runs.len() };
            for (run, number) in runs.iter().take(named).zip(1..) {
                let label = if several { format!("run {number}") } else { "part".to_owned() };
                facts.push(Note::new(label, describe(run)));
            }
            if runs.len() > named {
                facts.push(Note::new("runs", format!("{} more", runs.len() - named)));
            }
        }
    }
    let unit = match unit {
        Unit::Auto | Unit::Ns => "nanoseconds",
        Unit::Us => "microseconds",
        Unit::Ms => "milliseconds",
        Unit::Instructions => "instructions, those of interrupts left out",
    };
    let figures = if several { MEDIANS } else { "average and max are exact" };
    facts.push(Note::new("unit", format!("{unit}; {figures}")));
    facts
}

/// A run, or a part of one: its window, its place, how it ended, and its loads.
fn describe(run: &Recording) -> String {
    let mut text = seconds(run.window_ns) + &warmup(run);
    if let Some(place) = &run.place {
        text.push_str(&format!(", boot {}, order {}", place.boot, place.order));
        if let Some(part) = &place.part {
            text.push_str(&format!(", {part}"));
        }
    }
    if run.interrupted {
        text.push_str(", interrupted");
    }
    format!("{text}; {}", run.loads.iter().map(describe_load).format("; "))
}

fn warmup(run: &Recording) -> String {
    match run.warmup_ns {
        0 => String::new(),
        ns => format!(", after {} of warm-up", seconds(ns)),
    }
}

/// What measured, and where.
fn common(recording: &Recording) -> Vec<Note> {
    let host = &recording.host;
    let mut kernel = format!("{} {}", known(&host.kernel_release), host.arch);
    if let Some(model) = &host.preemption {
        kernel.push_str(&format!(", preemption {model}"));
    }
    let clock = match &host.clock_source {
        Some(source) => format!("{} ({source})", recording.clock),
        None => recording.clock.to_string(),
    };
    let mut facts = vec![
        Note::new("profiler", &recording.tool.version),
        Note::new("backend", measured_by(recording)),
        Note::new("clock", clock),
        Note::new("kernel", kernel),
        Note::new("machine", describe_machine(host)),
    ];
    let modules = recording.modules.iter();
    facts.extend(modules.map(|module| Note::new("module", describe_module(module))));
    facts
}

fn histograms(recording: &Recording) -> String {
    let layout = &recording.histogram;
    let digits = format!("{} significant digits", layout.precision_digits);
    let (lowest, highest) = (layout.lowest_ns, layout.highest_ns);
    match recording.meter {
        Meter::Exact => format!("{digits}, {lowest} to {highest} instructions"),
        Meter::Probes => format!(
            "{digits}, {lowest} ns to {}, {} in the kernel",
            seconds(highest),
            bytes(layout.kernel_memory_bytes)
        ),
    }
}

fn known(fact: &Option<String>) -> &str {
    fact.as_deref().unwrap_or("unknown")
}

fn describe_machine(host: &HostFacts) -> String {
    let mut machine = known(&host.cpu_model).to_owned();
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
    let backends = recording.backends().iter().join(", ");
    match (&recording.imported, recording.meter) {
        (Some(text), _) => format!("{backends}, imported from {text}"),
        (None, Meter::Exact) => "none: the emulator counted each instruction".to_owned(),
        (None, Meter::Probes) if backends.is_empty() => "none".to_owned(),
        (None, Meter::Probes) => backends,
    }
}

fn sum_of(sources: &[Source]) -> Note {
    let (count, names) = (sources.len(), sources.iter().map(|it| &it.name).collect_vec());
    Note::new("sum of", format!("{count} run{}: {}", plural(count), listed(&names)))
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
    let known = known.chain(settings.map(|(name, value)| format!("{name} {value}"))).join(", ");
    let facts = if known.is_empty() { known } else { format!(" ({known})") };
    let command = module.command.as_ref();
    let command = command.map_or(String::new(), |command| format!(", loaded by `{command}`"));
    format!("{}{version}{command}{facts}", module.name)
}

/// A load, and how it ended.
fn describe_load(load: &LoadRun) -> String {
    let outcome = &load.outcome;
    let ended = match &outcome.status {
        LoadStatus::Completed => "completed".to_owned(),
        LoadStatus::Stopped { by: StopReason::Duration } => "until the window's end".to_owned(),
        LoadStatus::Stopped { by: StopReason::Interrupted } => "interrupted".to_owned(),
        LoadStatus::Stopped { by: StopReason::LoadFailed } => {
            "stopped because another load failed".to_owned()
        }
        LoadStatus::Failed(failure) => format!("FAILED: {failure}"),
    };
    let mut text = format!("{}: {ended} after {}", load.spec, seconds(outcome.elapsed_ns));
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
