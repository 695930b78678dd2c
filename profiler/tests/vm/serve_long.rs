//! The daemon over a time: scraped by Prometheus, idle, under a steady load, and through days of its timers.
//!
//! Each takes a moment here; CONTRIBUTING.md has the variables by which it takes hours.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use profiler::serve::status::Status;
use profiler_recording::{HandlerRecording, Recording};

use crate::cli::{folder, handler, profiler};
use crate::common::prometheus::Prometheus;
use crate::replaced::build_id;
use crate::serve::{Background, Daemon, INNER, load, module, status, times};
use crate::testbed::{self, Counters, NAME, TEN};
use crate::window::MEMORY;

const LISTEN: &str = "127.0.0.1:9560";

impl Daemon {
    /// One for these handlers that answers scrapes, its folder in memory.
    fn scraped(handlers: &str, interval: &str) -> Self {
        let folder = folder();
        let (store, module) = (folder.path().join("store"), module(NAME, handlers));
        let text = format!(
            "listen = {LISTEN:?}\ninterval = {interval:?}\n{module}\
             [store]\nfolder = {store:?}\nmin-free-bytes = 0\nmax-bytes = 16777216\n"
        );
        fs::write(folder.path().join("serve.toml"), text).unwrap();
        Self::again(folder)
    }
}

/// Calls of a handler by the daemon's account.
fn calls(status: &Status, name: &str) -> u64 {
    let build = build_id();
    let of = status.handlers.iter().find(|of| of.handler == name && of.build == build);
    // One that was not called yet is not there.
    of.map_or(0, |of| of.calls)
}

/// What the daemon has counted, and the testbed before and after it was asked.
fn bracketed() -> (Status, [Counters; 2]) {
    let before = Counters::calls();
    (status(), [before, Counters::calls()])
}

/// `PROFILER_VM_SCRAPE` seconds of the six loads: the testbed's counts, the daemon's and those in Prometheus.
#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn prometheus_has_the_counts_of_the_testbed() {
    let seconds = times("PROFILER_VM_SCRAPE", 3);
    testbed::load();
    let daemon = Daemon::scraped("\"*_handler\"", "24h");
    daemon.wait_measuring();
    let program = std::env::var_os("PROFILER_VM_PROMETHEUS").map(PathBuf::from).unwrap();
    let prometheus =
        Prometheus::scraping(&program, LISTEN, &["--enable-feature=native-histograms"]);
    let (before, first) = bracketed();
    assert!(load(&format!("--duration {seconds}s")).status().unwrap().success());
    let (after, second) = bracketed();
    // Scrapes come each second. A question to Prometheus is a call itself, so all ask for this moment.
    sleep(Duration::from_secs(3));
    let now = jiff::Timestamp::now().as_millisecond() as f64 / 1e3;
    let build = build_id();
    let at = |text: &str| text.replace("DURATIONS", "profiler_handler_duration_seconds");
    let ask = |query: &str, name: &str| prometheus.value(&at(query), &build, name);
    let scraped =
        TEN.map(|name| ask(&format!("histogram_count(DURATIONS @ {now})"), name).round() as u64);
    let quantile = |quantile: f64, name: &str| {
        ask(&format!("histogram_quantile({quantile}, DURATIONS @ {now})"), name)
    };
    let quantiles = TEN.map(|name| [0.5, 0.99].map(|q| (q, quantile(q, name))));
    let later = status();
    let (daemon, _) = daemon.terminate();
    // The second is of the time in which the probes came off.
    let [interval, _] = &daemon.intervals()[..] else { panic!("{:?}", daemon.files()) };
    for ((name, scraped), quantiles) in TEN.iter().zip(scraped).zip(quantiles) {
        let [low, high] =
            [second[0].of(name) - first[1].of(name), second[1].of(name) - first[0].of(name)];
        let told = calls(&after, name);
        let of_daemon = told - calls(&before, name);
        println!(
            "{name}: {low} to {high} calls, {of_daemon} of the daemon; since it began {told}, {scraped} in Prometheus"
        );
        assert!(low > 0, "{name}: no call");
        assert!((low..=high).contains(&of_daemon), "{name}");
        assert!((told..=calls(&later, name)).contains(&scraped), "{name}");
        // Who asks connects and was executed, and Prometheus makes files; nobody else does any of these.
        if ["bind", "ptrace", "udp"].iter().any(|quiet| name.starts_with(quiet)) {
            assert_eq!((low, told), (high, calls(&later, name)), "{name}");
        }
        let recorded = handler(interval, name);
        // Prometheus interpolates between ranks, and the interval has some calls more.
        let near = (calls(&later, name) - scraped + 1) as f64 / recorded.count as f64;
        // Of native histograms, whose schema is 5, and of the recording, which has 64 in each power of two.
        let bucket = (2_f64.powf(1.0 / 32.0) * (1.0 + 1.0 / 64.0)).next_up();
        for (q, found) in quantiles {
            let recorded = |q: f64| recorded.quantile_ns(q.clamp(0.0, 1.0)).unwrap() as f64 / 1e9;
            let (low, high) = (recorded(q - near) / bucket, recorded(q + near) * bucket);
            assert!((low..=high).contains(&found), "{name} {q}: {found}, not {low} to {high}");
        }
    }
}

