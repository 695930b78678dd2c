//! Results of LTP tests.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::stats::nanoseconds;

use super::{LoadOutcome, LtpTest, is_zero};
use crate::merge::{least, plus};

/// Exit code of a test that timed out, as LTP's runners have it; no test ends with it by itself.
pub const TIMED_OUT: i32 = 124;

/// Bits of the exit code of a test of LTP (`TBROK` and so on), the worst first.
const BITS: [(i32, TestResult); 5] = [
    (2, TestResult::Broken),
    (1, TestResult::Fail),
    (4, TestResult::Warning),
    (32, TestResult::NotConfigured),
    // `TINFO`.
    (16, TestResult::Pass),
];

/// How one run of a test ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestEnd {
    /// By itself, with this code.
    Exit(i32),
    /// By a signal that this program did not send.
    Signal(i32),
    /// It timed out and was ended.
    TimedOut,
    /// It could not be executed.
    NotStarted(String),
    /// It was ended because the load was stopped.
    Stopped,
}

/// Result of a run: the worst of the bits in its exit code.
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
    strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum TestResult {
    /// Code 0.
    Pass,
    /// Code 32 (`TCONF`): the machine lacks what it tests; it did little or nothing.
    NotConfigured,
    /// Code 4 (`TWARN`).
    Warning,
    /// Code 1 (`TFAIL`), or one that LTP does not define.
    Fail,
    /// Code 2 (`TBROK`): its set-up failed.
    Broken,
    /// Killed by a signal.
    Killed,
    /// It timed out and was killed.
    TimedOut,
    /// Its program is missing or cannot be executed.
    NotRun,
}

impl TestResult {
    /// The worst of the bits that are set; codes with bits that LTP does not define are failures.
    pub fn of_code(code: i32) -> Self {
        match code {
            0 => Self::Pass,
            // A shell's: not found, not executable, and killed by a signal.
            126 | 127 => Self::NotRun,
            129..=192 => Self::Killed,
            _ if BITS.iter().fold(code, |code, (bit, _)| code & !bit) != 0 => Self::Fail,
            _ => BITS.iter().find(|(bit, _)| code & bit != 0).map_or(Self::Pass, |found| found.1),
        }
    }
}

impl fmt::Display for TestResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&<&str>::from(self).replace('-', " "))
    }
}

/// All runs of one test in the measured window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestRuns {
    /// Its name in the list.
    pub name: String,
    /// Runs that started in the window and ended or timed out.
    pub runs: u64,
    /// Runs that were interrupted because the load was stopped.
    pub stopped: u64,
    /// How the runs ended, each kind once.
    pub results: Vec<ResultCount>,
    /// Time of all runs together, in nanoseconds, without interrupted ones.
    pub elapsed_ns: u64,
    /// Time of the shortest run; `null` without one.
    pub min_ns: Option<u64>,
    /// Time of the longest run; `null` without one.
    pub max_ns: Option<u64>,
    /// Calls of each handler that started during its runs, interrupted ones included, in the order of
    /// the recording's handlers. Calls by other processes on the machine count too. `null` where tests
    /// ran at the same time or nothing was measured.
    pub hits: Option<Vec<u64>>,
    /// Processes that it left running, which were killed.
    pub left_running: u64,
    /// Runs that ended as not configured because only root can run the test, and it ran as another
    /// user.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub needs_root: u64,
    /// The end of its output in the first run that did not pass.
    pub output: Option<String>,
}

/// One way in which runs of a test ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResultCount {
    pub result: TestResult,
    /// Exit code; 124 stands for a timeout. `null` for a signal.
    pub code: Option<i32>,
    /// Number of the signal that killed the test.
    pub signal: Option<i32>,
    /// How many runs ended so.
    pub count: u64,
}

impl ResultCount {
    fn is_like(&self, other: &Self) -> bool {
        (self.result, self.code, self.signal) == (other.result, other.code, other.signal)
    }
}

/// How a command of a load ended, such as one run of a test.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ended {
    /// How.
    pub end: TestEnd,
    /// Time from its start to its end, without the clean-up.
    pub elapsed: Duration,
    /// Processes of a test that had to be killed after its end.
    pub left_running: u64,
    /// Processes that did not end after SIGKILL.
    pub unkillable: Vec<i32>,
    /// The end of a test's output.
    pub output: String,
    /// What of the sandbox could not be removed.
    #[serde(skip)]
    pub left: Option<String>,
    /// What a built-in load says of itself.
    #[serde(skip)]
    pub outcome: Option<Box<LoadOutcome>>,
}

