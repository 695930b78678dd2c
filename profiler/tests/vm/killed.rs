//! A killed profiler leaves nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getsid};
use profiler_base::error::exit;
use profiler_recording::Backend;
use serde_json::Value;

use crate::cli::{PATIENCE, Started, eventually, profiler};
use crate::ends::{Left, processes};
use crate::ftrace::{assert_as_found, found, tracefs};
use crate::matrix::{CORE, kernel};
use crate::window::MEMORY;

/// Time until everything has to be gone, on an idle machine.
const SOON: Duration = Duration::from_secs(5);

/// Most runs for one kill: some end before it.
const TRIES: u32 = 20;

/// The keeper of a running profiler, if it has one.
pub(crate) fn keeper_of(profiler: Pid) -> Option<Pid> {
    let parent = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    let is_keeper = |pid: &str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == b"__keeper")
    };
    let mut keepers: Vec<String> = processes(Some(profiler))
        .into_iter()
        .filter(|pid| is_keeper(pid) && parent(pid) == Some(profiler.as_raw()))
        .collect();
    assert!(keepers.len() <= 1, "{keepers:?}");
    Some(Pid::from_raw(keepers.pop()?.parse().unwrap()))
}

/// Backends of this kernel whose changes outlive a process.
fn kept() -> Vec<Backend> {
    let outlives = |backend: &Backend| matches!(backend, Backend::FunctionGraph | Backend::Kprobe);
    kernel().core.works.into_iter().filter(outlives).collect()
}

/// Changes in the journal that were not undone, without the line of its owner.
fn open_changes() -> Vec<String> {
    let text = fs::read_to_string("/run/profiler/ftrace.journal").unwrap_or_default();
    let is_change = |line: &&str| {
        let line: Value = serde_json::from_str(line).unwrap();
        !line.as_object().unwrap().contains_key("owner")
    };
    // Each line begins with a line end, so that half a line cannot spoil it.
    text.lines().filter(|line| !line.is_empty()).filter(is_change).map(str::to_owned).collect()
}

/// Differences from `before`, and objects of a profiler.
fn left(before: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut left: Vec<String> =
        processes(None).into_iter().map(|pid| format!("process {pid}")).collect();
    let now = tracefs();
    for file in now.keys().chain(before.keys()) {
        if now.get(file) != before.get(file) {
            let (is, was) = (now.get(file), before.get(file));
            left.push(format!("{}: {is:?}, and was {was:?}", file.display()));
        }
    }
    left.extend(open_changes());
    let objects = Left::now();
    if objects != Left::default() {
        left.push(format!("{objects:?}"));
    }
    left
}

