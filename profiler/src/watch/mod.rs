//! CPU time, memory and context switches of processes, control groups, the whole machine and this program
//! in the measured window.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::stats::nanoseconds;
use crate::stop::{StopReason, StopSignal};

mod cgroup;
mod process;

/// Something whose costs are sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Watched {
    /// The whole machine.
    Machine,
    /// This program, without its loads.
    Profiler,
    /// All processes of that name, those started later included.
    Name {
        /// As in `/proc/PID/comm` (its first 15 bytes), or the file name of the program.
        name: String,
    },
    /// One process.
    Pid {
        /// Its number.
        pid: i32,
    },
    /// A control group (cgroup version 2) with all below it.
    Cgroup {
        /// Its path below the mount.
        path: String,
    },
}

impl Watched {
    /// Its name in tables.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Machine => "the machine".to_owned(),
            Self::Profiler => "profiler".to_owned(),
            Self::Name { name } => name.clone(),
            Self::Pid { pid } => format!("process {pid}"),
            Self::Cgroup { path } => format!("cgroup {path}"),
        }
    }
}

/// Text that is not a [`Watched`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot be watched: expected the name of a program, a process id, or the path of a control group, which starts with `/`"
)]
pub struct BadWatch(String);

impl FromStr for Watched {
    type Err = BadWatch;

    fn from_str(text: &str) -> Result<Self, BadWatch> {
        let bad = || BadWatch(text.to_owned());
        if text.is_empty() {
            return Err(bad());
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return match text.parse() {
                Ok(pid) if pid > 0 => Ok(Self::Pid { pid }),
                _ => Err(bad()),
            };
        }
        if text.starts_with('/') {
            return Ok(Self::Cgroup { path: text.to_owned() });
        }
        if text.contains('/') {
            return Err(bad());
        }
        Ok(Self::Name { name: text.to_owned() })
    }
}

/// What something has used since the start of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Usage {
    /// CPU time in user mode, in nanoseconds; for processes and the machine in steps of the kernel's
    /// clock tick (usually 10 ms).
    pub user_ns: u64,
    /// CPU time in the kernel, in nanoseconds, in the same steps.
    pub system_ns: u64,
    /// Memory in use at that time: resident pages of processes, `memory.current` of a control group,
    /// all but `MemAvailable` of the machine; `null` if unknown.
    pub memory_bytes: Option<u64>,
    /// Voluntary context switches, all switches of the machine; `null` of a control group.
    pub voluntary_switches: Option<u64>,
    /// Involuntary context switches; `null` of the machine and a control group.
    pub involuntary_switches: Option<u64>,
    /// Processes at that time.
    pub processes: u32,
}

/// Usage at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sample {
    /// Time since the start of the window.
    pub at_ns: u64,
    /// Usage from the start of the window until then.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The costs of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CostRow {
    /// What it is.
    pub of: Watched,
    /// Distinct processes seen.
    pub seen: u32,
    /// How many of them ended; what each used after its last sample is not counted.
    pub ended: u32,
    /// The samples, oldest first; the last is from the end of the window.
    pub samples: Vec<Sample>,
}

impl CostRow {
    /// Usage over the whole window.
    #[must_use]
    pub fn total(&self) -> Usage {
        self.samples.last().map(|sample| sample.usage).unwrap_or_default()
    }

    /// The most memory of any sample.
    #[must_use]
    pub fn memory_max_bytes(&self) -> Option<u64> {
        self.samples.iter().filter_map(|sample| sample.usage.memory_bytes).max()
    }
}

/// The costs of one window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Costs {
    /// Time between two samples; `null` if only start and end were sampled.
    pub sample_every_ns: Option<u64>,
    /// From the first sample to the last, in nanoseconds.
    pub window_ns: u64,
    /// One entry for each thing watched; the machine and this program come first.
    pub rows: Vec<CostRow>,
}

/// Reads the usage of one thing since the first reading.
trait Meter: Send {
    fn read(&mut self) -> Reading;
}

/// What a meter found.
struct Reading {
    usage: Usage,
    seen: u32,
    ended: u32,
}

fn meter(of: &Watched) -> Box<dyn Meter> {
    match of {
        Watched::Machine => Box::new(process::Machine::new()),
        Watched::Profiler => Box::new(process::Processes::myself()),
        Watched::Name { name } => Box::new(process::Processes::named(name)),
        Watched::Pid { pid } => Box::new(process::Processes::of_pid(*pid)),
        Watched::Cgroup { path } => Box::new(cgroup::Group::new(path)),
    }
}

/// A thread that samples costs.
pub struct Watch {
    stop: StopSignal,
    thread: Option<JoinHandle<Watcher>>,
}

struct Watcher {
    started: Instant,
    every: Option<Duration>,
    rows: Vec<(Box<dyn Meter>, CostRow)>,
}

impl Watcher {
    fn sample(&mut self) {
        for (meter, row) in &mut self.rows {
            // A time for each row: reading many processes takes a while.
            let at_ns = nanoseconds(self.started.elapsed());
            let Reading { usage, seen, ended } = meter.read();
            row.samples.push(Sample { at_ns, usage });
            row.seen = seen;
            row.ended = ended;
        }
    }
}

