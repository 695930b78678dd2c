//! Whether two recordings are of the same kind of run: figures of unlike runs differ for reasons that
//! are not the handlers'.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::stop::StopReason;
use profiler_base::terminal::clean;
use profiler_kernel::module::{ModuleFacts, changed_default, names_given};

use super::loads::{LoadRun, LoadStatus, TestRuns, mix_changes, tests_in_words};
use super::{HistogramLayout, Meter, Recording, Source};

/// How far two windows of the same length may be apart: timers are late, more so on a busy machine.
const WINDOW_TOLERANCE: f64 = 0.05;
/// Windows this close are alike whatever their length.
const WINDOW_SLACK_NS: u64 = 100_000_000;

/// One thing in which two recordings can differ, apart from what was measured.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::VariantArray,
    strum::VariantNames,
    strum::IntoStaticStr,
    strum::Display,
    strum::EnumString,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum What {
    /// What a nanosecond is, or that instructions were counted, and the kernel's clock source.
    Clock,
    /// How a handler that both have was observed: each backend adds its own cost to a duration.
    Backend,
    /// Release, build and preemption model of the kernel.
    Kernel,
    /// Architecture, CPU model and flags, number of CPUs, hypervisor.
    Machine,
    /// What the kernel does about the CPU's vulnerabilities.
    Mitigations,
    /// Which modules hold the handlers, by name.
    Modules,
    /// Which build of those modules.
    ModuleBuild,
    /// Parameters of those modules.
    Parameters,
    /// The loads, with workers, rates and operations, in any order.
    Load,
    /// How the tests of LTP ended, and their shares of all runs: the mix of calls.
    Tests,
    /// How many operations of a load failed, and of which errors: an operation that fails takes another path.
    Errors,
    /// Range and digits of the histograms.
    Precision,
    /// Length of warm-up and window, where the load does not set it.
    Window,
    /// The version of the program, which may add another cost to a duration, and what it imported, if it did not measure.
    Tool,
}

/// What two recordings are wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// One is the baseline, the other the candidate.
    Comparison,
    /// Both are runs of the same thing: of one side of a comparison.
    Repetition,
    /// They become one recording. Windows add up, so their length is free.
    Merge,
}

impl Use {
    /// What has to be alike for this.
    pub fn demands(self) -> impl Iterator<Item = What> {
        What::ALL.iter().copied().filter(move |what| match (self, what) {
            // Which run has them may be a matter of chance: see `failing_otherwise`.
            (_, What::Errors) => false,
            // It is what they are compared for.
            (Self::Comparison, What::ModuleBuild) => false,
            (Self::Merge, What::Window) => false,
            _ => true,
        })
    }
}

impl What {
    /// Everything there is, in the order in which differences are listed.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Both values in words where they differ.
    fn difference(self, first: &Recording, second: &Recording, of: Use) -> Option<[String; 2]> {
        let differ_in = |words: fn(&Recording) -> String| differ(words(first), words(second));
        match self {
            Self::Clock => differ_in(clock),
            Self::Backend => backends(first, second),
            Self::Kernel => differ_in(kernel),
            Self::Machine => {
                let [of_first, of_second] = cpu_flags(first, second).unwrap_or_default();
                differ(machine(first) + &of_first, machine(second) + &of_second)
            }
            Self::Mitigations => {
                let sides = [&first.host.mitigations, &second.host.mitigations];
                maps(sides, "no such line", |_| true)
            }
            Self::Modules => differ_in(|of| sorted(of.modules.iter().map(|it| &it.name), ", ")),
            Self::ModuleBuild => {
                each_module(first, second, |a, b| differ(describe_build(a), describe_build(b)))
            }
            Self::Parameters => {
                differ(agent(first), agent(second)).or_else(|| parameters(first, second, of))
            }
            // They run side by side: their order means nothing.
            Self::Load => differ_in(|of| sorted(of.loads.iter().map(|it| &it.spec), "; ")),
            Self::Tests => tests(first, second),
            Self::Errors => None,
            Self::Precision => differ_in(precision),
            Self::Window => windows(first, second),
            Self::Tool => differ_in(tool),
        }
    }
}

