//! Runs the tests one after the other, under one supervisor.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use profiler_base::stats::nanoseconds;
use profiler_base::stop::StopSignal;
use profiler_recording::loads::{LoadFailure, LoadOutcome, LoadStatus, LtpTest, TestEnd, TestRuns};

use super::{LtpLoad, search_path};
use crate::hits::HitCount;
use crate::sandbox::{CommandKind, CommandRequest, Supervised};

/// Time between SIGTERM and SIGKILL of a test.
const GRACE: Duration = Duration::from_secs(1);

impl LtpLoad {
    /// Runs the list, round after round, until `stop`. When this returns no test is running any more.
    pub(crate) async fn run(&self, stop: &StopSignal) -> Result<LoadOutcome, LoadFailure> {
        let started = Instant::now();
        let mut tests: Vec<_> = self.spec.tests.iter().map(TestRuns::new).collect();
        let mut supervised = Supervised::start(&self.sandbox, CommandKind::Test, true).await?;
        let ran = self.run_list(&mut supervised, stop, &mut tests).await;
        let elapsed = started.elapsed();
        let status = match (ran.and(supervised.close().await), stop.reason()) {
            (Err(text), _) => LoadStatus::Failed(LoadFailure::BrokeOff { text }),
            (Ok(()), Some(by)) => LoadStatus::Stopped { by },
            (Ok(()), None) => LoadStatus::Completed,
        };
        Ok(LoadOutcome {
            elapsed_ns: nanoseconds(elapsed),
            operations: Some(tests.iter().map(|test| test.runs).sum()),
            tests,
            ..LoadOutcome::ended(status, started)
        })
    }

    async fn run_list(
        &self,
        supervised: &mut Supervised,
        stop: &StopSignal,
        tests: &mut [TestRuns],
    ) -> Result<(), String> {
        for _ in 0..self.spec.iterations.unwrap_or(u64::MAX) {
            for (test, runs) in self.spec.tests.iter().zip(tests.iter_mut()) {
                if stop.is_stopped() {
                    return Ok(());
                }
                self.run_test(supervised, stop, test, runs).await?;
            }
        }
        Ok(())
    }

    /// Runs a test once in an empty folder, and adds the result.
    async fn run_test(
        &self,
        supervised: &mut Supervised,
        stop: &StopSignal,
        test: &LtpTest,
        runs: &mut TestRuns,
    ) -> Result<(), String> {
        let request = self.request(test);
        supervised.refresh().await?;
        let before = self.count().await;
        let mut ended = supervised.run(&request, stop).await?;
        let after = self.count().await;
        ended.check_killed("the tests")?;
        if stop.is_stopped() {
            // How a test ends after a request to stop is no result.
            ended.end = TestEnd::Stopped;
        } else if let TestEnd::NotStarted(why) = &mut ended.end {
            *why = format!("{}: {why}", request.program.display());
        }
        // Without a counter all is measured.
        if self.counter.is_none() || before.as_ref().is_some_and(|before| before.measured) {
            let hits = before.zip(after).and_then(|(before, after)| hits(&before, &after));
            let needs_root = self.spec.user.is_some() && needs_root(&ended.output);
            runs.add(ended, hits, needs_root);
        }
        Ok(())
    }

    /// The counters now; `None` without any, or if the measurement has ended.
    async fn count(&self) -> Option<HitCount> {
        let (question, answer) = oneshot::channel();
        self.counter.as_ref()?.send(question).await.ok()?;
        answer.await.ok()
    }

    fn request(&self, test: &LtpTest) -> CommandRequest {
        let mut argv = test.argv().into_iter().map(OsString::from);
        let LtpLoad { spec, root, .. } = self;
        let mut env = vec![
            ("LTPROOT".to_owned(), root.clone().into()),
            ("PATH".to_owned(), search_path(root)),
            ("LTP_COLORIZE_OUTPUT".to_owned(), "n".into()),
        ];
        // Otherwise the folder for files. Without it the C library asks the name service, by calls that are not the test's.
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        env.extend(home.filter(|_| spec.user.is_none()).map(|home| ("HOME".to_owned(), home)));
        if let Some(user) = &spec.user {
            env.extend(["USER", "LOGNAME"].map(|name| (name.to_owned(), user.into())));
        }
        CommandRequest {
            program: argv.next().unwrap_or_default(),
            args: argv.collect(),
            env,
            timeout: Some(Duration::from_nanos(spec.time_limit_ns)),
            grace: self.sandbox.grace.unwrap_or(GRACE),
        }
    }
}

/// Calls of each handler between two counts.
fn hits(before: &HitCount, after: &HitCount) -> Option<Vec<u64>> {
    let pairs = after.entries.iter().zip(&before.entries);
    (!after.entries.is_empty())
        .then(|| pairs.map(|(after, before)| after.saturating_sub(*before)).collect())
}

/// Whether a test reports that only root can run it, in the words of LTP's libraries for C
/// (lib/tst_test.c) and for shells (testcases/lib/tst_test.sh).
fn needs_root(output: &str) -> bool {
    let words = ["needs to be run as root", "Must be super/root"];
    let mut refusals = output.lines().filter(|line| line.contains("TCONF"));
    refusals.any(|line| words.iter().any(|words| line.contains(words)))
}
