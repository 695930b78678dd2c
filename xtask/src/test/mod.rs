//! Every test: on the host, of the committed BPF object, and in VMs.
//!
//! The VM tests are one test binary, `profiler/tests/vm`, run as root in each VM. A boot tells
//! it by variables what is there:
//!
//! | variable | value |
//! |---|---|
//! | `PROFILER_VM_KERNEL` | series, such as `6.1` |
//! | `PROFILER_VM_ICOUNT` | `1` under virtual time, else not set |
//! | `PROFILER_VM_TESTBED` | path of the testbed module for this kernel |
//! | `PROFILER_VM_OUT` | an empty folder that the host can read |
//! | `PROFILER_VM_KILLS` | how many runs `killed::` kills, each with nothing left after 5 s; passed on, without it 12, and a minute |
//! | `PROFILER_BPF_OBJECT` | path of the rebuilt object; not set: the committed one |

mod agreement;
mod lab;
mod libtest;
mod parsers;
mod report;
mod side_by_side;

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::cargo;
use crate::ci;
use crate::ebpf;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part, readers};
use crate::testbed;
use crate::vm::{self, VmSpec};

use libtest::{Ending, Parser};
use report::{Report, Status};
use side_by_side::Job;

/// What the places of VM tests begin with in the report.
pub(crate) const VM_PLACE: &str = "vm ";

/// The place of the tests that need no kernel of their own.
const HOST: &str = "host";

/// Tests under virtual time lie in this module of the test binary; they run in such boots alone,
/// and all others in the others.
const ICOUNT_MODULE: &str = "icount::";

/// Debian's Chromium.
const BROWSER: &str = "/usr/bin/chromium";

/// How many runs the tests of kills kill.
const KILLS: &str = "PROFILER_VM_KILLS";

/// One VM.
struct Boot {
    name: &'static str,
    series: Series,
    cpus: u32,
    icount: bool,
    /// The BPF objects to run the tests with, one after the other; the rebuilt one only where it is
    /// not the committed one byte for byte.
    objects: &'static [Object],
    /// Tests that mean nothing on this kernel: how their names begin, and why.
    left_out: &'static [(&'static str, &'static str)],
    /// The tests that it is for: how their names begin. Others are none of this boot's.
    only: &'static [&'static str],
}

impl Boot {
    /// Why a test is not run here.
    fn reason_against(&self, test: &str) -> Option<&'static str> {
        let same = if self.series == Series::V6_1 { &[] } else { SAME_EVERYWHERE };
        let (_, why) =
            self.left_out.iter().chain(same).find(|(start, _)| test.starts_with(start))?;
        Some(why)
    }
}

/// Which BPF object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Committed,
    Rebuilt,
}

const BOTH: &[Object] = &[Object::Committed, Object::Rebuilt];
const COMMITTED: &[Object] = &[Object::Committed];

const ONE_TRACER: &str = "the tracer of Linux 5.10 has one user; ftrace:: has that";

/// On 5.10 function-graph alone reaches the module's handlers.
const OUT_ON_5_10: &[(&str, &str)] = &[
    (
        "ends::sigkill_leaves_nothing_behind",
        "about BPF programs of many handlers; killed:: kills runs of every backend here",
    ),
    ("namesakes::", "this kernel has no BTF of modules, by which names could be mixed up"),
    OUT_WITHOUT_PREEMPTION,
    ("runs::two_runs_on_one_handler", ONE_TRACER),
];

const OUT_ON_6_1: &[(&str, &str)] = &[("killed::", WITH_AND_WITHOUT), OUT_WITHOUT_PREEMPTION];

const OUT_ON_7_2: &[(&str, &str)] = &[("killed::", WITH_AND_WITHOUT)];

/// Kills take long, and what a kernel has to be cleared of is in tracefs alone.
const WITH_AND_WITHOUT: &str = "boots 5.10 and 6.12 have it, without and with instances for the tracer; ftrace:: and ends:: kill here";

/// Between 6.1 and 7.2, which have all of these.
const OUT_ON_6_12: &[(&str, &str)] = &[
    ("ftrace::", BOTH_SIDES),
    ("namesakes::", BOTH_SIDES),
    ("nested::", BOTH_SIDES),
    ("pairing::", BOTH_SIDES),
    OUT_WITHOUT_PREEMPTION,
];

/// Debian's kernels before 7.2 do not take tasks off their CPU within programs.
const OUT_WITHOUT_PREEMPTION: (&str, &str) =
    ("preempted::", "this kernel takes no task off its CPU within a program: boot 7.2 has it");

