//! What a reader of the numbers has to know, each with its remedy.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::costs::Watched;
use super::loads::{LoadRun, LoadSpec, TestResult, TestRuns};
use crate::profile::{HandlerProfile, Profile};

/// Below this many calls the 99th percentile is nothing but the longest call.
const FEW_CALLS: u64 = 100;

/// A warning as it is stored: the text is for people, the code for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WarningRecord {
    /// What kind it is; kinds may be added and are never renamed.
    pub code: String,
    /// The handlers that it is about; empty is the whole run.
    pub handlers: Vec<String>,
    /// What happened, and what to do about it.
    pub text: String,
}

impl From<&Warning> for WarningRecord {
    fn from(warning: &Warning) -> Self {
        Self {
            code: warning.code().to_owned(),
            handlers: warning.handlers().to_vec(),
            text: warning.to_string(),
        }
    }
}

/// Something about a run that its numbers alone do not show.
#[derive(Debug, Clone, PartialEq)]
pub enum Warning {
    /// A signal ended the run early.
    Interrupted,
    /// Fewer calls of these than the load profile wants: with the counts in words.
    FewHits(Vec<String>, String),
    /// Tests of LTP that did not pass, in words.
    TestsNotPassed(String),
    /// Tests of LTP that ended in different ways, in words.
    TestsVaried(String),
    /// Tests of LTP that left processes running, and how many.
    TestsLeft(String, u64),
    /// No call of these was seen.
    ZeroHits(Vec<String>),
    /// Calls of these began and none ended within the window.
    NeverLeft(Vec<String>),
    /// The kernel skipped every probe run of these.
    AllMissed(Vec<String>),
    /// The kernel skipped some probes of these.
    Missed(Vec<String>, u64),
    /// Calls that the trace buffer had no room for.
    Overrun(Vec<String>, u64),
    /// Calls whose start was overwritten or found no room.
    Lost(Vec<String>, u64),
    /// Durations that were left out, because so many may be from one call's start to another's end.
    Doubtful(Vec<String>, u64),
    /// Calls whose exit is before their entry, by the clock.
    Backwards(Vec<String>, u64),
    /// Exits without a known start.
    Unpaired(Vec<String>, u64),
    /// The kernel does not report how many probe runs of these it skipped.
    MissedUnknown(Vec<String>),
    /// Calls still running when the window ended.
    InFlight(Vec<String>, u64),
    /// Calls longer than the histograms reach.
    OverRange(Vec<String>, u64),
    /// The account of calls does not add up.
    Unbalanced(Vec<String>),
    /// Too few calls for the tail.
    FewCalls(Vec<String>),
    /// A load did not make the operations that its rate asks for: name, rate asked, rate held.
    RateNotHeld(String, f64, f64),
    /// So many processes that were watched by this name ended during the run.
    WatchedEnded(String, u32),
    /// Nothing was there to watch.
    WatchedNever(String),
}

