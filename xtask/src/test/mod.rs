//! Runs every test: on the host, of the committed BPF object, and in VMs.
//!
//! The VM tests are one test binary, `profiler/tests/vm`, run as root in each VM with these variables:
//!
//! | variable | value |
//! |---|---|
//! | `PROFILER_VM_KERNEL` | series, such as `6.1` |
//! | `PROFILER_VM_TESTBED` | path of the testbed module for this kernel |
//! | `PROFILER_VM_OUT` | an empty folder that the host can read |
//! | `PROFILER_VM_PROMETHEUS` | path of Prometheus |
//! | `PROFILER_VM_KILLS` | number of runs that `killed::` kills, with 5 s for each; by default 10, with a minute for each. Of daemons that `serve::` kills; by default 2 |
//! | `PROFILER_VM_UPGRADES` | number of times that `serve::` replaces the driver; by default 4 |
//! | `PROFILER_VM_SCRAPE`, `_SOAK`, `_HOURS`, `_IDLE` | how long `serve_long::` scrapes and calls, in seconds, runs timers, and waits without a call |

mod again;
mod agreement;
mod lab;
mod libtest;
mod parsers;
mod plan;
mod report;
mod side_by_side;

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::cargo::{self, Tests};
use crate::cli::TestArgs;
use crate::ebpf;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::venv::{BROWSER, Venv};
use crate::setup::{self, Part};
use crate::stop;
use crate::testbed;
use crate::vm::{self, VmSpec};

use plan::Boot;
use report::{Report, Status};
use side_by_side::Job;

/// Prefix of the places of VM tests in the report.
pub(crate) const VM_PLACE: &str = "vm ";

/// The place of the tests that need no kernel of their own.
const HOST: &str = "host";

/// The place of builds.
const BUILD: &str = "build";

/// See the table above; passed on from this process's environment.
const BY_HAND: [&str; 6] = [
    "PROFILER_VM_KILLS",
    "PROFILER_VM_UPGRADES",
    "PROFILER_VM_SCRAPE",
    "PROFILER_VM_SOAK",
    "PROFILER_VM_HOURS",
    "PROFILER_VM_IDLE",
];

/// Programs lie at the same addresses in each process. The emulator translates code for an address: with random ones, all that
/// a process runs, and its start takes four times as long. The lab has it, too; [`AS_USUAL`] does without.
const SAME_ADDRESSES: &str = "norandmaps";

/// Words for kernels of boots on the wall clock: what a kernel does for safety alone is a tenth of the time under a
/// translator. So is the HPET as the clock, each reading of which leaves the translated code; the CPU's own clock, which is the
/// machine's, is the same for all CPUs. Boots under virtual time, [`AS_USUAL`] and the lab do without these words.
const QUICK: [&str; 3] = ["mitigations=off", "init_on_alloc=0", "tsc=reliable"];

/// One more for 6.1, where a run waits another tenth of its time for RCU; what is left after a run is looked at on others, too.
const NO_GRACE: &str = "rcupdate.rcu_expedited=1";

/// On a busy host a CPU of a guest does nothing for a while, and the kernel, which patches 50,000 functions at once, takes that for a
/// stall or lockup after 20 s. The longest that it waits: 300 s, and twice 60 s.
const PATIENT: [&str; 2] = ["rcupdate.rcu_cpu_stall_timeout=300", "watchdog_thresh=60"];

/// The kernel that runs with two CPUs as it comes, mitigations included.
const AS_USUAL: Series = Series::V6_12;

/// Programs that many tests run: shells, what loads modules, and what waits for their devices.
const TOOLS: [&str; 4] = ["/bin/sh", "/bin/bash", "/sbin/insmod", "/bin/udevadm"];

impl TestArgs {
    /// Whether to run `place`, whose tests boot VMs themselves: it has a name like a boot, but no
    /// filters.
    fn wants(&self, place: &str) -> bool {
        self.boot.iter().any(|name| name == place)
            || (self.boot.is_empty() && self.filters.is_empty())
    }

    /// The selected boots with their selected tests. A name or filter that matches nothing is an
    /// error.
    fn of(&self, boots: Vec<Boot>) -> Result<Vec<Boot>> {
        let known: Vec<String> = boots.iter().map(|boot| boot.name.clone()).collect();
        let is_known = |name: &&String| known.contains(name) || *name == lab::PLACE;
        if let Some(name) = self.boot.iter().find(|name| !is_known(name)) {
            bail!("no boot `{name}`; there are {}, {}", known.join(", "), lab::PLACE);
        }
        let mut boots = boots;
        boots.retain(|boot| self.boot.is_empty() || self.boot.contains(&boot.name));
        let is_in =
            |boot: &Boot, filter: &String| boot.tests.iter().any(|test| test.contains(filter));
        if let Some(filter) =
            self.filters.iter().find(|part| !boots.iter().any(|boot| is_in(boot, part)))
        {
            bail!("no test of these boots has `{filter}` in its name");
        }
        if !self.filters.is_empty() {
            for boot in &mut boots {
                boot.tests.retain(|test| self.filters.iter().any(|part| test.contains(part)));
            }
            boots.retain(|boot| !boot.tests.is_empty());
        }
        Ok(boots)
    }
}

