//! The tests of the Linux Test Project (LTP) as a load.
//!
//! A supervisor, a process of this program, runs the tests of `runtest/SUITE` one after the other. It enforces the timeout, kills
//! what a test leaves running, and waits before and after until the handlers' counters have been read. Tests have a private folder as
//! `TMPDIR`, which is emptied before each test. Their mounts end with them.
//!
//! LTP's own runner is a command: `profiler run ... -- kirk --run-suite syscalls`.

mod destructive;
mod direct;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod runtest;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{AccessFlags, access};

use profiler_base::error::{Failure, exit};
use profiler_base::stats::nanoseconds;
use profiler_recording::loads::LoadSpec;

use super::hits::HitCounter;
use super::sandbox::SandboxOptions;

pub use profiler_recording::loads::{
    LtpSpec, LtpTest, ResultCount, TIMED_OUT, TestResult, TestRuns, mix_changes,
};

/// Where LTP installs itself.
const DEFAULT_ROOT: &str = "/opt/ltp";

/// How to get LTP.
const INSTALL: &str = "install LTP (https://github.com/linux-test-project/ltp: `make autotools && ./configure && \
     make && make install` puts it there), name its folder with --ltp-root or LTPROOT, or \
     use the built-in load with --builtin";

/// Which tests to run, and how.
#[derive(Debug, Clone)]
pub struct LtpOptions {
    /// Where LTP is; `None` is `LTPROOT`, or else `/opt/ltp`.
    pub root: Option<PathBuf>,
    /// The file in `runtest`.
    pub suite: String,
    /// Regular expression that the tests' names have to match; `None` is all tests.
    pub pattern: Option<String>,
    /// Regular expression for the names of tests that are left out; `None` is none.
    pub skip: Option<String>,
    /// Rounds through the list; `None` is until stopped.
    pub iterations: Option<u64>,
    /// Timeout of one test.
    pub time_limit: Duration,
    /// Whether destructive tests may run, which are known to harm the machine.
    pub allow_destructive: bool,
    /// User and limits of all tests, and where their folder is created. Without a user they run as the
    /// caller, which is root for most of LTP.
    pub sandbox: SandboxOptions,
}

/// LTP tests, ready to run.
#[derive(Debug, Clone)]
pub struct LtpLoad {
    spec: LtpSpec,
    root: PathBuf,
    sandbox: SandboxOptions,
    /// The counters of the handlers, which are read before and after each test.
    pub counter: Option<HitCounter>,
}

impl LtpLoad {
    /// Reads the list and selects the tests. Runs nothing.
    ///
    /// # Errors
    /// If LTP, list or tests do not exist, or tests are destructive.
    pub fn prepare(options: LtpOptions) -> Result<Self, Failure> {
        let root = find_root(options.root)?;
        let tests = runtest::read(&runtest::find(&root, &options.suite)?)?;
        let (pattern, skip) = (options.pattern.as_deref(), options.skip.as_deref());
        let tests = runtest::select(tests, pattern, skip, &options.suite)?;
        if !options.allow_destructive {
            destructive::refuse(&options.suite, &tests)?;
        }
        if !tests.iter().any(|test| can_be_executed(&root, test)) {
            return Err(bad_ltp(format!(
                "none of the {} tests can be executed, such as {}: is this LTP built and installed completely? Otherwise {INSTALL}",
                tests.len(),
                tests[0].name
            )));
        }
        let user = options.sandbox.other_user().map_err(bad_choice)?;
        let user = user.map(|user| user.name.clone());
        let version = std::fs::read_to_string(root.join("Version")).ok();
        let version = version.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let spec = LtpSpec {
            ltp_version: version,
            suite: options.suite,
            pattern: options.pattern,
            tests,
            iterations: options.iterations,
            workers: 1,
            time_limit_ns: nanoseconds(options.time_limit),
            user,
        };
        Ok(Self { spec, root, sandbox: options.sandbox, counter: None })
    }

    pub(super) fn describe(&self) -> LoadSpec {
        LoadSpec::Ltp(Box::new(self.spec.clone()))
    }
}

/// The folder of LTP.
fn find_root(asked: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let root = asked.or_else(|| std::env::var_os("LTPROOT").map(PathBuf::from));
    let root = root.unwrap_or_else(|| PathBuf::from(DEFAULT_ROOT));
    let found = root.canonicalize().map_err(|error| no_ltp(&root, &error.to_string()))?;
    match ["runtest", "testcases/bin"].iter().find(|folder| !found.join(folder).is_dir()) {
        Some(folder) => Err(no_ltp(&root, &format!("it has no folder {folder}"))),
        None => Ok(found),
    }
}

fn no_ltp(root: &Path, reason: &str) -> Failure {
    bad_ltp(format!("no LTP at {}: {reason}; {INSTALL}", root.display()))
}

/// LTP or one of its lists is missing or damaged.
fn bad_ltp(text: String) -> Failure {
    Failure::new(exit::BAD_INPUT, text)
}

/// The choice of tests or user cannot be met.
fn bad_choice(text: String) -> Failure {
    Failure::new(exit::USAGE, text)
}

/// Whether a test's program is there. The others count as `not run`.
fn can_be_executed(root: &Path, test: &LtpTest) -> bool {
    let Some(program) = test.plain_program() else { return true };
    let mut folders = vec![PathBuf::new()];
    if !program.contains('/') {
        folders = std::env::split_paths(&search_path(root)).collect();
    }
    folders.iter().any(|folder| access(&folder.join(program), AccessFlags::X_OK).is_ok())
}

/// `PATH` of the tests: LTP's folders come first.
fn search_path(root: &Path) -> OsString {
    let usual = std::env::var_os("PATH").filter(|path| !path.is_empty());
    let usual = usual.unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let own = [root.join("testcases/bin"), root.join("bin")];
    let all = own.into_iter().chain(std::env::split_paths(&usual));
    std::env::join_paths(all).unwrap_or(usual)
}
