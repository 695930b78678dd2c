//! A program as the load: each run of it, from its start to its end, is an operation.

use std::fs::File;
use std::process::Command;
use std::time::Instant;

use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};

use profiler_base::emulator::{self, Counting};
use profiler_base::error::{Failure, exit};
use profiler_load::{LoadOutcome, LoadRun, LoadSpec, LoadStatus};

use super::agent;
use super::channel::Channel;
use super::load::WARMUP_PART;
use crate::plan::RunSpec;
use crate::wire::Agent;

/// What it prints.
const OUTPUT: &str = "/run/program";

/// Runs the program as often as each of `runs` says, first a part of that to warm up.
pub(super) fn repeat(
    runs: &[RunSpec],
    program: &Agent,
    channel: &Channel,
) -> Result<Vec<Vec<LoadRun>>, Failure> {
    let prepared = channel.files().and_then(|files| agent::unpack(program, &files));
    prepared.and_then(|()| redirect()).map_err(|error| failed(program, &error.to_string()))?;
    runs.iter().map(|run| count(run, program)).collect()
}

/// Gives this process what the program reads and prints to, as its starts would else take further system calls.
fn redirect() -> std::io::Result<()> {
    let output = File::create(OUTPUT)?;
    dup2_stdin(File::open("/dev/null")?)?;
    dup2_stdout(&output)?;
    Ok(dup2_stderr(&output)?)
}

fn count(run: &RunSpec, program: &Agent) -> Result<Vec<LoadRun>, Failure> {
    let lengths = [run.length.part(WARMUP_PART), run.length];
    let [warmup, times] = lengths.map(|length| length.operations().unwrap_or_default());
    (0..warmup).try_for_each(|_| once(program))?;
    let started = Instant::now();
    let counting = Counting::begin();
    for _ in 0..times {
        emulator::begin_operation();
        once(program)?;
    }
    emulator::end_operations();
    drop(counting);
    let ended = LoadOutcome::ended(LoadStatus::Completed, started);
    let outcome = LoadOutcome { operations: Some(times), ..ended };
    Ok(vec![LoadRun { spec: LoadSpec::Command { argv: program.arguments.clone() }, outcome }])
}

fn once(program: &Agent) -> Result<(), Failure> {
    let run = |mut command: Command| command.env_clear().env("PATH", agent::PATH).status();
    let status = agent::command(program).and_then(run);
    let status = status.map_err(|error| failed(program, &error.to_string()))?;
    if status.success() {
        return Ok(());
    }
    Err(failed(program, &format!("it ended with {status}; {}", agent::said(OUTPUT))))
}

fn failed(program: &Agent, what: &str) -> Failure {
    let name = program.arguments.join(" ");
    Failure::new(exit::LOAD_FAILED, format!("the load {name}: {what}"))
}
