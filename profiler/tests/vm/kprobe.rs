//! Kprobes are refused where they would count nothing, and what they miss is reported.

use std::process::Command;

use profiler_base::error::exit;
use profiler_kernel::target::KernelFiles;
use profiler_load::BuiltinKind;
use profiler_probe::{Options, Probes, Session as _};
use profiler_recording::Backend;

use crate::cli::{Ended, folder, profiler, saved};
use crate::matrix::kernel;
use crate::testbed;
use crate::window::{builtin, program, resolve, run_loads};

const HANDLER: &str = "--module hids_testbed --handler connect_syscall_entry_handler";

#[test]
#[ignore = "VM 5.10 6.12: without and with BTF of modules; matrix:: has kprobes on the others"]
fn a_kprobe_in_a_kprobe_handler_is_refused() {
    testbed::load();
    let ended =
        Ended::of(&mut profiler(&format!("run {HANDLER} --backend kprobe --builtin connect")));
    ended
        .assert_code(exit::CANNOT_MEASURE)
        .assert_error(&[
            "connect_syscall_entry_handler",
            "inside a kprobe",
            // Without BTF of modules no other backend reaches the handler.
            if testbed::has_btf() { "use fentry" } else { "use function-graph" },
            "--force",
        ])
        .assert_nothing_done();
}

#[test]
#[ignore = "VM 5.10 6.12: without and with BTF of modules; matrix:: has kprobes on the others"]
fn forced_past_it_the_kprobe_counts_nothing_and_says_so() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("result.json");
    let line =
        format!("run {HANDLER} --backend kprobe --force --builtin connect --operations 100 --json");
    let ended = Ended::of(profiler(&line).arg(&file));
    ended.assert_code(exit::NO_HITS).assert_error(&["no handler had a single hit"]);
    let profile = saved(file, &ended.stdout);
    let handler = &profile.handlers[0];
    assert_eq!((handler.backend, handler.count), (Some(Backend::Kprobe), 0));
    assert_eq!(handler.losses.entries, 0);
    // Each call's entry; the kretprobe is not even tried then.
    assert!(handler.losses.missed >= 100, "{:?}", handler.losses);
    assert!(profile.warnings.iter().any(|warning| warning.code == "all-missed"), "{profile:?}");
    assert!(ended.stdout.contains(&handler.losses.missed.to_string()), "{ended:?}");
}

/// A function without a `struct kprobe` argument may run inside a kprobe, too: then the count of misses shows it.
#[test]
#[ignore = "VM 5.10 6.12: without and with BTF of modules; matrix:: has kprobes on the others"]
fn a_kprobe_that_only_misses_ends_the_session() {
    testbed::load();
    // The testbed's entry handlers call it.
    let called = "copy_from_user_nofault".to_owned();
    let targets = KernelFiles::default().resolve(None, &[called]).unwrap().targets;
    let options = Options { backend: Some(Backend::Kprobe), ..Options::default() };
    let mut probes = Probes::attach(&targets, options).unwrap();
    probes.drain().expect("nothing has been missed yet");
    run_loads(vec![builtin(BuiltinKind::Connect, 100)]);
    let error = probes.drain().expect_err("every call was missed").to_string();
    assert!(error.contains("inside a kprobe") && error.contains("100 times"), "{error}");
}

/// The kernel drops its counts of a hook with the hook.
#[test]
#[ignore = "VM 5.10 6.12: without and with BTF of modules; matrix:: has kprobes on the others"]
fn what_was_missed_is_still_known_after_detaching() {
    let missed = |options, function, calls: &dyn Fn()| {
        let mut probes = Probes::attach(&resolve(&[function]), options).unwrap();
        probes.drain().unwrap();
        calls();
        let attached = probes.drain().unwrap()[0].books;
        probes.detach();
        let detached = [probes.drain().unwrap()[0].books, probes.drain().unwrap()[0].books];
        for books in detached {
            let unknown = (attached.missed_unknown, books.missed_unknown);
            assert_eq!(books.missed, attached.missed, "{options:?}: {attached:?}, {books:?}");
            assert_eq!(unknown.0, unknown.1, "{options:?}: {attached:?}, {books:?}");
        }
        attached.missed
    };
    let by = |backend| Options { backend: Some(backend), force: true, ..Options::default() };
    // It runs inside a kprobe, and no other process connects.
    let connects = || drop(run_loads(vec![builtin(BuiltinKind::Connect, 300)]));
    let entry = "connect_syscall_entry_handler";
    assert!(missed(by(Backend::Kprobe), entry, &connects) >= 300);
    // A recursion needs more room for returns than some kernels have.
    for backend in kernel().few_returns {
        let recursion = || testbed::trigger("recurse 32");
        let missed = missed(by(backend), "testbed_recurse", &recursion);
        assert!(missed > 0, "{backend}: {missed}");
    }
}

