//! A grid of runs, one recording a cell, that can be stopped and continued.
//!
//! Each cell is a `profiler run` in a process of its own. Its file appears under its own name, in one
//! step, when it is whole: a cell without such a file is measured again.

pub mod table;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::kernel::host;
use crate::load::{ProfilerProgram, Rate, dying_with_parent};
use crate::recording::Recording;
use crate::run::{Signal, Signals};
use crate::text::plural;

/// What is to be measured, as it is recorded in the folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    schema: String,
    version: u32,
    /// `null` is as fast as possible.
    rates_per_s: Vec<Option<Rate>>,
    workers: Vec<u32>,
    repeat: u32,
    /// Arguments of `profiler run`.
    run: Vec<String>,
    kernel: Option<String>,
    cpu_model: Option<String>,
}

/// One run of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Rate of the loads; `None` is as fast as possible.
    pub rate: Option<Rate>,
    /// Workers of each load.
    pub workers: u32,
    /// Number of the run, from 1.
    pub run: u32,
}

impl Grid {
    /// The grid that is asked for, on this machine.
    ///
    /// # Errors
    /// If a value is there twice: its cells would be the same.
    pub fn new(
        rates: Vec<Option<Rate>>,
        workers: Vec<u32>,
        repeat: u32,
        run: &[OsString],
    ) -> Result<Self, Failure> {
        let host = host::collect();
        let grid = Self {
            schema: "profiler/sweep".to_owned(),
            version: 1,
            rates_per_s: rates,
            workers,
            repeat,
            run: run.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            kernel: host.kernel_release,
            cpu_model: host.cpu_model,
        };
        let cells = grid.cells();
        let names: BTreeSet<String> = cells.iter().map(Cell::file_name).collect();
        if names.len() < cells.len() {
            let text = "a rate or a number of workers is there twice: give each once, and --repeat \
                        for more runs";
            return Err(Failure::new(exit::USAGE, text));
        }
        Ok(grid)
    }

    /// All cells, in the order of the table.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &rate in &self.rates_per_s {
            for &workers in &self.workers {
                cells.extend((1..=self.repeat).map(|run| Cell { rate, workers, run }));
            }
        }
        cells
    }

    /// Makes this grid the folder's own, and keeps other sweeps out of it.
    fn claim(&self, folder: &Path) -> Result<Flock<fs::File>, Failure> {
        let unwritable = |error| Failure::cannot_write(folder, &error);
        fs::create_dir_all(folder).map_err(unwritable)?;
        let handle = fs::File::open(folder).map_err(unwritable)?;
        let lock = Flock::lock(handle, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
            let text = format!("{}: another sweep is at work there ({errno})", folder.display());
            Failure::new(exit::BAD_OUTPUT, text)
        })?;
        let path = folder.join("sweep.json");
        match fs::read(&path) {
            Ok(bytes) => self.compare(&path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("{:#}\n", self.to_json());
                OutputFile::open(&path)?.commit(text.as_bytes())?;
            }
            Err(error) => return Err(Failure::cannot_write(&path, &error)),
        }
        Ok(lock)
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    /// Refuses a folder whose record is of another grid, or is not a record.
    fn compare(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let path = path.display();
        let other: Self = serde_json::from_slice(bytes).map_err(|error| {
            let text = format!("{path} is not a record of a sweep: {error}: choose another --out");
            Failure::new(exit::BAD_INPUT, text)
        })?;
        let (ours, theirs) = (self.to_json(), other.to_json());
        let fields = ours.as_object().into_iter().flat_map(|fields| fields.keys());
        let differing: Vec<&str> =
            fields.map(String::as_str).filter(|name| ours[name] != theirs[name]).collect();
        if differing.is_empty() {
            return Ok(());
        }
        let text = format!(
            "{path} is of another grid (it differs in {}): its cells would be mixed with these; choose \
             another --out, or give the same arguments to go on with it",
            differing.join(", ")
        );
        Err(Failure::new(exit::USAGE, text))
    }
}

impl Cell {
    /// Name of its file.
    fn file_name(&self) -> String {
        let rate = self.rate.map_or("max".to_owned(), |rate| rate.get().to_string());
        format!("rate-{rate}_workers-{}_run-{}.json", self.workers, self.run)
    }

