//! The runner inside this program: a supervisor for each worker, which runs its tests one after the other.

use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use tokio::task::JoinSet;

use super::LtpLoad;
use super::programs::search_path;
use crate::load::hits::{HitCount, HitCounter};
use crate::load::sandbox::{CommandKind, CommandRequest, Sandbox, Supervised};
use crate::recording::loads::{LoadFailure, LoadStatus, LtpTest, TestEnd, TestRun, TestRuns};
use crate::stop::{StopReason, StopSignal};

/// Time between SIGTERM and SIGKILL of a test.
const GRACE: Duration = Duration::from_secs(1);

/// What all workers share.
struct List {
    load: LtpLoad,
    stop: StopSignal,
    /// The next turn: a test of the list in a round.
    next: AtomicU64,
    tests: Mutex<Vec<TestRuns>>,
}

/// Runs the list, round after round, and returns when no test is running any more.
pub(super) async fn run(
    load: LtpLoad,
    stop: StopSignal,
    tests: Vec<TestRuns>,
) -> (Result<LoadStatus, LoadFailure>, Vec<TestRuns>, Duration) {
    let started = Instant::now();
    let workers = match start(&load).await {
        Ok(workers) => workers,
        Err(failure) => return (Err(failure), tests, started.elapsed()),
    };
    let list = Arc::new(List { load, stop, next: AtomicU64::new(0), tests: Mutex::new(tests) });
    let mut running = JoinSet::new();
    for mut worker in workers {
        let list = Arc::clone(&list);
        running.spawn(async move { (list.work(&mut worker).await, worker) });
    }
    let mut failure = None;
    let mut ended = Vec::new();
    while let Some(joined) = running.join_next().await {
        let result = match joined {
            Ok((result, worker)) => {
                ended.push(worker);
                result
            }
            Err(_) => Err("a worker panicked; this is a bug of the profiler".to_owned()),
        };
        if let Err(text) = result {
            // With fewer workers it is not the load asked for: stop the others.
            list.stop.stop(StopReason::LoadFailed);
            failure.get_or_insert(text);
        }
    }
    let elapsed = started.elapsed();
    for worker in ended {
        if let Err(text) = worker.close().await {
            failure.get_or_insert(text);
        }
    }
    let status = match (failure, list.stop.reason()) {
        (Some(text), _) => Err(LoadFailure::BrokeOff { text }),
        (None, Some(by)) => Ok(LoadStatus::Stopped { by }),
        (None, None) => Ok(LoadStatus::Completed),
    };
    let tests = std::mem::take(&mut *list.tests.lock().unwrap_or_else(PoisonError::into_inner));
    (status, tests, elapsed)
}

/// Starts the workers' supervisors. Users that tests switch to can create files in their folders, too.
async fn start(load: &LtpLoad) -> Result<Vec<Supervised>, LoadFailure> {
    let files = Some(Mode::from_bits_truncate(0o1777));
    let sandbox = Sandbox::plan(&load.sandbox, files, true)
        .map_err(|text| LoadFailure::CouldNotStart { text })?;
    let mut workers = vec![Supervised::start(&load.profiler, sandbox.clone()).await?];
    for _ in 1..load.spec.workers {
        workers.push(Supervised::start(&load.profiler, sandbox.another()).await?);
    }
    Ok(workers)
}

impl List {
    /// Runs the next test of the list, until the list or the load ends.
    async fn work(&self, worker: &mut Supervised) -> Result<(), String> {
        let tests = &self.load.spec.tests;
        let count = tests.len() as u64;
        let end = self.load.spec.iterations.map(|iterations| iterations.saturating_mul(count));
        while !self.stop.is_stopped() {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            if end.is_some_and(|end| turn >= end) {
                break;
            }
            let number = usize::try_from(turn % count).unwrap_or_default();
            if let Some(test) = tests.get(number) {
                self.run(worker, number, test).await?;
            }
        }
        Ok(())
    }

    /// Runs a test once in an empty folder, and adds the result.
    async fn run(
        &self,
        worker: &mut Supervised,
        number: usize,
        test: &LtpTest,
    ) -> Result<(), String> {
        let request = self.request(test);
        let name = request.program.to_string_lossy().into_owned();
        worker.refresh().await?;
        let before = self.count().await;
        let (ended, _) = worker.run(&request, &self.stop).await?;
        let after = self.count().await;
        ended.check_killed("the tests")?;
        let end = match ended.end {
            // How a test ends after a request to stop is no result.
            _ if self.stop.is_stopped() => TestEnd::Stopped,
            TestEnd::NotStarted(why) => TestEnd::NotStarted(format!("{name}: {why}")),
            end => end,
        };
        let measured = match (&self.load.counter, &before) {
            (None, _) => true,
            (Some(_), Some(before)) => before.measured,
            (Some(_), None) => false,
        };
        let mut tests = self.tests.lock().unwrap_or_else(PoisonError::into_inner);
        if measured && let Some(runs) = tests.get_mut(number) {
            runs.add(TestRun {
                end,
                elapsed: ended.elapsed,
                hits: before.zip(after).and_then(|(before, after)| self.hits(&before, &after)),
                left_running: ended.left_running,
                needs_root: self.load.spec.user.is_some() && needs_root(&ended.output),
                output: ended.output,
            });
        }
        Ok(())
    }

    async fn count(&self) -> Option<HitCount> {
        match &self.load.counter {
            Some(counter) => HitCounter::read(counter).await,
            None => None,
        }
    }

    fn hits(&self, before: &HitCount, after: &HitCount) -> Option<Vec<u64>> {
        let alike = before.entries.len() == after.entries.len() && !before.entries.is_empty();
        let pairs = after.entries.iter().zip(&before.entries);
        // With tests at the same time it is not known which of them made a call.
        (alike && self.load.spec.workers == 1)
            .then(|| pairs.map(|(after, before)| after.saturating_sub(*before)).collect())
    }

    fn request(&self, test: &LtpTest) -> CommandRequest {
        let mut argv = test.argv().into_iter().map(OsString::from);
        let LtpLoad { spec, root, .. } = &self.load;
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
            kind: CommandKind::Test,
            program: argv.next().unwrap_or_default(),
            args: argv.collect(),
            env,
            timeout: Some(Duration::from_nanos(spec.time_limit_ns)),
            grace: GRACE,
        }
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
