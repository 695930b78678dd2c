//! What a reader of the numbers has to know, each with its remedy.

use std::error::Error as _;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::text::{listed, plural};

use super::loads::{LoadRun, LoadSpec, TestResult, TestRuns, tests_in_words};
use crate::measure::Losses;
use crate::{Backend, HandlerRecording, Recording};

/// Below this many calls the 99th percentile is nothing but the longest call.
const FEW_CALLS: u64 = 100;

/// Why a handler is left out of a recording in whose window it was never measured, for the daemon's budget.
pub const SHED: &str = "its probes cost more than `max-overhead` allows, so it was not measured: raise it in the daemon's configuration";

/// A warning as it is stored: the text is for people, the code for programs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct WarningRecord {
    /// What kind it is; kinds may be added and are never renamed.
    pub code: String,
    /// The handlers that it is about; empty is the whole run.
    pub handlers: Vec<String>,
    /// What happened, and what to do about it.
    pub text: String,
}

impl WarningRecord {
    /// Whether it follows from the figures of its recording, so that [`Warning::of`] makes it again.
    pub fn is_derived(&self) -> bool {
        self.code.parse().is_ok_and(Code::is_derived)
    }
}

impl From<Warning> for WarningRecord {
    fn from(warning: Warning) -> Self {
        let (code, text) = (warning.code().to_owned(), warning.to_string());
        let handlers = warning.source().and_then(|source| source.downcast_ref::<Handlers>());
        Self { code, handlers: handlers.map_or_else(Vec::new, |of| of.0.clone()), text }
    }
}

/// Names of the handlers that a warning is about; shown as the first of them, and how many more there are. They are
/// the warning's `source`: one without is about the whole run.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", listed(.0))]
pub struct Handlers(pub Vec<String>);

