//! Runs every test: on the host, of the committed BPF object, and in VMs.
//!
//! The VM tests are one test binary, `profiler/tests/vm`, run as root in each VM with these variables:
//!
//! | variable | value |
//! |---|---|
//! | `PROFILER_VM_KERNEL` | series, such as `6.1` |
//! | `PROFILER_VM_TESTBED` | path of the testbed module for this kernel |
//! | `PROFILER_VM_OUT` | an empty folder that the host can read |
//! | `PROFILER_VM_AGENT` | folder of the agent and its BPF programs, by `profiler/tests/data/agent/Makefile` |
//! | `PROFILER_VM_PROMETHEUS` | path of Prometheus |
//! | `PROFILER_VM_KILLS` | number of runs that `killed::` kills, with 5 s for each; by default 10, with a minute for each. Of daemons that `serve::` kills; by default 2 |
//! | `PROFILER_VM_UPGRADES` | number of times that `serve::` replaces the driver; by default 4 |
//! | `PROFILER_VM_SCRAPE`, `_SOAK`, `_HOURS`, `_IDLE` | how long `serve_long::` scrapes and calls, in seconds, runs timers, and waits without a call |

mod agreement;
mod lab;
mod libtest;
mod plan;
mod report;
mod side_by_side;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::cargo::{self, Tested};
use crate::cli::{TestArgs, VmArgs};
use crate::ebpf;
use crate::paths;
use crate::process;
use crate::series::Series;
use crate::setup;
use crate::setup::tools::{BROWSER, READERS};
use crate::speed;
use crate::stop;
use crate::testbed;
use crate::vm;

use plan::Boot;
use report::{Report, Status};

/// The place of the tests that need no kernel of their own.
const HOST: &str = "host";

/// The place of builds.
const BUILD: &str = "build";

/// Size of the imported trace.
const MEGABYTES: u64 = 64;

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
/// stall after 20 s. The longest that it waits: 300 s.
const PATIENT: &str = "rcupdate.rcu_cpu_stall_timeout=300";

/// The kernel that runs with two CPUs as it comes, mitigations included.
const AS_USUAL: Series = Series::V6_12;

/// Programs that many tests run: shells, what loads modules, and what waits for their devices.
const TOOLS: [&str; 4] = ["/bin/sh", "/bin/bash", "/sbin/insmod", "/bin/udevadm"];

