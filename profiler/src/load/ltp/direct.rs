//! The runner inside this program.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::UnixStream;
use tokio::process::Child;

use super::LtpLoad;
use super::conduct::{Conduct, Link};
use super::work::WorkFolder;
use crate::load::helper::Role;
use crate::load::{HelperProgram, LoadFailure, LoadStatus, StopReason, sys};

/// Runs the list, round after round, in the control group `group` if there is one, and returns when no
/// test is running any more.
pub(super) async fn run(
    load: &LtpLoad,
    conduct: &Conduct,
    work: &WorkFolder,
    group: Option<&Path>,
) -> LoadStatus {
    let next = AtomicU64::new(0);
    let workers = (0..load.spec.workers).map(|index| {
        let next = &next;
        async move {
            let result = worker((&load.helper, group), conduct, work, index, next).await;
            if result.is_err() {
                // With one worker fewer it is not the load asked for: the others end too.
                conduct.stop.stop(StopReason::LoadFailed);
            }
            result
        }
    });
    let mut trouble = None;
    for result in join_all(workers.map(|worker| Box::pin(worker) as Boxed<'_>).collect()).await {
        if let Err(failure) = result {
            trouble.get_or_insert(failure);
        }
    }
    match (trouble, conduct.stop.reason()) {
        (Some(failure), _) => LoadStatus::Failed(failure),
        (None, Some(by)) => LoadStatus::Stopped { by },
        (None, None) => LoadStatus::Completed,
    }
}

type Boxed<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), LoadFailure>> + Send + 'a>>;

/// Drives all of them on this task, and returns what each came to.
async fn join_all(mut workers: Vec<Boxed<'_>>) -> Vec<Result<(), LoadFailure>> {
    let mut results: Vec<Option<Result<(), LoadFailure>>> = workers.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (worker, result) in workers.iter_mut().zip(&mut results) {
            if result.is_none() {
                match worker.as_mut().poll(context) {
                    std::task::Poll::Ready(ended) => *result = Some(ended),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    results.into_iter().flatten().collect()
}

async fn worker(
    (helper, group): (&HelperProgram, Option<&Path>),
    conduct: &Conduct,
    work: &WorkFolder,
    index: u32,
    next: &AtomicU64,
) -> Result<(), LoadFailure> {
    let could_not_start = |text| LoadFailure::CouldNotStart { text };
    let broke_off = |text| LoadFailure::BrokeOff { text };
    let (mut link, mut agent) = start(helper).map_err(could_not_start)?;
    if let (Some(group), Some(pid)) = (group, agent.id()) {
        // Before its first order: all that it starts is in there, too.
        let procs = group.join("cgroup.procs");
        std::fs::write(&procs, pid.to_string())
            .map_err(|error| could_not_start(format!("{}: {error}", procs.display())))?;
    }
    let count = conduct.tests.len() as u64;
    let end = conduct.iterations.map(|iterations| iterations.saturating_mul(count));
    while !conduct.stop.is_stopped() {
        let turn = next.fetch_add(1, Ordering::Relaxed);
        if end.is_some_and(|end| turn >= end) {
            break;
        }
        let number = usize::try_from(turn % count).unwrap_or_default();
        let folder = work.fresh(&format!("worker-{index}")).map_err(broke_off)?;
        conduct.run_test(&mut link, number, &folder, true).await.map_err(broke_off)?;
    }
    // Closing the connection ends the agent.
    drop(link);
    let _ = agent.wait().await;
    Ok(())
}

/// Starts a process that runs tests.
fn start(helper: &HelperProgram) -> Result<(Link, Child), String> {
    let fail = |error: std::io::Error| {
        format!("the process that runs the tests, {}: {error}", helper.path().display())
    };
    let (mine, its) = std::os::unix::net::UnixStream::pair().map_err(fail)?;
    mine.set_nonblocking(true).map_err(fail)?;
    let mut command = helper.command(Role::TestAgent);
    sys::with_own_limits(&mut command);
    let mut command = tokio::process::Command::from(command);
    // Its own group: the terminal's Ctrl-C is for the profiler, which then stops the load in order.
    command.process_group(0).stdin(Stdio::from(std::os::fd::OwnedFd::from(its)));
    let agent = command.stdout(Stdio::null()).spawn().map_err(fail)?;
    Ok((Link::new(UnixStream::from_std(mine).map_err(fail)?), agent))
}