/// Something about a run that its numbers alone do not show. Its code is the variant's name; its text is what
/// happened, and what to do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(name(Code), doc = "Kind of a [`Warning`].")]
#[strum_discriminants(derive(PartialOrd, strum::EnumString, strum::IntoStaticStr))]
#[strum_discriminants(strum(serialize_all = "kebab-case"))]
pub enum Warning {
    /// A signal ended the run early.
    #[error(
        "the run was interrupted: the figures cover the time until then; run it again to the end before \
         you compare it"
    )]
    Interrupted,
    /// Fewer calls of these than the load profile wants: with the counts in words.
    #[error(
        "fewer hits than the load profile wants: {1}: the figures say little of these; run longer with \
         --duration, or with more --iterations or --operations"
    )]
    FewHits(#[source] Handlers, String),
    /// Tests of LTP that did not pass, in words.
    #[error(
        "tests that did not pass: {0}: they may not have done what the load is for; the JSON has the last \
         that each wrote"
    )]
    TestsNotPassed(String),
    /// Tests of LTP that left processes running, and how many.
    #[error(
        "{1} process{es} of {0} went on after the end of the test and had to be killed",
        es = if *.1 == 1 { "" } else { "es" }
    )]
    TestsLeftRunning(String, u64),
    /// What of a load could not be removed, and why.
    #[error("what a load has left: {0}; look whose it is, and remove it by hand")]
    LoadLeft(String),
    /// No call of these was seen.
    #[error(
        "0 hits: {0}: the load never made the call that leads there, the module has not registered that \
         hook, or the compiler inlined the function into its caller; check the load and the module's \
         parameters"
    )]
    ZeroHits(#[source] Handlers),
    /// Calls of these began and none ended within the window.
    #[error(
        "0 hits: {0}: entered, and no call ended within the window; measure longer with --duration"
    )]
    NeverLeft(#[source] Handlers),
    /// The kernel skipped every probe run of these.
    #[error(
        "0 hits: {0}: the kernel skipped every probe there, so this is not the same as no call; stop \
         other tracers and measure again"
    )]
    AllMissed(#[source] Handlers),
    /// The kernel skipped some probes of these.
    #[error(
        "the kernel skipped {1} probe runs in {0}, because that probe was already running on the CPU: the \
         figures leave those calls out; spread the load, stop other tracers, or, where the kernel \
         preempts tasks within fsession and fentry, take --backend kprobe-session"
    )]
    Missed(#[source] Handlers, u64),
    /// Calls that the trace buffer had no room for.
    #[error(
        "the trace buffer had no room for {calls} of {0}{together}: the figures leave them out; enlarge \
         it with --trace-buffer KIB (-b of trace-cmd record), or lower the load",
        calls = calls(*.1), together = together(.0)
    )]
    Overrun(#[source] Handlers, u64),
    /// Calls whose start was overwritten or found no room.
    #[error(
        "{calls} of {0} began and could not be paired with an end: the function nests, sleeps or migrates \
         more than its slots allow, or an imported text has gaps, and the figures leave those calls out; \
         lower the load's workers to see whether that is all",
        calls = calls(*.1)
    )]
    Lost(#[source] Handlers, u64),
    /// Durations that were left out, because so many may be from one call's start to another's end.
    #[error(
        "the {1} longest durations of {0} are left out: the kernel skipped entry and exit programs there, \
         so as many may be from the start of one call to the end of another, and which is not known; \
         --backend fsession or kprobe-session, on kernels that have them, keep each start with its own \
         call"
    )]
    Doubtful(#[source] Handlers, u64),
    /// Calls whose exit is before their entry, by the clock.
    #[error(
        "the kernel's clock stepped back during {calls} of {0}, whose end is before the start: the \
         figures leave those calls out; if there are many, look at the machine's clock source \
         (/sys/devices/system/clocksource)",
        calls = calls(*.1)
    )]
    Backwards(#[source] Handlers, u64),
    /// Exits without a known start.
    #[error(
        "{calls} of {0} ended, and the start was not seen: the figures leave those calls out; if the \
         share in column `lost` matters to you, measure again with fewer workers",
        calls = calls(*.1)
    )]
    Unpaired(#[source] Handlers, u64),
    /// The kernel does not report how many probe runs of these it skipped.
    #[error(
        "this kernel does not report how many probe runs it skipped in {0}: losses may be larger than \
         shown; kernels from 6.7 on report it for every backend"
    )]
    MissedUnknown(#[source] Handlers),
    /// Calls still running when the window ended.
    #[error(
        "{calls} of {0} had not ended when the window did: the figures leave those calls out; if they are \
         the long ones, measure longer with --duration",
        calls = calls(*.1)
    )]
    InFlight(#[source] Handlers, u64),
    /// Calls longer than the histograms reach.
    #[error(
        "{calls} of {0} took longer than the histograms reach: average and max are exact, and percentiles \
         that fall on such a call are too low",
        calls = calls(*.1)
    )]
    OverRange(#[source] Handlers, u64),
    /// The books do not balance.
    #[error(
        "the books of {0} do not balance (carried in + entries = count + in flight + lost): an error \
         of the profiler; do not use these figures, and report it with the JSON"
    )]
    Unbalanced(#[source] Handlers),
    /// Too few calls for the tail.
    #[error(
        "fewer than {FEW_CALLS} calls: {0}: TP99 there is the longest call, and little is known of the \
         tail; measure longer or raise the load"
    )]
    FewCalls(#[source] Handlers),
    /// A load did not make the operations that its rate asks for: name, rate asked, rate held.
    #[error(
        "the load {0} was to make {1}/s and held {2:.1}/s: the machine was too slow or too busy for more; \
         lower --rate, or raise --workers if CPUs are idle, and compare runs of one rate alone"
    )]
    RateNotHeld(String, f64, f64),

    // What is below does not follow from the figures.
    /// A part of a load profile was left out: its name, and why.
    #[error("part {0} was left out: {1}")]
    PartMissing(String, String),
    /// What of an imported text could not be used.
    #[error("{0}")]
    Imported(String),
    /// Handlers of a load profile that are not there: with its name, and why not.
    #[error("load profile {1} names handlers that cannot be measured here: {2}")]
    HandlerMissing(#[source] Handlers, String, String),
    /// Another backend than the best one measured these, and why.
    #[error("measured by {1} instead: {0}: {2}")]
    OtherBackend(#[source] Handlers, Backend, String),
    /// The histograms have fewer digits than by default: why.
    #[error(
        "the histograms have 2 significant digits instead of 3, and percentiles may be up to 1 % too high: {0}"
    )]
    Coarser(String),
    /// The driver did not stay the same during a run: what became of it.
    #[error("{0}; measure again, and leave the driver alone meanwhile")]
    DriverReplaced(String),
    /// A kprobe of the driver did not call these: how often, and on which function.
    #[error(
        "the driver's own kprobe on {2} missed {1} hits during the run, and did not call {0} for them: more calls were under way \
         than its `maxactive`, or another kprobe was being handled; `profiler doctor --module` tells them apart"
    )]
    DriverMissed(#[source] Handlers, u64, String),
    /// The kernel did not run this BPF program: how often.
    #[error(
        "the kernel skipped {1} runs of the BPF program of {0}, which saw nothing of these calls: it, or for kprobes and \
         tracepoints any BPF program, was running on that CPU, or was preempted there"
    )]
    ProgramSkipped(#[source] Handlers, u64),
    /// The driver was another one in the run before: how they differ.
    #[error("{0}; each run is of one build, and runs of two must not be taken together")]
    DriverChanged(String),
    /// An error ended the run.
    #[error("the run was ended by an error: {0}; this covers the time until then")]
    EndedByError(String),
    /// Another tracing program was on this handler: its id.
    #[error(
        "another tracing program (id {1}) was on {0} during the run: its time is counted as the \
         handler's, and calls under way when it came or went were not measured; measure again without it"
    )]
    Shared(#[source] Handlers, u32),
    /// These had probes for a part of the window: for how much of it, in words.
    #[error(
        "measured for a part of the window: {1}: the probes were off for the rest, as a rule because they cost more than \
         `max-overhead`; counts and rates are of that part, and calls of a busy time may be missing: compare windows \
         in which they were measured throughout, or raise `max-overhead`"
    )]
    PartlyMeasured(#[source] Handlers, String),
    /// Calls within a traced one that the tracer did not follow.
    #[error("{calls} lay deeper than the tracer follows: their time is that of their callers", calls = calls(*.0))]
    TooDeep(u64),
    /// What the kernel's own statistics say of BPF programs that no probe measures.
    #[error(
        "not measured by probes, but by the kernel's own statistics (BPF_ENABLE_STATS): {0}; an average alone, with two clock \
         reads in it, also of the warm-up; a chain of tail calls is billed to its first program"
    )]
    BpfStats(String),
}