impl TestArgs {
    /// The selected boots with their selected tests. A name or filter that matches nothing is an error.
    fn of(&self, mut boots: Vec<Boot>) -> Result<Vec<Boot>> {
        let known: Vec<&str> = boots.iter().map(|boot| &*boot.name).chain([lab::PLACE]).collect();
        if let Some(name) = self.boot.iter().find(|name| !known.contains(&&***name)) {
            bail!("no boot `{name}`; there are {}", known.join(", "));
        }
        boots.retain(|boot| self.boot.is_empty() || self.boot.contains(&boot.name));
        for filter in &self.filters {
            let has = boots.iter().flat_map(|boot| &boot.tests).any(|test| test.contains(filter));
            ensure!(has, "no test of these boots has `{filter}` in its name");
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

/// Runs the selected tests and prints the summary.
///
/// # Errors
/// If a test failed or did not run.
pub(crate) fn run(wanted: &TestArgs) -> Result<()> {
    let started = Instant::now();
    if wanted.list {
        for boot in wanted.of(vm_boots(&cargo::build_tests(false)?)?)? {
            boot.tests.iter().for_each(|test| println!("{}\t{test}", boot.name));
        }
        return Ok(());
    }
    let on_host = wanted.boot.is_empty();
    let parts = if wanted.host {
        vec![setup::READERS, setup::LINTERS, setup::SCRAPER, setup::PARSERS]
    } else {
        setup::all()
    };
    // One waits for the network most of the time, the other for the CPUs.
    let (ready, built) = thread::scope(|scope| {
        let ready = scope.spawn(|| {
            let done = setup::ensure(&parts).context("set-up");
            // The build goes on for minutes.
            done.inspect_err(|error| eprintln!("error: {error:#}"))
        });
        let built = cargo::build_tests(on_host);
        (ready.join(), built)
    });
    ready.map_err(|_| anyhow!("a panic in the set-up, see above"))??;
    let tested = built?;
    let boots = if wanted.host { Vec::new() } else { wanted.of(vm_boots(&tested)?)? };
    let mut report = Report::default();
    if on_host {
        report.step("object", "is that of its sources", ebpf::check());
        report.step("speed", "import", speed::import(&tested.profiler, MEGABYTES));
    }
    if !boots.is_empty() {
        report.step(BUILD, "the agent", agent());
    }
    all(wanted, boots, &tested, &mut report)?;
    println!("test: took {} s\n", started.elapsed().as_secs());
    println!("{}", report.summary());
    ensure!(report.is_green(), "not all tests passed");
    Ok(())
}

fn vm_boots(tested: &Tested) -> Result<Vec<Boot>> {
    plan::boots(&libtest::ignored(&tested.vm_tests)?)
}

/// What runs beside others.
enum Job {
    Host,
    Lab,
    Vm(Boot),
    Object,
}

impl Job {
    /// Its name in the report.
    fn place(&self) -> String {
        match self {
            Self::Host => HOST.to_owned(),
            Self::Lab => lab::PLACE.to_owned(),
            Self::Vm(boot) => format!("vm {}", boot.name),
            Self::Object => BUILD.to_owned(),
        }
    }

    /// Runs its tests, all or those of these names.
    fn run(&self, tested: &Tested, timeout: u64, only: &[String]) -> Report {
        reported(&self.place(), || match self {
            Self::Host => host_tests(only),
            Self::Lab => lab::run(tested, only),
            Self::Vm(boot) => boot_and_test(boot, tested, timeout, only),
            Self::Object => {
                let mut report = Report::default();
                report.step(BUILD, "the BPF object anew", ebpf::rebuild());
                Ok(report)
            }
        })
    }
}

/// What a job reports. One that returns an error or panics is a failure, and the others go on.
fn reported(place: &str, work: impl FnOnce() -> Result<Report>) -> Report {
    let why = match std::panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(report)) => return report,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "a panic, see above".to_owned(),
    };
    eprintln!("error: {place}: {why}");
    let mut report = Report::default();
    report.add(place, "(all)", Status::NotRun(why));
    report
}

/// Runs what does not need the whole machine, side by side, and what failed once more.
fn all(
    wanted: &TestArgs,
    mut boots: Vec<Boot>,
    tested: &Tested,
    report: &mut Report,
) -> Result<()> {
    let on_host = wanted.boot.is_empty();
    // That which waits the most, beside the longest of those that do not.
    let mut jobs = Vec::new();
    if on_host {
        jobs.push(Job::Host);
    }
    // Its tests boot VMs themselves: it has a name like a boot, but no filters.
    let is_all = on_host && !wanted.host && wanted.filters.is_empty();
    if is_all || wanted.boot.iter().any(|name| name == lab::PLACE) {
        jobs.push(Job::Lab);
    }
    let in_vm = !boots.is_empty();
    // The longest first: at the end it would leave the other CPU idle.
    boots.sort_by_key(|boot| std::cmp::Reverse(boot.length()));
    jobs.extend(boots.into_iter().flat_map(Boot::parts).map(Job::Vm));
    if in_vm {
        jobs.push(Job::Object);
    }
    let results = Mutex::new(&mut *report);
    side_by_side::run(&jobs, |job| {
        let own = job.run(tested, wanted.timeout, &[]);
        results.lock().unwrap_or_else(PoisonError::into_inner).append(own);
    });
    agreement(&jobs, report);
    again(&jobs, tested, wanted.timeout, report)
}

/// With more failures than this no test runs again: something is broken.
const MOST_AGAIN: usize = 3;

/// Runs tests that failed once more, job by job, if they are few. CI runs 1,200 tests on machines that others use too; one that
/// passes when it is run again, alone, is reported as unstable and does not fail the run. It is a fault nevertheless: of the test, or
/// of what it found.
fn again(jobs: &[Job], tested: &Tested, timeout: u64, report: &mut Report) -> Result<()> {
    let failed = report.failed();
    for job in jobs.iter().filter(|_| failed.len() <= MOST_AGAIN) {
        let place = job.place();
        let of_job = failed.iter().filter(|(of, _)| *of == place);
        let tests: Vec<String> = of_job.map(|(_, test)| test.clone()).collect();
        if !tests.is_empty() {
            stop::check()?;
            println!("test: again, alone: {place}: {}", tests.join(", "));
            report.amend(&job.run(tested, timeout, &tests));
        }
    }
    Ok(())
}

/// The agent of tests and its BPF programs, in their folder.
fn agent_folder() -> PathBuf {
    paths::target().join("test/agent")
}

fn agent() -> Result<()> {
    process::create_dir(&agent_folder())?;
    let rules = paths::root().join("profiler/tests/data/agent/Makefile");
    process::run(Command::new("make").arg("-C").arg(agent_folder()).arg("-sf").arg(rules))
}

/// The tests that need neither root nor a kernel of their own: all, or those of these names.
fn host_tests(only: &[String]) -> Result<Report> {
    println!("test: on this machine");
    let mut report = Report::default();
    // No documentation has tests: `cargo::tests` sees to it.
    for which in [cargo::UNIT_TESTS, "--test host"] {
        // They check times, beside VMs that do not.
        let mut cargo = Command::new("nice");
        cargo.args(["-n", "-10", "cargo", "test"]);
        cargo.args(cargo::TESTED.split(' ')).args(which.split(' '));
        // Ignored tests need programs, which are installed here. Those of the lab run beside the other boots.
        cargo.args(["--no-fail-fast", "--", "--include-ignored", "--skip", lab::TESTS]);
        if !only.is_empty() {
            cargo.arg("--exact").args(only);
        }
        cargo.env("PROFILER_READERS_PYTHON", READERS.program("python3"));
        cargo.env("PROFILER_BROWSER", BROWSER);
        cargo.env("PROFILER_PROMTOOL", setup::PROMETHEUS.programs().join("promtool"));
        let (status, lines) = process::printed(cargo.current_dir(paths::root()))?;
        let endings = libtest::endings(&lines);
        let failed = endings.iter().any(|(_, ending)| *ending == Status::Failed);
        if !status.success() && !failed {
            // It did not build, or a test binary died.
            let why = format!("`{}` failed: {status}", process::text(&cargo));
            report.add(HOST, "cargo test", Status::NotRun(why));
        } else if endings.is_empty() && only.is_empty() {
            report.add(HOST, which, Status::NotRun("no test ran".to_owned()));
        }
        for (test, ending) in endings {
            report.add(HOST, &test, ending);
        }
    }
    Ok(report)
}

/// Compares boots with those that they repeat.
fn agreement(jobs: &[Job], report: &mut Report) {
    for job in jobs {
        if let Job::Vm(second) = job
            && let Some(first) = second.name.strip_suffix(plan::TWICE)
            && jobs.iter().any(|job| matches!(job, Job::Vm(boot) if boot.name == first))
        {
            let agreement = agreement::check(&out(first), &out(&second.name));
            report.step("virtual time", &format!("{first} and {} agree", second.name), agreement);
        }
    }
}

/// What the tests of a VM leave.
fn out(vm: &str) -> PathBuf {
    paths::target().join("test").join(vm)
}

/// Boots once and runs the tests, or those of these names.
fn boot_and_test(boot: &Boot, tested: &Tested, timeout: u64, only: &[String]) -> Result<Report> {
    // Files of its own: those of the first run say why it failed.
    let (vm, tests) = match only {
        [] => (boot.name.clone(), &boot.tests[..]),
        only => (format!("{}-alone", boot.name), only),
    };
    let testbed = testbed::build(boot.series, "");
    let testbed = testbed.with_context(|| format!("no testbed for {}", boot.series))?;
    println!("test: boot {vm}, {} tests", tests.len());
    let script = in_memory(tested)? + &script(boot, tested, &vm, tests, &testbed)?;
    let args = VmArgs {
        icount: boot.virtual_time,
        kernel_args: kernel_args(boot),
        timeout,
        ..VmArgs::script(&format!("test-{vm}"), boot.series, &script)
    };
    let mut lines = Vec::new();
    let reason = match vm::run(&args, &mut lines) {
        Ok(_) => format!("the test binary ended early; see {}", args.log().display()),
        Err(error) => {
            eprintln!("error: {error:#}");
            format!("{error:#}")
        }
    };
    let mut report = Report::default();
    report.add_run(&format!("vm {}", boot.name), tests, &libtest::endings(&lines), &reason);
    Ok(report)
}

/// The shell script that puts the programs that tests run, with their libraries, into the guest's memory. From this
/// machine's files the guest reads them anew for each process, and the emulator translates them anew: a run of the
/// profiler took 2.6 s for 1.2 s.
fn in_memory(tested: &Tested) -> Result<String> {
    const FOLDER: &str = "/run/programs";
    let mut files = BTreeSet::new();
    for program in [&*tested.profiler, &tested.vm_tests].into_iter().chain(TOOLS.map(Path::new)) {
        let libraries = process::stdout(Command::new("ldd").arg(program))?;
        let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.map(Path::new).chain([program]) {
            let file = file.canonicalize();
            files.insert(file.with_context(|| format!("cannot find {}", program.display()))?);
        }
    }
    let words = files.iter().map(|file| vm::word(file)).collect::<Vec<_>>().join(" ");
    Ok(format!(
        "mkdir {FOLDER} && cp -t {FOLDER} {words} || exit 1\n\
         for file in {words}; do mount --bind {FOLDER}/\"${{file##*/}}\" \"$file\" || exit 1; done\n"
    ))
}

/// The shell script that runs these tests.
fn script(
    boot: &Boot,
    tested: &Tested,
    vm: &str,
    tests: &[String],
    testbed: &Path,
) -> Result<String> {
    let out = out(vm);
    process::empty_dir(&out)?;
    let prometheus = setup::PROMETHEUS.programs().join("prometheus");
    // Those of the table above that are set by hand.
    let by_hand = std::env::vars().filter(|(name, _)| name.starts_with("PROFILER_VM_"));
    let mut words: Vec<String> =
        by_hand.map(|(name, value)| format!("{name}={}", vm::quote(&value))).collect();
    words.extend([
        format!("PROFILER_VM_KERNEL={}", boot.series),
        format!("PROFILER_VM_TESTBED={}", vm::word(testbed)),
        format!("PROFILER_VM_OUT={}", vm::word(&out)),
        format!("PROFILER_VM_AGENT={}", vm::word(&agent_folder())),
        format!("PROFILER_VM_PROMETHEUS={}", vm::word(&prometheus)),
        vm::word(&tested.vm_tests),
        // Tests in one VM share its module and its clock, so they run one at a time.
        "--test-threads=1 --ignored --exact".to_owned(),
    ]);
    words.extend(tests.iter().map(|name| vm::quote(name)));
    Ok(words.join(" "))
}

/// Words for the kernel of a boot.
fn kernel_args(boot: &Boot) -> Vec<&'static str> {
    let mut words = vec![PATIENT];
    if boot.virtual_time {
        words.push(SAME_ADDRESSES);
    } else if boot.series != AS_USUAL {
        words.push(SAME_ADDRESSES);
        words.extend(QUICK);
        words.extend((boot.series == Series::V6_1).then_some(NO_GRACE));
    }
    words
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

    #[test]
    fn a_job_that_breaks_is_a_failure() {
        let mut report = reported("bad", || bail!("it is broken"));
        report.append(reported("worse", || panic!("on purpose")));
        report.append(reported("good", || {
            let mut report = Report::default();
            report.add("good", "a test", Status::Passed);
            Ok(report)
        }));
        let summary = report.summary();
        assert!(!report.is_green());
        assert!(summary.contains("not run: bad: (all): it is broken"), "{summary}");
        assert!(summary.contains("not run: worse: (all): a panic, see above"), "{summary}");
        assert!(summary.contains("1 passed"), "{summary}");
    }
}