    /// Arguments of `profiler run`.
    #[must_use]
    pub fn arguments(&self, shared: &[OsString], json: &Path) -> Vec<OsString> {
        // Before those of the user, which may end with a command.
        let mut words: Vec<OsString> = vec!["--workers".into(), self.workers.to_string().into()];
        if let Some(rate) = self.rate {
            words.extend(["--rate".into(), rate.to_string().into()]);
        }
        words.extend(["--json".into(), json.into()]);
        words.extend(shared.iter().cloned());
        words
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "{rate}")?,
            None => f.write_str("as fast as possible")?,
        }
        write!(f, ", {} worker{}, run {}", self.workers, plural(self.workers), self.run)
    }
}

/// A grid in its folder, which no other sweep can use meanwhile.
#[derive(Debug)]
pub struct Sweep {
    folder: PathBuf,
    /// Arguments of `profiler run` that all cells share.
    run: Vec<OsString>,
    _lock: Flock<fs::File>,
}

impl Sweep {
    /// Opens the folder.
    ///
    /// # Errors
    /// If it cannot be written, holds another grid, or is in use.
    pub fn open(grid: &Grid, folder: &Path, run: Vec<OsString>) -> Result<Self, Failure> {
        let lock = grid.claim(folder)?;
        // What a killed sweep has left: files that never got their name.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(".cell-")
                || (name.starts_with(".profiler-") && name.ends_with(".tmp"))
            {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(Self { folder: folder.to_owned(), run, _lock: lock })
    }

    /// What was measured for a cell, if it was.
    ///
    /// # Errors
    /// If its file is not a sound recording.
    pub fn read(&self, cell: &Cell) -> Result<Option<Recording>, Failure> {
        let path = self.folder.join(cell.file_name());
        Ok(if path.exists() { Some(Recording::read(&path)?) } else { None })
    }

    /// Measures a cell. A signal ends it and is given back.
    ///
    /// # Errors
    /// If the run fails, or its recording cannot be read or renamed.
    pub async fn measure(
        &self,
        cell: &Cell,
        signals: &mut Signals,
    ) -> Result<Option<Signal>, Failure> {
        let part = self.folder.join(format!(".cell-{}", cell.file_name()));
        let (output, signal) =
            run(cell.arguments(&self.run, &part), signals).await.map_err(|error| {
                let text = format!("cell {cell}: cannot start the run: {error}");
                Failure::new(exit::INTERNAL, text)
            })?;
        let Output { status, stderr, .. } = output;
        if signal.is_some() || !status.success() {
            let _ = fs::remove_file(&part);
        }
        if signal.is_some() {
            return Ok(signal);
        }
        if !status.success() {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            let said = String::from_utf8_lossy(&stderr);
            let last = said.lines().last().unwrap_or("no message").trim_start_matches("error: ");
            let text = format!(
                "cell {cell} was not measured: {last} ({status}); cells measured before are kept"
            );
            return Err(Failure::new(code.unwrap_or(exit::INTERNAL), text));
        }
        Recording::read(&part)?;
        let target = self.folder.join(cell.file_name());
        profiler_vm::durable::rename(&part, &target)
            .map_err(|error| Failure::cannot_write(&target, &error))?;
        Ok(None)
    }
}

/// Runs the profiler until it ends, which a signal has it do.
async fn run(
    arguments: Vec<OsString>,
    signals: &mut Signals,
) -> io::Result<(Output, Option<Signal>)> {
    let mut command = std::process::Command::new(ProfilerProgram::this().path());
    command.arg("run").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C at the terminal is for this program, which passes it on.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    dying_with_parent(&mut command);
    let child = tokio::process::Command::from(command).spawn()?;
    let pid = child.id().map(|pid| Pid::from_raw(pid.cast_signed()));
    let (mut caught, output) = (None, child.wait_with_output());
    tokio::pin!(output);
    loop {
        tokio::select! {
            output = &mut output => return Ok((output?, caught)),
            signal = signals.next() => {
                caught = Some(signal);
                if let Some(pid) = pid {
                    // It takes its load down in order. A second one does so at once.
                    let _ = signal::kill(pid, signal::SIGTERM);
                }
            }
        }
    }
}