impl Code {
    /// Whether [`Warning::of`] makes it of a recording's figures: a run adds the others.
    fn is_derived(self) -> bool {
        self < Self::PartMissing
    }
}

impl Warning {
    /// What follows from the measurements of `recording`, the most serious first.
    pub fn of(recording: &Recording) -> Vec<Self> {
        let mut warnings = Vec::new();
        if recording.interrupted {
            warnings.push(Self::Interrupted);
        }
        warnings.extend(Self::of_hits(recording));
        for load in &recording.loads {
            warnings.extend(Self::of_tests(&load.outcome.tests));
            warnings.extend(load.outcome.left.clone().map(Self::LoadLeft));
        }
        // A warning of one kind names all handlers that it is about: fifty idle ones are one line.
        let mut add = |make: &dyn Fn(Handlers, u64) -> Self,
                       count: &dyn Fn(&HandlerRecording) -> u64| {
            let concerned = recording.handlers.iter().filter(|handler| count(handler) > 0);
            let total = concerned.clone().map(count).fold(0, u64::saturating_add);
            if total > 0 {
                let names = concerned.map(|handler| handler.name.clone()).collect();
                warnings.push(make(Handlers(names), total));
            }
        };
        let if_so = u64::from;

        add(&|who, _| Self::Unbalanced(who), &|h| if_so(h.losses.imbalance(h.count) != 0));
        add(&|who, _| Self::AllMissed(who), &|h| if_so(no_hits(h) == Some(Code::AllMissed)));
        add(&|who, _| Self::NeverLeft(who), &|h| if_so(no_hits(h) == Some(Code::NeverLeft)));
        // What a pattern found and nobody called is one line of a report, unless that was all.
        let nothing = recording.handlers.iter().all(|h| no_hits(h).is_some());
        let is_shown = |h: &HandlerRecording| nothing || !(h.by_glob && h.is_idle());
        add(&|who, _| Self::ZeroHits(who), &|h| {
            if_so(no_hits(h) == Some(Code::ZeroHits) && is_shown(h))
        });
        add(&Self::Missed, &|h| if no_hits(h).is_some() { 0 } else { h.losses.missed });
        if let Some(most) = recording.handlers.iter().map(|h| h.losses.overrun).max() {
            // Each of them has the number of all.
            add(&|who, _| Self::Overrun(who, most), &|h| h.losses.overrun);
        }
        add(&Self::Lost, &|h| h.losses.lost);
        add(&Self::Doubtful, &|h| h.losses.doubtful);
        add(&Self::Backwards, &|h| h.losses.backwards);
        add(&Self::Unpaired, &|h| h.losses.unpaired_exits);
        add(&Self::OverRange, &|h| h.losses.over_range);
        add(&Self::InFlight, &|h| h.losses.in_flight);
        add(&|who, _| Self::MissedUnknown(who), &|h| if_so(h.losses.missed_unknown && is_shown(h)));
        add(&|who, _| Self::FewCalls(who), &|h| if_so(no_hits(h).is_none() && h.count < FEW_CALLS));
        warnings.extend(recording.loads.iter().filter_map(rate_not_held));
        warnings
    }