/// Runs the selected tests and prints the summary; true when all is well.
pub(crate) fn run(paths: &Paths, wanted: &TestArgs) -> Result<bool> {
    let started = Instant::now();
    if wanted.list {
        let tested = cargo::build_tests(paths, Tests::Programs)?;
        for boot in wanted.of(plan::boots(&tested.vm_tests)?)? {
            boot.tests.iter().for_each(|test| println!("{}\t{test}", boot.name));
        }
        return Ok(true);
    }
    let in_vm = !wanted.host;
    let on_host = wanted.boot.is_empty();
    // Everything at once, so that the plan is printed once.
    let parts = if in_vm {
        Part::all()
    } else {
        vec![Part::Readers, Part::Linters, Part::Prometheus, Part::Parsers]
    };
    let mut report = Report::default();
    let tests = if on_host { Tests::All } else { Tests::Programs };
    // One waits for the network most of the time, the other for the CPUs.
    let (ready, built) = thread::scope(|scope| {
        let ready = scope.spawn(|| {
            let done = setup::ensure(paths, &parts);
            // The build goes on for minutes.
            done.inspect_err(|error| eprintln!("error: set-up: {error:#}"))
        });
        let built = cargo::build_tests(paths, tests);
        (ready.join(), built)
    });
    ready.map_err(|_| anyhow!("a panic in the set-up, see above"))??;
    let tested = report.step(BUILD, "tests", built);
    report.lap("set-up, and tests built");
    if let Some(tested) = tested {
        all(paths, wanted, (on_host, in_vm), &tested, &mut report)?;
    }
    println!("test: took {} s\n", started.elapsed().as_secs());
    println!("{}", report.summary());
    Ok(report.is_green())
}

/// What needs the whole machine, and then all else side by side.
fn all(
    paths: &Paths,
    wanted: &TestArgs,
    (on_host, in_vm): (bool, bool),
    tested: &cargo::Tested,
    report: &mut Report,
) -> Result<()> {
    if on_host {
        report.step("object", "is that of its sources", ebpf::check(paths));
        parsers::measured(paths, &tested.profiler, report);
        report.lap("speed");
    }
    let mut boots = if in_vm { wanted.of(plan::boots(&tested.vm_tests)?)? } else { Vec::new() };
    // The longest first: at the end it would leave the other CPU idle.
    boots.sort_by_key(|boot| std::cmp::Reverse(boot.length()));
    boots = boots.into_iter().flat_map(Boot::parts).collect();
    let bench = BootContext::build(paths, tested, &boots, wanted.timeout, report);
    report.lap("BPF object, testbeds");
    // That which waits the most, beside the longest of those that do not.
    let mut jobs = Vec::new();
    if on_host {
        jobs.push(Job::new(HOST, |report| host_tests(paths, report)));
    }
    if in_vm && wanted.wants(lab::PLACE) {
        jobs.push(Job::new(lab::PLACE, |report| lab::run(paths, &tested.host_tests, &[], report)));
    }
    for boot in &boots {
        let place = format!("{VM_PLACE}{}", boot.vm());
        jobs.push(Job::new(place, |report| bench.boot(boot, report)));
    }
    if on_host {
        jobs.push(Job::new(parsers::FUZZ, |report| parsers::fuzzed(paths, report)));
    }
    side_by_side::run(jobs, report);
    report.lap("these side by side, all");
    bench.agreement(&boots, report);
    again::run(paths, &tested.host_tests, &bench, &boots, report)
}

/// The tests that need neither root nor a kernel of their own.
fn host_tests(paths: &Paths, report: &mut Report) -> Result<()> {
    println!("test: on this machine");
    let [unit, host, doc] = [&cargo::UNIT_TESTS[..], &["--test", "host"], &["--doc"]];
    for (which, is_empty) in [(unit, false), (host, false), (doc, true)] {
        let tests = cargo_test(paths, which, &[], report)?;
        if tests == 0 && !is_empty {
            report.add(HOST, &which.join(" "), Status::NotRun("no test ran".to_owned()));
        }
    }
    Ok(())
}