const BOTH_SIDES: &str =
    "boots 6.1 and 7.2 have it; matrix:: counts and pairs here, by each backend";

/// What is the same on every kernel is run on one: all boots together have their limit of time.
const SAME_EVERYWHERE: &[(&str, &str)] = &[
    ("bad_input::a_broken_object", ON_6_1),
    ("bad_input::a_module_without_btf", ON_6_1),
    ("bad_input::an_output", ON_6_1),
    ("bad_input::names", ON_6_1),
    ("counts::ten_handlers", BY_EACH_BACKEND),
    ("ends::a_load", ON_6_1),
    ("globs::", SIX_ARGUMENTS),
    ("hostile::", ON_6_1),
    ("live::", ON_6_1),
    ("loads::", ON_6_1),
    ("ltp::", ON_6_1),
    ("memory::", ON_6_1),
    ("repeats::", ON_6_1),
    ("replaced::", ON_6_1),
    ("runs::a_load", ON_6_1),
    ("runs::intervals", ON_6_1),
    ("runs::json", ON_6_1),
    ("runs::no_hit", ON_6_1),
    ("runs::the_main_job", BY_EACH_BACKEND),
    ("runs::two_digits", ON_6_1),
    ("runs::what_the_warm_up", ON_6_1),
    ("runs::without_a_load", ON_6_1),
];

/// The program as a whole is run on a function of the kernel there, by each backend, too.
const BY_EACH_BACKEND: &str =
    "boot 6.1 has it; matrix:: counts the same handlers here, by each backend";

const SIX_ARGUMENTS: &str =
    "about what trampolines do not take: of kernels with BTF of modules, 6.1 takes six arguments";

const ON_6_1: &str = "about loads, files and the terminal, not the kernel: boot 6.1 has it";

/// Why a whole run leaves out the script for continuous integration; `--boot ci` runs it.
const CI_BY_NAME: &str = "builds all of it once more, and takes the time that a whole run has: `cargo xtask test --boot ci`";

const fn boot(name: &'static str, series: Series, objects: &'static [Object]) -> Boot {
    Boot { name, series, cpus: 2, icount: false, objects, left_out: &[], only: &[] }
}

const fn virtual_time(name: &'static str, series: Series) -> Boot {
    Boot { cpus: 1, icount: true, ..boot(name, series, COMMITTED) }
}

/// Two boots of one kernel that have to agree on what they measure.
const TWICE: [&str; 2] = ["icount-a", "icount-b"];

/// What writes the values that have to agree.
const MEASURED_TWICE: &[&str] = &["icount::two_boots"];

/// What one kernel has more backends for.
const BACKENDS_COMPARED: &[&str] =
    &["icount::the_backends_agree", "icount::self_time", "icount::each_level_of_a_recursion_takes"];

const BOOTS: [Boot; 7] = [
    Boot { left_out: OUT_ON_5_10, ..boot("5.10", Series::V5_10, COMMITTED) },
    Boot { left_out: OUT_ON_6_1, ..boot("6.1", Series::V6_1, BOTH) },
    Boot { left_out: OUT_ON_6_12, ..boot("6.12", Series::V6_12, BOTH) },
    Boot { left_out: OUT_ON_7_2, ..boot("7.2", Series::V7_2, COMMITTED) },
    virtual_time(TWICE[0], Series::V6_1),
    Boot { only: MEASURED_TWICE, ..virtual_time(TWICE[1], Series::V6_1) },
    Boot { only: BACKENDS_COMPARED, ..virtual_time("icount-6.12", Series::V6_12) },
];

/// Far more than a boot with its tests takes on a slow machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(2700);

/// What to run; empty means everything.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    /// Only the tests on the host.
    pub(crate) host: bool,
    /// Only these boots.
    pub(crate) boots: Vec<String>,
    /// In VMs, only tests whose name contains one of these.
    pub(crate) filters: Vec<String>,
}

impl Selection {
    /// Whether `place` is to be run, whose tests boot VMs of their own: it is a boot by name, and has no
    /// filters.
    fn wants(&self, place: &str) -> bool {
        self.boots.iter().any(|name| name == place)
            || (self.boots.is_empty() && self.filters.is_empty())
    }
}

