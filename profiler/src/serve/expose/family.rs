//! The families of metrics that the daemon exposes, and their points in a state.

use jiff::Timestamp;
use strum::VariantNames as _;

use profiler_base::stats::Durations;

use super::super::state::{Build, HandlerSum, Module, NotMeasured, Phase, State};

/// What the points of a family are, in Prometheus' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Calls by bucket.
    Histogram,
}

/// One metric with all its labels.
#[derive(Debug)]
pub struct Family {
    /// Its name in Prometheus, which ends in its unit and, for a counter, `total`.
    pub name: &'static str,
    /// One sentence about it.
    pub help: &'static str,
    /// What its points are.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Name and unit in OpenTelemetry; `None` if it is not pushed, because the rest of a push contains it.
    pub otlp: Option<(&'static str, &'static str)>,
    points: for<'a> fn(&'a State) -> Vec<Point<'a>>,
}

/// A value with its labels.
#[derive(Debug)]
pub struct Point<'a> {
    /// A value for each of [`Family::labels`].
    pub labels: Vec<&'a str>,
    pub value: Value<'a>,
    /// Since when it counts; `None`: since the daemon began. A build that is measured differently than before starts again.
    pub since: Option<Timestamp>,
}

fn point<'a>(labels: Vec<&'a str>, value: Value<'a>) -> Point<'a> {
    Point { labels, value, since: None }
}

#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A number of things.
    Count(u64),
    /// Anything else, in the family's unit.
    Real(f64),
    /// A handler's durations.
    Durations(&'a Durations),
}

impl Family {
    /// Its unit in Prometheus.
    pub fn unit(&self) -> Option<&'static str> {
        let last = self.name.trim_end_matches("_total").rsplit('_').next();
        last.filter(|last| ["seconds", "bytes", "ratio"].contains(last))
    }
}

/// The families that have points in `state`, with these.
pub fn families(state: &State) -> impl Iterator<Item = (&'static Family, Vec<Point<'_>>)> {
    let families = FAMILIES.iter().map(|family| (family, (family.points)(state)));
    families.filter(|(_, points)| !points.is_empty())
}

/// A point of a build, with labels after those of the build.
fn point_of_build<'a, const N: usize>(
    build: &'a Build,
    labels: [&'a str; N],
    value: Value<'a>,
) -> Point<'a> {
    let labels = [build.module.as_str(), &build.id].into_iter().chain(labels).collect();
    Point { since: Some(build.frame.started), ..point(labels, value) }
}

fn each_build<'a>(
    state: &'a State,
    value: impl Fn(&'a Build) -> Option<Value<'a>>,
) -> Vec<Point<'a>> {
    let builds = state.builds.iter();
    builds.filter_map(|build| Some(point_of_build(build, [], value(build)?))).collect()
}

fn handlers(state: &State) -> impl Iterator<Item = (&Build, &HandlerSum)> {
    state.builds.iter().flat_map(|build| build.handlers.iter().map(move |sum| (build, sum)))
}

fn each_handler<'a>(
    state: &'a State,
    value: impl Fn(&'a HandlerSum) -> Option<Value<'a>>,
) -> Vec<Point<'a>> {
    let points = handlers(state)
        .filter_map(|(build, sum)| Some(point_of_build(build, [sum.name.as_str()], value(sum)?)));
    points.collect()
}

/// Whether its module is measured with this build now.
fn is_current(state: &State, build: &Build) -> bool {
    let mut current = state.modules.iter().filter_map(|module| state.current(module));
    current.any(|current| std::ptr::eq(current, build))
}

/// The one value of a family that has no labels.
fn unlabelled<'a>(value: Option<Value<'a>>) -> Vec<Point<'a>> {
    value.map(|value| point(Vec::new(), value)).into_iter().collect()
}

