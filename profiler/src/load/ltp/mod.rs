//! The tests of the Linux Test Project (LTP) as a load.
//!
//! | runner | what runs the tests | repeats the list | workers |
//! |---|---|---|---|
//! | `direct` | this program, from `runtest/SUITE` | itself | each takes the next test of the list |
//! | `kirk` | LTP's own runner since 2023 | `--suite-iterate`, `--runtime` | those tests that kirk holds for safe |
//! | `runltp` | LTP's runner until February 2026 | `-I`, `-t` | `-x` |
//!
//! Whatever runs them, each test is started by a process of this program (`agent`), which ends it after its time,
//! kills what it leaves behind, and waits at both ends until the handlers' counters have been read. Tests
//! have a private folder in `TMPDIR`, which is emptied before each and gone after the load, with what was
//! mounted below it and the loop devices of its files.

pub(in crate::load) mod agent;
mod conduct;
mod destructive;
mod direct;
mod external;
mod kirk;
mod result;
mod runltp;
mod runtest;
mod wire;
pub(in crate::load) mod work;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::confine::{Confinement, Enclosure};
use super::{
    HelperProgram, HitCounter, Load, LoadFailure, LoadOutcome, LoadSpec, LoadStatus, Running,
    StopSignal,
};
use conduct::Conduct;
use kirk::Kirk;
use work::WorkFolder;

pub use result::{ResultCount, TIMED_OUT, TestResult, TestRuns, mix_changes};
pub use runtest::LtpTest;

/// Where LTP installs itself.
pub const DEFAULT_ROOT: &str = "/opt/ltp";

/// How to get LTP.
const INSTALL: &str = "install LTP (https://github.com/linux-test-project/ltp: `make autotools && ./configure && \
                       make && make install` puts it there), name its folder with --ltp-root or LTPROOT, or \
                       use the built-in load with --builtin";

/// What runs the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Runner {
    /// This program.
    Direct,
    /// LTP's runner kirk.
    Kirk,
    /// The script runltp of older LTP.
    Runltp,
}

impl Runner {
    /// Its name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Kirk => "kirk",
            Self::Runltp => "runltp",
        }
    }
}

/// What is to be run.
#[derive(Debug, Clone)]
pub struct LtpOptions {
    /// Where LTP is; `None` is `LTPROOT`, or else [`DEFAULT_ROOT`].
    pub root: Option<PathBuf>,
    /// What runs the tests; `None` is kirk where it can, else this program.
    pub runner: Option<Runner>,
    /// The file in `runtest`.
    pub suite: String,
    /// Regular expression, searched for in the tests' names; `None` is all of them.
    pub pattern: Option<String>,
    /// Rounds through the list; `None` goes on until stopped.
    pub iterations: Option<u64>,
    /// Tests side by side.
    pub workers: u32,
    /// Time after which one test is ended.
    pub time_limit: Duration,
    /// Whether tests may run that are known to harm the machine.
    pub allow_destructive: bool,
    /// What the tests are kept to: the user and the limits of all of them, and where the private folder
    /// is made. Without a user they run as the caller: as root for most of LTP.
    pub confinement: Confinement,
}

/// What an LTP load is: enough to run the same again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LtpSpec {
    /// What ran the tests.
    pub runner: Runner,
    /// Version of that, where it is not this program.
    #[serde(default)]
    pub runner_version: Option<String>,
    /// What LTP says of its own version; `null` if it does not.
    #[serde(default)]
    pub ltp_version: Option<String>,
    /// The file in `runtest`.
    pub suite: String,
    /// Regular expression by which the tests were chosen; `null` is all of them.
    #[serde(default)]
    pub pattern: Option<String>,
    /// The tests in their order: they are part of what a profile is a profile of.
    pub tests: Vec<LtpTest>,
    /// Rounds through the list; `null` is until stopped.
    #[serde(default)]
    pub iterations: Option<u64>,
    /// Tests side by side.
    pub workers: u32,
    /// Time after which one test is ended, in nanoseconds.
    pub time_limit_ns: u64,
    /// The user that the tests ran as, where it was another one than the profiler's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl fmt::Display for LtpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let count = self.tests.len();
        write!(f, "LTP {}, {count} test{}", self.suite, plural(count as u64))?;
        if let Some(pattern) = &self.pattern {
            write!(f, " {pattern}")?;
        }
        write!(f, " (list {}), by {}", self.digest(), self.runner.name())?;
        if let Some(version) = &self.runner_version {
            write!(f, " {version}")?;
        }
        match self.iterations {
            Some(iterations) => write!(f, ", {iterations} round{}", plural(iterations))?,
            None => f.write_str(", over and over")?,
        }
        if self.workers > 1 {
            write!(f, ", {} workers", self.workers)?;
        }
        match &self.user {
            Some(user) => write!(f, ", as {user}"),
            None => Ok(()),
        }
    }
}