impl Watch {
    /// Starts to sample the machine, this program and `watched`: now, at the end, and `every` so often.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(watched: &[Watched], every: Option<Duration>) -> std::io::Result<Self> {
        let all = [Watched::Machine, Watched::Profiler].into_iter().chain(watched.iter().cloned());
        let row =
            |of: Watched| (meter(&of), CostRow { of, seen: 0, ended: 0, samples: Vec::new() });
        let rows = all.map(row).collect();
        let mut watcher = Watcher { started: Instant::now(), every, rows };
        watcher.sample();
        let stop = StopSignal::new();
        let of_thread = stop.clone();
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let every = watcher.every.unwrap_or(Duration::from_secs(1 << 32));
            let mut due = watcher.started + every;
            while of_thread.sleep_until(due) {
                watcher.sample();
                // After a suspend of the machine, missed samples are not made up for.
                due = (due + every).max(Instant::now());
            }
            watcher.sample();
            watcher
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Takes the last sample. `None` if the thread has panicked, which is a bug.
    #[must_use]
    pub fn end(mut self) -> Option<Costs> {
        self.stop.stop(StopReason::Duration);
        let watcher = self.thread.take()?.join().ok()?;
        let rows: Vec<CostRow> = watcher.rows.into_iter().map(|(_, row)| row).collect();
        let last = rows.iter().flat_map(|row| row.samples.last()).map(|sample| sample.at_ns).max();
        Some(Costs {
            sample_every_ns: watcher.every.map(nanoseconds),
            window_ns: last.unwrap_or(0),
            rows,
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.stop(StopReason::Interrupted);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sums of counters over processes or groups that come and go.
#[derive(Debug, Default)]
struct Tally<K> {
    /// Of each that still exists: its first and its last counters.
    living: BTreeMap<K, (Counters, Counters)>,
    /// The sum over those that have ended.
    ended: Counters,
}

/// Counters that only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    user: u64,
    system: u64,
    voluntary: u64,
    involuntary: u64,
}

impl Counters {
    fn since(self, first: Self) -> Self {
        Self {
            user: self.user.saturating_sub(first.user),
            system: self.system.saturating_sub(first.system),
            voluntary: self.voluntary.saturating_sub(first.voluntary),
            involuntary: self.involuntary.saturating_sub(first.involuntary),
        }
    }

    fn plus(self, more: Self) -> Self {
        Self {
            user: self.user + more.user,
            system: self.system + more.system,
            voluntary: self.voluntary + more.voluntary,
            involuntary: self.involuntary + more.involuntary,
        }
    }
}

impl<K: Ord + Copy> Tally<K> {
    /// Updates the counters to `now`: of each, the first value to count from and the current one. Returns
    /// how many are new and how many have ended.
    fn update(&mut self, now: &BTreeMap<K, (Counters, Counters)>) -> (u32, u32) {
        let (mut came, mut went) = (0, 0);
        let ended = &mut self.ended;
        self.living.retain(|key, (first, last)| {
            let lives = now.contains_key(key);
            if !lives {
                went += 1;
                *ended = ended.plus(last.since(*first));
            }
            lives
        });
        for (key, (first, current)) in now {
            let entry = self.living.entry(*key).or_insert_with(|| {
                came += 1;
                (*first, *current)
            });
            entry.1 = *current;
        }
        (came, went)
    }

    fn total(&self) -> Counters {
        let living = self.living.values().map(|(first, last)| last.since(*first));
        living.fold(self.ended, Counters::plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_things_are_parsed() {
        assert_eq!("42".parse(), Ok(Watched::Pid { pid: 42 }));
        assert_eq!("auditd".parse(), Ok(Watched::Name { name: "auditd".to_owned() }));
        assert_eq!(
            "/system.slice".parse(),
            Ok(Watched::Cgroup { path: "/system.slice".to_owned() })
        );
        for bad in ["", "0", "99999999999", "./x", "a/b"] {
            let error = bad.parse::<Watched>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{bad}` cannot be watched")), "{error}");
        }
    }

    #[test]
    fn processes_that_come_and_go_are_all_counted() {
        let counters = |user| Counters { user, ..Counters::default() };
        let mut tally = Tally::default();
        let mut now = BTreeMap::from([(1, (counters(100), counters(100)))]);
        assert_eq!(tally.update(&now), (1, 0));
        assert_eq!(tally.total(), counters(0), "usage before the window is not counted");
        // A process started meanwhile counts from zero.
        now.insert(2, (counters(0), counters(5)));
        now.insert(1, (counters(130), counters(130)));
        assert_eq!(tally.update(&now), (1, 0));
        assert_eq!(tally.total(), counters(35));
        now.remove(&1);
        assert_eq!(tally.update(&now), (0, 1));
        assert_eq!(tally.total(), counters(35), "usage of ended processes is kept");
    }
}
