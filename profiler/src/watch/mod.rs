//! CPU time, memory and context switches of processes, control groups, the whole machine and this program
//! in the measured window.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use crate::recording::costs::{BadWatch, CostRow, Costs, Sample, Usage, Watched};
use crate::stats::nanoseconds;
use crate::stop::{StopReason, StopSignal};

mod cgroup;
mod process;

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