fn flag(value: bool) -> Value<'static> {
    Value::Count(u64::from(value))
}

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn timestamp(at: Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

/// A line of labels and of what OpenTelemetry calls it, a sentence, and the points.
macro_rules! families {
    ($($kind:ident $name:ident [$($label:ident)*] $otlp:expr, $help:literal, $points:expr;)*) => {
        /// All of them, in the order in which they are shown.
        pub const FAMILIES: &[Family] = &[$(Family {
            name: stringify!($name),
            help: $help,
            kind: Kind::$kind,
            labels: &[$(stringify!($label)),*],
            otlp: $otlp,
            points: $points,
        }),*];
    };
}

families! {
    Histogram profiler_handler_duration_seconds [module build handler] Some(("profiler.handler.duration", "s")),
        "Durations of the handler's calls.",
        |state| each_handler(state, |sum| Some(Value::Durations(&sum.measure.durations)));
    Gauge profiler_handler_duration_min_seconds [module build handler] None,
        "Exact shortest duration since the daemon began.",
        |state| each_handler(state, |sum| Some(Value::Real(seconds(sum.measure.durations.min_ns()?))));
    Gauge profiler_handler_duration_max_seconds [module build handler] None,
        "Exact longest duration since the daemon began.",
        |state| each_handler(state, |sum| Some(Value::Real(seconds(sum.measure.durations.max_ns()?))));
    Counter profiler_handler_entries_total [module build handler] Some(("profiler.handler.entries", "{call}")),
        "Calls whose entry was seen.",
        |state| each_handler(state, |sum| Some(Value::Count(sum.measure.losses.entries)));
    Counter profiler_handler_exits_total [module build handler] Some(("profiler.handler.exits", "{call}")),
        "Calls whose exit was seen.",
        |state| each_handler(state, |sum| Some(Value::Count(sum.measure.losses.exits)));
    Counter profiler_handler_losses_total [module build handler kind] Some(("profiler.handler.losses", "{call}")),
        "Calls that were not measured, or not fully, by kind.",
        losses;
    Counter profiler_handler_unmeasured_calls_total [module build handler]
        Some(("profiler.handler.unmeasured_calls", "{call}")),
        "Upper bound on the calls that are not in the histogram.",
        |state| each_handler(state, |sum| Some(Value::Count(sum.measure.losses.unmeasured())));
    Gauge profiler_handler_missed_unknown [module build handler] Some(("profiler.handler.missed_unknown", "")),
        "Whether the kernel does not count all programs that it did not run: missed is then a lower bound.",
        |state| each_handler(state, |sum| Some(flag(sum.measure.losses.missed_unknown)));
    Gauge profiler_handler_calls_in_flight [module build handler] Some(("profiler.handler.calls_in_flight", "{call}")),
        "Calls that are under way.",
        |state| each_handler(state, |sum| Some(Value::Count(sum.in_flight)));
    Counter profiler_handler_measured_seconds_total [module build handler] Some(("profiler.handler.measured", "s")),
        "Time in which the handler had probes: not while it is shed.",
        |state| each_handler(state, |sum| Some(Value::Real(seconds(sum.covered_ns))));
    Gauge profiler_handler_state [module build handler state] Some(("profiler.handler.state", "")),
        "1 for what is true of the handler in the build that is measured now, 0 for all else.",
        handler_states;
    Gauge profiler_module_phase [module phase] Some(("profiler.module.phase", "")),
        "1 for what the daemon does about the module, 0 for all else.",
        phases;
    Gauge profiler_module_build_info [module build module_version srcversion kernel]
        Some(("profiler.module.build.info", "")),
        "What a build of a module says of itself, and the kernel.",
        build_infos;
    Gauge profiler_module_build_current [module build] Some(("profiler.module.build.current", "")),
        "Whether the module is measured with this build now.",
        |state| each_build(state, |build| Some(flag(is_current(state, build))));
    Counter profiler_module_build_measured_seconds_total [module build] Some(("profiler.module.build.measured", "s")),
        "Time in which the build was measured.",
        |state| each_build(state, |build| Some(Value::Real(seconds(build.frame.window_ns))));
    Gauge profiler_module_build_last_measured_timestamp_seconds [module build]
        Some(("profiler.module.build.last_measured", "s")),
        "When the build was last measured, since the epoch.",
        |state| each_build(state, |build| Some(Value::Real(timestamp(build.last))));
    Gauge profiler_build_info [version] None,
        "The daemon's version.",
        |_| vec![point(vec![env!("CARGO_PKG_VERSION")], Value::Count(1))];
    Gauge process_start_time_seconds [] None,
        "When the daemon began, since the epoch.",
        |state| unlabelled(Some(Value::Real(timestamp(state.since))));
    Counter process_cpu_seconds_total [] Some(("process.cpu.time", "s")),
        "CPU time of the daemon, of all its threads.",
        |state| unlabelled(Some(Value::Real(seconds(state.own.cpu_ns))));
    Gauge profiler_memory_bytes [] Some(("profiler.memory", "By")),
        "Resident memory of the daemon that is not shared with files.",
        |state| unlabelled(Some(Value::Count(state.own.memory_bytes)));
    Gauge profiler_kernel_memory_bytes [] Some(("profiler.kernel_memory", "By")),
        "Kernel memory of the histograms.",
        |state| unlabelled(Some(Value::Count(state.own.kernel_memory_bytes)));
    Gauge profiler_overhead_ratio [] Some(("profiler.overhead", "1")),
        "What the probes cost now, as a share of one CPU.",
        |state| unlabelled(state.own.overhead.map(Value::Real));
    Gauge profiler_budget_enforced [module build] Some(("profiler.budget.enforced", "")),
        "Whether the build is held to max-overhead: 0 if the cost of a hit could not be measured.",
        |state| each_build(state, |build| Some(flag(build.budget_enforced?)));
    Counter profiler_handlers_shed_total [] Some(("profiler.handlers.shed", "{handler}")),
        "Times that handlers were shed for the budget.",
        |state| unlabelled(Some(Value::Count(state.own.shed)));
    Counter profiler_drains_total [] Some(("profiler.drains", "{drain}")),
        "Drains of the kernel's histograms of a module that did not fail.",
        |state| unlabelled(Some(Value::Count(state.own.drains)));
    Counter profiler_drain_seconds_total [] Some(("profiler.drain.time", "s")),
        "Time that these drains took, without storing what they found.",
        |state| unlabelled(Some(Value::Real(seconds(state.own.drain_ns))));
    Counter profiler_drain_failures_total [] Some(("profiler.drain.failures", "{drain}")),
        "Drains that failed; the next that does not has what these lack, but after the last of a load there is none.",
        |state| unlabelled(Some(Value::Count(state.own.drain_failures)));
    Gauge profiler_last_drain_timestamp_seconds [] Some(("profiler.last_drain", "s")),
        "When all that is measured was last drained, since the epoch; not while a drain fails.",
        |state| unlabelled(state.own.last_drain.map(|at| Value::Real(timestamp(at))));
    Gauge profiler_stored_intervals [] Some(("profiler.stored.intervals", "{interval}")),
        "Completed intervals that are on disk; several that waited are one.",
        |state| unlabelled(Some(Value::Count(state.own.intervals.on_disk)));
    Gauge profiler_stored_bytes [] Some(("profiler.stored.size", "By")),
        "Size of these.",
        |state| unlabelled(Some(Value::Count(state.own.intervals.bytes)));
    Gauge profiler_waiting_intervals [] Some(("profiler.waiting.intervals", "{interval}")),
        "Completed intervals that are in memory, because they could not be written yet.",
        |state| unlabelled(Some(Value::Count(state.own.intervals.waiting)));
    Counter profiler_removed_intervals_total [] Some(("profiler.removed.intervals", "{interval}")),
        "Stored intervals that were removed for newer ones.",
        |state| unlabelled(Some(Value::Count(state.own.intervals.removed)));
    Counter profiler_lost_intervals_total [] Some(("profiler.lost.intervals", "{interval}")),
        "Completed intervals that are neither on disk nor in memory.",
        |state| unlabelled(Some(Value::Count(state.own.intervals.lost)));
    Counter profiler_otlp_pushes_total [result] Some(("profiler.otlp.pushes", "{push}")),
        "Pushes to the collector: that it took, and that failed.",
        pushes;
    Counter profiler_otlp_rejected_points_total [] Some(("profiler.otlp.rejected_points", "{point}")),
        "Data points that the collector refused in pushes that it took.",
        |state| unlabelled(state.own.pushes.map(|pushes| Value::Count(pushes.rejected_points)));
}

fn losses(state: &State) -> Vec<Point<'_>> {
    let points = handlers(state).flat_map(|(build, sum)| {
        let losses = sum.measure.losses;
        // Also those that are 0: a rate needs a first value.
        let kinds = [
            ("lost", losses.lost),
            ("missed", losses.missed),
            ("unpaired_exit", losses.unpaired_exits),
            ("overrun", losses.overrun),
            ("over_range", losses.over_range),
            ("doubtful", losses.doubtful),
            ("backwards", losses.backwards),
        ];
        kinds.map(|(kind, count)| point_of_build(build, [&sum.name, kind], Value::Count(count)))
    });
    points.collect()
}