fn known(fact: &Option<String>) -> &str {
    fact.as_deref().unwrap_or("unknown")
}

fn clock(of: &Recording) -> String {
    let exact = if of.meter == Meter::Exact { ", instructions counted" } else { "" };
    format!("{} ({}){exact}", of.clock, known(&of.host.clock_source))
}

fn kernel(of: &Recording) -> String {
    format!(
        "{} {}, preemption {}",
        each(&of.host.kernel_release, &of.sources, |source| &source.kernel_release),
        known(&of.host.kernel_version),
        known(&of.host.preemption)
    )
}

fn machine(of: &Recording) -> String {
    let model = each(&of.host.cpu_model, &of.sources, |source| &source.cpu_model);
    let cpus = of.host.cpus_online.map_or("unknown".to_owned(), |cpus| cpus.to_string());
    let virtual_machine = match &of.host.hypervisor {
        Some(vm) => format!("virtual ({})", known(&vm.vendor)),
        None => "not virtual".to_owned(),
    };
    format!("{} {model}, CPUs: {cpus}, {virtual_machine}", of.host.arch)
}

fn precision(of: &Recording) -> String {
    let HistogramLayout { precision_digits, lowest_ns, highest_ns, .. } = of.histogram;
    format!("{precision_digits} digits, {lowest_ns} to {highest_ns} ns")
}

fn tool(of: &Recording) -> String {
    let imported = of.imported.as_ref().map(|text| format!(", import of {text}"));
    format!("{} {}{}", of.tool.name, of.tool.version, imported.unwrap_or_default())
}

fn agent(of: &Recording) -> String {
    let agent = of.snapshot.as_ref().and_then(|snapshot| snapshot.agent.as_ref());
    agent.map_or_else(|| "no agent".to_owned(), |agent| format!("agent {agent}"))
}

fn window(of: &Recording) -> String {
    let [window, warmup] = [of.window_ns, of.warmup_ns].map(|ns| ns as f64 / 1e9);
    format!("{window:.1} s after {warmup:.1} s of warm-up")
}

/// All of them in one order.
fn sorted(all: impl Iterator<Item = impl fmt::Display>, separator: &str) -> String {
    let words = all.map(|it| it.to_string()).sorted_unstable().join(separator);
    if words.is_empty() { "none".to_owned() } else { words }
}

/// A fact of the machine. Of merged recordings all that there are, because two sums of `various` machines need not be alike.
fn each(fact: &Option<String>, sources: &[Source], of: fn(&Source) -> &Option<String>) -> String {
    let all: BTreeSet<&str> = sources.iter().filter_map(|source| of(source).as_deref()).collect();
    match all.len() {
        ..2 => known(fact).to_owned(),
        _ => all.iter().join(" and "),
    }
}

/// One difference between two recordings, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// In what they differ.
    pub what: What,
    /// What the first says.
    pub first: String,
    /// What the second says.
    pub second: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} against {}", self.what, clean(&self.first), clean(&self.second))
    }
}

/// Every difference of two recordings that stands in the way of this use of them.
pub fn differences(first: &Recording, second: &Recording, purpose: Use) -> Vec<Difference> {
    let found = purpose.demands().filter_map(|what| {
        let [first, second] = what.difference(first, second, purpose)?;
        Some(Difference { what, first, second })
    });
    found.collect()
}

