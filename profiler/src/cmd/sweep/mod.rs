//! `profiler sweep`: a grid of runs, one profile a cell, that can be stopped and gone on with.
//!
//! Each cell is a `profiler run` in a process of its own. Its file appears under its own name, in one
//! step, when it is whole: what has no such file is measured again.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::Parser as _;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;

use super::run::Signals;
use crate::cli::{Cli, SweepArgs};
use crate::error::{Failure, exit};
use crate::load::{ProfilerProgram, dying_with_parent};
use crate::profile::Profile;
use crate::progress::Progress;

mod delay;
mod grid;
mod table;

use grid::{Cell, Plan};

/// Runs what is left of the grid, and prints its table.
///
/// # Errors
/// If the folder holds another grid, or a cell cannot be measured: those before it are kept. After a
/// signal, with its code.
pub fn run(args: &SweepArgs) -> Result<(), Failure> {
    let plan = Plan::of(args)?;
    check_arguments(args, &plan)?;
    let _lock = plan.claim(&args.out)?;
    remove_rests(&args.out);
    let mut done = Vec::new();
    let mut left = Vec::new();
    for cell in plan.cells() {
        match cell.read(&args.out)? {
            Some(profile) => done.push((cell, profile)),
            None => left.push(cell),
        }
    }
    let all = done.len() + left.len();
    let mut progress = Progress::new(args.quiet);
    if !done.is_empty() {
        progress.say(&format!("{} of {all} cells are there already", done.len()));
    }
    // One thread: the runs are to die with it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(exit::INTERNAL, format!("cannot start the async runtime: {error}"))
    })?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    for cell in left {
        progress.say(&format!("cell {} of {all}: {cell}", done.len() + 1));
        let measured = runtime.block_on(measure(args, &cell, &mut signals))?;
        match measured {
            Ok(profile) => done.push((cell, profile)),
            Err((code, name)) => {
                return Err(Failure::new(
                    code,
                    format!(
                        "ended by {name} with {} of {all} cells measured; the same command goes on with \
                         the rest",
                        done.len()
                    ),
                ));
            }
        }
    }
    progress.end();
    done.sort_by_key(|(cell, _)| cell.order());
    super::to_stdout(&table::text(&done, args.unit, super::report::stdout_width()))
}

/// Whether `profiler run` takes these arguments, found out before anything is measured.
fn check_arguments(args: &SweepArgs, plan: &Plan) -> Result<(), Failure> {
    let Some(cell) = plan.cells().next() else { return Ok(()) };
    let words = ["profiler".into(), "run".into()].into_iter();
    match Cli::try_parse_from(words.chain(cell.arguments(&args.run, Path::new("cell.json")))) {
        Ok(Cli { command: crate::cli::Command::Run(run), .. }) if run.repeat > 1 => {
            Err(Failure::new(
                exit::USAGE,
                "--repeat is the sweep's: write it before the `--`, and each run has a file of its own",
            ))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(
            exit::USAGE,
            format!("`profiler run` does not take the arguments behind `--`: {error}"),
        )),
    }
}

/// What a killed sweep has left: files that never got their name.
fn remove_rests(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(".cell-") || (name.starts_with(".profiler-") && name.ends_with(".tmp"))
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Measures one cell; the inner error is the signal that ended it.
async fn measure(
    args: &SweepArgs,
    cell: &Cell,
    signals: &mut Signals,
) -> Result<Result<Profile, (u8, &'static str)>, Failure> {
    let part = args.out.join(format!(".cell-{}", cell.file_name()));
    let delay = delay::Delay::set(cell.delay)?;
    let mut command = std::process::Command::new(ProfilerProgram::this().path());
    command.arg("run").args(cell.arguments(&args.run, &part));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C at the terminal is for this program, which tells the run.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    dying_with_parent(&mut command);
    let trouble = |error: io::Error| {
        Failure::new(exit::INTERNAL, format!("cell {cell}: cannot start the run: {error}"))
    };
    let mut child = tokio::process::Command::from(command).spawn().map_err(trouble)?;
    let pid = child.id().map(|pid| Pid::from_raw(pid.cast_signed()));
    let mut said = Vec::new();
    let mut errors = child.stderr.take();
    let mut caught = None;
    let status = loop {
        tokio::select! {
            // Read to the end first: a full pipe would hold the run up.
            result = read_on(&mut errors, &mut said), if errors.is_some() => {
                result.map_err(trouble)?;
                errors = None;
            }
            status = child.wait(), if errors.is_none() => break status.map_err(trouble)?,
            signal = signals.next() => {
                caught = Some(signal);
                if let Some(pid) = pid {
                    // It takes its load down in order. A second one does so at once.
                    let _ = kill(pid, Signal::SIGTERM);
                }
            }
        }
    };
    if let Some(delay) = delay {
        delay.take_back()?;
    }
    if let Some(signal) = caught {
        let _ = fs::remove_file(&part);
        return Ok(Err(signal));
    }
    if !status.success() {
        let _ = fs::remove_file(&part);
        let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::INTERNAL);
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().last().unwrap_or("it said nothing").trim_start_matches("error: ");
        return Err(Failure::new(
            code,
            format!(
                "cell {cell} was not measured: {last} ({status}); cells measured before are kept"
            ),
        ));
    }
    let profile = Profile::read(&part)?;
    let target = args.out.join(cell.file_name());
    fs::rename(&part, &target).map_err(|error| {
        Failure::new(exit::BAD_OUTPUT, format!("cannot write {}: {error}", target.display()))
    })?;
    Ok(Ok(profile))
}

async fn read_on(
    from: &mut Option<tokio::process::ChildStderr>,
    to: &mut Vec<u8>,
) -> io::Result<()> {
    match from {
        Some(from) => from.read_to_end(to).await.map(drop),
        None => Ok(()),
    }
}

impl Plan {
    /// Makes this grid the folder's own, and keeps other sweeps out of it.
    fn claim(&self, folder: &Path) -> Result<Flock<fs::File>, Failure> {
        let cannot = |path: &Path, error: &dyn std::fmt::Display| {
            Failure::new(exit::BAD_OUTPUT, format!("cannot write {}: {error}", path.display()))
        };
        fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))?;
        let handle = fs::File::open(folder).map_err(|error| cannot(folder, &error))?;
        let lock = Flock::lock(handle, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
            let text = format!("{}: another sweep is at work there ({errno})", folder.display());
            Failure::new(exit::BAD_OUTPUT, text)
        })?;
        let path: PathBuf = folder.join("sweep.json");
        match fs::read(&path) {
            Ok(bytes) => self.compare(&path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                crate::atomic_file::OutputFile::open(&path)?
                    .commit(super::json(self)?.as_bytes())?;
            }
            Err(error) => return Err(cannot(&path, &error)),
        }
        Ok(lock)
    }
}

/// An argument as text, for the record of the grid.
fn shown(argument: &OsString) -> String {
    argument.to_string_lossy().into_owned()
}