/// Runs the selected tests and prints the summary; true when all is well.
pub(crate) fn run(paths: &Paths, selection: &Selection) -> Result<bool> {
    let started = Instant::now();
    for name in &selection.boots {
        if name != lab::PLACE && name != ci::PLACE && !BOOTS.iter().any(|boot| boot.name == name) {
            let known: Vec<&str> =
                BOOTS.iter().map(|boot| boot.name).chain([lab::PLACE, ci::PLACE]).collect();
            bail!("no boot `{name}`; there are {}", known.join(", "));
        }
    }
    let in_vm = !selection.host;
    let on_host = selection.boots.is_empty();
    // All of it first, so that the plan is printed once.
    let parts = if in_vm { Part::all() } else { vec![Part::Python, Part::Readers, Part::Parsers] };
    setup::ensure(paths, &parts)?;
    let mut report = Report::default();
    report.lap("set-up");
    if on_host {
        host_tests(paths, &mut report)?;
        report.lap(HOST);
        parsers::run(paths, &mut report);
        report.lap("fuzz, speed");
        report.step("object", "is that of its sources", ebpf::check(paths));
        report.lap("object");
    }
    if in_vm {
        vm_tests(paths, selection, &mut report)?;
    }
    println!("test: took {} s\n", started.elapsed().as_secs());
    println!("{}", report.summary());
    Ok(report.is_green())
}

