//! One run of one test, from the profiler's side, and the account of all runs.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::result::{OneRun, TestEnd, TestRuns};
use super::wire::{Answer, Order};
use super::{LtpSpec, LtpTest, search_path};
use crate::load::{HitCount, HitCounter, LoadUser, StopSignal};

/// Time between SIGTERM and SIGKILL for a test that is ended.
const GRACE: Duration = Duration::from_secs(1);
/// Longest that an agent takes to clear away after a test: the grace, and 5 s of killing.
const CLEARING: Duration = Duration::from_secs(15);

/// What all tests of a load have in common.
pub(super) struct Conduct {
    pub(super) tests: Vec<LtpTest>,
    pub(super) iterations: Option<u64>,
    pub(super) stop: StopSignal,
    root: PathBuf,
    time_limit: Duration,
    /// With tests side by side nobody knows whose calls the counters counted.
    side_by_side: bool,
    /// The user that tests run as, where that is another one.
    user: Option<LoadUser>,
    counter: Option<HitCounter>,
    account: Mutex<Account>,
}

struct Account {
    runs: Vec<TestRuns>,
    /// Processes that could not be killed.
    immortal: Vec<i32>,
    /// Runs of each test in all, in the warm-up too.
    begun: Vec<u64>,
}

/// A connection to a process that runs tests.
pub(super) struct Link(BufReader<UnixStream>);

impl Link {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    pub(super) async fn answer(&mut self) -> Result<Answer, String> {
        let mut line = String::new();
        let gone = "the process that runs the tests ended without a word; was it killed?";
        match self.0.read_line(&mut line).await {
            Ok(0) => Err(gone.to_owned()),
            Ok(_) => serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}")),
            Err(error) => Err(format!("{gone} ({error})")),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sent = self.0.get_mut().write_all(bytes).await;
        sent.map_err(|error| format!("the process that runs the tests cannot be told: {error}"))
    }
}

/// Whether a test says that root alone can run it, as LTP's libraries for C (lib/tst_test.c) and for
/// shells (testcases/lib/tst_test.sh) have it.
fn needs_root(output: &str) -> bool {
    let says = |line: &str| {
        line.contains("needs to be run as root") || line.contains("Must be super/root")
    };
    output.lines().any(|line| line.contains("TCONF") && says(line))
}

impl Conduct {
    pub(super) fn new(
        spec: &LtpSpec,
        root: &Path,
        counter: Option<HitCounter>,
        stop: StopSignal,
    ) -> Self {
        let account = Account {
            runs: spec.tests.iter().map(TestRuns::new).collect(),
            immortal: Vec::new(),
            begun: vec![0; spec.tests.len()],
        };
        Self {
            tests: spec.tests.clone(),
            iterations: spec.iterations,
            stop,
            root: root.to_owned(),
            time_limit: Duration::from_nanos(spec.time_limit_ns),
            side_by_side: spec.workers > 1,
            user: None,
            counter,
            account: Mutex::new(account),
        }
    }

    /// Sets the user that tests run as.
    pub(super) fn of_user(mut self, user: Option<LoadUser>) -> Self {
        self.user = user.filter(|user| !user.is_me());
        self
    }

    fn account(&self) -> std::sync::MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of all tests.
    pub(super) fn into_runs(self) -> Vec<TestRuns> {
        self.account.into_inner().unwrap_or_else(PoisonError::into_inner).runs
    }

    /// What to say of processes that nothing could end.
    pub(super) fn immortal(&self) -> Option<String> {
        let account = self.account();
        let pids: Vec<String> = account.immortal.iter().map(i32::to_string).collect();
        (!pids.is_empty()).then(|| {
            format!("processes {} of the tests did not end after SIGKILL", pids.join(", "))
        })
    }

    /// The tests that have not begun once.
    pub(super) fn not_begun(&self) -> Vec<String> {
        let account = self.account();
        let pairs = self.tests.iter().zip(&account.begun);
        pairs.filter(|(_, begun)| **begun == 0).map(|(test, _)| test.name.clone()).collect()
    }

    /// How often each way of ending was seen, by test, as far as it was measured.
    pub(super) fn runs(&self) -> Vec<TestRuns> {
        self.account().runs.clone()
    }