/// Operations that failed in another share, or otherwise, over all runs of two sides.
pub fn failing_otherwise(sides: [&[&Recording]; 2]) -> Option<Difference> {
    // Counted runs repeat; others depend on what else the machine does.
    let (share, few): (f64, f64) = match sides[0].first()?.meter {
        Meter::Exact => (0.001, 1.0),
        Meter::Probes => (0.01, 10.0),
    };
    let sides = sides.map(|runs| runs.iter().map(|run| run.loads_in_order()).collect::<Vec<_>>());
    let mut pairs = Vec::new();
    for (index, load) in sides[0].first()?.iter().enumerate() {
        let loads = sides.each_ref().map(|runs| runs.iter().filter_map(move |run| run.get(index)));
        let all = loads.clone().map(|runs| made(runs, None));
        let kinds = loads.clone().into_iter().flatten().flat_map(|load| &load.outcome.errors);
        for kind in kinds.map(|it| &*it.kind).collect::<BTreeSet<&str>>() {
            let counts = loads.clone().map(|runs| made(runs, Some(kind)));
            let shares = [0, 1].map(|side| counts[side] as f64 / all[side].max(1) as f64);
            let few = few / all[0].min(all[1]).max(1) as f64;
            // Both are quotients: allow for rounding.
            if (shares[0] - shares[1]).abs() > share.max(few) * (1.0 + 1e-9) {
                pairs.push([0, 1].map(|side| {
                    let [count, all] = [counts[side], all[side]];
                    format!("{count} of {all} operations fail with {kind} ({})", load.spec)
                }));
            }
        }
    }
    joined(&pairs, ", ").map(|[first, second]| Difference { what: What::Errors, first, second })
}

/// How many operations were made, or failed with errors of a kind.
fn made<'a>(runs: impl Iterator<Item = &'a &'a LoadRun>, kind: Option<&str>) -> u64 {
    let counts = runs.flat_map(|LoadRun { outcome, .. }| {
        let failed = outcome.errors.iter().filter(|it| kind.is_none_or(|kind| it.kind == kind));
        let succeeded = outcome.operations.filter(|_| kind.is_none());
        failed.map(|errors| errors.count).chain(succeeded)
    });
    counts.fold(0, u64::saturating_add)
}

/// Parameters of modules. Those of builds that are compared count if they were given: what differs by default is a difference of
/// the builds.
fn parameters(first: &Recording, second: &Recording, purpose: Use) -> Option<[String; 2]> {
    each_module(first, second, |a, b| {
        let given = given(a, b).filter(|_| purpose == Use::Comparison);
        let counts = |name: &String| given.as_ref().is_none_or(|given| given.contains(name));
        maps([&a.parameters, &b.parameters], "no such parameter", counts)
            .or_else(|| differ(hidden(a, [a, b])?, hidden(b, [a, b])?))
    })
}

/// What a module was loaded with of parameters that sysfs shows of neither `module`, in words; `None` if that is not known.
fn hidden(of: &ModuleFacts, modules: [&ModuleFacts; 2]) -> Option<String> {
    let is_shown = |word: &&str| {
        let names = names_given(word);
        names.iter().any(|name| modules.iter().any(|it| it.parameters.contains_key(name)))
    };
    let given = of.given.as_deref()?.split_whitespace();
    Some(sorted(given.filter(|word| !is_shown(word)), " "))
}

/// Names of the parameters that either was loaded with, if that is known of both.
fn given(a: &ModuleFacts, b: &ModuleFacts) -> Option<BTreeSet<String>> {
    let given = [a.given.as_deref()?, b.given.as_deref()?];
    Some(given.into_iter().flat_map(names_given).collect())
}

/// Parameters whose defaults differ, in words. Only of recordings that say with which parameters modules were loaded.
pub fn defaults(first: &Recording, second: &Recording) -> Vec<String> {
    let mut words = Vec::new();
    for a in &first.modules {
        let Some(b) = second.modules.iter().find(|b| b.name == a.name) else { continue };
        let Some(given) = given(a, b) else { continue };
        let names = a.parameters.keys().chain(b.parameters.keys()).sorted_unstable().dedup();
        words.extend(names.filter(|name| !given.contains(*name)).filter_map(|name| {
            let [a, b] = [a, b].map(|side| side.parameters.get(name).map(String::as_str));
            changed_default(name, a, b)
        }));
    }
    words
}

fn differ(first: String, second: String) -> Option<[String; 2]> {
    (first != second).then_some([first, second])
}