/// Runs the tests that cargo selects by `which`, or those of these names; their number.
fn cargo_test(
    paths: &Paths,
    which: &[&str],
    only: &[String],
    report: &mut Report,
) -> Result<usize> {
    // They check times, beside VMs that do not.
    let mut cargo = Command::new("nice");
    cargo.args(["-n", "-10", "cargo", "test"]).args(cargo::TESTED).args(which);
    // Ignored tests need programs, which are installed here. Those of the lab run beside the other boots.
    cargo.args(["--no-fail-fast", "--", "--include-ignored", "--skip", lab::TESTS]);
    if !only.is_empty() {
        cargo.arg("--exact").args(only);
    }
    cargo.env("PROFILER_READERS_PYTHON", Venv::readers(paths).python());
    cargo.env("PROFILER_BROWSER", BROWSER);
    cargo.env("PROFILER_PROMTOOL", setup::PROMETHEUS.programs(paths).join("promtool"));
    cargo.current_dir(paths.root()).stdin(Stdio::null()).stdout(Stdio::piped());
    let text = process::text(&cargo);
    let mut child = stop::start(&mut cargo)?;
    let mut lines = Vec::new();
    if let Some(stdout) = child.stdout() {
        for line in BufReader::new(stdout).lines() {
            let line = line.with_context(|| format!("cannot read the output of `{text}`"))?;
            println!("{line}");
            lines.push(line);
        }
    }
    let status = child.wait()?;
    let endings = libtest::endings(lines.iter().map(String::as_str));
    for (test, ending) in &endings {
        report.add(HOST, test, ending.clone());
    }
    let failed = endings.iter().any(|(_, ending)| *ending == Status::Failed);
    if !status.success() && !failed {
        // It did not build, or a test binary died.
        report.add(HOST, "cargo test", Status::NotRun(format!("`{text}` failed: {status}")));
    }
    Ok(endings.len())
}

/// What all boots share.
struct BootContext<'a> {
    paths: &'a Paths,
    tested: &'a cargo::Tested,
    testbeds: HashMap<Series, PathBuf>,
    /// Seconds.
    timeout: u64,
}

impl<'a> BootContext<'a> {
    /// Builds what the boots share; a failed build is a failure in the report.
    fn build(
        paths: &'a Paths,
        tested: &'a cargo::Tested,
        boots: &[Boot],
        timeout: u64,
        report: &mut Report,
    ) -> Self {
        if !boots.is_empty() {
            report.step(BUILD, "the BPF object anew", ebpf::rebuild(paths));
        }
        let mut testbeds = HashMap::new();
        for series in
            Series::ALL.into_iter().filter(|series| boots.iter().any(|b| b.series == *series))
        {
            let name = format!("testbed for {series}");
            let module = report.step(BUILD, &name, testbed::build(paths, series));
            testbeds.extend(module.map(|module| (series, module)));
        }
        Self { paths, tested, testbeds, timeout }
    }

    /// Compares boots with those that they repeat.
    fn agreement(&self, boots: &[Boot], report: &mut Report) {
        for second in boots {
            let first = second.name.strip_suffix(plan::TWICE);
            let Some(first) = boots.iter().find(|boot| Some(boot.name.as_str()) == first) else {
                continue;
            };
            if !second.tests.iter().all(|test| first.tests.contains(test)) {
                continue;
            }
            let agreement = agreement::check(&self.out(first), &self.out(second));
            let name = format!("{} and {} agree", first.name, second.name);
            if let Some(values) = report.step("virtual time", &name, agreement) {
                println!("test: {values} values of two boots agree within 1 %");
            }
        }
    }

    fn out(&self, boot: &Boot) -> PathBuf {
        self.paths.target().join("test").join(boot.vm())
    }

