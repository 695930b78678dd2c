//! `profiler gate` and `profiler compare` from files to exit code, on runs made of real histograms.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profiler::load::{BuiltinKind, LoadFailure, LoadSpec, LoadStatus};
use profiler::recording::{Clock, Meter, Recording, Series, SeriesPosition};
use profiler::verdict::{self, Rule, Run, Sides};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{handler, measure, sample};
use crate::doctor::elf;

const ENTRY: &str = "connect_syscall_entry_handler";
const EXIT: &str = "connect_syscall_handler";
/// Calls of each handler in a run.
const CALLS: u64 = 2_000;

/// One run as it is made up.
#[derive(Clone)]
struct Recipe {
    boot: u32,
    order: u32,
    clock: Clock,
    /// How much slower [`EXIT`] is than it was.
    factor: f64,
    /// Scatter from run to run, as a share.
    scatter: f64,
    calls: u64,
    candidate: bool,
}

impl Recipe {
    /// A run under virtual time.
    fn new(boot: u32, order: u32) -> Self {
        Self {
            boot,
            order,
            clock: Clock::Virtual,
            factor: 1.0,
            scatter: 0.0,
            calls: CALLS,
            candidate: false,
        }
    }

    /// Durations as the testbed's under virtual time: a few paths of fixed length, now and then a
    /// timer interrupt of 2.4 microseconds, and what the boot adds.
    fn durations(&self, ns: f64, factor: f64) -> Vec<u64> {
        let seed = u64::from(self.boot) << 32 | u64::from(self.order) << 8 | ns as u64 & 0xff;
        let mut rng = fastrand::Rng::with_seed(seed);
        let level = ns * factor * (1.0 + self.scatter * (rng.f64() - 0.5));
        let of_boot = f64::from(self.boot % 3);
        (0..self.calls)
            .map(|call| {
                let path = if call % 17 == 0 { 1.04 } else { 1.0 };
                // Every 4 ms, in the middle of whatever runs then.
                let tick = if rng.f64() * 4e6 < ns { 2_400.0 } else { 0.0 };
                (level * path + tick + of_boot) as u64
            })
            .collect()
    }

    fn recording(&self) -> Recording {
        let mut recording = sample();
        recording.intervals.clear();
        recording.warnings.clear();
        recording.clock = self.clock;
        recording.host.boot_id = Some(format!("boot-{}", self.boot));
        recording.place = Some(SeriesPosition { boot: self.boot, order: self.order, part: None });
        recording.started = jiff::Timestamp::from_second(
            1_700_000_000 + i64::from(self.boot) * 600 + i64::from(self.order) * 20,
        )
        .unwrap();
        recording.loads[0].spec = LoadSpec::Builtin {
            name: BuiltinKind::Connect,
            workers: 1,
            rate_per_s: None,
            operations: Some(self.calls),
            pin: false,
            user: None,
        };
        recording.loads[0].outcome.status = LoadStatus::Completed;
        let build = if self.candidate { "bb" } else { "aa" };
        recording.modules[0].build_id = Some(build.repeat(20));
        recording.handlers = vec![
            handler(&measure(ENTRY, &self.durations(427.0, 1.0))),
            handler(&measure(EXIT, &self.durations(6_200.0, self.factor))),
        ];
        recording
    }
}

/// Runs of both sides in turns, ABBA within each boot, modified by `change`.
fn abba(boots: u32, rounds: u32, change: impl Fn(&mut Recipe)) -> (Vec<Recording>, Vec<Recording>) {
    let (mut base, mut candidate) = (Vec::new(), Vec::new());
    for boot in 0..boots {
        for order in 0..4 * rounds {
            let mut recipe = Recipe::new(boot, order);
            recipe.candidate = matches!(order % 4, 1 | 2);
            change(&mut recipe);
            if recipe.candidate {
                candidate.push(recipe.recording())
            } else {
                base.push(recipe.recording())
            }
        }
    }
    (base, candidate)
}

/// Runs of which the candidate's are this much slower.
fn slower(percent: f64) -> (Vec<Recording>, Vec<Recording>) {
    abba(2, 2, |recipe| {
        if recipe.candidate {
            recipe.factor = 1.0 + percent / 100.0;
        }
    })
}