impl Warning {
    /// What follows from the measurements of `profile`, the most serious first.
    #[must_use]
    pub fn of(profile: &Profile) -> Vec<Self> {
        let mut warnings = Vec::new();
        if profile.interrupted {
            warnings.push(Self::Interrupted);
        }
        warnings.extend(Self::of_hits(profile));
        for load in &profile.loads {
            warnings.extend(Self::of_tests(&load.outcome.tests));
        }
        // A warning of one kind names all handlers that it is about: fifty idle ones are one line.
        let mut add = |make: &dyn Fn(Vec<String>, u64) -> Self,
                       count: &dyn Fn(&HandlerProfile) -> u64| {
            let concerned = || profile.handlers.iter().filter(|handler| count(handler) > 0);
            let total = concerned().map(count).fold(0, u64::saturating_add);
            if total > 0 {
                let names = concerned().map(|handler| handler.name.clone()).collect();
                warnings.push(make(names, total));
            }
        };
        let idle = |h: &HandlerProfile| h.count == 0 && h.losses.doubtful == 0;
        let missed = |h: &HandlerProfile| h.losses.missed > 0;
        let entered = |h: &HandlerProfile| h.losses.entries > 0 || h.losses.carried_in > 0;
        let if_so = u64::from;

        add(&|names, _| Self::Unbalanced(names), &|h| if_so(h.losses.imbalance(h.count) != 0));
        add(&|names, _| Self::AllMissed(names), &|h| if_so(idle(h) && missed(h)));
        add(&|names, _| Self::NeverLeft(names), &|h| if_so(idle(h) && !missed(h) && entered(h)));
        // What a pattern found and nobody called is one line of a report, unless that was all.
        let nothing = profile.handlers.iter().all(idle);
        let is_listed = |h: &HandlerProfile| nothing || !(h.by_glob && h.is_idle());
        let never = |h: &HandlerProfile| idle(h) && !missed(h) && !entered(h) && is_listed(h);
        add(&|names, _| Self::ZeroHits(names), &|h| if_so(never(h)));
        add(&Self::Missed, &|h| if idle(h) { 0 } else { h.losses.missed });
        let overrun = |h: &HandlerProfile| h.losses.overrun;
        if let Some(most) = profile.handlers.iter().map(overrun).max() {
            // Each of them has the number of all.
            add(&|names, _| Self::Overrun(names, most), &overrun);
        }
        add(&Self::Lost, &|h| h.losses.lost);
        add(&Self::Doubtful, &|h| h.losses.doubtful);
        add(&Self::Backwards, &|h| h.losses.backwards);
        add(&Self::Unpaired, &|h| h.losses.unpaired_exits);
        add(&Self::OverRange, &|h| h.losses.over_range);
        add(&Self::InFlight, &|h| h.losses.in_flight);
        let unknown = |h: &HandlerProfile| h.losses.missed_unknown && is_listed(h);
        add(&|names, _| Self::MissedUnknown(names), &|h| if_so(unknown(h)));
        add(&|names, _| Self::FewCalls(names), &|h| if_so(!idle(h) && h.count < FEW_CALLS));
        warnings.extend(profile.loads.iter().filter_map(rate_not_held));
        for row in profile.costs.iter().flat_map(|costs| &costs.rows) {
            match &row.of {
                Watched::Machine | Watched::Profiler => {}
                of if row.seen == 0 => warnings.push(Self::WatchedNever(of.label())),
                of if row.ended > 0 => {
                    warnings.push(Self::WatchedEnded(of.label(), row.ended));
                }
                _ => {}
            }
        }
        warnings
    }

    fn of_hits(profile: &Profile) -> Option<Self> {
        let short = profile.short_of_hits();
        let names = short.iter().map(|(name, ..)| (*name).to_owned()).collect();
        let counts = short.iter().map(|(name, count, least)| format!("{name} {count} of {least}"));
        let counts = counts.collect::<Vec<_>>().join(", ");
        (!short.is_empty()).then_some(Self::FewHits(names, counts))
    }