    /// Whether every run was counted: none fell into a warm-up.
    pub(super) fn all_measured(&self) -> bool {
        let account = self.account();
        account
            .runs
            .iter()
            .zip(&account.begun)
            .all(|(runs, begun)| runs.runs + runs.stopped == *begun)
    }

    async fn count(&self) -> Option<HitCount> {
        match &self.counter {
            Some(counter) => counter.read().await,
            None => None,
        }
    }

    /// Runs test `number` once, in `folder`, over a connection to the process that is to start it, and
    /// keeps the account. It begins in that folder if the process is the profiler's own; runners of LTP's
    /// have a place of their own for it, and read what it writes.
    ///
    /// # Errors
    /// When that process is gone or says what makes no sense.
    pub(super) async fn run_test(
        &self,
        link: &mut Link,
        number: usize,
        folder: &Path,
        own_place: bool,
    ) -> Result<(), String> {
        let Some(test) = self.tests.get(number) else {
            return Err(format!("test {number} was asked for, and there are {}", self.tests.len()));
        };
        let order = Order {
            argv: test.argv(),
            env: self.environment(folder),
            cwd: own_place.then(|| folder.to_owned()),
            user: self.user.as_ref().map(|user| (user.uid, user.gid)),
            limit_ms: u64::try_from(self.time_limit.as_millis()).unwrap_or(u64::MAX),
            grace_ms: u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX),
            pass_output_on: !own_place,
        };
        let mut line = serde_json::to_vec(&order).map_err(|error| error.to_string())?;
        line.push(b'\n');
        let before = self.count().await;
        if let Some(begun) = self.account().begun.get_mut(number) {
            *begun += 1;
        }
        link.send(&line).await?;
        let answer = self.ending(link).await?;
        let after = self.count().await;
        let Answer::Ended { end, elapsed_ns, left_running, immortal, output } = answer else {
            return Err(format!("an answer out of turn: {answer:?}"));
        };
        // What a test does after it has been told to end says nothing of it.
        let end = if self.stop.is_stopped() { TestEnd::Stopped } else { end };
        let measured = match (&self.counter, &before) {
            (None, _) => true,
            (Some(_), Some(before)) => before.measured,
            (Some(_), None) => false,
        };
        let mut account = self.account();
        account.immortal.extend(immortal);
        if measured && let Some(runs) = account.runs.get_mut(number) {
            runs.add(OneRun {
                end,
                elapsed: Duration::from_nanos(elapsed_ns),
                hits: before.zip(after).and_then(|(before, after)| self.hits(&before, &after)),
                left_running,
                needs_root: self.user.is_some() && needs_root(&output),
                output,
            });
        }
        Ok(())
    }

    async fn ending(&self, link: &mut Link) -> Result<Answer, String> {
        tokio::select! {
            answer = link.answer() => return answer,
            _ = self.stop.stopped() => {}
        }
        // Only now that the answer is not being read may it be asked for: nothing of it is lost.
        let told = link.send(b"\n").await;
        let answer = timeout(CLEARING, link.answer()).await;
        let answer = answer.unwrap_or_else(|_| Err("a test could not be ended".to_owned()));
        told.and(answer)
    }

    fn hits(&self, before: &HitCount, after: &HitCount) -> Option<Vec<u64>> {
        let alike = before.entries.len() == after.entries.len() && !before.entries.is_empty();
        let pairs = after.entries.iter().zip(&before.entries);
        (alike && !self.side_by_side)
            .then(|| pairs.map(|(after, before)| after.saturating_sub(*before)).collect())
    }

    fn environment(&self, folder: &Path) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        // Without it the C library asks the name service, by calls that are not the test's; kirk does
        // not hand it on.
        let home =
            std::env::var("HOME").ok().filter(|home| !home.is_empty() && self.user.is_none());
        let name = self.user.iter().flat_map(|user| {
            ["USER", "LOGNAME"].map(|variable| (variable.to_owned(), user.name.clone()))
        });
        let mut environment = vec![
            ("HOME".to_owned(), home.unwrap_or_else(|| text(folder))),
            ("LTPROOT".to_owned(), text(&self.root)),
            ("PATH".to_owned(), search_path(&self.root).to_string_lossy().into_owned()),
            ("TMPDIR".to_owned(), text(folder)),
            ("TMP".to_owned(), text(folder)),
            ("LTP_COLORIZE_OUTPUT".to_owned(), "n".to_owned()),
        ];
        environment.extend(name);
        environment
    }
}