    fn of_hits(recording: &Recording) -> Option<Self> {
        let short = recording.short_of_hits();
        let names = short.iter().map(|(name, ..)| (*name).to_owned()).collect();
        let mut counts =
            short.iter().map(|(name, count, least)| format!("{name} {count} of {least}"));
        let counts = counts.join(", ");
        (!short.is_empty()).then_some(Self::FewHits(Handlers(names), counts))
    }

    fn of_tests(tests: &[TestRuns]) -> impl Iterator<Item = Self> {
        let not_passed = tests_in_words(
            tests.iter().filter(|it| it.results.iter().any(|r| r.result != TestResult::Pass)),
        );
        let left = tests.iter().filter(|test| test.left_running > 0);
        let names = left.clone().map(|test| &test.name).join(", ");
        let count = left.map(|test| test.left_running).fold(0, u64::saturating_add);
        [
            (!not_passed.is_empty()).then_some(Self::TestsNotPassed(not_passed)),
            (count > 0).then_some(Self::TestsLeftRunning(names, count)),
        ]
        .into_iter()
        .flatten()
    }

    /// Stable name of this kind.
    pub fn code(&self) -> &'static str {
        Code::from(self).into()
    }
}

/// Why there is no duration of a handler; `None` if there is one.
fn no_hits(h: &HandlerRecording) -> Option<Code> {
    match h.losses {
        Losses { doubtful, .. } if h.count > 0 || doubtful > 0 => None,
        Losses { missed: 1.., .. } => Some(Code::AllMissed),
        Losses { entries: 1.., .. } | Losses { carried_in: 1.., .. } => Some(Code::NeverLeft),
        _ => Some(Code::ZeroHits),
    }
}

/// A load at a rate that made fewer operations than were due, by more than one in a hundred.
fn rate_not_held(load: &LoadRun) -> Option<Warning> {
    let LoadSpec::Builtin { name, rate_per_s: Some(rate), workers, .. } = &load.spec else {
        return None;
    };
    let outcome = &load.outcome;
    let due = rate.get() * outcome.elapsed_ns as f64 / 1e9;
    let made = outcome.operations? as f64;
    // Each worker may be stopped within one.
    let short = due - made > f64::max(due / 100.0, f64::from(*workers));
    let held = outcome.held_rate_per_s.unwrap_or(0.0);
    short.then(|| Warning::RateNotHeld(name.to_string(), rate.get(), held))
}

/// `1 call`, `2 calls`.
fn calls(count: u64) -> String {
    format!("{count} call{}", plural(count))
}

/// The end of a sentence about all of several handlers.
fn together(handlers: &Handlers) -> &'static str {
    if handlers.0.len() > 1 {
        " together (which were whose is not known: each shows the most that it can be)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(warning: Warning) -> (String, Vec<String>, String, bool) {
        let record = WarningRecord::from(warning);
        let is_derived = record.is_derived();
        (record.code, record.handlers, record.text, is_derived)
    }

    #[test]
    fn a_code_says_whether_its_warning_follows_from_the_figures() {
        let names = || Handlers(["a", "b"].map(str::to_owned).into());
        let (code, handlers, text, is_derived) = record(Warning::Overrun(names(), 1));
        assert_eq!((code.as_str(), handlers, is_derived), ("overrun", names().0, true));
        let begin =
            "the trace buffer had no room for 1 call of a, b together (which were whose is not";
        assert!(text.starts_with(begin), "{text}");
        let (code, handlers, text, is_derived) =
            record(Warning::TestsLeftRunning("x".to_owned(), 2));
        assert_eq!((code.as_str(), handlers.len(), is_derived), ("tests-left-running", 0, true));
        assert!(text.starts_with("2 processes of x went on"), "{text}");
        let backend = Warning::OtherBackend(names(), Backend::KprobeSession, "why".to_owned());
        let text = "measured by kprobe-session instead: a, b: why".to_owned();
        assert_eq!(record(backend), ("other-backend".to_owned(), names().0, text, false));
        let later =
            WarningRecord { code: "later".to_owned(), handlers: vec![], text: String::new() };
        assert!(!later.is_derived(), "of a newer version: nothing here makes it again");
    }
}