impl Ended {
    /// # Errors
    /// If processes of `what` did not end after SIGKILL.
    pub fn check_killed(&self, what: &str) -> Result<(), String> {
        if self.unkillable.is_empty() {
            return Ok(());
        }
        let pids = self.unkillable.iter().join(", ");
        Err(format!("processes {pids} of {what} did not end after SIGKILL"))
    }
}

impl TestRuns {
    /// No run yet.
    pub fn new(test: &LtpTest) -> Self {
        Self { name: test.name.clone(), ..Self::default() }
    }

    /// Adds a run with its hits; `needs_root` if its output says that only root can run the test.
    pub fn add(&mut self, run: Ended, hits: Option<Vec<u64>>, needs_root: bool) {
        let mut more = Self { left_running: run.left_running, hits, ..Self::default() };
        let (result, code, signal) = match &run.end {
            TestEnd::Exit(code) => (TestResult::of_code(*code), Some(*code), None),
            TestEnd::Signal(number) => (TestResult::Killed, None, Some(*number)),
            TestEnd::TimedOut => (TestResult::TimedOut, Some(TIMED_OUT), None),
            TestEnd::NotStarted(_) => (TestResult::NotRun, None, None),
            TestEnd::Stopped => {
                *self += Self { stopped: 1, ..more };
                return;
            }
        };
        more.runs = 1;
        more.needs_root = u64::from(needs_root && result == TestResult::NotConfigured);
        more.elapsed_ns = nanoseconds(run.elapsed);
        (more.min_ns, more.max_ns) = (Some(more.elapsed_ns), Some(more.elapsed_ns));
        more.results.push(ResultCount { result, code, signal, count: 1 });
        // Of the first that did not pass.
        if result != TestResult::Pass && self.output.is_none() {
            let said = match run.end {
                TestEnd::NotStarted(why) => why,
                _ => run.output,
            };
            more.output = (!said.is_empty()).then_some(said);
        }
        *self += more;
    }

    fn kinds(&self) -> BTreeSet<TestResult> {
        self.results.iter().map(|count| count.result).collect()
    }

    /// The results in words, such as `pass 3, broken 1 (code 2)`.
    pub fn in_words(&self) -> String {
        let mut words = self.results.iter().map(|count| {
            let needs_root = count.result == TestResult::NotConfigured && self.needs_root > 0;
            let root = if needs_root { ", needs root" } else { "" };
            let how = match (count.code, count.signal) {
                (_, Some(number)) => format!(" (signal {number})"),
                (Some(code), _) if code != 0 => format!(" (code {code}{root})"),
                _ => String::new(),
            };
            format!("{} {}{how}", count.result, count.count)
        });
        words.join(", ")
    }
}

impl AddAssign for TestRuns {
    /// Adds runs of the same test, of which those of another recording have no hits: it may have other handlers.
    fn add_assign(&mut self, more: Self) {
        plus(&mut self.runs, more.runs);
        plus(&mut self.stopped, more.stopped);
        for result in more.results {
            match self.results.iter_mut().find(|known| known.is_like(&result)) {
                Some(known) => plus(&mut known.count, result.count),
                None => self.results.push(result),
            }
        }
        self.results.sort_by_key(|count| (count.result, count.code, count.signal));
        plus(&mut self.elapsed_ns, more.elapsed_ns);
        self.min_ns = least(self.min_ns, more.min_ns);
        self.max_ns = self.max_ns.max(more.max_ns);
        if let Some(hits) = more.hits {
            let mine = self.hits.get_or_insert_with(|| vec![0; hits.len()]);
            mine.iter_mut().zip(hits).for_each(|(mine, more)| plus(mine, more));
        }
        plus(&mut self.left_running, more.left_running);
        plus(&mut self.needs_root, more.needs_root);
        // Which came first is not known across recordings: take one of them.
        self.output = self.output.take().into_iter().chain(more.output).min();
    }
}

/// Tests with their results in words, such as `fork01 (pass 3), fork02 (broken 1)`.
pub(crate) fn tests_in_words<'a>(tests: impl Iterator<Item = &'a TestRuns>) -> String {
    tests.map(|test| format!("{} ({})", test.name, test.in_words())).join(", ")
}

