//! The daemon: what it counts, while drivers come, go and are replaced, and what it leaves however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use profiler::serve::status::{HandlerStatus, Status};
use profiler_base::error::exit;
use profiler_recording::{HandlerRecording, Recording};
use tempfile::TempDir;

use crate::cli::{Ended, Started, assert_whole, eventually, folder, handler, profiler};
use crate::ends::Left;
use crate::replaced::{build_id, other_build, put_back};
use crate::testbed::{self, Counters, NAME, TEN};
use crate::window::MEMORY;

pub(crate) const INNER: &str = "testbed_inner";

/// A daemon, and the folder of its configuration and its store.
pub(crate) struct Daemon {
    pub(crate) program: Started,
    folder: TempDir,
}

impl Daemon {
    /// One for these handlers of the testbed, with intervals of this length.
    fn start(handlers: &str, interval: &str) -> Self {
        let folder = folder();
        configure(folder.path(), &module(NAME, handlers), interval);
        Self::again(folder)
    }

    /// One with the configuration and the store in `folder`.
    pub(crate) fn again(folder: TempDir) -> Self {
        let file = folder.path().join("serve.toml");
        let program = Started::with(&format!("serve --config {}", file.display()), &[]);
        let daemon = Self { program, folder };
        eventually("the daemon does not answer", || {
            Ended::of(&mut profiler("status --json")).code == Some(0)
        });
        daemon
    }

    fn log(&self) -> String {
        self.program.read("stderr")
    }

    /// Waits until the testbed is measured.
    pub(crate) fn wait_measuring(&self) {
        eventually("the testbed is not measured", || {
            let phase = status().modules[0].phase.clone();
            assert_ne!(phase, "refused", "{}", self.log());
            phase == "measuring"
        });
    }

    /// The files of completed intervals.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let list = |folder: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(folder).into_iter().flatten();
            entries.map(|entry| entry.unwrap().path()).collect()
        };
        let folders = list(&self.folder.path().join("store"));
        let mut files: Vec<PathBuf> = folders.iter().flat_map(|folder| list(folder)).collect();
        files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
        files.sort();
        files
    }

    /// Completed intervals, each of which agrees with itself.
    pub(crate) fn intervals(&self) -> Vec<Recording> {
        self.files().iter().map(|file| Recording::read(file).unwrap()).collect()
    }

    pub(crate) fn terminate(mut self) -> (Self, Ended) {
        self.program.signal(Signal::SIGTERM);
        let ended = self.program.end();
        ended.assert_code(exit::OK);
        Left::assert_nothing();
        (self, ended)
    }
}

pub(crate) fn module(name: &str, handlers: &str) -> String {
    format!("[[module]]\nname = \"{name}\"\nhandlers = [{handlers}]\n")
}

fn configure(folder: &Path, modules: &str, interval: &str) {
    let store = folder.join("store");
    let text = format!(
        "listen = \"none\"\ninterval = \"{interval}\"\n{modules}[store]\nfolder = {store:?}\nmin-free-bytes = 0\n"
    );
    fs::write(folder.join("serve.toml"), text).unwrap();
}

/// What the daemon does, after it has drained.
pub(crate) fn status() -> Status {
    // It answers later than so soon after the last drain.
    std::thread::sleep(std::time::Duration::from_millis(600));
    let ended = Ended::of(&mut profiler("status --json"));
    ended.assert_code(exit::OK);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// A handler in the build that is loaded.
pub(crate) fn of_build<'a>(status: &'a Status, name: &str, build: &str) -> &'a HandlerStatus {
    let found = status.handlers.iter().find(|of| of.handler == name && of.build == build);
    found.unwrap_or_else(|| panic!("no {name} of {build}: {status:?}"))
}

/// Repetitions: the usual ones, or as many as the variable asks for, by hand.
pub(crate) fn times(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().expect(variable))
}

fn release() {
    let ended = Ended::of(&mut profiler("release hids_testbed"));
    ended.assert_code(exit::OK);
    assert!(
        ended.stdout.contains("is released") && !ended.stdout.contains("still hold"),
        "{ended:?}"
    );
}

