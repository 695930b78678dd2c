//! The grid: what is to be measured, as it is recorded in the folder.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cli::SweepArgs;
use crate::error::{Failure, exit};
use crate::kernel::host;
use crate::load::Rate;
use crate::profile::Profile;

/// What the field `schema` of the record says.
const SCHEMA: &str = "profiler/sweep";
/// Version of the record.
const VERSION: u32 = 1;

/// The whole grid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    schema: String,
    version: u32,
    /// `null` is as fast as it goes.
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
pub(super) struct Cell {
    /// Place of the combination, then of the run.
    pub(super) at: (usize, u32),
    pub(super) rate: Option<Rate>,
    pub(super) workers: u32,
    pub(super) delay: Duration,
    pub(super) run: u32,
}

impl Plan {
    /// The grid that is asked for, on this machine.
    ///
    /// # Errors
    /// If a value is there twice: its cells would be the same.
    pub(super) fn of(args: &SweepArgs) -> Result<Self, Failure> {
        let host = host::collect();
        let delays =
            if args.net_delay.is_empty() { vec![Duration::ZERO] } else { args.net_delay.clone() };
        let plan = Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            rates_per_s: args.rate.iter().map(|asked| asked.0).collect(),
            workers: args.workers.clone(),
            net_delays_ns: delays.into_iter().map(crate::stats::nanoseconds).collect(),
            repeat: args.repeat,
            run: args.run.iter().map(super::shown).collect(),
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
    pub(super) fn cells(&self) -> impl Iterator<Item = Cell> {
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
    pub(super) fn compare(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let other: Self = serde_json::from_slice(bytes).map_err(|error| {
            let text = format!(
                "{} is no record of a sweep: {error}: choose another --out",
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
    pub(super) fn file_name(&self) -> String {
        let rate = self.rate.map_or("max".to_owned(), |rate| rate.get().to_string());
        let mut name = format!("rate-{rate}_workers-{}", self.workers);
        if !self.delay.is_zero() {
            name.push_str(&format!("_delay-{}us", self.delay.as_micros()));
        }
        format!("{name}_run-{}.json", self.run)
    }

    /// Its place in the table: combinations together.
    pub(super) fn order(&self) -> (usize, u32) {
        self.at
    }

    /// Arguments of `profiler run`.
    pub(super) fn arguments(&self, shared: &[OsString], json: &Path) -> Vec<OsString> {
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
    /// If its file is no sound profile.
    pub(super) fn read(&self, folder: &Path) -> Result<Option<Profile>, Failure> {
        let path = folder.join(self.file_name());
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(Profile::read(&path)?))
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "{rate}")?,
            None => f.write_str("as fast as it goes")?,
        }
        write!(f, ", {} worker{}", self.workers, if self.workers == 1 { "" } else { "s" })?;
        if !self.delay.is_zero() {
            write!(f, ", {:?} of delay", self.delay)?;
        }
        write!(f, ", run {}", self.run)
    }
}
