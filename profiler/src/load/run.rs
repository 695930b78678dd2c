//! Runs loads.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use tokio::task::JoinSet;

use crate::recording::loads::{LoadFailure, LoadOutcome, LoadRun, LoadSpec, LoadStatus};
use crate::stop::{StopReason, StopSignal};

/// A running load.
pub type Running = Pin<Box<dyn Future<Output = LoadOutcome> + Send>>;

/// Something that makes the kernel call the handlers.
pub trait Load: Send {
    /// What this load is.
    fn describe(&self) -> LoadSpec;

    /// Runs until its work is done or `stop`, whichever comes first, and leaves no process, thread or
    /// file behind. Dropping the future ends the load too.
    fn run(self: Box<Self>, stop: StopSignal) -> Running;
}

/// Runs `loads` at the same time until all have ended, and returns them in the order given.
///
/// When one fails the others are stopped: quantiles of half a mix would look like those of the mix.
pub async fn run_all(loads: Vec<Box<dyn Load>>, stop: &StopSignal) -> Vec<LoadRun> {
    let mut runs: Vec<LoadRun> = Vec::new();
    let mut running = JoinSet::new();
    for (index, load) in loads.into_iter().enumerate() {
        let started = Instant::now();
        let spec = load.describe();
        let text = "its task ended early; this is a fault of the profiler".to_owned();
        let failure = LoadFailure::BrokeOff { text };
        let outcome = LoadOutcome::ended(LoadStatus::Failed(failure), started);
        runs.push(LoadRun { spec, outcome });
        let run = load.run(stop.clone());
        running.spawn(async move { (index, run.await) });
    }
    while let Some(ended) = running.join_next().await {
        let failed = match ended {
            Ok((index, outcome)) => {
                let failed = matches!(outcome.status, LoadStatus::Failed(_));
                if let Some(run) = runs.get_mut(index) {
                    run.outcome = outcome;
                }
                failed
            }
            Err(_) => true,
        };
        if failed {
            stop.stop(StopReason::LoadFailed);
        }
    }
    runs
}

/// No load: waits until stopped.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdleLoad;

impl Load for IdleLoad {
    fn describe(&self) -> LoadSpec {
        LoadSpec::Idle
    }

    fn run(self: Box<Self>, stop: StopSignal) -> Running {
        Box::pin(async move {
            let started = Instant::now();
            let by = stop.stopped().await;
            LoadOutcome::ended(LoadStatus::Stopped { by }, started)
        })
    }
}
