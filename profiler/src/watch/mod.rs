//! CPU time, memory and context switches of processes, control groups, the whole machine and this program
//! in the measured window.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use procfs::process::{Process, all_processes};
use procfs::{Current as _, CurrentSI as _, KernelStats, Meminfo};

use crate::kernel::host::cgroup2_mount;
pub use crate::recording::costs::{CostRow, Costs, Sample, Usage, Watched};
use crate::stats::nanoseconds;
use crate::stop::{StopReason, StopSignal};

/// A thread that samples costs.
pub struct Watch {
    stop: StopSignal,
    thread: Option<JoinHandle<Watcher>>,
}

struct Watcher {
    started: Instant,
    every: Option<Duration>,
    rows: Vec<(Meter, CostRow)>,
}

impl Watcher {
    fn sample(&mut self) {
        for (meter, row) in &mut self.rows {
            // A time for each row: reading many processes takes a while.
            let at_ns = nanoseconds(self.started.elapsed());
            row.samples.push(Sample { at_ns, usage: meter.read() });
            (row.seen, row.ended) = (meter.seen, meter.ended);
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
        let row = |of| CostRow { of, seen: 0, ended: 0, samples: Vec::new() };
        let rows = all.map(|of| (Meter::new(of.clone()), row(of))).collect();
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

/// Pid or thread id, and start time: ids are reused. Zeros for what is there once.
type Key = (i32, u64);
/// Two counters that only grow: nanoseconds of user and of kernel time, or voluntary and involuntary context switches.
type Counters = [u64; 2];

/// What is found of one thing at a moment.
#[derive(Default)]
struct Found {
    /// CPU time of each process, or of the whole.
    cpu: BTreeMap<Key, Counters>,
    /// Context switches of each thread, or of the whole.
    switches: BTreeMap<Key, Counters>,
    memory_bytes: Option<u64>,
    processes: u32,
}

/// Reads the usage of one thing since the first reading.
struct Meter {
    of: Watched,
    /// A control group's.
    folder: Option<PathBuf>,
    cpu: Tally,
    switches: Tally,
    was_read: bool,
    seen: u32,
    ended: u32,
}

impl Meter {
    fn new(of: Watched) -> Self {
        let folder = match &of {
            Watched::Cgroup { path } => group_folder(path),
            _ => None,
        };
        let (cpu, switches) = (Tally::default(), Tally::default());
        Self { of, folder, cpu, switches, was_read: false, seen: 0, ended: 0 }
    }

    fn read(&mut self) -> Usage {
        let found = match &self.of {
            Watched::Machine => machine(),
            Watched::Profiler => of_processes(Process::myself()),
            Watched::Pid { pid } => of_processes(Process::new(*pid)),
            Watched::Name { name } => {
                let all = all_processes().into_iter().flatten().flatten();
                of_processes(all.filter(|process| is_called(process, name)))
            }
            Watched::Cgroup { .. } => self.folder.as_deref().and_then(group).unwrap_or_default(),
        };
        // The machine never counts from zero, also if it could not be read for once.
        let was_read = self.was_read && self.of != Watched::Machine;
        let (came, went) = self.cpu.update(&found.cpu, was_read);
        self.switches.update(&found.switches, was_read);
        self.was_read = true;
        if self.of != Watched::Machine {
            self.seen += came;
            self.ended += went;
        }
        let ([user_ns, system_ns], switches) = (self.cpu.total(), self.switches.total());
        let is_group = matches!(self.of, Watched::Cgroup { .. });
        Usage {
            user_ns,
            system_ns,
            memory_bytes: found.memory_bytes,
            voluntary_switches: (!is_group).then_some(switches[0]),
            involuntary_switches: (!is_group && self.of != Watched::Machine).then_some(switches[1]),
            processes: found.processes,
        }
    }
}

fn ticks_ns(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000_000 / procfs::ticks_per_second().max(1))
}

/// All CPUs together.
fn machine() -> Found {
    let (mut cpu, mut switches) = (BTreeMap::new(), BTreeMap::new());
    if let Ok(stats) = KernelStats::current() {
        let total = &stats.total;
        // Interrupts count as kernel time; steal time is not attributed.
        let system = total.system + total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
        cpu.insert((0, 0), [ticks_ns(total.user + total.nice), ticks_ns(system)]);
        switches.insert((0, 0), [stats.ctxt, 0]);
    }
    let memory = Meminfo::current().ok();
    let memory_bytes =
        memory.and_then(|memory| Some(memory.mem_total.saturating_sub(memory.mem_available?)));
    Found { cpu, switches, memory_bytes, processes: 0 }
}

fn of_processes(processes: impl IntoIterator<Item = Process>) -> Found {
    let mut found = Found { memory_bytes: Some(0), ..Found::default() };
    for process in processes {
        // A process that ends while it is read has ended.
        let Ok(stat) = process.stat() else { continue };
        if matches!(stat.state, 'Z' | 'X') {
            continue;
        }
        let used = [ticks_ns(stat.utime), ticks_ns(stat.stime)];
        found.cpu.insert((stat.pid, stat.starttime), used);
        let memory = stat.rss.saturating_mul(procfs::page_size());
        found.memory_bytes = found.memory_bytes.map(|sum| sum.saturating_add(memory));
        for task in process.tasks().into_iter().flatten().flatten() {
            let Ok(status) = task.status() else { continue };
            let switches = [status.voluntary_ctxt_switches, status.nonvoluntary_ctxt_switches];
            found.switches.insert((task.tid, stat.starttime), switches.map(|n| n.unwrap_or(0)));
        }
    }
    found.processes = u32::try_from(found.cpu.len()).unwrap_or(u32::MAX);
    found
}

/// Longest name in `comm`, in bytes.
const COMM_BYTES: usize = 15;

fn is_called(process: &Process, name: &str) -> bool {
    if process.stat().is_ok_and(|stat| stat.comm == name && name.len() <= COMM_BYTES) {
        return true;
    }
    // A longer name, or a process that has changed its name.
    process.exe().is_ok_and(|exe| exe.file_name().is_some_and(|file| file == name))
}

/// The folder of a control group (version 2), whose path is relative to the mount or starts with it.
fn group_folder(path: &str) -> Option<PathBuf> {
    let mount = cgroup2_mount()?;
    let relative = path.trim_start_matches('/');
    Some(if Path::new(path).starts_with(&mount) { path.into() } else { mount.join(relative) })
}

/// `None` if there is no such group.
fn group(folder: &Path) -> Option<Found> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let text = read("cpu.stat")?;
    let usec = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    let used = [usec("user_usec ")?, usec("system_usec ")?].map(|us| us.saturating_mul(1_000));
    let processes = read("cgroup.procs").map_or(0, |text| text.lines().count());
    Some(Found {
        cpu: BTreeMap::from([((0, 0), used)]),
        memory_bytes: read("memory.current").and_then(|text| text.trim().parse().ok()),
        processes: u32::try_from(processes).unwrap_or(u32::MAX),
        ..Found::default()
    })
}

/// Sums of counters over what comes and goes.
#[derive(Debug, Default)]
struct Tally {
    /// Of each that still exists: its first and its last counters.
    living: BTreeMap<Key, (Counters, Counters)>,
    /// The sum over those that have ended.
    ended: Counters,
}

impl Tally {
    /// Updates the counters to `now`; what is new counts from zero if there `was` an update before, else from now. Returns
    /// how many are new and how many have ended.
    fn update(&mut self, now: &BTreeMap<Key, Counters>, was: bool) -> (u32, u32) {
        let (mut came, mut went) = (0, 0);
        let ended = &mut self.ended;
        self.living.retain(|key, (first, last)| {
            let lives = now.contains_key(key);
            if !lives {
                went += 1;
                *ended = plus(*ended, since(*last, *first));
            }
            lives
        });
        for (key, current) in now {
            let entry = self.living.entry(*key).or_insert_with(|| {
                came += 1;
                (if was { [0; 2] } else { *current }, *current)
            });
            entry.1 = *current;
        }
        (came, went)
    }