/// The tests that need neither root nor a kernel of their own.
fn host_tests(paths: &Paths, report: &mut Report) -> Result<()> {
    println!("test: on this machine");
    let mut cargo = Command::new("cargo");
    cargo.arg("test").args(cargo::TESTED).arg("--no-fail-fast");
    // What plain `cargo test` ignores needs programs, and here they are.
    cargo.args(["--", "--include-ignored"]);
    cargo.env("PROFILER_READERS_PYTHON", readers::python(paths)).env("PROFILER_BROWSER", BROWSER);
    cargo.current_dir(paths.root()).stdin(Stdio::null()).stdout(Stdio::piped());
    let text = process::text(&cargo);
    let mut child = cargo.spawn().with_context(|| format!("cannot run `{text}`"))?;
    let mut parser = Parser::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.with_context(|| format!("cannot read the output of `{text}`"))?;
            println!("{line}");
            parser.line(&line);
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{text}`"))?;
    for (test, ending) in &parser.endings {
        report.add(HOST, test, (*ending).into());
    }
    let failed = parser.endings.iter().any(|(_, ending)| *ending == Ending::Failed);
    if !status.success() && !failed {
        // It did not build, or a test binary died.
        report.add(HOST, "cargo test", Status::NotRun(format!("`{text}` failed: {status}")));
    }
    if parser.endings.is_empty() {
        report.add(HOST, "cargo test", Status::NotRun("no test ran".to_owned()));
    }
    Ok(())
}

/// What all boots share.
struct Bench<'a> {
    paths: &'a Paths,
    binary: PathBuf,
    rebuilt: Option<ebpf::Rebuilt>,
    testbeds: HashMap<Series, PathBuf>,
    filters: &'a [String],
}

/// The tests in VMs, side by side. The longest boot comes first, so that all others fit beside it.
fn vm_tests(paths: &Paths, selection: &Selection, report: &mut Report) -> Result<()> {
    let named = |boot: &&Boot| selection.boots.iter().any(|name| name == boot.name);
    let wanted: Vec<&Boot> =
        BOOTS.iter().filter(|boot| selection.boots.is_empty() || named(boot)).collect();
    let bench = if wanted.is_empty() { None } else { Bench::build(paths, selection, report) };
    report.lap("build");
    let whole = selection.boots.is_empty() && selection.filters.is_empty();
    let mut jobs = Vec::new();
    if let Some(bench) = &bench {
        for boot in &wanted {
            let run = Box::new(|report: &mut Report| bench.boot(boot, report));
            jobs.push((boot, Job { place: place(boot, Object::Committed), run }));
        }
    }
    jobs.sort_by_key(|(boot, _)| boot.series != Series::V6_1 || boot.icount);
    let mut jobs: Vec<Job<'_>> = jobs.into_iter().map(|(_, job)| job).collect();
    if selection.wants(lab::PLACE) {
        let run = Box::new(|report: &mut Report| lab::run(paths, report));
        jobs.push(Job { place: lab::PLACE.to_owned(), run });
    }
    if whole {
        report.add(ci::PLACE, "(all)", Status::LeftOut(CI_BY_NAME));
    } else if selection.wants(ci::PLACE) {
        let run = Box::new(|report: &mut Report| {
            println!("test: {} in a fresh clone", ci::SCRIPT);
            report.step(ci::PLACE, "docs/ci/gate.sh in a fresh clone", ci::check(paths));
            Ok(())
        });
        jobs.push(Job { place: ci::PLACE.to_owned(), run });
    }
    side_by_side::run(jobs, report);
    report.lap("these side by side, all");
    if let Some(bench) = bench {
        bench.agreement(&wanted, report);
    }
    Ok(())
}

impl<'a> Bench<'a> {
    /// Builds what the boots share; `None`, and so said in the report, if there is nothing to boot with.
    fn build(paths: &'a Paths, selection: &'a Selection, report: &mut Report) -> Option<Self> {
        const PLACE: &str = "build";
        let rebuilt = report.step(PLACE, "the BPF object anew", ebpf::rebuild(paths));
        let mut testbeds = HashMap::new();
        for series in Series::ALL {
            let name = format!("testbed for {series}");
            let module = report.step(PLACE, &name, testbed::build(paths, series));
            testbeds.extend(module.map(|module| (series, module)));
        }
        let tested = report.step(PLACE, "VM tests", cargo::build_tests(paths))?;
        Some(Self {
            paths,
            binary: tested.vm_tests,
            rebuilt,
            testbeds,
            filters: &selection.filters,
        })
    }

    /// Whether the first two boots of one kernel under virtual time measured the same.
    fn agreement(&self, boots: &[&Boot], report: &mut Report) {
        let mut icount = boots.iter().filter(|boot| TWICE.contains(&boot.name));
        if let (Some(first), Some(second), []) = (icount.next(), icount.next(), self.filters) {
            let out = |boot: &Boot| self.out(boot, Object::Committed);
            let agreement = agreement::check(&out(first), &out(second));
            let name = format!("{} and {} agree", first.name, second.name);
            if let Some(values) = report.step("virtual time", &name, agreement) {
                println!("test: {values} values of two boots agree within 1 %");
            }
        }
    }
}

impl Bench<'_> {
    /// The tests of a boot, as the binary itself lists them.
    fn listed(&self, boot: &Boot) -> Result<Vec<String>> {
        let names = libtest::listed(&process::stdout(Command::new(&self.binary).arg("--list"))?);
        let is_wanted = |name: &String| {
            name.starts_with(ICOUNT_MODULE) == boot.icount
                && (boot.only.is_empty() || boot.only.iter().any(|start| name.starts_with(start)))
                && (self.filters.is_empty() || self.filters.iter().any(|part| name.contains(part)))
        };
        Ok(names.into_iter().filter(is_wanted).collect())
    }

    fn out(&self, boot: &Boot, object: Object) -> PathBuf {
        self.paths.target().join("test").join(format!("{}-{}", boot.name, object.name()))
    }

    /// Boots once and runs the tests with each of the objects.
    fn boot(&self, boot: &Boot, report: &mut Report) -> Result<()> {
        let (listed, left_out): (Vec<String>, Vec<String>) =
            self.listed(boot)?.into_iter().partition(|test| boot.reason_against(test).is_none());
        // What is equal byte for byte passes and fails alike.
        let same = self.rebuilt.as_ref().is_some_and(|rebuilt| rebuilt.same);
        let objects: Vec<Object> = boot
            .objects
            .iter()
            .copied()
            .filter(|object| *object == Object::Committed || !same)
            .collect();
        for test in &left_out {
            for object in &objects {
                let why = boot.reason_against(test).unwrap_or_default();
                report.add(&place(boot, *object), test, Status::LeftOut(why));
            }
        }
        if listed.is_empty() && !self.filters.is_empty() {
            return Ok(());
        }
        let mut passes = Vec::new();
        for object in &objects {
            match self.pass(boot, *object, &listed)? {
                Ok(pass) => passes.push(pass),
                Err(reason) => report.add_run(&place(boot, *object), &listed, &[], &reason),
            }
        }
        if passes.is_empty() {
            return Ok(());
        }
        println!("test: boot {}, {} tests, {} pass(es)", boot.name, listed.len(), passes.len());
        let script = passes.iter().map(|pass| pass.script.as_str()).collect::<String>();
        let spec = VmSpec {
            cpus: boot.cpus,
            icount: boot.icount,
            timeout: BOOT_TIMEOUT,
            ..VmSpec::new(format!("test-{}", boot.name), boot.series, ["sh", "-c", &script])
        };
        let (lines, reason) = match vm::run(self.paths, &spec) {
            Ok(outcome) => {
                let reason = format!("the test binary ended early; see {}", outcome.log.display());
                (outcome.lines, reason)
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                (vm::logged_lines(self.paths, &spec), format!("{error:#}").replace('\n', " "))
            }
        };
        for pass in &passes {
            let endings = endings_of_pass(&lines, pass.object);
            report.add_run(&place(boot, pass.object), &listed, &endings, &reason);
        }
        Ok(())
    }

    /// The shell text that runs the tests with one object, or why it cannot be.
    fn pass(&self, boot: &Boot, object: Object, listed: &[String]) -> Result<Result<Pass, String>> {
        let Some(testbed) = self.testbeds.get(&boot.series) else {
            return Ok(Err(format!("no testbed for {}", boot.series)));
        };
        let out = self.out(boot, object);
        process::remove_dir(&out)?;
        process::create_dir(&out)?;
        let quote = |path: &Path| vm::quote(&path.to_string_lossy());
        let mut env = vec![
            format!("PROFILER_VM_KERNEL={}", boot.series),
            format!("PROFILER_VM_TESTBED={}", quote(testbed)),
            format!("PROFILER_VM_OUT={}", quote(&out)),
        ];
        if boot.icount {
            env.push("PROFILER_VM_ICOUNT=1".to_owned());
        }
        env.extend(std::env::var(KILLS).map(|kills| format!("{KILLS}={}", vm::quote(&kills))));
        if object == Object::Rebuilt {
            let Some(rebuilt) = &self.rebuilt else {
                return Ok(Err("the BPF object could not be rebuilt".to_owned()));
            };
            env.push(format!("PROFILER_BPF_OBJECT={}", quote(&rebuilt.object)));
        }
        let names: Vec<String> = listed.iter().map(|name| vm::quote(name)).collect();
        // Tests in one VM share its module and its clock, so they run one at a time.
        let script = format!(
            "echo '{}'\n{} {} --test-threads=1 --exact {}\n",
            pass_line(object),
            env.join(" "),
            quote(&self.binary),
            names.join(" ")
        );
        Ok(Ok(Pass { object, script }))
    }
}

struct Pass {
    object: Object,
    script: String,
}

impl Object {
    fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Rebuilt => "rebuilt",
        }
    }
}

fn place(boot: &Boot, object: Object) -> String {
    match object {
        Object::Committed => format!("{VM_PLACE}{}", boot.name),
        Object::Rebuilt => format!("{VM_PLACE}{} rebuilt", boot.name),
    }
}

fn pass_line(object: Object) -> String {
    format!("PROFILER-VM-PASS {}", object.name())
}

/// The endings between the line that begins the pass and the next such line.
fn endings_of_pass(lines: &[String], object: Object) -> Vec<(String, Ending)> {
    let begin = pass_line(object);
    let mut parser = Parser::default();
    lines
        .iter()
        .skip_while(|line| **line != begin)
        .skip(1)
        .take_while(|line| !line.starts_with("PROFILER-VM-PASS "))
        .for_each(|line| parser.line(line));
    parser.endings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pass_has_its_own_endings() {
        let lines = [
            "test early ... ok",
            "PROFILER-VM-PASS committed",
            "test a ... ok",
            "PROFILER-VM-PASS rebuilt",
            "test a ... FAILED",
        ]
        .map(str::to_owned);
        let ending = |object| endings_of_pass(&lines, object);
        assert_eq!(ending(Object::Committed), [("a".to_owned(), Ending::Ok)]);
        assert_eq!(ending(Object::Rebuilt), [("a".to_owned(), Ending::Failed)]);
    }

    #[test]
    fn what_a_kernel_cannot_run_has_a_reason() {
        let old = &BOOTS[0];
        assert_eq!(old.reason_against("runs::two_runs_on_one_handler"), Some(ONE_TRACER));
        assert_eq!(old.reason_against("runs::a_function_of_the_kernel_image"), None);
        let kills = "killed::killed_at_any_moment_nothing_is_left_after_five_seconds";
        for boot in &BOOTS {
            let runs = boot.reason_against(kills).is_none();
            assert_eq!(runs, boot.icount || ["5.10", "6.12"].contains(&boot.name), "{}", boot.name);
        }
        for boot in &BOOTS {
            assert_eq!(boot.reason_against("matrix::the_choice_is_that_of_the_table"), None);
        }
    }

    #[test]
    fn boots_have_names_of_their_own() {
        for (index, boot) in BOOTS.iter().enumerate() {
            assert!(BOOTS[..index].iter().all(|other| other.name != boot.name), "{}", boot.name);
            assert!(!boot.icount || boot.cpus == 1, "{}", boot.name);
        }
    }
}