/// Several differences as one.
fn joined(pairs: &[[String; 2]], separator: &str) -> Option<[String; 2]> {
    let sides = [0, 1].map(|side| pairs.iter().map(|pair| &pair[side]).join(separator));
    (!pairs.is_empty()).then_some(sides)
}

/// The entries of two maps that count and differ, each with its key.
fn maps(
    sides: [&BTreeMap<String, String>; 2],
    absent: &str,
    counts: impl Fn(&String) -> bool,
) -> Option<[String; 2]> {
    let keys = sides.iter().flat_map(|map| map.keys()).sorted_unstable().dedup();
    let differing = keys.filter(|key| counts(key) && sides[0].get(*key) != sides[1].get(*key));
    let pairs = differing.map(|key| {
        sides.map(|map| match map.get(key) {
            Some(value) => format!("{key}={value}"),
            None => format!("{key}: {absent}"),
        })
    });
    joined(&pairs.collect::<Vec<_>>(), ", ")
}

/// What differs in the modules that both have.
fn each_module(
    first: &Recording,
    second: &Recording,
    difference: impl Fn(&ModuleFacts, &ModuleFacts) -> Option<[String; 2]>,
) -> Option<[String; 2]> {
    let pairs = first.modules.iter().filter_map(|a| {
        let b = second.modules.iter().find(|b| b.name == a.name)?;
        Some(difference(a, b)?.map(|words| format!("{}: {words}", a.name)))
    });
    joined(&pairs.collect::<Vec<_>>(), "; ")
}

/// CPU flags by which kernels choose their code, or a BPF compiler its instructions: copying, counting bits, saving
/// registers, atomics, checksums and ciphers. Only what the CPU itself says and every kernel from 5.10 on lists:
/// other flags are made up by the kernel (`pti`), or left out by those that do not know them (`fsrs`).
const CODE_FLAGS: &str = "erms fsrm popcnt bmi1 bmi2 movbe cx16 rdtscp fsgsbase xsaveopt xsavec ssse3 sse4_1 sse4_2 \
     pclmulqdq sha_ni avx avx2 avx512f aes atomics asimd crc32 pmull sha1 sha2";

/// The flags of [`CODE_FLAGS`] that one CPU has and the other has not, where both are known.
fn cpu_flags(first: &Recording, second: &Recording) -> Option<[String; 2]> {
    let known = [first.host.cpu_flags.as_ref()?, second.host.cpu_flags.as_ref()?];
    let [a, b] = known.map(|listed| -> BTreeSet<&str> {
        let listed = listed.split_ascii_whitespace();
        CODE_FLAGS.split(' ').filter(|flag| listed.clone().contains(flag)).collect()
    });
    let words = |own: BTreeSet<&str>| match own.is_empty() {
        true => ", without these CPU flags".to_owned(),
        false => format!(", with the CPU flags {}", own.iter().format(" ")),
    };
    (a != b).then(|| [&a - &b, &b - &a].map(words))
}

/// The build of a module: its build id, and what identifies one without.
fn describe_build(module: &ModuleFacts) -> String {
    format!(
        "version {}, srcversion {}, build id {}",
        known(&module.version),
        known(&module.srcversion),
        known(&module.build_id)
    )
}

/// Handlers that both have and that were not observed in the same way.
fn backends(first: &Recording, second: &Recording) -> Option<[String; 2]> {
    let known: HashMap<_, _> = second.handlers.iter().map(|b| ((&b.module, &b.name), b)).collect();
    let mut pairs: Vec<[String; 2]> = Vec::new();
    for a in &first.handlers {
        let same = known.get(&(&a.module, &a.name));
        let pair = same.filter(|b| a.backend != b.backend).map(|b| [a.way(), b.way()]);
        pairs.extend(pair.filter(|pair| !pairs.contains(pair)));
    }
    joined(&pairs, ", ")
}