/// CPU time of all threads of a process since it began.
fn cpu(pid: Pid) -> Duration {
    let clock = clock_getcpuclockid(pid).unwrap();
    TimeSpec::into(clock_gettime(clock).unwrap())
}

/// Resident memory of a process in KiB: its own, and with files.
fn memory(pid: Pid) -> [u64; 2] {
    let status = procfs::process::Process::new(pid.as_raw()).unwrap().status().unwrap();
    [status.rssanon.unwrap(), status.vmrss.unwrap()]
}

/// A phase of the daemon's life, and a line about it.
struct Phase {
    name: &'static str,
    pid: Pid,
    began: Instant,
    cpu: Duration,
    memory: Vec<u64>,
}

impl Phase {
    fn begin(name: &'static str, daemon: &Daemon) -> Self {
        let pid = daemon.program.pid();
        Self { name, pid, began: Instant::now(), cpu: cpu(pid), memory: Vec::new() }
    }

    /// Lasts so long; 60 times in it memory is read and `step` is done.
    fn last(&mut self, seconds: f64, mut step: impl FnMut(f64)) {
        const STEPS: u32 = 60;
        for number in 1..=STEPS {
            step(seconds / f64::from(STEPS));
            let due = self.began + Duration::from_secs_f64(seconds * f64::from(number) / 60.0);
            sleep(due.saturating_duration_since(Instant::now()));
            self.memory.push(memory(self.pid)[0]);
        }
    }

    /// Prints the line. Memory of its last tenth is no more than that of its first but for 256 KiB; the share of a CPU.
    fn end(self, calls: u64) -> f64 {
        let seconds = self.began.elapsed().as_secs_f64();
        let share = (cpu(self.pid) - self.cpu).as_secs_f64() / seconds;
        let average = |of: &[u64]| of.iter().sum::<u64>() / of.len() as u64;
        let tenth = self.memory.len() / 10;
        let first = average(&self.memory[..tenth]);
        let last = average(&self.memory[self.memory.len() - tenth..]);
        let [_, all] = memory(self.pid);
        println!(
            "{}: {seconds:.0} s, {calls} calls ({:.0} a second), {:.4} % of a CPU, memory {first} to {last} KiB, \
             {all} KiB with its program",
            self.name,
            calls as f64 / seconds,
            share * 100.0
        );
        assert!(last <= first + 256, "{}: memory grows: {:?} KiB", self.name, self.memory);
        assert!(last < 32 << 10, "{}: {last} KiB", self.name);
        share
    }
}