/// A folder with the two series.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new((base, candidate): (Vec<Recording>, Vec<Recording>)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Series::new("baseline", base).write(&folder.path().join("base.json")).unwrap();
        Series::new("candidate", candidate).write(&folder.path().join("candidate.json")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        command.current_dir(self.folder.path()).args(arguments.split_whitespace());
        for variable in ["GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"] {
            command.env_remove(variable);
        }
        command
    }

    fn run(&self, arguments: &str) -> Ended {
        Ended::of(self.command(arguments).output().unwrap())
    }

    fn gate(&self, more: &str) -> Ended {
        self.run(&format!("gate base.json candidate.json {more}"))
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

/// How the program ended.
#[derive(Debug)]
struct Ended {
    code: i32,
    out: String,
    error: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().expect("no signal"),
            out: String::from_utf8(output.stdout).unwrap(),
            error: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Fails unless it ended with `code` and said `text` on standard error.
    #[track_caller]
    fn refused(&self, code: i32, text: &str) {
        assert_eq!(self.code, code, "{self:#?}");
        assert!(self.error.contains(text), "not told: {text}\n{self:#?}");
    }

    #[track_caller]
    fn passed(&self) {
        assert_eq!((self.code, self.error.as_str()), (0, ""), "{self:#?}");
    }

    /// The line of the table on this handler and figure.
    #[track_caller]
    fn line(&self, handler: &str, figure: &str) -> &str {
        self.out
            .lines()
            .find(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.get(1) == Some(&handler) && words.get(2) == Some(&figure)
            })
            .unwrap_or_else(|| panic!("no line on {handler} {figure}: {self:#?}"))
    }
}

