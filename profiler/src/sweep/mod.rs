//! A grid of runs, one recording a cell, that can be stopped and continued.
//!
//! Each cell is a `profiler run` in a process of its own. Its file appears under its own name, in one
//! step, when it is whole: a cell without such a file is measured again.

mod delay;
mod grid;
pub mod table;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::process::Child;

use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::load::{ProfilerProgram, dying_with_parent};
use crate::recording::Recording;

pub use grid::{Axes, Cell, Grid};

/// A grid in its folder, which no other sweep can use meanwhile.
#[derive(Debug)]
pub struct Sweep {
    folder: PathBuf,
    /// Arguments of `profiler run` that all cells share.
    run: Vec<OsString>,
    /// Cells that are measured, with their recordings.
    pub done: Vec<(Cell, Recording)>,
    _lock: Flock<fs::File>,
}

impl Sweep {
    /// Opens the folder, and gives the cells that are not measured yet, in order.
    ///
    /// # Errors
    /// If it cannot be written, holds another grid or a broken recording, or is in use.
    pub fn open(
        grid: &Grid,
        folder: &Path,
        run: Vec<OsString>,
    ) -> Result<(Self, Vec<Cell>), Failure> {
        let lock = grid.claim(folder)?;
        remove_rests(folder);
        let mut sweep = Self { folder: folder.to_owned(), run, done: Vec::new(), _lock: lock };
        let mut left = Vec::new();
        for cell in grid.cells() {
            match cell.read(folder)? {
                Some(recording) => sweep.done.push((cell, recording)),
                None => left.push(cell),
            }
        }
        Ok((sweep, left))
    }

    /// Measures a cell. A signal, which `signal` waits for, ends it and is given back.
    ///
    /// # Errors
    /// If the run fails, or its recording cannot be read or renamed.
    pub async fn measure<S>(
        &mut self,
        cell: Cell,
        signal: impl AsyncFnMut() -> S,
    ) -> Result<Option<S>, Failure> {
        let part = self.folder.join(format!(".cell-{}", cell.file_name()));
        let delay = delay::Delay::set(cell.delay)?;
        let trouble = |error: io::Error| {
            Failure::new(exit::INTERNAL, format!("cell {cell}: cannot start the run: {error}"))
        };
        let child = start(cell.arguments(&self.run, &part)).map_err(trouble)?;
        let Ended { status, stderr, signal } = wait(child, signal).await.map_err(trouble)?;
        if let Some(delay) = delay {
            delay.take_back()?;
        }
        if signal.is_some() {
            let _ = fs::remove_file(&part);
            return Ok(signal);
        }
        if !status.success() {
            let _ = fs::remove_file(&part);
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            let said = String::from_utf8_lossy(&stderr);
            let last =
                said.lines().last().unwrap_or("it said nothing").trim_start_matches("error: ");
            return Err(Failure::new(
                code.unwrap_or(exit::INTERNAL),
                format!(
                    "cell {cell} was not measured: {last} ({status}); cells measured before are kept"
                ),
            ));
        }
        let recording = Recording::read(&part)?;
        let target = self.folder.join(cell.file_name());
        profiler_vm::durable::rename(&part, &target)
            .map_err(|error| Failure::cannot_write(&target, &error))?;
        self.done.push((cell, recording));
        Ok(None)
    }
}

/// How a run ended.
struct Ended<S> {
    status: std::process::ExitStatus,
    stderr: Vec<u8>,
    signal: Option<S>,
}

/// Starts a run.
fn start(arguments: Vec<OsString>) -> io::Result<Child> {
    let mut command = std::process::Command::new(ProfilerProgram::this().path());
    command.arg("run").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C at the terminal is for this program, which passes it on.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    dying_with_parent(&mut command);
    tokio::process::Command::from(command).spawn()
}

/// Waits for a run, and ends it at a signal.
async fn wait<S>(mut child: Child, mut signal: impl AsyncFnMut() -> S) -> io::Result<Ended<S>> {
    let pid = child.id().map(|pid| Pid::from_raw(pid.cast_signed()));
    let (mut stderr, mut pipe) = (Vec::new(), child.stderr.take());
    let mut caught = None;
    let status = loop {
        tokio::select! {
            // Read to the end first: a full pipe would hold the run up.
            result = read_on(&mut pipe, &mut stderr), if pipe.is_some() => {
                result?;
                pipe = None;
            }
            status = child.wait(), if pipe.is_none() => break status?,
            signal = signal() => {
                caught = Some(signal);
                if let Some(pid) = pid {
                    // It takes its load down in order. A second one does so at once.
                    let _ = kill(pid, Signal::SIGTERM);
                }
            }
        }
    };
    Ok(Ended { status, stderr, signal: caught })
}

/// Removes what a killed sweep has left: files that never got their name.
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

async fn read_on(
    from: &mut Option<tokio::process::ChildStderr>,
    to: &mut Vec<u8>,
) -> io::Result<()> {
    match from {
        Some(from) => from.read_to_end(to).await.map(drop),
        None => Ok(()),
    }
}

impl Grid {
    /// Makes this grid the folder's own, and keeps other sweeps out of it.
    fn claim(&self, folder: &Path) -> Result<Flock<fs::File>, Failure> {
        fs::create_dir_all(folder).map_err(|error| Failure::cannot_write(folder, &error))?;
        let handle =
            fs::File::open(folder).map_err(|error| Failure::cannot_write(folder, &error))?;
        let lock = Flock::lock(handle, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
            let text = format!("{}: another sweep is at work there ({errno})", folder.display());
            Failure::new(exit::BAD_OUTPUT, text)
        })?;
        let path = folder.join("sweep.json");
        match fs::read(&path) {
            Ok(bytes) => self.compare(&path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut text = serde_json::to_string_pretty(self)
                    .map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
                text.push('\n');
                OutputFile::open(&path)?.commit(text.as_bytes())?;
            }
            Err(error) => return Err(Failure::cannot_write(&path, &error)),
        }
        Ok(lock)
    }
}
