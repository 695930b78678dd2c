//! Processes and the machine, from `/proc`.

use std::collections::BTreeMap;

use procfs::process::{Process, all_processes};
use procfs::{Current as _, CurrentSI as _, KernelStats, Meminfo};

use super::{Counters, Meter, Reading, Tally, Usage};

/// Which processes.
enum Which {
    Named(String),
    Pid(i32),
}

/// Pid and start time: pids are reused.
type Key = (i32, u64);

pub(super) struct Processes {
    which: Which,
    tally: Tally<Key>,
    threads: Tally<Key>,
    was_read: bool,
    seen: u32,
    ended: u32,
}

impl Processes {
    pub(super) fn named(name: &str) -> Self {
        Self::new(Which::Named(name.to_owned()))
    }

    pub(super) fn of_pid(pid: i32) -> Self {
        Self::new(Which::Pid(pid))
    }

    pub(super) fn myself() -> Self {
        Self::new(Which::Pid(std::process::id().cast_signed()))
    }

    fn new(which: Which) -> Self {
        let (tally, threads) = (Tally::default(), Tally::default());
        Self { which, tally, threads, was_read: false, seen: 0, ended: 0 }
    }

    fn find(&self) -> Vec<Process> {
        match &self.which {
            Which::Pid(pid) => Process::new(*pid).into_iter().collect(),
            Which::Named(name) => {
                let Ok(all) = all_processes() else { return Vec::new() };
                all.flatten().filter(|process| is_called(process, name)).collect()
            }
        }
    }
}

/// Longest name in `comm`, in bytes.
const COMM_BYTES: usize = 15;

fn is_called(process: &Process, name: &str) -> bool {
    let short = name.get(..COMM_BYTES).unwrap_or(name);
    if process.stat().is_ok_and(|stat| stat.comm == short && name.len() <= COMM_BYTES) {
        return true;
    }
    // A longer name, or a process that has changed its name.
    process.exe().is_ok_and(|exe| exe.file_name().is_some_and(|file| file == name))
}

impl Meter for Processes {
    fn read(&mut self) -> Reading {
        let mut processes = BTreeMap::new();
        let mut threads = BTreeMap::new();
        let mut memory_bytes = 0;
        for process in self.find() {
            // A process that ends while it is read has ended.
            let Ok(stat) = process.stat() else { continue };
            if matches!(stat.state, 'Z' | 'X') {
                continue;
            }
            let used = Counters { user: stat.utime, system: stat.stime, ..Counters::default() };
            // Processes of the first sample count from now, later ones from their start.
            let first = if self.was_read { Counters::default() } else { used };
            processes.insert((stat.pid, stat.starttime), (first, used));
            memory_bytes += stat.rss.saturating_mul(procfs::page_size());
            for task in process.tasks().into_iter().flatten().flatten() {
                let Ok(status) = task.status() else { continue };
                let switches = Counters {
                    voluntary: status.voluntary_ctxt_switches.unwrap_or(0),
                    involuntary: status.nonvoluntary_ctxt_switches.unwrap_or(0),
                    ..Counters::default()
                };
                let first = if self.was_read { Counters::default() } else { switches };
                threads.insert((task.tid, stat.starttime), (first, switches));
            }
        }
        self.was_read = true;
        let (came, went) = self.tally.update(&processes);
        self.threads.update(&threads);
        self.seen += came;
        self.ended += went;
        let used = self.tally.total();
        let switches = self.threads.total();
        let usage = Usage {
            user_ns: ticks_ns(used.user),
            system_ns: ticks_ns(used.system),
            memory_bytes: Some(memory_bytes),
            voluntary_switches: Some(switches.voluntary),
            involuntary_switches: Some(switches.involuntary),
            processes: u32::try_from(processes.len()).unwrap_or(u32::MAX),
        };
        Reading { usage, seen: self.seen, ended: self.ended }
    }
}

fn ticks_ns(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000_000 / procfs::ticks_per_second().max(1))
}

/// The whole machine: all CPUs together.
pub(super) struct Machine {
    tally: Tally<()>,
}

impl Machine {
    pub(super) fn new() -> Self {
        Self { tally: Tally::default() }
    }
}

impl Meter for Machine {
    fn read(&mut self) -> Reading {
        if let Ok(stats) = KernelStats::current() {
            let cpu = &stats.total;
            // Interrupts count as kernel time; steal time is not attributed.
            let now = Counters {
                user: cpu.user + cpu.nice,
                system: cpu.system + cpu.irq.unwrap_or(0) + cpu.softirq.unwrap_or(0),
                voluntary: stats.ctxt,
                involuntary: 0,
            };
            self.tally.update(&BTreeMap::from([((), (now, now))]));
        }
        let used = self.tally.total();
        let memory = Meminfo::current().ok();
        let usage = Usage {
            user_ns: ticks_ns(used.user),
            system_ns: ticks_ns(used.system),
            memory_bytes: memory
                .and_then(|memory| Some(memory.mem_total.saturating_sub(memory.mem_available?))),
            voluntary_switches: Some(used.voluntary),
            involuntary_switches: None,
            processes: 0,
        };
        Reading { usage, seen: 0, ended: 0 }
    }
}