pub(crate) fn assert_schema(json: &Value, schema: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(schema);
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let validator = jsonschema::draft202012::options().build(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(json).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn the_same_driver_passes() {
    let ended = Bench::new(slower(0.0)).gate("");
    ended.passed();
    assert!(ended.out.contains("gate: pass: 8 passed"), "{ended:#?}");
    assert!(ended.out.contains("2 boots of both sides, 4 v 4 runs each, in turns"), "{ended:#?}");
}

#[test]
fn a_slower_handler_fails_and_is_named_and_the_other_passes() {
    for percent in [1.0, 2.0, 5.0] {
        let ended = Bench::new(slower(percent)).gate("");
        ended.refused(10, &format!("gate: fail: {EXIT} "));
        for figure in ["avg", "tp90", "tp95", "tp99"] {
            assert!(ended.line(EXIT, figure).starts_with("fail"), "{percent} %: {ended:#?}");
            assert!(ended.line(ENTRY, figure).starts_with("pass"), "{percent} %: {ended:#?}");
        }
    }
}

#[test]
fn the_exit_code_stops_a_script() {
    let bench = Bench::new(slower(2.0));
    let script = format!(
        "set -e; '{}' gate base.json candidate.json >table; echo merged",
        env!("CARGO_BIN_EXE_profiler")
    );
    let output =
        Command::new("sh").args(["-c", &script]).current_dir(&bench.folder).output().unwrap();
    let ended = Ended::of(output);
    assert_eq!((ended.code, ended.out.as_str()), (10, ""), "{ended:#?}");
}

#[test]
fn a_faster_handler_passes_and_is_shown() {
    let ended = Bench::new(slower(-3.0)).gate("");
    ended.passed();
    assert!(ended.line(EXIT, "avg").starts_with("faster"), "{ended:#?}");
    assert!(ended.out.contains("gate: pass: 8 passed (4 faster)"), "{ended:#?}");
}

/// Under virtual time runs may agree to the instruction, so that there is no scatter.
#[test]
fn runs_without_scatter_are_judged() {
    let same = |change: u64| {
        let (mut base, mut candidate) = slower(0.0);
        for (side, ns) in [(&mut base, 6_000), (&mut candidate, 6_000 + change)] {
            for run in side.iter_mut() {
                run.handlers[1] = handler(&measure(EXIT, &[ns; CALLS as usize]));
                run.handlers[0] = handler(&measure(ENTRY, &[180; CALLS as usize]));
            }
        }
        Bench::new((base, candidate)).gate("")
    };
    same(0).passed();
    same(60).refused(10, &format!("{EXIT} avg and 3 more failed: +1.00 %"));
    // Within the limit.
    same(24).passed();
}

#[test]
fn percentiles_fail_by_no_less_than_a_bucket() {
    // 3 digits: buckets of 50,000 ns are 32 ns wide, and these two values are neighbours in two buckets.
    let (mut base, mut candidate) = slower(0.0);
    for (side, ns) in [(&mut base, 50_015), (&mut candidate, 50_016)] {
        for run in side.iter_mut() {
            run.handlers = vec![handler(&measure(EXIT, &[ns; CALLS as usize]))];
        }
    }
    let bench = Bench::new((base, candidate));
    // The limits alone would call it slower.
    let ended = bench.gate("--max-regression avg=0%,tp90=0%,tp95=0%,tp99=0% --floor 0ns");
    assert!(ended.line(EXIT, "avg").starts_with("fail"), "{ended:#?}");
    for figure in ["tp90", "tp95", "tp99"] {
        assert!(ended.line(EXIT, figure).starts_with("pass"), "{ended:#?}");
        assert!(ended.line(EXIT, figure).contains("(floor)"), "{ended:#?}");
    }
}

#[test]
fn a_change_below_the_floor_passes() {
    let bench = Bench::new(slower(2.0));
    bench.gate("--floor 1us").passed();
    bench.gate("--floor 50ns").refused(10, EXIT);
}

/// A change of a run.
type Edit = fn(&mut Recording);

fn refusal(change: impl Fn(&mut Recording)) -> Bench {
    let (base, mut candidate) = slower(2.0);
    candidate.iter_mut().for_each(change);
    Bench::new((base, candidate))
}

#[test]
fn unlike_runs_are_refused_with_both_values_unless_told() {
    let cases: [(&str, &str, Edit); 5] = [
        (
            "clock",
            "clock: virtual (tsc) in base.json run 1, wall (tsc) in candidate.json run 1",
            |p| {
                p.clock = Clock::Wall;
            },
        ),
        ("kernel", "6.12.95-amd64 #1 SMP", |p| {
            p.host.kernel_release = Some("6.12.95-amd64".to_owned());
        }),
        (
            "load",
            "load: builtin connect, 1 worker, as fast as possible, 2000 operations in base.json run 1, \
             builtin bind, 1 worker, as fast as possible, 2000 operations in candidate.json run 1",
            |p| {
                if let LoadSpec::Builtin { name, .. } = &mut p.loads[0].spec {
                    *name = BuiltinKind::Bind;
                }
            },
        ),
        (
            "parameters",
            "parameters: hids_testbed: extra=0 in base.json run 1, hids_testbed: extra=1 in \
             candidate.json run 1",
            |p| {
                p.modules[0].parameters.insert("extra".to_owned(), "1".to_owned());
            },
        ),
        (
            "modules",
            "modules: hids_testbed in base.json run 1, other in candidate.json run 1",
            |p| {
                p.modules[0].name = "other".to_owned();
            },
        ),
    ];
    for (what, text, change) in cases {
        let bench = refusal(change);
        let ended = bench.gate("");
        ended.refused(12, text);
        ended.refused(12, &format!("add --allow-different {what}"));
        bench.run("compare base.json candidate.json").refused(12, text);
        // A clock that is the wall's somewhere has the wall's limits.
        let allowed = bench.gate(&format!("--allow-different {what} --max-regression avg=1%"));
        allowed.refused(10, EXIT);
        assert_eq!(
            bench.run(&format!("compare base.json candidate.json --allow-different {what}")).code,
            0
        );
    }
}

/// Under virtual time `rep` takes an instruction a byte on a CPU with `erms`, and one for eight without.
#[test]
fn cpus_of_other_flags_are_other_machines() {
    let other = refusal(|p| p.host.cpu_flags = Some("rep_good fpu avx".to_owned()));
    let text = "virtual (QEMU), with the CPU flags erms in base.json run 1, x86_64 AMD EPYC, CPUs: 2, \
                virtual (QEMU), with the CPU flags avx in candidate.json run 1";
    other.gate("").refused(12, text);
    other.gate("").refused(12, "add --allow-different machine");
    other.gate("--allow-different machine --max-regression avg=1%").refused(10, EXIT);
    // Their order does not matter, nor do those that are made up, or not listed, by one of two kernels.
    for flags in ["rep_good fpu erms", "fpu erms", "fpu erms rep_good pti ibrs amd_lbr_v2 fsrs"] {
        let same = refusal(|p| p.host.cpu_flags = Some(flags.to_owned()));
        same.gate("--max-regression avg=1%").refused(10, EXIT);
    }

    // A file of an older version says nothing of them. Where a nanosecond is an instruction it was
    // measured with other ones; by the wall clock the CPU is what it was.
    let older = refusal(|p| p.host.cpu_flags = None);
    older
        .gate("")
        .refused(12, "CPU flags not recorded (by an older version) in candidate.json run 1");
    let (mut base, mut candidate) = slower(5.0);
    for run in base.iter_mut().chain(&mut candidate) {
        run.clock = Clock::Wall;
    }
    base.iter_mut().for_each(|run| run.host.cpu_flags = None);
    Bench::new((base, candidate)).gate("--max-regression avg=1%").refused(10, EXIT);
}

#[test]
fn runs_of_one_side_have_to_be_of_one_build() {
    let (mut base, candidate) = slower(0.0);
    base[3].modules[0].build_id = Some("cc".repeat(20));
    let ended = Bench::new((base, candidate)).gate("");
    ended.refused(12, "module-build: hids_testbed: version 0.1");
    ended.refused(12, "in base.json run 4");
}

#[test]
fn runs_that_cannot_be_used_are_refused() {
    let cases: [(&str, Edit); 3] = [
        ("candidate.json run 1: the run was interrupted", |p| p.interrupted = true),
        ("candidate.json run 1: its load failed: the load command ended with exit code 3", |p| {
            p.loads[0].outcome.status = LoadStatus::Failed(LoadFailure::ExitCode { code: 3 });
        }),
        ("candidate.json run 1: its books of connect_syscall_handler do not balance", |p| {
            p.handlers[1].losses.entries += 1
        }),
    ];
    for (text, change) in cases {
        refusal(change).gate("").refused(12, text);
    }
}

#[test]
fn a_copy_is_no_second_run() {
    let bench = Bench::new(slower(0.0));
    let ended = bench.run("gate base.json base.json -- candidate.json");
    ended.refused(12, "base.json run 1: is a copy of base.json run 1, not a second measurement");
    // Nor is it the other side's.
    let ended = bench.run("gate base.json -- base.json");
    ended.refused(12, "base.json run 1: is a copy of base.json run 1, not a second measurement");
}

#[test]
fn too_few_runs_are_refused_with_the_number_needed() {
    let bench = Bench::new(abba(2, 1, |_| {}));
    let ended = bench.gate("");
    ended.refused(
        13,
        "2 boots of both sides, 2 v 2 runs each, in turns give a p-value of 0.02778 at best",
    );
    ended.refused(13, "8 comparisons at alpha 0.05 need 0.00625");
    ended.refused(13, "measure 3 boots with 2 v 2 runs each, or 3 v 3 runs in each of these 2");
    // One comparison alone is within reach.
    bench.gate("--max-regression avg=0.5% --alpha 0.06").passed();
    let single = Bench::new({
        let (base, candidate) = slower(0.0);
        (base[..1].to_vec(), candidate[..1].to_vec())
    });
    single.gate("").refused(13, "too few runs to find any regression, however large");
}

/// Runs of one boot are alike for reasons of that boot, so without boots in common each boot is one value.
#[test]
fn boots_apart_count_once() {
    let bench = Bench::new(abba(4, 2, |recipe| {
        recipe.candidate = recipe.boot > 1;
        recipe.factor = if recipe.candidate { 1.02 } else { 1.0 };
    }));
    let ended = bench.gate("");
    ended.refused(
        13,
        "16 runs of the baseline in 2 boots, 16 runs of the candidate in 2 boots, apart",
    );
    ended.refused(13, "5 v 5 boots (runs of one boot count as one value");
    bench.gate("--independent-runs").refused(10, EXIT);

    let stored = Bench::new(abba(10, 1, |recipe| {
        recipe.candidate = recipe.boot > 4;
        recipe.factor = if recipe.candidate { 1.02 } else { 1.0 };
    }));
    stored.gate("").refused(10, EXIT);
}

/// Two files can look like one boot: with a fixed seed the kernel's random boot id comes out the same.
#[test]
fn a_place_that_is_taken_twice_is_of_another_boot() {
    let (base, mut candidate) = slower(0.0);
    candidate = candidate
        .iter()
        .zip(&base)
        .map(|(run, base)| Recording { place: base.place.clone(), ..run.clone() })
        .collect();
    Bench::new((base, candidate)).gate("").refused(13, "apart");
}

#[test]
fn too_few_calls_are_insufficient_and_told_how_many_it_takes() {
    let bench = Bench::new(abba(2, 2, |recipe| recipe.calls = 150));
    let ended = bench.gate("");
    ended.refused(11, "gate: inconclusive: none failed, 4 undecided, 4 passed");
    for handler in [ENTRY, EXIT] {
        let line = ended.line(handler, "tp99");
        assert!(line.starts_with("insufficient"), "{line}");
        assert!(
            line.contains("tp99 needs 1000 calls in every run, and a run of the baseline has 150"),
            "{line}"
        );
        assert!(ended.line(handler, "tp95").contains("tp95 needs 200 calls"), "{ended:#?}");
        assert!(ended.line(handler, "tp90").starts_with("pass"), "{ended:#?}");
    }
    bench.gate("--max-regression avg=1%,tp90=1%").passed();
}

#[test]
fn a_baseline_that_is_missing_or_damaged_is_told_apart() {
    let bench = Bench::new(slower(0.0));
    bench
        .run("gate none.json candidate.json")
        .refused(7, "the baseline none.json does not exist: measure the accepted driver");
    let text = bench.read("base.json");
    bench.write("cut.json", &text[..text.len() / 2]);
    bench
        .run("gate cut.json candidate.json")
        .refused(7, "bad baseline: cut.json is cut off at line");
    bench.write("edited.json", &text.replacen("\"count\": 2000", "\"count\": 2001", 1));
    bench
        .run("gate edited.json candidate.json")
        .refused(7, "bad baseline: edited.json contradicts itself");
    bench.write("other.json", "{\"a\": 1}");
    bench
        .run("gate other.json candidate.json")
        .refused(7, "bad baseline: other.json is JSON, but not a recording");
    bench.run("gate base.json none.json").refused(7, "cannot read none.json");
    bench
        .run("compare none.json candidate.json")
        .refused(7, "the baseline none.json does not exist");
}

#[test]
fn two_modules_are_builds() {
    let bench = Bench::new(slower(0.0));
    let info = b"license=GPL\0parmtype=bind_hook:int\0";
    fs::write(bench.path("base.ko"), elf(&[(".modinfo", b"license=GPL\0")])).unwrap();
    fs::write(bench.path("head.ko"), elf(&[(".modinfo", info)])).unwrap();
    // Found before any VM is.
    for line in
        ["base.ko head.ko", "base.ko -- head.ko", "base.ko head.ko --plan -H x --kernel 6.1"]
    {
        bench
            .run(&format!("gate --module-params bind_hook=1 {line}"))
            .refused(2, "base.ko has no module parameter bind_hook, ");
    }
    let absent = bench.run("gate none.ko head.ko --module-params bind_hok=1");
    absent.refused(2, "head.ko has no module parameter bind_hok, ");
    let absent = bench.run("gate none.ko head.ko");
    assert!(absent.code != 0 && !absent.error.contains("--json"), "{absent:?}");
    bench.run("gate --budget a:avg<1us -- head.ko").refused(2, "name the baseline's .ko file");
    bench.run("gate base.ko candidate.json").refused(2, "base.ko is a build of a driver");
    bench.run("gate base.json candidate.json --plan").refused(2, "--plan is for two builds");
    bench.run("compare base.ko head.ko").refused(2, "`profiler gate BASE.ko CANDIDATE.ko`");
    let absent = bench.run("gate none.json candidate.json");
    assert!(absent.error.contains("--json FILE"), "it would overwrite: {absent:?}");
}

#[test]
fn the_baseline_moves_on_with_a_pass_alone() {
    let bench = Bench::new(slower(2.0));
    let before = bench.read("base.json");
    let ended = bench.gate("--update-baseline base.json");
    ended.refused(10, "; base.json is unchanged");
    assert_eq!(bench.read("base.json"), before);

    let bench = Bench::new(slower(0.2));
    bench.gate("--update-baseline new.json").passed();
    let new = Series::read(&bench.path("new.json")).unwrap();
    assert_eq!(new.runs, Series::read(&bench.path("candidate.json")).unwrap().runs);
    assert_eq!(new.label, "baseline");
    bench.gate("--update-baseline /nowhere/base.json").refused(8, "/nowhere/base.json");
}

#[test]
fn a_noisy_wall_clock_is_inconclusive() {
    let noisy = |factor: f64| {
        abba(3, 1, |recipe| {
            recipe.clock = Clock::Wall;
            recipe.scatter = 0.6;
            recipe.factor = if recipe.candidate { factor } else { 1.0 };
        })
    };
    let ended = Bench::new(noisy(1.0)).gate("");
    ended.refused(11, "gate: inconclusive: none failed");
    assert!(ended.line(EXIT, "avg").starts_with("inconclusive"), "{ended:#?}");
    // Twice as slow is seen through it.
    Bench::new(noisy(3.0)).gate("").refused(10, EXIT);
}

#[test]
fn a_wall_clock_without_turns_has_wider_limits() {
    let in_order = |turns: bool, factor: f64| {
        Bench::new(abba(1, 3, |recipe| {
            recipe.clock = Clock::Wall;
            if !turns {
                recipe.candidate = recipe.order >= 6;
            }
            recipe.factor = if recipe.candidate { factor } else { 1.0 };
        }))
        .gate("")
    };
    in_order(true, 1.15).refused(10, EXIT);
    let ended = in_order(false, 1.15);
    ended.passed();
    assert!(
        ended.out.contains("note: the sides did not take turns on the wall clock"),
        "{ended:#?}"
    );
    in_order(false, 1.5).refused(10, EXIT);
}

#[test]
fn handlers_that_came_or_went_are_told() {
    let (base, mut candidate) = slower(0.0);
    for run in &mut candidate {
        run.handlers[1].name = "connect_handler".to_owned();
    }
    let bench = Bench::new((base, candidate));
    let ended = bench.gate("");
    ended.refused(11, "none failed, 1 undecided, 4 passed, 1 new, 1 vanished");
    let line = ended.line(EXIT, "handler");
    assert!(
        line.starts_with("vanished") && line.contains("the candidate has no such handler"),
        "{line}"
    );
    assert!(ended.line("connect_handler", "handler").starts_with("new"), "{ended:#?}");
    bench.gate("--allow-vanished").passed();

    let (base, mut candidate) = slower(0.0);
    for run in &mut candidate {
        run.handlers[1] = handler(&measure(EXIT, &[]));
    }
    let ended = Bench::new((base, candidate)).gate("");
    ended.refused(11, "1 vanished");
    assert!(ended.line(EXIT, "handler").contains("and none in the candidate"), "{ended:#?}");
}

#[test]
fn lost_calls_leave_it_open() {
    let (base, mut candidate) = slower(2.0);
    candidate[2].handlers[1].losses.entries += 10;
    candidate[2].handlers[1].losses.lost += 10;
    let bench = Bench::new((base, candidate));
    let ended = bench.gate("");
    ended.refused(11, "none failed");
    assert!(
        ended
            .line(EXIT, "avg")
            .contains("0.5 % of a run's calls were lost, and the limit is 0.1 %"),
        "{ended:#?}"
    );
    bench.gate("--max-loss 1%").refused(10, EXIT);
}

#[test]
fn budgets_are_judged_with_and_without_a_baseline() {
    let bench = Bench::new(slower(0.0));
    bench.gate("--budget connect_*:tp99<20us --budget *_entry_*:avg<500ns").passed();
    let ended = bench.gate("--budget connect_syscall_*:avg<2us");
    ended.refused(10, &format!("{EXIT} budget connect_syscall_*:avg<2us failed: "));
    let ended = bench.run("gate --budget connect_*:avg<2us -- candidate.json");
    ended.refused(10, EXIT);
    assert!(ended.out.contains("note: no baseline: only budgets are judged"), "{ended:#?}");
    bench.run("gate --budget connect_*:avg<9us -- candidate.json").passed();
    bench.run("gate -- candidate.json").refused(2, "no baseline");
    bench.run("gate base.json").refused(2, "no candidate");
    // A budget that nothing matches must not pass for one that is kept.
    bench.gate("--budget conect_*:tp99<2us").refused(11, "none failed, 1 undecided");
    bench.gate("--budget connect_*:tp99").refused(2, "invalid budget `connect_*:tp99`");
    bench.gate("--max-regression p99=1%").refused(2, "unknown statistic `p99`");
}

#[test]
fn a_rule_file_overrides_and_its_mistakes_have_a_place() {
    let bench = Bench::new(slower(2.0));
    bench.write(
        "gate.toml",
        "[[handler]]\nname = \"connect_syscall_handler\"\n\
         max-regression = { avg = \"3%\", tp90 = \"3%\", tp95 = \"3%\", tp99 = \"off\" }\n\
         [[handler]]\nname = \"bind_*\"\n",
    );
    let ended = bench.gate("--config gate.toml");
    ended.passed();
    assert!(ended.out.contains("gate: pass: 7 passed"), "{ended:#?}");
    assert!(ended.out.contains("note: no handler matches `bind_*` of the rule file"), "{ended:#?}");
    bench.write(
        "bad.toml",
        "[max-regression]\ntp99 = \"1%\"\n\n[[handler]]\nname = \"x\"\nflor = \"1ns\"\n",
    );
    bench.gate("--config bad.toml").refused(7, "bad.toml:6:1: unknown field `flor`");
    bench.gate("--config none.toml").refused(7, "cannot read none.toml");
}

/// The page of a gate that failed.
pub(crate) fn failed_page() -> Vec<u8> {
    let bench = Bench::new(slower(2.0));
    bench.gate("--html gate.html").refused(10, EXIT);
    bench.read("gate.html").into_bytes()
}

#[test]
fn every_output_tells_the_same() {
    let bench = Bench::new(slower(2.0));
    let ended = bench.gate(
        "--json gate.json --junit gate.xml --markdown gate.md --html gate.html --annotations",
    );
    ended.refused(10, EXIT);
    let json: Value = serde_json::from_str(&bench.read("gate.json")).unwrap();
    assert_schema(&json, "gate-v1.schema.json");
    assert_eq!((json["outcome"].as_str(), json["exit_code"].as_i64()), (Some("fail"), Some(10)));
    assert_eq!(json["lines"].as_array().map(Vec::len), Some(8));
    assert_eq!(json["comparisons"], 8);
    let xml = bench.read("gate.xml");
    assert!(xml.contains("tests=\"8\"") && xml.contains("failures=\"4\""), "{xml}");
    let markdown = bench.read("gate.md");
    assert!(markdown.starts_with("### Handler latency gate: fail\n"), "{markdown}");
    assert_eq!(markdown.matches("\n| fail | connect_syscall_handler | ").count(), 4, "{markdown}");
    let page = bench.read("gate.html");
    let change = &json["lines"][0]["change"];
    for side in ["base", "candidate"] {
        let shown = format!(">{:.1} ns</td>", change[side].as_f64().unwrap());
        assert!(page.contains(&shown), "{shown}: {page}");
    }
    // The overview, with both sides of two handlers; average and TP99 of the one that failed, by run.
    assert!(page.contains("<h2>fail</h2>") && page.matches("<svg").count() == 3, "{page}");
    let averages: Vec<&str> =
        page.split("<circle cx=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(averages.len(), 4, "{page}");
    assert_ne!(averages[0], averages[1], "the handler that failed: {page}");
    assert_eq!(averages[2], averages[3], "the handler that did not: {page}");
    assert_eq!(page.matches("<td>fail</td>").count(), 5, "four figures, and the handler: {page}");
    let errors: Vec<&str> = ended.out.lines().filter(|line| line.starts_with("::error ")).collect();
    assert_eq!(errors.len(), 4, "{ended:#?}");
    assert!(
        errors[0].starts_with("::error title=fail%3A connect_syscall_handler avg::+"),
        "{}",
        errors[0]
    );
    assert!(errors[0].contains(" %25 (") && !errors[0].contains(" % "), "{}", errors[0]);
    assert_eq!(bench.gate("--format json").out, bench.read("gate.json"));
    assert_eq!(bench.gate("--format markdown").out, markdown);
}

#[test]
fn a_refusal_is_an_output_too() {
    let bench = refusal(|p| p.clock = Clock::Wall);
    let files = "--json gate.json --junit gate.xml --markdown gate.md --html gate.html";
    bench.gate(files).refused(12, "clock");
    assert!(bench.read("gate.html").contains("<h2>not comparable</h2>"));
    let json: Value = serde_json::from_str(&bench.read("gate.json")).unwrap();
    assert_schema(&json, "gate-v1.schema.json");
    assert_eq!(json["outcome"], "not-comparable");
    assert!(bench.read("gate.xml").contains("errors=\"1\""));
    assert!(bench.read("gate.md").starts_with("### Handler latency gate: not comparable\n"));
}

#[test]
fn on_github_the_summary_and_the_annotations_come_by_themselves() {
    let bench = Bench::new(slower(2.0));
    bench.write("summary.md", "before\n");
    let mut command = bench.command("gate base.json candidate.json");
    command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", bench.path("summary.md"));
    let ended = Ended::of(command.output().unwrap());
    assert!(ended.out.contains("\n::error title=fail%3A "), "{ended:#?}");
    assert!(bench.read("summary.md").starts_with("before\n### Handler latency gate: fail\n"));
    command.env("GITHUB_STEP_SUMMARY", "/nowhere/summary.md");
    Ended::of(command.output().unwrap()).refused(8, "which GITHUB_STEP_SUMMARY names");
}

#[test]
fn parts_are_compared_each_for_itself() {
    let (mut base, mut candidate) = slower(0.0);
    let (binds, slow_binds) = slower(2.0);
    for (side, runs) in [(&mut base, binds), (&mut candidate, slow_binds)] {
        side.iter_mut()
            .for_each(|run| run.place.as_mut().unwrap().part = Some("connect".to_owned()));
        side.extend(runs.into_iter().map(|mut run| {
            let place = run.place.as_mut().unwrap();
            place.part = Some("bind".to_owned());
            place.order += 100;
            run.loads[0].outcome.elapsed_ns += 1;
            if let LoadSpec::Builtin { name, .. } = &mut run.loads[0].spec {
                *name = BuiltinKind::Bind;
            }
            run
        }));
    }
    let bench = Bench::new((base, candidate));
    let ended = bench.gate("--json gate.json");
    ended.refused(10, &format!("bind: {EXIT} avg and 3 more failed"));
    let json: Value = serde_json::from_str(&bench.read("gate.json")).unwrap();
    let failed: Vec<&str> = json["lines"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["verdict"] == "fail")
        .map(|line| line["part"].as_str().unwrap())
        .collect();
    assert_eq!(failed, ["bind"; 4]);
    assert_eq!(json["comparisons"], 16);
}

#[test]
fn a_comparison_shows_what_is_behind_it() {
    let bench = Bench::new(slower(2.0));
    let ended = bench.run("compare base.json candidate.json --json compare.json");
    ended.passed();
    insta::assert_snapshot!(ended.out);
    let json: Value = serde_json::from_str(&bench.read("compare.json")).unwrap();
    assert_schema(&json, "compare-v1.schema.json");
    let changes = json["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 12);
    assert!(changes.iter().all(|change| change["base_runs"].as_array().map(Vec::len) == Some(8)));
    let markdown = bench.run("compare base.json candidate.json --format markdown");
    assert_eq!(markdown.out.matches("\n| connect_syscall_handler | ").count(), 6, "{markdown:#?}");
}

#[test]
fn two_single_runs_have_no_bounds() {
    let (base, candidate) = slower(2.0);
    let bench = Bench::new((base[..1].to_vec(), candidate[..1].to_vec()));
    let ended = bench.run("compare base.json candidate.json");
    ended.passed();
    assert!(ended.out.contains("and the change may be chance: measure several runs"), "{ended:#?}");
}

#[test]
fn the_table_of_a_gate() {
    let ended = Bench::new(slower(2.0)).gate("");
    insta::assert_snapshot!(ended.out);
}

/// Runs of counted instructions: `ENTRY` takes 400 or, by where objects lie, 402 in a whole run, and one call in 50 takes
/// 300 more; the candidate's calls take `more`.
fn counted(calls: u64, more: u64) -> (Vec<Recording>, Vec<Recording>) {
    counted_in(2, calls, more)
}

/// The same with so many rounds of ABBA in each of two boots.
fn counted_in(rounds: u32, calls: u64, more: u64) -> (Vec<Recording>, Vec<Recording>) {
    let of = |(at, mut recording): (usize, Recording), more: u64| {
        let by_place = if (at * 7 + more as usize).is_multiple_of(3) { 2 } else { 0 };
        let instructions: Vec<u64> = (0..calls)
            .map(|call| 400 + by_place + more + if call % 50 == 0 { 300 } else { 0 })
            .collect();
        recording.meter = Meter::Exact;
        recording.handlers = vec![handler(&measure(ENTRY, &instructions))];
        recording
    };
    let (base, candidate) = abba(2, rounds, |_| ());
    let all = |runs: Vec<Recording>, more| {
        runs.into_iter().enumerate().map(|run| of(run, more)).collect()
    };
    (all(base, 0), all(candidate, more))
}

#[test]
fn counted_instructions_take_fewer_calls_and_have_limits_of_their_own() {
    let same = Bench::new(counted(200, 0)).gate("");
    same.passed();
    assert!(same.out.contains("gate: pass: 5 passed"), "{same:#?}");
    let slower = Bench::new(counted(200, 9)).gate("");
    slower.refused(10, &format!("gate: fail: {ENTRY} "));
    for figure in ["avg", "tp50", "tp90", "tp95", "tp99"] {
        assert!(slower.line(ENTRY, figure).starts_with("fail"), "{figure}: {slower:#?}");
    }
    // 0.75 %, and no more than where objects lie makes.
    Bench::new(counted(200, 3)).gate("").passed();
    let few = Bench::new(counted(199, 0)).gate("");
    few.refused(11, "");
    assert!(few.line(ENTRY, "tp99").contains("200"), "{few:#?}");
}

/// 2 boots of 2 v 2 cannot fail five figures. Counts that show the limit to be kept need not, and all others do.
#[test]
fn counted_instructions_that_stay_within_their_limit_need_no_more_runs() {
    let open = |(base, candidate): (Vec<Recording>, Vec<Recording>)| {
        let named = |runs: Vec<Recording>| -> Vec<Run> {
            runs.into_iter().map(|recording| Run { name: String::new(), recording }).collect()
        };
        let (base, candidate) = (named(base), named(candidate));
        let sides = Sides::new(&base, &candidate, &[], false).unwrap();
        let open = verdict::undecided(&sides, &Rule::default());
        (open.comparisons, open.parts.len())
    };
    let bench = |more| Bench::new(counted_in(1, 200, more));
    assert_eq!(open(counted_in(1, 200, 0)), (5, 0));
    bench(0).gate("").passed();
    assert_eq!(open(counted_in(1, 200, 9)), (5, 1));
    bench(9).gate("").refused(13, "give a p-value of 0.02778 at best");
    // Nor is a handler faster for certain.
    let (base, candidate) = counted_in(1, 200, 9);
    assert_eq!(open((candidate, base)), (5, 1));
}

/// No rank test is made of a budget: two counted runs a side are enough where no limit is judged.
#[test]
fn counted_instructions_of_few_runs_have_their_budgets_judged() {
    let (mut base, mut candidate) = counted_in(1, 200, 9);
    base.truncate(2);
    candidate.truncate(2);
    let bench = Bench::new((base, candidate));
    let off = "--max-regression avg=off,tp50=off,tp90=off,tp95=off,tp99=off";
    bench.gate("").refused(13, "too few runs");
    bench.gate(&format!("{off} --budget *:tp50<450instructions")).passed();
    bench.gate(&format!("{off} --budget *:tp50<400instructions")).refused(10, "budget");
}

/// Of 60 calls 3 or 4 take 272 more: TP95 is the 57th.
#[test]
fn a_percentile_is_not_slower_for_a_single_call() {
    let runs = |slow: u64, more: u64| {
        let of = move |mut recording: Recording| {
            let instructions: Vec<u64> =
                (0..60).map(|call| 1_444 + more + if call < slow { 272 } else { 0 }).collect();
            recording.meter = Meter::Exact;
            recording.handlers = vec![handler(&measure(ENTRY, &instructions))];
            recording
        };
        move |runs: Vec<Recording>| runs.into_iter().map(of).collect::<Vec<_>>()
    };
    let gate = |slow, more| {
        let (base, candidate) = abba(2, 2, |_| ());
        let bench = Bench::new((runs(3, 0)(base), runs(slow, more)(candidate)));
        bench.gate("--max-regression avg=0.5%,tp50=0.5%,tp90=0.5%,tp95=0.5%")
    };
    let one_more = gate(4, 0);
    one_more.passed();
    assert!(one_more.line(ENTRY, "tp95").contains("limit 276"), "{one_more:#?}");
    // What most calls take is told by the others.
    gate(3, 9).refused(10, &format!("gate: fail: {ENTRY} "));
    // More calls that take more are a change of the average.
    let two_more = gate(5, 0);
    assert!(two_more.line(ENTRY, "avg").starts_with("fail"), "{two_more:#?}");
}

#[test]
fn a_limit_in_instructions_is_the_floor_too() {
    let three = Bench::new(counted(200, 3));
    let failed = three.gate("--max-regression tp50=+0");
    failed.refused(10, &format!("gate: fail: {ENTRY} "));
    assert!(failed.line(ENTRY, "tp50").contains("limit +0.0 instructions"), "{failed:#?}");
    three.gate("--max-regression tp50=+5").passed();
    let other = three.gate("--max-regression tp50=+20ns");
    assert_eq!(other.code, 11, "{other:#?}");
    assert!(other.line(ENTRY, "tp50").contains("count instructions"), "{other:#?}");
    let floor = three.gate("--floor 20ns");
    floor.passed();
    assert!(floor.out.contains("the floor of 20ns does not apply"), "{floor:#?}");
}
