//! The grid: what is to be measured, as it is recorded in the folder.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Failure, exit};
use crate::kernel::host;
use crate::load::Rate;
use crate::recording::Recording;
use crate::text::plural;

/// What the field `schema` of the record says.
const SCHEMA: &str = "profiler/sweep";
/// Version of the record.
const VERSION: u32 = 1;

/// The axes of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Axes {
    /// Rates of the loads; `None` is as fast as possible.
    pub rates: Vec<Option<Rate>>,
    /// Numbers of workers.
    pub workers: Vec<u32>,
    /// Delays of the loopback interface; none is no delay.
    pub net_delays: Vec<Duration>,
    /// Runs of each combination.
    pub repeat: u32,
}

/// The whole grid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    schema: String,
    version: u32,
    /// `null` is as fast as possible.
    rates_per_s: Vec<Option<Rate>>,
    workers: Vec<u32>,
    net_delays_ns: Vec<u64>,
    repeat: u32,
    /// Arguments of `profiler run`.
    run: Vec<String>,
    kernel: Option<String>,
    cpu_model: Option<String>,
}

/// One run of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Place of the combination, then of the run.
    pub at: (usize, u32),
    /// Rate of the loads; `None` is as fast as possible.
    pub rate: Option<Rate>,
    /// Workers of each load.
    pub workers: u32,
    /// Delay of the loopback interface.
    pub delay: Duration,
    /// Number of the run, from 1.
    pub run: u32,
}

impl Grid {
    /// The grid that is asked for, on this machine.
    ///
    /// # Errors
    /// If a value is there twice: its cells would be the same.
    pub fn new(axes: Axes, run: &[OsString]) -> Result<Self, Failure> {
        let host = host::collect();
        let mut delays = axes.net_delays;
        if delays.is_empty() {
            delays.push(Duration::ZERO);
        }
        let plan = Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            rates_per_s: axes.rates,
            workers: axes.workers,
            net_delays_ns: delays.into_iter().map(crate::stats::nanoseconds).collect(),
            repeat: axes.repeat,
            run: run.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            kernel: host.kernel_release,
            cpu_model: host.cpu_model,
        };
        let mut names: Vec<String> = plan.cells().map(|cell| cell.file_name()).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        if names.len() < all {
            let text = "a rate, a number of workers or a delay is there twice: give each once, and \
                        --repeat for more runs";
            return Err(Failure::new(exit::USAGE, text));
        }
        Ok(plan)
    }

    /// All cells in the order in which they are measured: a run of each combination, then another.
    pub fn cells(&self) -> impl Iterator<Item = Cell> {
        let mut points = Vec::new();
        for &delay in &self.net_delays_ns {
            for &rate in &self.rates_per_s {
                for &workers in &self.workers {
                    points.push((rate, workers, Duration::from_nanos(delay)));
                }
            }
        }
        (1..=self.repeat).flat_map(move |run| {
            let cell = move |(place, (rate, workers, delay))| Cell {
                at: (place, run),
                rate,
                workers,
                delay,
                run,
            };
            points.clone().into_iter().enumerate().map(cell)
        })
    }

    /// Whether the record of a folder is of this grid.
    ///
    /// # Errors
    /// If it is not, or is no record.
    pub fn compare(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let other: Self = serde_json::from_slice(bytes).map_err(|error| {
            let text = format!(
                "{} is not a record of a sweep: {error}: choose another --out",
                path.display()
            );
            Failure::new(exit::BAD_INPUT, text)
        })?;
        if other == *self {
            return Ok(());
        }
        let differs = [
            ("rates", other.rates_per_s != self.rates_per_s),
            ("workers", other.workers != self.workers),
            ("network delays", other.net_delays_ns != self.net_delays_ns),
            ("repeat", other.repeat != self.repeat),
            ("arguments of the run", other.run != self.run),
            ("kernel", other.kernel != self.kernel),
            ("CPU", other.cpu_model != self.cpu_model),
        ];
        let names: Vec<&str> =
            differs.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect();
        Err(Failure::new(
            exit::USAGE,
            format!(
                "{} is of another grid (it differs in {}): its cells would be mixed with these; choose \
                 another --out, or give the same arguments to go on with it",
                path.display(),
                names.join(", ")
            ),
        ))
    }
}

impl Cell {
    /// Name of its file.
    pub fn file_name(&self) -> String {
        let rate = self.rate.map_or("max".to_owned(), |rate| rate.get().to_string());
        let mut name = format!("rate-{rate}_workers-{}", self.workers);
        if !self.delay.is_zero() {
            name.push_str(&format!("_delay-{}us", self.delay.as_micros()));
        }
        format!("{name}_run-{}.json", self.run)
    }

    /// Arguments of `profiler run`.
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

    /// What was measured for it, if it was.
    ///
    /// # Errors
    /// If its file is no sound recording.
    pub fn read(&self, folder: &Path) -> Result<Option<Recording>, Failure> {
        let path = folder.join(self.file_name());
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(Recording::read(&path)?))
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "{rate}")?,
            None => f.write_str("as fast as possible")?,
        }
        write!(f, ", {} worker{}", self.workers, plural(self.workers))?;
        if !self.delay.is_zero() {
            write!(f, ", {:?} of delay", self.delay)?;
        }
        write!(f, ", run {}", self.run)
    }
}