impl LtpSpec {
    /// Tells lists of tests apart: the first digits of the SHA-256 of their lines.
    #[must_use]
    pub fn digest(&self) -> String {
        use sha2::Digest as _;
        let mut hash = sha2::Sha256::new();
        for LtpTest { name, command } in &self.tests {
            hash.update(format!("{name} {command}\n"));
        }
        hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Why the tests cannot be run as asked. Found before anything is measured.
#[derive(Debug, thiserror::Error)]
pub enum LtpError {
    /// There is no LTP.
    #[error("no LTP at {}: {reason}; {INSTALL}", .root.display())]
    NoLtp {
        /// Where it was looked for.
        root: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// There is no such list.
    #[error("no list of tests {}{}", .path.display(), also(.near))]
    NoSuite {
        /// The file.
        path: PathBuf,
        /// The list whose name is most like it.
        near: Option<String>,
    },
    /// A list cannot be read.
    #[error("{}: {reason}: this list of tests cannot be read", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A line of the list makes no sense.
    #[error("{}:{line}: {reason}", .path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The pattern is none.
    #[error("`{pattern}` is no regular expression for tests: {reason}")]
    BadPattern {
        /// What was given.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The pattern matches nothing.
    #[error("`{pattern}` matches none of the {total} tests of runtest/{suite}{}", also(.near))]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// The list.
        suite: String,
        /// Tests in it.
        total: usize,
        /// The test whose name is most like it.
        near: Option<String>,
    },
    /// The list has no test.
    #[error("runtest/{suite} has no test in it")]
    Empty {
        /// The list.
        suite: String,
    },
    /// Not one of the programs is there.
    #[error(
        "none of the {count} tests can be executed ({first}: {reason}): is this LTP built and installed \
         as a whole? Otherwise {INSTALL}"
    )]
    NothingRuns {
        /// Tests chosen.
        count: usize,
        /// The first of them.
        first: String,
        /// Why it cannot be.
        reason: String,
    },
    /// Some tests may harm the machine.
    #[error("{} may harm this machine: leave them out by --ltp-tests, or allow them with --allow-destructive", .tests.join("; "))]
    Destructive {
        /// Each with the reason.
        tests: Vec<String>,
    },
    /// The user asked for cannot be had.
    #[error("{0}")]
    User(String),
    /// The runner asked for cannot be used.
    #[error("{0}")]
    Runner(String),
}

fn also(near: &Option<String>) -> String {
    near.as_ref().map_or_else(String::new, |near| format!(": did you mean {near}?"))
}

/// Tests of LTP, ready to run.
#[derive(Debug, Clone)]
pub struct LtpLoad {
    spec: LtpSpec,
    root: PathBuf,
    kirk: Option<Kirk>,
    confinement: Confinement,
    helper: HelperProgram,
    counter: Option<HitCounter>,
    notices: Vec<String>,
}

impl LtpLoad {
    /// Reads the list, chooses the tests and finds the runner. Nothing runs yet but `kirk --version`.
    ///
    /// # Errors
    /// When there is no LTP, list or test, tests are destructive, or the runner asked for is not there.
    pub fn prepare(options: LtpOptions) -> Result<Self, LtpError> {
        let root = options.root.or_else(|| std::env::var_os("LTPROOT").map(PathBuf::from));
        let root = root.unwrap_or_else(|| PathBuf::from(DEFAULT_ROOT));
        let no_ltp = |reason: String| LtpError::NoLtp { root: root.clone(), reason };
        let root = root.canonicalize().map_err(|error| no_ltp(error.to_string()))?;
        for folder in ["runtest", "testcases/bin"] {
            if !root.join(folder).is_dir() {
                return Err(no_ltp(format!("it has no folder {folder}")));
            }
        }
        let suite = options.suite;
        let path = root.join("runtest").join(&suite);
        if suite.contains('/') || !path.is_file() {
            return Err(no_suite(&root, path));
        }
        let all = runtest::read(&path)?;
        let tests = runtest::select(all, options.pattern.as_deref(), &suite)?;
        if !options.allow_destructive {
            refuse_destructive(&suite, &tests)?;
        }
        let mut notices = Vec::new();
        missing(&root, &tests, &mut notices)?;
        let user = options.confinement.user.as_ref().filter(|user| !user.is_me());
        if let Some(user) = user {
            options.confinement.check_user().map_err(LtpError::User)?;
            notices.push(format!(
                "the tests run as {}: those that need root do nothing and end as `not configured`",
                user.name
            ));
        }
        let (runner, kirk) = choose(options.runner, &root, &mut notices)?;
        let version = std::fs::read_to_string(root.join("Version")).ok();
        let version = version.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let runner_version = match runner {
            Runner::Direct => None,
            Runner::Kirk => kirk.as_ref().map(|kirk| kirk.version.clone()),
            // It is of the version of its LTP.
            Runner::Runltp => version.clone(),
        };
        let spec = LtpSpec {
            runner,
            runner_version,
            ltp_version: version,
            suite,
            pattern: options.pattern,
            tests,
            iterations: options.iterations,
            workers: options.workers.max(1),
            time_limit_ns: super::nanoseconds(options.time_limit),
            user: user.map(|user| user.name.clone()),
        };
        Ok(Self {
            spec,
            root,
            kirk,
            confinement: options.confinement,
            helper: HelperProgram::this_program(),
            counter: None,
            notices,
        })
    }