    fn total(&self) -> Counters {
        let living = self.living.values().map(|(first, last)| since(*last, *first));
        living.fold(self.ended, plus)
    }
}

fn since(last: Counters, first: Counters) -> Counters {
    [last[0].saturating_sub(first[0]), last[1].saturating_sub(first[1])]
}

fn plus(a: Counters, b: Counters) -> Counters {
    [a[0] + b[0], a[1] + b[1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_come_and_go_are_all_counted() {
        let mut tally = Tally::default();
        let mut now = BTreeMap::from([((1, 0), [100, 0])]);
        assert_eq!(tally.update(&now, false), (1, 0));
        assert_eq!(tally.total(), [0, 0], "usage before the window is not counted");
        // A process started meanwhile counts from zero.
        now.insert((2, 0), [5, 0]);
        now.insert((1, 0), [130, 0]);
        assert_eq!(tally.update(&now, true), (1, 0));
        assert_eq!(tally.total(), [35, 0]);
        now.remove(&(1, 0));
        assert_eq!(tally.update(&now, true), (0, 1));
        assert_eq!(tally.total(), [35, 0], "usage of ended processes is kept");
    }

    /// A meter of a group that does not exist yet.
    fn group_below(parent: &Path) -> (PathBuf, Meter) {
        let folder = parent.join("group");
        let of = Watched::Cgroup { path: "group".to_owned() };
        (folder.clone(), Meter { folder: Some(folder), ..Meter::new(of) })
    }

    fn use_cpu(folder: &Path, user_us: u64) {
        fs::create_dir_all(folder).unwrap();
        let text = format!("usage_usec {user_us}\nuser_usec {user_us}\nsystem_usec 0\n");
        fs::write(folder.join("cpu.stat"), text).unwrap();
    }

    #[test]
    fn a_group_that_exists_counts_from_the_first_reading() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, mut group) = group_below(parent.path());
        use_cpu(&folder, 700);
        assert_eq!(group.read().user_ns, 0);
        use_cpu(&folder, 900);
        assert_eq!((group.read().user_ns, group.seen), (200_000, 1));
    }

    #[test]
    fn a_group_that_is_created_later_counts_from_zero() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, mut group) = group_below(parent.path());
        group.read();
        assert_eq!(group.seen, 0);
        use_cpu(&folder, 700);
        assert_eq!((group.read().user_ns, group.seen), (700_000, 1));
        // Created again, it starts from zero.
        fs::remove_dir_all(&folder).unwrap();
        group.read();
        assert_eq!(group.ended, 1);
        use_cpu(&folder, 30);
        assert_eq!((group.read().user_ns, group.seen), (730_000, 2));
    }
}
