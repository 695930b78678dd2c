//! Runs loads.

use std::time::Instant;

use tokio::task::JoinSet;

use profiler_base::stop::{StopReason, StopSignal};
use profiler_recording::loads::{LoadFailure, LoadOutcome, LoadRun, LoadSpec, LoadStatus};

use super::ltp::LtpLoad;
use super::{CommandLoad, SandboxedLoad};

/// Something that makes the kernel call the handlers.
#[derive(Debug, Clone)]
pub enum Load {
    /// Nothing: waits until stopped, so that what the machine does by itself is measured.
    Idle,
    Command(Box<CommandLoad>),
    /// A built-in load.
    Builtin(Box<SandboxedLoad>),
    /// Tests of LTP.
    Ltp(Box<LtpLoad>),
}

impl Load {
    /// What this load is.
    pub fn describe(&self) -> LoadSpec {
        match self {
            Self::Idle => LoadSpec::Idle,
            Self::Command(load) => load.describe(),
            Self::Builtin(load) => load.describe(),
            Self::Ltp(load) => load.describe(),
        }
    }

    /// Runs until its work is done or `stop`, whichever comes first, and leaves no process, thread or
    /// file behind. Dropping the future ends the load too.
    pub async fn run(self, stop: StopSignal) -> LoadOutcome {
        let started = Instant::now();
        let outcome = match self {
            Self::Idle => {
                let by = stop.stopped().await;
                Ok(LoadOutcome::ended(LoadStatus::Stopped { by }, started))
            }
            Self::Command(load) => load.run(&stop).await,
            Self::Builtin(load) => load.run(&stop).await,
            Self::Ltp(load) => load.run(&stop).await,
        };
        outcome.unwrap_or_else(|failure| LoadOutcome::ended(LoadStatus::Failed(failure), started))
    }
}

/// Loads that run at the same time. Dropping it kills them.
///
/// When one fails the others are stopped: quantiles of half a mix would look like those of the mix.
pub struct RunningLoads {
    stop: StopSignal,
    /// When they were started.
    pub began: Instant,
    /// Each with its outcome, once it has ended.
    loads: Vec<(LoadSpec, Option<LoadOutcome>)>,
    tasks: JoinSet<(usize, LoadOutcome)>,
}

impl RunningLoads {
    /// Starts `loads`.
    pub fn start(loads: Vec<Load>) -> Self {
        let stop = StopSignal::new();
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        let mut described = Vec::new();
        for (index, load) in loads.into_iter().enumerate() {
            described.push((load.describe(), None));
            let run = load.run(stop.clone());
            tasks.spawn(async move { (index, run.await) });
        }
        Self { stop, began, loads: described, tasks }
    }

    /// Has them end.
    pub fn stop(&self, reason: StopReason) {
        self.stop.stop(reason);
    }

    /// Waits until all have ended. Nothing is lost if the future is dropped before.
    pub async fn wait(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            let mut failed = true;
            if let Ok((index, outcome)) = ended {
                failed = matches!(outcome.status, LoadStatus::Failed(_));
                if let Some((_, of_load)) = self.loads.get_mut(index) {
                    *of_load = Some(outcome);
                }
            }
            if failed {
                self.stop(StopReason::LoadFailed);
            }
        }
    }

    /// Kills those that are still running. What came of all, in the order given; `why` is the failure of those whose outcome is
    /// not known.
    pub async fn end(mut self, why: &str) -> Vec<LoadRun> {
        self.tasks.shutdown().await;
        let runs = self.loads.into_iter().map(|(spec, outcome)| {
            let outcome = outcome.unwrap_or_else(|| {
                let failure = LoadFailure::BrokeOff { text: why.to_owned() };
                LoadOutcome::ended(LoadStatus::Failed(failure), self.began)
            });
            LoadRun { spec, outcome }
        });
        runs.collect()
    }
}