/// Empty folders over those of tracefs, until this is dropped.
struct Covered(Vec<&'static str>);

impl Covered {
    fn tracefs() -> Self {
        let mut covered = Self(Vec::new());
        for folder in ["/sys/kernel/tracing", "/sys/kernel/debug"] {
            let mut mount = Command::new("mount");
            assert!(mount.args(["-t", "tmpfs", "none", folder]).status().unwrap().success());
            covered.0.push(folder);
        }
        covered
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        for folder in &self.0 {
            let _ = Command::new("umount").arg(folder).status();
        }
    }
}

/// The kernel's counts of an event are read in tracefs, once the records are closed.
#[test]
#[ignore = "VM 5.10 6.12: without and with BTF of modules; matrix:: has kprobes on the others"]
fn the_calls_of_a_drain_that_failed_are_in_the_next() {
    testbed::load();
    let force = !testbed::has_btf();
    let options = Options { backend: Some(Backend::Kprobe), force, ..Options::default() };
    let mut probes = Probes::attach(&resolve(&["testbed_inner"]), options).unwrap();
    probes.drain().unwrap();
    let covered = Covered::tracefs();
    for calls in [100, 20] {
        testbed::trigger(&format!("nested {calls}"));
        let error = probes.drain().expect_err("tracefs cannot be read").to_string();
        assert!(error.contains("kprobe_events"), "{error}");
    }
    drop(covered);
    testbed::trigger("nested 3");
    let mut calls = || probes.drain().unwrap()[0].durations.len();
    assert_eq!((calls(), calls()), (123, 0));
}

#[test]
#[ignore = "VM 5.10 6.12: without and with BTF of modules; matrix:: has kprobes on the others"]
fn events_of_a_killed_process_are_removed() {
    testbed::load();
    let events = "/sys/kernel/tracing/kprobe_events";
    let read = || std::fs::read_to_string(events).unwrap();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let namespace = namespace.to_str().unwrap().trim_matches(|c: char| !c.is_ascii_digit());
    let stat = std::fs::read_to_string("/proc/1/stat").unwrap();
    let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap();
    // No process has the largest possible id, and the one with id 1 started at another time.
    let of_nobody = [
        format!("profiler_{namespace}_4194303_5_0"),
        format!("profiler_{namespace}_1_{started}9_0"),
    ];
    // The owner of the last is unknown.
    let of_others =
        [format!("profiler_{namespace}_1_{started}_0"), "profiler_7_4194303_5_0".to_owned()];
    for name in of_nobody.iter().chain(&of_others) {
        change_events(&format!("p:profiler/{name} vfs_open"));
        assert!(read().contains(name), "{name}: {}", read());
    }
    // Without BTF of modules it is unknown whether kprobes call this one.
    let force = !testbed::has_btf();
    let options = Options { backend: Some(Backend::Kprobe), force, ..Options::default() };
    let probes = Probes::attach(&resolve(&["testbed_inner"]), options).unwrap();
    let during = read();
    assert!(during.contains("testbed_inner"), "{during}");
    assert!(!of_nobody.iter().any(|name| during.contains(name)), "{during}");
    assert!(of_others.iter().all(|name| during.contains(name)), "{during}");
    drop(probes);
    for name in &of_others {
        change_events(&format!("-:profiler/{name}"));
    }
    assert!(!read().contains("profiler_"), "{}", read());
}

/// Appends a line: opened for writing, the file would drop the events of all users.
fn change_events(line: &str) {
    let mut file =
        std::fs::OpenOptions::new().append(true).open("/sys/kernel/tracing/kprobe_events").unwrap();
    std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes()).unwrap();
}

/// Programs that receive registers are calibrated on this kernel by calls of the profiler itself.
#[test]
#[ignore = "VM 5.10 7.2: the oldest and the newest show it"]
fn in_a_pid_namespace_the_profilers_own_calls_are_known() {
    let folder = folder();
    let file = folder.path().join("result.json");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(program());
    command.args(["run", "--handler", "__sys_connect", "--backend", "kprobe"]);
    command.args(["--builtin", "connect", "--operations", "100", "--json"]).arg(&file);
    let ended = Ended::of(&mut command);
    ended.assert_code(exit::OK);
    let profile = saved(file, &ended.stdout);
    assert!(profile.handlers[0].count >= 100, "{:?}", profile.handlers[0].losses);
    assert_eq!(profile.handlers[0].backend, Some(Backend::Kprobe));
}

#[test]
#[ignore = "VM 5.10 6.12: without and with BTF of modules; matrix:: has kprobes on the others"]
fn more_losses_than_allowed_fail_the_run() {
    testbed::load();
    // All calls of the one are lost, and none of the other.
    let folder = folder();
    let file = folder.path().join("result.json");
    let line = "run --module hids_testbed --handler connect_syscall_entry_handler --handler \
                testbed_inner --backend kprobe --force --json";
    let script = "echo nested 200 > /proc/hids_testbed/trigger; exec 3<>/dev/udp/127.0.0.1/9";
    let ended = Ended::of(profiler(line).arg(&file).args(["--", "bash", "-c", script]));
    ended.assert_code(exit::LOSSES).assert_error(&[
        "100.00 % of the calls of connect_syscall_entry_handler",
        "--max-loss is 0.1 %",
    ]);
    let profile = saved(file, &ended.stdout);
    assert_eq!(profile.handlers[1].count, 200);
    let allowed = Ended::of(
        profiler(&format!("{} --max-loss 100", line.trim_end_matches(" --json")))
            .args(["--", "bash", "-c", script]),
    );
    allowed.assert_code(exit::OK);
}
