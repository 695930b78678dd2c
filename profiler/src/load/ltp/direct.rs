//! The runner inside this program.

use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::UnixStream;
use tokio::process::Child;

use super::controller::{AgentConnection, TestController};
use super::future_set::FutureSet;
use super::test_folder::TestFolder;
use crate::load::sandbox::{ProfilerProgram, Role, Sandbox};
use crate::load::syscalls::with_own_limits;
use crate::recording::loads::{LoadFailure, LoadStatus};
use crate::stop::StopReason;

/// Runs the list, round after round, in the control group of `sandbox` if it has one, and returns when no
/// test is running any more.
pub(super) async fn run(
    controller: &TestController,
    folder: &TestFolder,
    sandbox: &Sandbox,
) -> LoadStatus {
    let next = AtomicU64::new(0);
    let mut workers = FutureSet::new();
    for index in 0..controller.spec.workers {
        workers.push(work(controller, folder, sandbox, index, &next));
    }
    let mut first_failure = None;
    while let Some(result) = workers.next().await {
        if let Err(failure) = result {
            // With fewer workers it is not the load asked for: stop the others.
            controller.stop.stop(StopReason::LoadFailed);
            first_failure.get_or_insert(failure);
        }
    }
    match (first_failure, controller.stop.reason()) {
        (Some(failure), _) => LoadStatus::Failed(failure),
        (None, Some(by)) => LoadStatus::Stopped { by },
        (None, None) => LoadStatus::Completed,
    }
}

/// Runs the next test of the list with an agent of its own, until the list or the load ends.
async fn work(
    controller: &TestController,
    folder: &TestFolder,
    sandbox: &Sandbox,
    index: u32,
    next: &AtomicU64,
) -> Result<(), LoadFailure> {
    let could_not_start = |text| LoadFailure::CouldNotStart { text };
    let broke_off = |text| LoadFailure::BrokeOff { text };
    let (mut connection, mut agent) = start_agent(&controller.profiler).map_err(could_not_start)?;
    if let (Some(cgroup), Some(pid)) = (sandbox.cgroup(), agent.id()) {
        // Before its first request, so that all its descendants are in it too.
        let procs = cgroup.join("cgroup.procs");
        std::fs::write(&procs, pid.to_string())
            .map_err(|error| could_not_start(format!("{}: {error}", procs.display())))?;
    }
    let count = controller.spec.tests.len() as u64;
    let end = controller.spec.iterations.map(|iterations| iterations.saturating_mul(count));
    while !controller.stop.is_stopped() {
        let turn = next.fetch_add(1, Ordering::Relaxed);
        if end.is_some_and(|end| turn >= end) {
            break;
        }
        let number = usize::try_from(turn % count).unwrap_or_default();
        let path = folder.fresh(&format!("worker-{index}")).map_err(broke_off)?;
        controller.run_test(&mut connection, number, &path).await.map_err(broke_off)?;
    }
    // Closing the connection ends the agent.
    drop(connection);
    let _ = agent.wait().await;
    Ok(())
}

fn start_agent(profiler: &ProfilerProgram) -> Result<(AgentConnection, Child), String> {
    let failed = |error: std::io::Error| {
        format!("the agent that runs the tests, {}: {error}", profiler.path().display())
    };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    let mut command = profiler.command(Role::TestAgent);
    with_own_limits(&mut command);
    let mut command = tokio::process::Command::from(command);
    // A process group of its own: Ctrl-C at the terminal is for the profiler, which stops the load.
    command.process_group(0).stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
    let agent = command.stdout(Stdio::null()).spawn().map_err(failed)?;
    Ok((AgentConnection::new(UnixStream::from_std(ours).map_err(failed)?), agent))
}