/// All built-in loads of the ten handlers.
pub(crate) fn load(more: &str) -> Command {
    let line = format!(
        "run --no-probe --quiet --builtin connect,bind,execve,open,ptrace,udp-recv --load-dir {MEMORY} {more}"
    );
    let mut command = profiler(&line);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A load that is ended with the test.
pub(crate) struct Background(pub(crate) Child);

impl Background {
    /// Waits for its end.
    pub(crate) fn succeeded(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "VM 5.10 6.1 7.2: function-graph, fentry and fsession"]
fn counts_are_those_of_the_testbed() {
    testbed::load();
    // Its files would be counted as created.
    let daemon = Daemon::start("\"*_handler\"", "1h");
    daemon.wait_measuring();
    // Who asks connects, and was executed: both before it gets its answer.
    let (before, first) = (status(), Counters::calls());
    assert!(load("--operations 50").status().unwrap().success());
    let (after, second) = (status(), Counters::calls());
    let build = build_id();
    for name in TEN {
        let counted = second.of(name) - first.of(name);
        let calls = |status: &Status| {
            let of = status.handlers.iter().find(|of| of.handler == name && of.build == build);
            of.map_or(0, |of| of.calls)
        };
        assert!(counted >= 50, "{name}: {counted}");
        assert_eq!(calls(&after) - calls(&before), counted, "{name}: {after:?}");
        assert_eq!(of_build(&after, name, &build).lost, 0, "{name}");
    }
    let (daemon, ended) = daemon.terminate();
    assert!(ended.stderr.contains("ended by SIGTERM"), "{ended:?}");
    // The second is of the time in which the probes came off.
    let [interval, _] = &daemon.intervals()[..] else { panic!("{:?}", daemon.files()) };
    for name in ["bind_handler", "ptrace_pre_handler"] {
        let handler = handler(interval, name);
        assert_eq!(handler.count, of_build(&after, name, &build).calls, "{name}");
        assert_whole(handler);
    }
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_module_that_comes_later_is_measured_and_what_it_lacks_is_said() {
    if testbed::is_loaded() {
        testbed::remove();
    }
    let daemon = Daemon::start("\"testbed_inner\", \"no_such_handler\", \"nothing_*\"", "1h");
    assert_eq!(status().modules[0].phase, "waiting");
    assert!(daemon.log().contains("module hids_testbed is not loaded: waiting for it"));
    testbed::insert(&testbed::file());
    daemon.wait_measuring();
    testbed::trigger("nested 100");
    let status = status();
    assert_eq!(of_build(&status, INNER, &build_id()).calls, 100);
    let missing: Vec<&str> =
        status.modules[0].missing.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(missing, ["no_such_handler", "nothing_*"]);
    assert!(
        daemon.log().contains("handler no_such_handler of module hids_testbed is not measured")
    );
    let text = Ended::of(&mut profiler("status")).stdout;
    assert!(
        text.contains("hids_testbed") && text.contains("measuring") && text.contains(INNER),
        "{text}"
    );
    daemon.terminate();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn events_that_the_kernel_could_not_deliver_hide_no_module() {
    if testbed::is_loaded() {
        testbed::remove();
    }
    let daemon = Daemon::start("\"testbed_inner\"", "1h");
    daemon.program.signal(Signal::SIGSTOP);
    // More than fit into the socket, before that of the module.
    (0..1000).for_each(|_| fs::write("/sys/module/kernel/uevent", "add").unwrap());
    testbed::insert(&testbed::file());
    daemon.program.signal(Signal::SIGCONT);
    daemon.wait_measuring();
    assert!(daemon.log().contains("looking at all modules"), "{}", daemon.log());
    daemon.terminate();
}

/// One of two builds after the other, each while the handlers are called.
#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_driver_is_replaced_again_and_again_under_load_and_loses_no_call() {
    let times = times("PROFILER_VM_UPGRADES", 3);
    put_back();
    let out = folder();
    let files = [testbed::file(), other_build(out.path())];
    let daemon = Daemon::start("\"testbed_inner\", \"connect_*\", \"bind_*\"", "1h");
    let _load = Background(load("--duration 3600s --rate 20/s").spawn().unwrap());
    let mut builds: Vec<String> = Vec::new();
    // Calls of `connect_syscall_handler`, while it was measured for sure, and in all.
    let (mut at_least, mut at_most) = ([0; 2], [0; 2]);
    for number in 0..times {
        daemon.wait_measuring();
        if number < 2 {
            builds.push(build_id());
        }
        let connects = || Counters::calls().of("connect_syscall_handler");
        let first = connects();
        testbed::trigger(&format!("nested {}", 10 + number));
        eventually("no load", || connects() > first + 5);
        at_least[number % 2] += connects() - first;
        release();
        at_most[number % 2] += connects();
        assert_eq!(status().modules[0].phase, "released");
        testbed::remove();
        testbed::insert(&files[(number + 1) % 2]);
    }
    daemon.wait_measuring();
    let now = status();
    assert_ne!(builds[0], builds[1]);
    for (which, build) in builds.iter().enumerate() {
        let expected: usize = (0..times).filter(|number| number % 2 == which).map(|n| 10 + n).sum();
        let inner = of_build(&now, INNER, build);
        assert_eq!((inner.calls, inner.lost), (expected as u64, 0), "{inner:?}");
        let connect = of_build(&now, "connect_syscall_handler", build).calls;
        assert!(
            at_least[which] <= connect && (which == 0 || connect <= at_most[which]),
            "{connect} of {at_least:?} to {at_most:?}"
        );
    }
    let (daemon, _) = daemon.terminate();
    let intervals = daemon.intervals();
    // The last build has one more, of the time in which its probes came off.
    assert_eq!(intervals.len(), times + 2);
    let inner: u64 = intervals.iter().map(|interval| handler(interval, INNER).count).sum();
    assert_eq!(inner, (0..times).map(|n| 10 + n as u64).sum::<u64>());
    for interval in &intervals {
        assert_eq!(handler(interval, INNER).losses.imbalance(handler(interval, INNER).count), 0);
    }
    put_back();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_release_that_no_unloading_follows_is_taken_back() {
    testbed::load();
    let daemon = Daemon::start("\"testbed_inner\"", "1h");
    daemon.wait_measuring();
    testbed::trigger("nested 7");
    release();
    testbed::trigger("nested 100");
    Ended::of(&mut profiler("release --resume hids_testbed")).assert_code(exit::OK);
    testbed::trigger("nested 5");
    assert_eq!(of_build(&status(), INNER, &build_id()).calls, 12);
    Ended::of(&mut profiler("release no_such_module"))
        .assert_code(exit::NO_TARGET)
        .assert_error(&["no_such_module", "hids_testbed"]);
    // While it is measured the kernel does not let it go.
    assert!(!Command::new("rmmod").arg(NAME).output().unwrap().status.success());
    daemon.terminate();
    testbed::remove();
    testbed::load();
    Ended::of(&mut profiler("release hids_testbed"))
        .assert_code(exit::NO_TARGET)
        .assert_error(&["no `profiler serve` runs"]);
}

/// The other build of the testbed, in which the function of this name has another one.
fn other_build_without(folder: &Path, name: &str) -> PathBuf {
    let file = other_build(folder);
    let mut bytes = fs::read(&file).unwrap();
    // Names end by a zero in tables of strings: of symbols, BTF and the module's own counters.
    let old = [&[0], name.as_bytes(), &[0]].concat();
    let places: Vec<usize> =
        (0..bytes.len() - old.len()).filter(|&at| bytes[at..at + old.len()] == old[..]).collect();
    assert!(!places.is_empty(), "no {name} in {}", file.display());
    for at in places {
        bytes[at + name.len()] = b'X';
    }
    fs::write(&file, bytes).unwrap();
    file
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_handler_that_is_gone_in_the_new_build_is_said_and_the_others_go_on() {
    const OUTER: &str = "testbed_outer";
    put_back();
    let out = folder();
    let file = other_build_without(out.path(), OUTER);
    let daemon = Daemon::start("\"testbed_inner\", \"testbed_outer\"", "1h");
    daemon.wait_measuring();
    let old = build_id();
    testbed::trigger("nested 10");
    assert_eq!(status().modules[0].handlers, 2);
    release();
    testbed::remove();
    testbed::insert(&file);
    daemon.wait_measuring();
    let new = build_id();
    assert_ne!(old, new);
    testbed::trigger("nested 5");
    let now = status();
    let missing: Vec<&str> = now.modules[0].missing.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((missing, now.modules[0].handlers), (vec![OUTER], 1));
    assert_eq!((of_build(&now, INNER, &old).calls, of_build(&now, INNER, &new).calls), (10, 5));
    assert!(
        daemon.log().contains("handler testbed_outer of module hids_testbed is not measured"),
        "{}",
        daemon.log()
    );
    daemon.terminate();
    put_back();
}

/// The value of a metric's series that has all of these words, on the daemon's page.
fn metric(name: &str, words: &[&str]) -> Option<f64> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect("127.0.0.1:9560").unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let is_it = |line: &&str| {
        line.split(['{', ' ']).next() == Some(name) && words.iter().all(|word| line.contains(word))
    };
    page.lines().find(is_it)?.rsplit(' ').next()?.parse().ok()
}

/// A handler that is called without a break takes more than the budget; when the load is over it is measured again.
#[test]
#[ignore = "VM 6.1, virtual time"]
fn a_handler_above_max_overhead_is_shed_and_taken_up_after_the_load() {
    testbed::load();
    let folder = folder();
    configure(folder.path(), &module(NAME, "\"testbed_inner\", \"ptrace_*\""), "5s");
    let file = folder.path().join("serve.toml");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("listen = \"none\"", "listen = \"127.0.0.1:9560\"");
    // Of a CPU: far more than idle drains take, and far less than calls without a break.
    fs::write(&file, format!("{text}[budget]\nmax-overhead = \"2%\"\n")).unwrap();
    let daemon = Daemon::again(folder);
    daemon.wait_measuring();
    let state = |state: &str| {
        let words = ["handler=\"testbed_inner\"", &format!("state=\"{state}\"")];
        metric("profiler_handler_state", &words)
    };
    assert_eq!(metric("profiler_budget_enforced", &[NAME]), Some(1.0), "{}", daemon.log());
    assert_eq!((state("measured"), state("shed")), (Some(1.0), Some(0.0)));
    // A decision is made every ten seconds.
    let long = std::time::Duration::from_secs(300);
    let began = std::time::Instant::now();
    while state("shed") != Some(1.0) {
        assert!(began.elapsed() < long, "it is not shed: {}", daemon.log());
        testbed::trigger("nested 20000");
    }
    assert!(
        daemon.log().contains("handler testbed_inner of hids_testbed is shed: measuring it takes"),
        "{}",
        daemon.log()
    );
    assert!(metric("profiler_handlers_shed_total", &[]) >= Some(1.0));
    let now = status();
    assert!(of_build(&now, INNER, &build_id()).shed, "{now:?}");
    assert_eq!(now.modules[0].phase, "measuring", "the other handler goes on");
    // Without a call it fits: it is taken up again after a minute, and stays.
    let began = std::time::Instant::now();
    while state("shed") == Some(1.0) {
        assert!(began.elapsed() < long, "it is not taken up again: {}", daemon.log());
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    assert!(daemon.log().contains("is measured again, on trial"), "{}", daemon.log());
    assert_eq!(state("measured"), Some(1.0));
    let before = of_build(&status(), INNER, &build_id()).calls;
    testbed::trigger("nested 7");
    assert_eq!(of_build(&status(), INNER, &build_id()).calls, before + 7);
    let (daemon, _) = daemon.terminate();
    let intervals = daemon.intervals();
    let says = |interval: &&Recording| {
        interval.warnings.iter().any(|warning| warning.code == "partly-measured")
    };
    assert!(intervals.iter().any(|interval| says(&interval)), "{}", intervals.len());
    let left_out = |interval: &Recording| interval.left_out.iter().any(|left| left.name == INNER);
    assert!(intervals.iter().any(left_out), "of a minute without probes there are whole intervals");
}

/// Each daemon finds what those before it have written.
#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn sigkill_leaves_nothing_pinned_and_every_completed_interval() {
    testbed::load();
    let mut calls = 0;
    let mut counted = 0;
    let mut daemon = Daemon::start("\"testbed_inner\", \"connect_*\"", "2s");
    let kills = times("PROFILER_VM_KILLS", 2);
    for number in 0..kills {
        daemon.wait_measuring();
        let first = status().intervals;
        // A kill between the end of an interval and its file is said.
        assert!(first.lost <= 1 && !daemon.log().contains("not an interval file"), "{first:?}");
        let known = loop {
            testbed::trigger("nested 20");
            calls += 20;
            let now = status().intervals;
            // The first of two may have ended before these calls.
            if now.on_disk > first.on_disk + 1 {
                break now.on_disk;
            }
        };
        // At another moment of an interval each time.
        std::thread::sleep(std::time::Duration::from_millis(number as u64 * 733 % 2_000));
        daemon.program.signal(Signal::SIGKILL);
        assert_eq!(daemon.program.end().code, None);
        Left::assert_nothing();
        let intervals = daemon.intervals();
        assert!(intervals.len() as u64 >= known, "{} of {known}", intervals.len());
        let now: u64 = intervals.iter().map(|interval| handler(interval, INNER).count).sum();
        // What the last, incomplete one had is gone.
        assert!(now <= calls && now > counted, "{now} of {calls}, after {counted}");
        counted = now;
        let is_whole = |of: &HandlerRecording| of.losses.imbalance(of.count) == 0;
        assert!(intervals.iter().all(|interval| is_whole(handler(interval, INNER))));
        if number == 0 {
            testbed::remove();
            testbed::load();
        }
        daemon = Daemon::again(daemon.folder);
    }
    println!("{kills} kills: {counted} of {calls} calls are on disk");
    daemon.wait_measuring();
    daemon.terminate();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_reload_keeps_the_counts_and_refuses_what_is_wrong() {
    testbed::load();
    let daemon = Daemon::start("\"testbed_inner\"", "1h");
    daemon.wait_measuring();
    testbed::trigger("nested 100");
    let one = module(NAME, "\"testbed_inner\"");
    configure(daemon.folder.path(), &format!("{one}backends = \"fentry\"\n"), "1h");
    daemon.program.signal(Signal::SIGHUP);
    eventually("it is not refused", || {
        daemon.log().contains("serve.toml:6:1: unknown field `backends`")
    });
    configure(
        daemon.folder.path(),
        &format!("{one}{}", module("no_such_driver", "\"a_handler\"")),
        "1h",
    );
    daemon.program.signal(Signal::SIGHUP);
    eventually("it is not read again", || status().modules.len() == 2);
    testbed::trigger("nested 50");
    let now = status();
    assert_eq!(of_build(&now, INNER, &build_id()).calls, 150);
    assert_eq!(now.modules[1].phase, "waiting");
    assert_eq!(daemon.log().matches("measuring 1 handler of module hids_testbed").count(), 1);
    daemon.terminate();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_second_daemon_is_refused() {
    testbed::load();
    let daemon = Daemon::start("\"testbed_inner\"", "1h");
    daemon.wait_measuring();
    let file = daemon.folder.path().join("serve.toml");
    let pid = daemon.program.pid().to_string();
    Ended::of(profiler("serve --config").arg(&file))
        .assert_code(exit::CANNOT_MEASURE)
        .assert_error(&["another `profiler serve` runs already", &pid]);
    testbed::trigger("nested 30");
    assert_eq!(of_build(&status(), INNER, &build_id()).calls, 30);
    daemon.terminate();
}

/// Nothing is written below the floor; the interval is there when there is room again.
#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_full_disk_is_said_and_what_was_measured_is_written_later() {
    testbed::load();
    let disk = folder();
    testbed::run(
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m,mode=755", "none"])
            .arg(disk.path()),
    );
    let folder = folder();
    configure(folder.path(), &module(NAME, "\"testbed_inner\""), "2s");
    let file = folder.path().join("serve.toml");
    let text = fs::read_to_string(&file).unwrap();
    let [store, on_disk] = [&folder, &disk].map(|of| format!("{:?}", of.path().join("store")));
    fs::write(&file, text.replace(&store, &on_disk)).unwrap();
    fs::write(disk.path().join("full"), vec![0; 2 << 20]).unwrap_err();
    let daemon = Daemon::again(folder);
    daemon.wait_measuring();
    testbed::trigger("nested 40");
    eventually("it is not said", || {
        daemon.log().contains("could not be written, and is kept in memory")
    });
    let intervals = status().intervals;
    assert!(
        intervals.on_disk == 0 && intervals.waiting > 0 && intervals.lost == 0,
        "{intervals:?}"
    );
    fs::remove_file(disk.path().join("full")).unwrap();
    eventually("nothing is written", || status().intervals.on_disk > 0);
    let (daemon, _) = daemon.terminate();
    let of_disk = Daemon { folder: disk, ..daemon };
    let counted: u64 = of_disk.intervals().iter().map(|one| handler(one, INNER).count).sum();
    assert_eq!(counted, 40);
    testbed::run(Command::new("umount").arg(of_disk.folder.path()));
}

/// Intervals that wait in memory for room are gone with SIGKILL: the next daemon says so.
#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn what_sigkill_takes_of_a_full_disk_is_said_by_the_next_daemon() {
    testbed::load();
    let folder = folder();
    configure(folder.path(), &module(NAME, "\"testbed_inner\""), "2s");
    let file = folder.path().join("serve.toml");
    let text = fs::read_to_string(&file).unwrap();
    let no_room = text.replace("min-free-bytes = 0", &format!("min-free-bytes = {}", 1_u64 << 60));
    fs::write(&file, no_room).unwrap();
    let mut daemon = Daemon::again(folder);
    daemon.wait_measuring();
    testbed::trigger("nested 40");
    eventually("nothing waits", || status().intervals.waiting >= 2);
    daemon.program.signal(Signal::SIGKILL);
    assert_eq!(daemon.program.end().code, None);
    fs::write(&file, text).unwrap();
    let daemon = Daemon::again(daemon.folder);
    let lost = status().intervals.lost;
    assert!(lost >= 2, "{lost}");
    assert!(
        daemon.log().contains("in memory alone when the daemon before was killed"),
        "{}",
        daemon.log()
    );
    daemon.terminate();
}