fn handler_states(state: &State) -> Vec<Point<'_>> {
    let points = state.builds.iter().flat_map(|build| {
        let is_current = is_current(state, build);
        let known = build.handlers.iter().map(|sum| &sum.name);
        let others = build.not_measured.keys();
        let others = others.filter(|name| build.handlers.iter().all(|sum| sum.name != **name));
        known.chain(others).flat_map(move |name| {
            let true_one = match build.not_measured.get(name) {
                _ if !is_current => "",
                Some(NotMeasured::Shed) => "shed",
                Some(NotMeasured::Missing(_)) => "missing",
                None => "measured",
            };
            ["measured", "shed", "missing"]
                .map(|it| point_of_build(build, [name, it], flag(it == true_one)))
        })
    });
    points.collect()
}

fn phases(state: &State) -> Vec<Point<'_>> {
    let points = state.modules.iter().flat_map(|Module { name, phase: now }| {
        let phases = Phase::VARIANTS.iter();
        phases.map(move |phase| point(vec![name, phase], flag(*phase == now.as_ref())))
    });
    points.collect()
}

fn build_infos(state: &State) -> Vec<Point<'_>> {
    let infos = state.builds.iter().map(|build| {
        let facts = build.frame.modules.first();
        let version = facts.and_then(|module| module.version.as_deref());
        let srcversion = facts.and_then(|module| module.srcversion.as_deref());
        let kernel = build.frame.host.kernel_release.as_deref();
        let labels = [version, srcversion, kernel].map(Option::unwrap_or_default);
        point_of_build(build, labels, Value::Count(1))
    });
    infos.collect()
}

fn pushes(state: &State) -> Vec<Point<'_>> {
    let Some(pushes) = state.own.pushes else { return Vec::new() };
    let results = [("accepted", pushes.accepted), ("failed", pushes.failed)];
    results.map(|(result, count)| point(vec![result], Value::Count(count))).into()
}