    /// Sets whom to ask for the handlers' counters at both ends of each test.
    #[must_use]
    pub fn counter(mut self, counter: HitCounter) -> Self {
        self.counter = Some(counter);
        self
    }

    /// Sets the program that starts and guards the tests.
    #[must_use]
    pub fn helper(mut self, helper: HelperProgram) -> Self {
        self.helper = helper;
        self
    }

    /// What the user should know before the load runs.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    async fn conduct(self, stop: StopSignal) -> LoadOutcome {
        let started = Instant::now();
        let could_not_start = |text| {
            let failure = LoadFailure::CouldNotStart { text };
            LoadOutcome::ended(LoadStatus::Failed(failure), started)
        };
        // The folder is not the enclosure's, as tests need more of it; and LTP's own runners have the
        // limits themselves.
        let within = match self.spec.runner {
            Runner::Direct => self.confinement.clone(),
            Runner::Kirk | Runner::Runltp => Confinement::default(),
        };
        let enclosure = match Enclosure::new(&within, false) {
            Ok(enclosure) => enclosure,
            Err(text) => return could_not_start(text),
        };
        let work = match WorkFolder::new(&self.confinement, &enclosure, &self.helper) {
            Ok(work) => work,
            Err(text) => return could_not_start(text),
        };
        let conduct = Conduct::new(&self.spec, &self.root, self.counter.clone(), stop)
            .of_user(self.confinement.user.clone());
        let mut status = match self.spec.runner {
            Runner::Direct => direct::run(&self, &conduct, &work, enclosure.group.as_deref()).await,
            Runner::Kirk => match &self.kirk {
                Some(kirk) => kirk::run(&self, kirk, &conduct, &work).await,
                None => {
                    LoadStatus::Failed(LoadFailure::CouldNotStart { text: "no kirk".to_owned() })
                }
            },
            Runner::Runltp => runltp::run(&self, &conduct, &work).await,
        };
        let elapsed_ns = super::nanoseconds(started.elapsed());
        let trouble = work.close().err().or(conduct.immortal());
        drop(enclosure);
        if let (Some(text), LoadStatus::Completed | LoadStatus::Stopped { .. }) = (trouble, &status)
        {
            status = LoadStatus::Failed(LoadFailure::BrokeOff { text });
        }
        let mut outcome = LoadOutcome::ended(status, started);
        outcome.elapsed_ns = elapsed_ns;
        outcome.tests = conduct.into_runs();
        outcome.operations = Some(outcome.tests.iter().map(|test| test.runs).sum());
        outcome
    }
}

impl Load for LtpLoad {
    fn describe(&self) -> LoadSpec {
        LoadSpec::Ltp(Box::new(self.spec.clone()))
    }

    fn run(self: Box<Self>, stop: StopSignal) -> Running {
        Box::pin(self.conduct(stop))
    }
}