/// Tests of LTP that ended otherwise, or that ran in another share of the runs.
fn tests(first: &Recording, second: &Recording) -> Option<[String; 2]> {
    let sides = [first, second].map(|recording| -> Vec<TestRuns> {
        recording.loads.iter().flat_map(|load| load.outcome.tests.iter().cloned()).collect()
    });
    let changed = mix_changes(&sides[0], &sides[1]);
    (!changed.is_empty()).then(|| {
        sides.map(|tests| {
            let words = tests_in_words(tests.iter().filter(|test| changed.contains(&test.name)));
            if words.is_empty() { "no such test".to_owned() } else { words }
        })
    })
}

/// Windows of other lengths, unless every load ended by itself: then its work is the same, and the
/// time that it took is a result.
fn windows(first: &Recording, second: &Recording) -> Option<[String; 2]> {
    let by_time = LoadStatus::Stopped { by: StopReason::Duration };
    let mut loads = first.loads.iter().chain(&second.loads);
    let is_unlike = loads.any(|load| load.outcome.status == by_time)
        && are_apart(first.window_ns, second.window_ns);
    (is_unlike || are_apart(first.warmup_ns, second.warmup_ns)).then(|| [first, second].map(window))
}

fn are_apart(a: u64, b: u64) -> bool {
    let apart = a.abs_diff(b);
    apart > WINDOW_SLACK_NS && apart as f64 > WINDOW_TOLERANCE * a.max(b) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_beside_the_driver_is_compared() {
        let of = |agent: Option<&str>| {
            // Of the crate that is not compiled for its tests.
            let run = profiler_tests::recording::runs(&[Default::default()]).remove(0);
            let mut run: crate::Recording =
                serde_json::from_value(serde_json::to_value(run).unwrap()).unwrap();
            run.snapshot = Some(crate::Snapshot {
                base: String::new(),
                placement: 0,
                counts_sha256: String::new(),
                agent: agent.map(str::to_owned),
            });
            run
        };
        let unlike = |a, b| differences(&of(a), &of(b), Use::Comparison);
        assert_eq!((unlike(None, None), unlike(Some("a"), Some("a"))), (vec![], vec![]));
        let [found] = unlike(None, Some("a b")).try_into().unwrap();
        assert_eq!(found.what, What::Parameters);
        assert_eq!(found.to_string(), "parameters: no agent against agent a b");
    }

    #[test]
    fn parameters_that_sysfs_does_not_show_are_compared_as_they_were_given() {
        let of = |given: &str| ModuleFacts {
            parameters: [("shown".to_owned(), "1".to_owned())].into(),
            given: Some(given.to_owned()),
            ..ModuleFacts::default()
        };
        let unlike = |a, b| {
            let [a, b] = [of(a), of(b)];
            differ(hidden(&a, [&a, &b])?, hidden(&b, [&a, &b])?)
        };
        assert_eq!(unlike("secret=1 shown=1 x=2", "x=2 secret=1"), None);
        let [a, b] = unlike("shown=1", "shown=1 secret=1").unwrap();
        assert_eq!((&*a, &*b), ("none", "secret=1"));
    }

    #[test]
    fn names_are_read_back() {
        for &what in What::ALL {
            assert_eq!(what.name().parse(), Ok(what));
            assert_eq!(serde_json::to_string(&what).unwrap(), format!("\"{what}\""));
        }
    }

    #[test]
    fn only_a_comparison_lets_builds_differ() {
        let asks = |purpose: Use, what| purpose.demands().any(|asked| asked == what);
        assert!(!asks(Use::Comparison, What::ModuleBuild));
        assert!(asks(Use::Merge, What::ModuleBuild) && asks(Use::Repetition, What::ModuleBuild));
        assert!(!asks(Use::Merge, What::Window) && asks(Use::Repetition, What::Window));
        for &what in What::ALL {
            assert_eq!(asks(Use::Repetition, what), what != What::Errors);
            let of_run = !matches!(what, What::ModuleBuild | What::Errors);
            assert_eq!(asks(Use::Comparison, what), of_run, "{what}");
        }
    }
}
