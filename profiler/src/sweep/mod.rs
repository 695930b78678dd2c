//! A grid of runs, one recording a cell, that can be stopped and continued.
//!
//! Each cell is a run. Its file appears under its own name, in one step, when it is whole: a cell without such a file is
//! measured again.

pub mod table;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::kernel::host;
use crate::load::Rate;
use crate::recording::Recording;
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
    pub fn arguments(&self, shared: &[OsString]) -> Vec<OsString> {
        // Before those of the user, which may end with a command.
        let mut words: Vec<OsString> = vec!["--workers".into(), self.workers.to_string().into()];
        if let Some(rate) = self.rate {
            words.extend(["--rate".into(), rate.to_string().into()]);
        }
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
    _lock: Flock<fs::File>,
}

impl Sweep {
    /// Opens the folder.
    ///
    /// # Errors
    /// If it cannot be written, holds another grid, or is in use.
    pub fn open(grid: &Grid, folder: &Path) -> Result<Self, Failure> {
        let lock = grid.claim(folder)?;
        // What a killed sweep has left: files that never got their name.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(".profiler-") && name.ends_with(".tmp") {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(Self { folder: folder.to_owned(), _lock: lock })
    }

    /// What was measured for a cell, if it was.
    ///
    /// # Errors
    /// If its file is not a sound recording.
    pub fn read(&self, cell: &Cell) -> Result<Option<Recording>, Failure> {
        let path = self.folder.join(cell.file_name());
        Ok(if path.exists() { Some(Recording::read(&path)?) } else { None })
    }

    /// Writes what was measured for a cell.
    ///
    /// # Errors
    /// If its file cannot be written.
    pub fn write(&self, cell: &Cell, measured: &Recording) -> Result<(), Failure> {
        let file = OutputFile::open(&self.folder.join(cell.file_name()))?;
        Ok(file.commit(&measured.to_json())?)
    }
}