    fn of_tests(tests: &[TestRuns]) -> Vec<Self> {
        let words = |choose: &dyn Fn(&TestRuns) -> bool| {
            let chosen = tests.iter().filter(|test| choose(test));
            let words = chosen.map(|test| format!("{} ({})", test.name, test.in_words()));
            let words = words.collect::<Vec<_>>().join(", ");
            (!words.is_empty()).then_some(words)
        };
        let passed = |test: &TestRuns| test.results.iter().all(|r| r.result == TestResult::Pass);
        let left: Vec<&TestRuns> = tests.iter().filter(|test| test.left_running > 0).collect();
        let names = left.iter().map(|test| test.name.as_str()).collect::<Vec<_>>().join(", ");
        let count = left.iter().map(|test| test.left_running).sum();
        [
            words(&|test| !passed(test)).map(Self::TestsNotPassed),
            words(&|test| test.results.len() > 1).map(Self::TestsVaried),
            (count > 0).then_some(Self::TestsLeft(names, count)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Stable name of this kind.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::FewHits(..) => "few-hits",
            Self::TestsNotPassed(_) => "tests-not-passed",
            Self::TestsVaried(_) => "tests-varied",
            Self::TestsLeft(..) => "tests-left-running",
            Self::ZeroHits(_) => "zero-hits",
            Self::NeverLeft(_) => "never-left",
            Self::AllMissed(_) => "all-missed",
            Self::Missed(..) => "missed",
            Self::Overrun(..) => "overrun",
            Self::Lost(..) => "lost",
            Self::Doubtful(..) => "doubtful",
            Self::Backwards(..) => "backwards",
            Self::Unpaired(..) => "unpaired",
            Self::MissedUnknown(_) => "missed-unknown",
            Self::InFlight(..) => "in-flight",
            Self::OverRange(..) => "over-range",
            Self::Unbalanced(_) => "unbalanced",
            Self::FewCalls(_) => "few-calls",
            Self::RateNotHeld(..) => "rate-not-held",
            Self::WatchedEnded(..) => "watched-ended",
            Self::WatchedNever(_) => "watched-never",
        }
    }

    /// The handlers that it is about; empty is the whole run.
    #[must_use]
    pub fn handlers(&self) -> &[String] {
        match self {
            Self::Interrupted
            | Self::TestsNotPassed(_)
            | Self::TestsVaried(_)
            | Self::TestsLeft(..)
            | Self::RateNotHeld(..)
            | Self::WatchedEnded(..)
            | Self::WatchedNever(_) => &[],
            Self::ZeroHits(names)
            | Self::NeverLeft(names)
            | Self::AllMissed(names)
            | Self::Missed(names, _)
            | Self::Overrun(names, _)
            | Self::Lost(names, _)
            | Self::Doubtful(names, _)
            | Self::Backwards(names, _)
            | Self::Unpaired(names, _)
            | Self::MissedUnknown(names)
            | Self::InFlight(names, _)
            | Self::OverRange(names, _)
            | Self::Unbalanced(names)
            | Self::FewCalls(names)
            | Self::FewHits(names, _) => names,
        }
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
    format!("{count} call{}", if count == 1 { "" } else { "s" })
}

/// Names for a line: the first of them, and how many more there are.
pub(crate) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    const MOST: usize = 12;
    let first: Vec<&str> = names.iter().take(MOST).map(AsRef::as_ref).collect();
    match names.len().checked_sub(MOST) {
        None | Some(0) => first.join(", "),
        Some(more) => format!("{} and {more} more", first.join(", ")),
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = listed(self.handlers());
        match self {
            Self::Interrupted => write!(
                f,
                "the run was interrupted: the figures cover the time until then; run it again to the \
                 end before you compare it"
            ),
            Self::FewHits(_, counts) => write!(
                f,
                "fewer hits than the load profile wants: {counts}: the figures say little of these; run \
                 longer with --duration, or with more --iterations or --operations"
            ),
            Self::TestsNotPassed(results) => write!(
                f,
                "tests that did not pass: {results}: they may not have done what the load is for; the \
                 JSON has the last that each wrote"
            ),
            Self::TestsVaried(results) => write!(
                f,
                "tests that ended in different ways from round to round: {results}: the mix of calls \
                 changed within the run, and runs with such tests do not compare; leave them out with \
                 --ltp-tests"
            ),
            Self::TestsLeft(names, n) => write!(
                f,
                "{n} process{} of {names} went on after the end of the test and had to be killed",
                if *n == 1 { "" } else { "es" }
            ),
            Self::ZeroHits(_) => write!(
                f,
                "0 hits: {names}: the load never made the call that leads there, the module has not \
                 registered that hook, or the compiler inlined the function into its caller; check \
                 the load and the module's parameters"
            ),
            Self::NeverLeft(_) => write!(
                f,
                "0 hits: {names}: entered, and no call ended within the window; measure longer with \
                 --duration"
            ),
            Self::AllMissed(_) => write!(
                f,
                "0 hits: {names}: the kernel skipped every probe there, so this is not the same as \
                 no call; stop other tracers and measure again"
            ),
            Self::Missed(_, n) => write!(
                f,
                "the kernel skipped {n} probe runs in {names}, because that probe was already \
                 running on the CPU: the figures leave those calls out; spread the load, stop other \
                 tracers, or, where the kernel preempts tasks within fsession and fentry, take \
                 --backend kprobe-session"
            ),
            Self::Overrun(_, n) => write!(
                f,
                "the trace buffer had no room for {} of {names}{}: the figures leave them out; enlarge \
                 it with --trace-buffer KIB, or lower the load",
                calls(*n),
                if self.handlers().len() > 1 {
                    " together (which were whose is not known: each shows the most that it can be)"
                } else {
                    ""
                },
            ),
            Self::Lost(_, n) => write!(
                f,
                "{} of {names} began and could not be paired with an end: the function nests, sleeps \
                 or migrates more than its slots allow, and the figures leave those calls out; lower \
                 the load's workers to see whether that is all",
                calls(*n)
            ),
            Self::Doubtful(_, n) => write!(
                f,
                "the {n} longest durations of {names} are left out: the kernel skipped entry and exit \
                 programs there, so as many may be from the start of one call to the end of another, and \
                 which is not known; --backend fsession or kprobe-session, on kernels that have them, \
                 keep each start with its own call"
            ),
            Self::Backwards(_, n) => write!(
                f,
                "the kernel's clock stepped back during {} of {names}, whose end is before the start: the \
                 figures leave those calls out; if there are many, look at the machine's clock source \
                 (/sys/devices/system/clocksource)",
                calls(*n)
            ),
            Self::Unpaired(_, n) => write!(
                f,
                "{} of {names} ended, and the start was not seen: the figures leave those calls \
                 out; if the share in column `lost` matters to you, measure again with fewer workers",
                calls(*n)
            ),
            Self::MissedUnknown(_) => write!(
                f,
                "this kernel does not report how many probe runs it skipped in {names}: losses may be \
                 larger than shown; kernels from 6.7 on report it for every backend"
            ),
            Self::InFlight(_, n) => write!(
                f,
                "{} of {names} had not ended when the window did: the figures leave those calls out; \
                 if they are the long ones, measure longer with --duration",
                calls(*n)
            ),
            Self::OverRange(_, n) => write!(
                f,
                "{} of {names} took longer than the histograms reach: average and max are exact, and \
                 percentiles that fall on such a call are too low",
                calls(*n)
            ),
            Self::Unbalanced(_) => write!(
                f,
                "the account of {names} does not add up (carried in + entries = count + in flight + \
                 lost): an error of the profiler; do not use these figures, and report it with the JSON"
            ),
            Self::RateNotHeld(name, asked, held) => write!(
                f,
                "the load {name} was to make {asked}/s and held {held:.1}/s: the machine was too slow or \
                 too busy for more; lower --rate, or raise --workers if CPUs are idle, and compare \
                 runs of one rate alone"
            ),
            Self::WatchedEnded(name, count) => write!(
                f,
                "{count} process{} of {name}, which was watched, ended during the run: what it used \
                 after the last sample before that is not in its costs; a shorter --sample loses less",
                if *count == 1 { "" } else { "es" }
            ),
            Self::WatchedNever(name) => write!(
                f,
                "nothing to watch: {name} was not there at any sample; check the name (`ps -e` prints \
                 it), the process number or the control group's path"
            ),
            Self::FewCalls(_) => write!(
                f,
                "fewer than {FEW_CALLS} calls: {names}: TP99 there is the longest call, and little is \
                 known of the tail; measure longer or raise the load"
            ),
        }
    }
}