/// Names of the tests in which two runs differ: tests that only one has, that had other results, or
/// whose share of all runs differs by more than a tenth.
pub fn mix_changes(base: &[TestRuns], candidate: &[TestRuns]) -> Vec<String> {
    let [in_base, in_candidate] = [base, candidate]
        .map(|all| all.iter().map(|test| u128::from(test.runs)).sum::<u128>().max(1) as f64);
    // When a list is stopped within a round, a test may have run once more or less.
    let a_round = 1.0 / in_base.min(in_candidate);
    let changed = base.iter().filter(|test| {
        let other = candidate.iter().find(|other| other.name == test.name);
        other.is_none_or(|other| {
            let share = test.runs as f64 / in_base;
            let apart = (share - other.runs as f64 / in_candidate).abs();
            test.kinds() != other.kinds() || apart > 0.1 * share + a_round
        })
    });
    let new = candidate.iter().filter(|test| base.iter().all(|other| other.name != test.name));
    changed.chain(new).map(|test| test.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(name: &str, ends: &[TestEnd]) -> TestRuns {
        let mut runs = TestRuns::new(&LtpTest { name: name.to_owned(), command: "x".to_owned() });
        for (at, end) in ends.iter().enumerate() {
            let run = Ended {
                end: end.clone(),
                elapsed: Duration::from_millis(10 + at as u64),
                left_running: 0,
                unkillable: Vec::new(),
                output: format!("output {at}"),
                left: None,
                outcome: None,
            };
            runs.add(run, Some(vec![1, 2]), false);
        }
        runs
    }

    #[test]
    fn the_worst_bit_of_a_code_is_the_result() {
        for (code, result) in [
            (0, TestResult::Pass),
            (1, TestResult::Fail),
            (2, TestResult::Broken),
            (3, TestResult::Broken),
            (4, TestResult::Warning),
            (5, TestResult::Fail),
            (6, TestResult::Broken),
            (16, TestResult::Pass),
            (32, TestResult::NotConfigured),
            (33, TestResult::Fail),
            (34, TestResult::Broken),
            (36, TestResult::Warning),
            (8, TestResult::Fail),
            (124, TestResult::Fail),
            (126, TestResult::NotRun),
            (127, TestResult::NotRun),
            (139, TestResult::Killed),
            (255, TestResult::Fail),
        ] {
            assert_eq!(TestResult::of_code(code), result, "{code}");
        }
    }

    #[test]
    fn runs_add_up() {
        let test = runs(
            "x",
            &[
                TestEnd::Exit(0),
                TestEnd::Exit(2),
                TestEnd::Exit(0),
                TestEnd::Signal(11),
                TestEnd::TimedOut,
                TestEnd::Stopped,
            ],
        );
        assert_eq!((test.runs, test.stopped), (5, 1));
        assert_eq!(test.elapsed_ns, (10 + 11 + 12 + 13 + 14) * 1_000_000);
        assert_eq!((test.min_ns, test.max_ns), (Some(10_000_000), Some(14_000_000)));
        assert_eq!(test.hits, Some(vec![6, 12]));
        assert_eq!(test.output.as_deref(), Some("output 1"), "of the first that did not pass");
        assert_eq!(
            test.in_words(),
            "pass 2, broken 1 (code 2), killed 1 (signal 11), timed out 1 (code 124)"
        );
    }

    #[test]
    fn a_mix_that_changed_is_reported() {
        let pass = |n: usize| vec![TestEnd::Exit(0); n];
        let base = [runs("a", &pass(100)), runs("b", &pass(100))];
        assert_eq!(mix_changes(&base, &base), [] as [String; 0]);
        // One round more is the same mix.
        assert_eq!(
            mix_changes(&base, &[runs("a", &pass(51)), runs("b", &pass(50))]),
            [] as [String; 0]
        );
        let skipped = [runs("a", &pass(100)), runs("b", &vec![TestEnd::Exit(32); 100])];
        assert_eq!(mix_changes(&base, &skipped), ["b"]);
        let other = [runs("a", &pass(150)), runs("c", &pass(50))];
        assert_eq!(mix_changes(&base, &other), ["a", "b", "c"]);
        // Of several sources: no sum of 64 bits holds these.
        let many = ["a", "b"].map(|name| TestRuns { runs: u64::MAX, ..runs(name, &pass(1)) });
        assert_eq!(mix_changes(&many, &many), [] as [String; 0]);
    }
}