/// Starts a short run as the leader of a process group.
fn start(backend: Backend) -> Child {
    let line = format!(
        "run --handler {CORE} --backend {backend} --builtin connect --operations 100 --load-dir {MEMORY}"
    );
    let mut command = profiler(&line);
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until nothing is left; returns the time since `since`.
fn until_nothing_is_left(
    before: &BTreeMap<PathBuf, String>,
    since: Instant,
    limit: Duration,
    of: &str,
) -> Duration {
    loop {
        let after = since.elapsed();
        let left = left(before);
        if left.is_empty() {
            return after;
        }
        assert!(after < limit, "{of}: {after:?} later is left {left:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Kills a run of a backend after a fraction of its life; returns that time, and when it was. If the run ends before, the
/// life, at first that of the first run, is shortened for the next attempt.
fn killed_at(
    part: f64,
    backend: Backend,
    life: &mut Duration,
    with_its_group: bool,
    before: &BTreeMap<PathBuf, String>,
) -> (Duration, Instant) {
    for _ in 0..TRIES {
        let moment = life.mul_f64(part);
        let mut run = start(backend);
        std::thread::sleep(moment);
        let pid = Pid::from_raw(run.id().cast_signed());
        if with_its_group { killpg(pid, Signal::SIGKILL) } else { kill(pid, Signal::SIGKILL) }
            .unwrap();
        let end = Instant::now();
        let status = run.wait().unwrap();
        if status.signal() == Some(Signal::SIGKILL as i32) {
            return (moment, end);
        }
        assert!(status.success(), "{backend}, not killed after {moment:?}: {status}");
        until_nothing_is_left(before, end, PATIENCE, &format!("{backend}, not killed"));
        *life = life.mul_f64(0.9);
    }
    panic!("{backend}: {TRIES} runs ended before they were killed");
}

/// The life of the process is divided into equal parts, with a kill at random in each.
///
/// The limit is 5 s if `PROFILER_VM_KILLS` is set, by hand and on an idle machine. Beside other VMs that emulate a CPU each,
/// a stall of this one takes as long: there the time is printed, and the limit is a minute.
#[test]
#[ignore = "VM 5.10 6.12: without and with instances of the tracer"]
fn killed_at_any_moment_nothing_is_left_after_five_seconds() {
    let (kills, limit): (usize, _) = match std::env::var("PROFILER_VM_KILLS") {
        Ok(kills) => (kills.parse().unwrap(), SOON),
        Err(_) => (10, PATIENCE),
    };
    let backends = kernel().core.works;
    let before = found();
    until_nothing_is_left(&before, Instant::now(), PATIENCE, "those before");
    let mut lives: Vec<Duration> = backends
        .iter()
        .map(|backend| {
            let begun = Instant::now();
            let status = start(*backend).wait().unwrap();
            let life = begun.elapsed();
            assert!(status.success(), "{backend}: {status}");
            // The kernel frees maps a grace period after their process.
            let of = format!("{backend}, at its own end");
            until_nothing_is_left(&before, Instant::now(), PATIENCE, &of);
            life
        })
        .collect();

    let mut slowest = Duration::ZERO;
    for number in 0..kills {
        let backend = backends[number % backends.len()];
        let life = &mut lives[number % backends.len()];
        let part = (number as f64 + fastrand::f64()) / f64::from(kills as u32);
        // The process alone, and its group.
        let (moment, end) = killed_at(part, backend, life, number % 2 == 1, &before);
        let of = format!("{backend}, killed after {moment:?}");
        let after = until_nothing_is_left(&before, end, limit, &of);
        slowest = slowest.max(after);
        println!("{number}: {backend}, killed after {moment:.2?}: nothing left {after:.2?} later");
    }
    println!("{kills} killed; nothing left after {slowest:.2?} at the latest");
    assert_as_found(&before);
}

/// The keeper is stopped, so that it outlives everything else.
#[test]
#[ignore = "VM 5.10 6.12: without and with instances of the tracer"]
fn nobody_but_the_profiler_holds_what_it_writes_to() {
    for backend in kept() {
        let before = found();
        let line = format!("run --handler {CORE} --backend {backend} --duration 60s");
        let mut command = profiler(&line);
        let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(run.id().cast_signed());
        let (mut stdout, mut stderr) = (run.stdout.take().unwrap(), run.stderr.take().unwrap());
        let mut said = Vec::new();
        while !String::from_utf8_lossy(&said).contains("\nmeasuring") {
            let mut part = [0; 256];
            let length = stderr.read(&mut part).unwrap();
            assert!(length > 0, "{}", String::from_utf8_lossy(&said));
            said.extend(&part[..length]);
        }
        assert_ne!(tracefs(), before, "{backend} changes nothing");

        let keeper = keeper_of(pid).unwrap_or_else(|| panic!("{backend} has no keeper"));
        let of_keeper = |name: &str| PathBuf::from(format!("/proc/{keeper}/{name}"));
        let files: BTreeMap<_, _> = fs::read_dir(of_keeper("fd"))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (entry.file_name().into_string().unwrap(), fs::read_link(entry.path()).unwrap())
            })
            .collect();
        assert_eq!(files.len(), 3, "{files:?}");
        assert_eq!(files["2"].to_str(), Some("/dev/null"), "{files:?}");
        assert_eq!(fs::read_link(of_keeper("cwd")).unwrap().to_str(), Some("/"));
        assert_eq!(getsid(Some(keeper)).unwrap(), keeper);
        kill(keeper, Signal::SIGSTOP).unwrap();

        kill(pid, Signal::SIGKILL).unwrap();
        let (ended, both_ended) = mpsc::channel();
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            let _ = ended.send(
                stdout.read_to_end(&mut rest).and_then(|_| stderr.read_to_end(&mut rest)).is_ok(),
            );
        });
        assert_eq!(both_ended.recv_timeout(PATIENCE), Ok(true), "{backend}: somebody holds a pipe");
        run.wait().unwrap();
        assert_ne!(tracefs(), before, "{backend}: somebody else has put it back");
        kill(keeper, Signal::SIGCONT).unwrap();
        eventually("it is not put back", || left(&before).is_empty());
        assert_as_found(&before);
    }
}

/// The first of both restores tracefs, and the other leaves it alone.
#[test]
#[ignore = "VM 5.10 6.12: without and with instances of the tracer"]
fn who_starts_right_after_a_kill_measures() {
    let before = found();
    let line = format!("--handler {CORE} --backend function-graph --builtin connect --rate 200/s");
    for keeper_is_late in [false, true, false] {
        let mut killed = Started::run(&format!("{line} --duration 60s --load-dir {MEMORY}"), &[]);
        killed.wait_measuring();
        let keeper = keeper_of(killed.pid()).expect("no keeper");
        if keeper_is_late {
            kill(keeper, Signal::SIGSTOP).unwrap();
        }
        killed.signal(Signal::SIGKILL);
        let mut next = Started::run(
            &format!("{line} --duration 60s --load-dir {MEMORY} --json {{}}/result.json"),
            &[],
        );
        killed.end();
        next.wait_measuring();
        let during = tracefs();
        assert_ne!(during, before);
        if keeper_is_late {
            assert!(next.read("stderr").contains("was killed while it traced"));
            kill(keeper, Signal::SIGCONT).unwrap();
            let gone = || !processes(None).contains(&keeper.to_string());
            eventually("the keeper does not end", gone);
            assert_eq!(tracefs(), during, "the keeper meddles with the next one's tracer");
        }
        // It is there for as long as all this takes.
        next.signal(Signal::SIGINT);
        next.end().assert_code(exit::INTERRUPTED);
        eventually("something is left", || left(&before).is_empty());
    }
    assert_as_found(&before);
}