fn no_suite(root: &Path, path: PathBuf) -> LtpError {
    let wanted = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let entries = std::fs::read_dir(root.join("runtest")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let likeness = |name: &String| strsim::jaro_winkler(name, &wanted);
    let near = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    LtpError::NoSuite { path, near: near.map(|name| format!("--ltp-suite {name}")) }
}

fn refuse_destructive(suite: &str, tests: &[LtpTest]) -> Result<(), LtpError> {
    let mut harmful: Vec<(&str, Vec<&str>)> = Vec::new();
    for test in tests {
        let Some(reason) = destructive::reason(suite, test) else { continue };
        match harmful.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, names)) => names.push(&test.name),
            None => harmful.push((reason, vec![&test.name])),
        }
    }
    if harmful.is_empty() {
        return Ok(());
    }
    let line = |(reason, names): &(&str, Vec<&str>)| match names.as_slice() {
        [one] => format!("{one} ({reason})"),
        [first, .., last] => format!("{} tests, {first} to {last} ({reason})", names.len()),
        [] => String::new(),
    };
    Err(LtpError::Destructive { tests: harmful.iter().map(line).collect() })
}

/// Notices tests whose program is not there; an error if that is so of all.
fn missing(root: &Path, tests: &[LtpTest], notices: &mut Vec<String>) -> Result<(), LtpError> {
    let reasons: Vec<(&str, String)> = tests
        .iter()
        .filter_map(|test| Some((test.name.as_str(), unusable(root, test.plain_program()?)?)))
        .collect();
    match reasons.as_slice() {
        [] => Ok(()),
        [(first, reason), ..] if reasons.len() == tests.len() => Err(LtpError::NothingRuns {
            count: tests.len(),
            first: (*first).to_owned(),
            reason: reason.clone(),
        }),
        some => {
            let line = |(name, reason): &(&str, String)| format!("{name}: {reason}");
            notices.push(format!(
                "tests that cannot be executed, and count as `not run`: {}",
                some.iter().map(line).collect::<Vec<_>>().join("; ")
            ));
            Ok(())
        }
    }
}

/// Why a program cannot be executed; `None` if it can.
fn unusable(root: &Path, program: &str) -> Option<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let check = |path: &Path| match path.metadata() {
        Ok(data) if data.is_file() && data.permissions().mode() & 0o111 != 0 => Ok(()),
        Ok(_) => Err(format!("{} is not executable", path.display())),
        Err(_) => Err(format!("there is no program {program}")),
    };
    if program.contains('/') {
        return check(Path::new(program)).err();
    }
    let mut reason = format!("there is no program {program} in testcases/bin or PATH");
    for folder in std::env::split_paths(&search_path(root)) {
        let path = folder.join(program);
        match check(&path) {
            Ok(()) => return None,
            Err(why) if path.exists() => reason = why,
            Err(_) => {}
        }
    }
    Some(reason)
}

/// `PATH` of the tests: LTP's folders come first.
fn search_path(root: &Path) -> std::ffi::OsString {
    let usual = std::env::var_os("PATH").filter(|path| !path.is_empty());
    let usual = usual.unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let own = [root.join("testcases/bin"), root.join("bin")];
    let all = own.into_iter().chain(std::env::split_paths(&usual));
    std::env::join_paths(all).unwrap_or(usual)
}

fn choose(
    asked: Option<Runner>,
    root: &Path,
    notices: &mut Vec<String>,
) -> Result<(Runner, Option<Kirk>), LtpError> {
    match asked {
        Some(Runner::Direct) => Ok((Runner::Direct, None)),
        Some(Runner::Runltp) => {
            runltp::check(root).map_err(LtpError::Runner)?;
            Ok((Runner::Runltp, None))
        }
        Some(Runner::Kirk) => {
            let kirk = Kirk::find(root).and_then(|kirk| {
                kirk.ok_or_else(|| {
                    format!("no kirk in PATH or {}: {}", root.display(), kirk::REMEDY)
                })
            });
            Ok((Runner::Kirk, Some(kirk.map_err(LtpError::Runner)?)))
        }
        None => match Kirk::find(root) {
            Ok(Some(kirk)) => Ok((Runner::Kirk, Some(kirk))),
            Ok(None) => Ok((Runner::Direct, None)),
            Err(reason) => {
                notices.push(format!("tests are run without kirk: {reason}"));
                Ok((Runner::Direct, None))
            }
        },
    }
}