/// `PROFILER_VM_IDLE` seconds without a call, 0 for none, and `PROFILER_VM_SOAK` seconds of 5,000 a second.
#[test]
#[ignore = "VM 6.1, virtual time"]
fn sixty_handlers_cost_little_and_their_memory_stays() {
    let (quiet, soak) = (times("PROFILER_VM_IDLE", 240), times("PROFILER_VM_SOAK", 8));
    testbed::load();
    let sixty = format!("\"{}\", \"testbed_trivial_*\", {INNER:?}", TEN[..9].join("\", \""));
    let daemon = Daemon::scraped(&sixty, "1m");
    daemon.wait_measuring();
    assert_eq!(status().modules[0].handlers, 60);
    // What it does once is over.
    sleep(Duration::from_secs(130));

    if quiet > 0 {
        let mut idle = Phase::begin("idle", &daemon);
        idle.last(quiet as f64, |_| ());
        let share = idle.end(0);
        assert!(share < 0.001, "{share} of a CPU while it is idle");
    }

    let names = ["connect_syscall_entry_handler", "connect_syscall_handler", "bind_handler"];
    let (before, first) = (status(), Counters::calls());
    let line = format!(
        "run --no-probe --quiet --builtin connect,bind --rate 1250/s --duration {soak}s --load-dir {MEMORY}"
    );
    let mut steady = Phase::begin("5,000 calls a second", &daemon);
    let started = Background(profiler(&line).stdout(std::process::Stdio::null()).spawn().unwrap());
    steady.last(soak as f64, |_| ());
    started.succeeded();
    let (after, second) = (status(), Counters::calls());
    for name in names {
        let counted = second.of(name) - first.of(name);
        assert_eq!(calls(&after, name) - calls(&before, name), counted, "{name}");
        assert!(counted > 1_200 * soak as u64, "{name}: {counted}");
    }
    let all = |status: &Status| status.handlers.iter().map(|of| of.calls).sum::<u64>();
    steady.end(all(&after) - all(&before));
    daemon.terminate();
}

/// `PROFILER_VM_HOURS` in which handlers are called now and then.
#[test]
#[ignore = "VM 6.1, virtual time"]
fn hours_of_timers_lose_no_call_and_no_interval() {
    let hours = times("PROFILER_VM_HOURS", 1);
    testbed::load();
    let daemon = Daemon::scraped("\"testbed_inner\"", "1m");
    daemon.wait_measuring();
    let mut timers = Phase::begin("timers", &daemon);
    let before = status();
    let mut triggered = 0;
    timers.last(hours as f64 * 3600.0, |step| {
        for _ in 0..(step / 60.0) as u32 {
            testbed::trigger("nested 3");
            triggered += 3;
            sleep(Duration::from_secs(59));
        }
    });
    let after = status();
    timers.end(triggered);
    assert_eq!(calls(&after, INNER) - calls(&before, INNER), triggered);
    let (minutes, kept) = (hours as u64 * 60, after.intervals);
    let since = kept.on_disk + kept.removed - before.intervals.on_disk - before.intervals.removed;
    assert!(since.abs_diff(minutes) <= 1, "{since} intervals in {minutes} minutes: {kept:?}");
    assert_eq!((kept.waiting, kept.lost), (0, 0));
    assert!(kept.bytes <= 16 << 20, "{kept:?}");

    let (daemon, _) = daemon.terminate();
    let intervals = daemon.intervals();
    let is_whole = |of: &HandlerRecording| of.losses.imbalance(of.count) == 0;
    assert!(intervals.iter().flat_map(|interval| &interval.handlers).all(is_whole));
    if kept.removed == 0 {
        let sum: u64 = intervals.iter().map(|interval| handler(interval, INNER).count).sum();
        assert_eq!(sum, triggered);
    }
    // They begin a minute after each other, to the end. The first is shorter, and so are the last two.
    let begins = |interval: &Recording| interval.started.as_millisecond() as f64 / 1e3;
    let (first, last) = (&intervals[1], &intervals[intervals.len() - 2]);
    let apart = (begins(last) - begins(first)) / (intervals.len() - 3) as f64;
    println!("{} intervals on disk, {} removed, {apart:.4} s apart", intervals.len(), kept.removed);
    assert!((apart - 60.0).abs() < 0.01, "{apart} s");
}