    /// Boots once and runs the tests.
    fn boot(&self, boot: &Boot, report: &mut Report) -> Result<()> {
        let place = format!("{VM_PLACE}{}", boot.name);
        let Some(testbed) = self.testbeds.get(&boot.series) else {
            report.add_run(&place, &boot.tests, &[], &format!("no testbed for {}", boot.series));
            return Ok(());
        };
        println!("test: boot {}, {} tests", boot.vm(), boot.tests.len());
        let script = self.in_memory()? + &self.tests(boot, testbed)?;
        let spec = VmSpec {
            cpus: if boot.virtual_time { 1 } else { 2 },
            icount: boot.virtual_time,
            kernel_args: kernel_args(boot),
            timeout: Duration::from_secs(self.timeout),
            ..VmSpec::new(format!("test-{}", boot.vm()), boot.series, ["sh", "-c", &script])
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
        let endings = libtest::endings(lines.iter().map(String::as_str));
        report.add_run(&place, &boot.tests, &endings, &reason);
        Ok(())
    }

    /// The shell script that puts the programs that tests run, with their libraries, into the guest's memory. From this
    /// machine's files the guest reads them anew for each process, and the emulator translates them anew: a run of the
    /// profiler took 2.6 s for 1.2 s.
    fn in_memory(&self) -> Result<String> {
        const FOLDER: &str = "/run/programs";
        let tools = TOOLS.map(Path::new);
        let mut files = BTreeSet::new();
        for program in
            [self.tested.profiler.as_path(), &self.tested.vm_tests].into_iter().chain(tools)
        {
            let libraries = process::stdout(Command::new("ldd").arg(program))?;
            let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
            for file in libraries.map(Path::new).chain([program]) {
                let file = file.canonicalize();
                files.insert(file.with_context(|| format!("cannot find {}", program.display()))?);
            }
        }
        let words: Vec<String> = files.iter().map(|file| vm::word(file)).collect();
        let mut script =
            format!("mkdir {FOLDER} && cp -t {FOLDER} {} || exit 1\n", words.join(" "));
        for (file, word) in files.iter().zip(words) {
            let copy = Path::new(FOLDER).join(file.file_name().unwrap_or_default());
            script += &format!("mount --bind {} {word} || exit 1\n", vm::word(&copy));
        }
        Ok(script)
    }

    /// The shell script that runs the tests.
    fn tests(&self, boot: &Boot, testbed: &Path) -> Result<String> {
        let out = self.out(boot);
        process::empty_dir(&out)?;
        let prometheus = setup::PROMETHEUS.programs(self.paths).join("prometheus");
        let mut env = vec![
            format!("PROFILER_VM_KERNEL={}", boot.series),
            format!("PROFILER_VM_TESTBED={}", vm::word(testbed)),
            format!("PROFILER_VM_OUT={}", vm::word(&out)),
            format!("PROFILER_VM_PROMETHEUS={}", vm::word(&prometheus)),
        ];
        env.extend(BY_HAND.iter().filter_map(|name| {
            std::env::var(name).ok().map(|value| format!("{name}={}", vm::quote(&value)))
        }));
        let names: Vec<String> = boot.tests.iter().map(|name| vm::quote(name)).collect();
        // Tests in one VM share its module and its clock, so they run one at a time.
        Ok(format!(
            "{} {} --test-threads=1 --ignored --exact {}\n",
            env.join(" "),
            vm::word(&self.tested.vm_tests),
            names.join(" ")
        ))
    }
}

/// Words for the kernel of a boot.
fn kernel_args(boot: &Boot) -> Vec<String> {
    let on_wall_clock = !boot.virtual_time;
    if on_wall_clock && boot.series == AS_USUAL {
        return PATIENT.map(str::to_owned).to_vec();
    }
    let quick = QUICK.into_iter().filter(|_| on_wall_clock);
    let no_grace = (on_wall_clock && boot.series == Series::V6_1).then_some(NO_GRACE);
    [SAME_ADDRESSES]
        .into_iter()
        .chain(PATIENT)
        .chain(quick)
        .chain(no_grace)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_filters_that_match_nothing_fail() {
        let boot = |name: &str, tests: &[&str]| Boot {
            name: name.to_owned(),
            series: Series::V6_1,
            virtual_time: false,
            tests: tests.iter().map(|&test| test.to_owned()).collect(),
            part: 1,
        };
        let select = |names: &[&str], filters: &[&str]| {
            let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
            let wanted =
                TestArgs { boot: owned(names), filters: owned(filters), ..TestArgs::default() };
            let boots = wanted.of(vec![boot("6.1", &["a::x", "b::y"]), boot("7.2", &["b::y"])]);
            boots.map_err(|error| error.to_string())
        };
        assert_eq!(select(&[], &[]).unwrap().len(), 2);
        assert_eq!(select(&["lab"], &[]).unwrap(), []);
        let [filtered] = select(&[], &["a::"]).unwrap().try_into().unwrap();
        assert_eq!(filtered, boot("6.1", &["a::x"]));
        assert!(
            select(&["6.2"], &[])
                .unwrap_err()
                .starts_with("no boot `6.2`; there are 6.1, 7.2, lab")
        );
        let error = "no test of these boots has `a::x` in its name";
        assert_eq!(select(&["7.2"], &["a::x"]).unwrap_err(), error);
        assert_eq!(select(&["6.1", "7.2"], &["b", "c"]).unwrap_err(), error.replace("a::x", "c"));
    }
}
