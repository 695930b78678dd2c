//! The profiler's side of an LTP load: has agents run tests, and collects the results.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::programs::search_path;
use super::protocol::{AgentMessage, TestRequest};
use crate::load::hits::{HitCount, HitCounter};
use crate::load::sandbox::{LoadUser, ProfilerProgram, SandboxOptions};
use crate::recording::loads::{LtpSpec, TestEnd, TestRun, TestRuns};
use crate::stop::StopSignal;

/// Time between SIGTERM and SIGKILL of a test.
const GRACE: Duration = Duration::from_secs(1);
/// Longest time that an agent needs to end a test: the grace, and 5 s after SIGKILL.
const AGENT_TIMEOUT: Duration = Duration::from_secs(15);

/// Has agents run the tests of a load, and collects the results.
pub(super) struct TestController {
    pub(super) spec: LtpSpec,
    /// Where LTP is.
    pub(super) root: PathBuf,
    pub(super) sandbox: SandboxOptions,
    /// The user that tests run as, if not the caller.
    pub(super) user: Option<LoadUser>,
    pub(super) profiler: ProfilerProgram,
    counter: Option<HitCounter>,
    pub(super) stop: StopSignal,
    results: Mutex<Results>,
}

struct Results {
    runs: Vec<TestRuns>,
    /// Processes that did not end after SIGKILL.
    unkillable: Vec<i32>,
}

/// A connection to an agent.
pub(super) struct AgentConnection(BufReader<UnixStream>);

impl AgentConnection {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    pub(super) async fn receive(&mut self) -> Result<AgentMessage, String> {
        let mut line = String::new();
        let gone = "the agent that runs the tests ended without a report; was it killed?";
        match self.0.read_line(&mut line).await {
            Ok(0) => Err(gone.to_owned()),
            Ok(_) => serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}")),
            Err(error) => Err(format!("{gone} ({error})")),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sent = self.0.get_mut().write_all(bytes).await;
        sent.map_err(|error| format!("the agent that runs the tests cannot be reached: {error}"))
    }
}

/// Whether a test reports that only root can run it, in the words of LTP's libraries for C
/// (lib/tst_test.c) and for shells (testcases/lib/tst_test.sh).
fn needs_root(output: &str) -> bool {
    let says = |line: &str| {
        line.contains("needs to be run as root") || line.contains("Must be super/root")
    };
    output.lines().any(|line| line.contains("TCONF") && says(line))
}

impl TestController {
    pub(super) fn new(
        spec: LtpSpec,
        root: PathBuf,
        sandbox: SandboxOptions,
        profiler: ProfilerProgram,
        counter: Option<HitCounter>,
        stop: StopSignal,
    ) -> Result<Self, String> {
        let user = sandbox.other_user()?.cloned();
        let results = Results {
            runs: spec.tests.iter().map(TestRuns::new).collect(),
            unkillable: Vec::new(),
        };
        let results = Mutex::new(results);
        Ok(Self { spec, root, sandbox, user, profiler, counter, stop, results })
    }

    fn results(&self) -> std::sync::MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runs of each test.
    pub(super) fn into_runs(self) -> Vec<TestRuns> {
        self.results.into_inner().unwrap_or_else(PoisonError::into_inner).runs
    }

    /// An error if processes did not end after SIGKILL.
    pub(super) fn check_unkillable(&self) -> Result<(), String> {
        let pids: Vec<String> = self.results().unkillable.iter().map(i32::to_string).collect();
        if pids.is_empty() {
            return Ok(());
        }
        Err(format!("processes {} of the tests did not end after SIGKILL", pids.join(", ")))
    }

    /// The tests without a run.
    pub(super) fn not_run(&self) -> Vec<String> {
        let results = self.results();
        results.runs.iter().filter(|test| test.runs == 0).map(|test| test.name.clone()).collect()
    }

    /// Adds a run of the test of that name.
    pub(super) fn add(&self, name: &str, run: TestRun) {
        if let Some(test) = self.results().runs.iter_mut().find(|test| test.name == name) {
            test.add(run);
        }
    }

    async fn count(&self) -> Option<HitCount> {
        match &self.counter {
            Some(counter) => counter.read().await,
            None => None,
        }
    }

    /// Has an agent run test `number` once, with `folder` as its `TMPDIR`, and adds the result. It
    /// is also its working folder.
    ///
    /// # Errors
    /// If the agent is gone or sends an unexpected message.
    pub(super) async fn run_test(
        &self,
        agent: &mut AgentConnection,
        number: usize,
        folder: &Path,
    ) -> Result<(), String> {
        let tests = &self.spec.tests;
        let Some(test) = tests.get(number) else {
            return Err(format!("unknown test {number} of {}", tests.len()));
        };
        let request = TestRequest {
            argv: test.argv(),
            env: self.environment(folder),
            cwd: folder.to_owned(),
            user: self.user.as_ref().map(|user| (user.uid, user.gid)),
            timeout_ms: self.spec.time_limit_ns / 1_000_000,
            grace_ms: u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX),
        };
        let mut line = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
        line.push(b'\n');
        let before = self.count().await;
        agent.send(&line).await?;
        let message = self.end_of_test(agent).await?;
        let after = self.count().await;
        let AgentMessage::Ended { end, elapsed_ns, left_running, unkillable, output } = message;
        // How a test ends after a request to stop is no result.
        let end = if self.stop.is_stopped() { TestEnd::Stopped } else { end };
        let measured = match (&self.counter, &before) {
            (None, _) => true,
            (Some(_), Some(before)) => before.measured,
            (Some(_), None) => false,
        };
        let mut results = self.results();
        results.unkillable.extend(unkillable);
        if measured && let Some(runs) = results.runs.get_mut(number) {
            runs.add(TestRun {
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

    /// Waits for the end of the running test, which a stop of the load ends.
    async fn end_of_test(&self, agent: &mut AgentConnection) -> Result<AgentMessage, String> {
        tokio::select! {
            message = agent.receive() => return message,
            _ = self.stop.stopped() => {}
        }
        let sent = agent.send(b"\n").await;
        let message = timeout(AGENT_TIMEOUT, agent.receive()).await;
        let message = message.unwrap_or_else(|_| Err("a test could not be ended".to_owned()));
        sent.and(message)
    }

    fn hits(&self, before: &HitCount, after: &HitCount) -> Option<Vec<u64>> {
        let alike = before.entries.len() == after.entries.len() && !before.entries.is_empty();
        let pairs = after.entries.iter().zip(&before.entries);
        // With tests at the same time it is not known which of them made a call.
        (alike && self.spec.workers == 1)
            .then(|| pairs.map(|(after, before)| after.saturating_sub(*before)).collect())
    }

    fn environment(&self, folder: &Path) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        // Without it the C library asks the name service, by calls that are not the test's; kirk does
        // not pass it on.
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
