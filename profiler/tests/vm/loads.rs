//! The clean-up of loads.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use profiler_base::error::exit;
use profiler_kernel::host::cgroup2_mount;
use profiler_load::BuiltinKind;

use crate::cli::{Ended, Started, eventually, profiler};
use crate::ends::{load_folders, processes};
use crate::testbed;
use crate::window::MEMORY;

/// Mounts control groups version 2 if they are not mounted.
pub(crate) fn mount_groups() {
    if cgroup2_mount().is_none() {
        testbed::run(Command::new("mount").args(["-t", "cgroup2", "none", "/sys/fs/cgroup"]));
    }
}

/// The content of a `/proc` file or link of each thread.
fn of_threads(read: impl Fn(&Path) -> Option<String>) -> BTreeSet<String> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let processes = entries(Path::new("/proc"));
    let threads = processes.flat_map(|process| entries(&process.path().join("task")));
    // A thread may have ended meanwhile.
    threads.filter_map(|thread| read(&thread.path())).collect()
}

/// Whether some thread sees a mount whose line has these words.
pub(crate) fn sees_mount(words: &str) -> bool {
    let mounts = of_threads(|thread| fs::read_to_string(thread.join("mountinfo")).ok());
    mounts.iter().any(|mounts| mounts.contains(words))
}

/// Whether some thread sees a file system that a load has mounted.
fn is_mounted() -> bool {
    sees_mount(" profiler-load ")
}

/// Number of mount namespaces: the load `mount` has one per worker.
fn mount_namespaces() -> usize {
    let link = |thread: &Path| fs::read_link(thread.join("ns/mnt")).ok();
    of_threads(|thread| Some(link(thread)?.to_string_lossy().into_owned())).len()
}

/// Ports that are listened on or bound, with their protocol.
fn ports() -> BTreeSet<String> {
    let of = |protocol: &str| {
        let table = fs::read_to_string(format!("/proc/net/{protocol}")).unwrap_or_default();
        let line = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next()?, fields.nth(1)?);
            // A closed TCP connection stays in TIME_WAIT for a minute.
            let taken = !protocol.starts_with("tcp") || state == "0A";
            taken.then(|| format!("{protocol} {local}"))
        };
        table.lines().skip(1).filter_map(line).collect::<Vec<_>>()
    };
    ["tcp", "tcp6", "udp", "udp6"].into_iter().flat_map(of).collect()
}

fn assert_nothing_left(ports_before: &BTreeSet<String>) {
    eventually("processes of the loads are left", || processes(None).is_empty());
    eventually("folders of the loads are left", || load_folders() == 0);
    eventually("mounts of the loads are left", || !is_mounted());
    eventually("ports of the loads are left", || ports().is_subset(ports_before));
}

/// Signals that end a run, and its exit codes.
const ENDS: [(Signal, Option<u8>); 3] = [
    (Signal::SIGINT, Some(exit::INTERRUPTED)),
    (Signal::SIGTERM, Some(exit::TERMINATED)),
    (Signal::SIGKILL, None),
];

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn nothing_is_left_of_any_builtin_load_however_it_ends() {
    let all = BuiltinKind::ALL.iter().filter(|kind| !kind.changes_kernel());
    let all: Vec<&str> = all.map(|kind| kind.name()).collect();
    let count = all.len();
    let all = format!("--no-probe --builtin {} --workers 2 --load-dir {MEMORY}", all.join(","));
    let (before, namespaces) = (ports(), mount_namespaces());
    // To its end.
    let ended = Ended::of(&mut profiler(&format!("run {all} --operations 6")));
    ended.assert_code(exit::OK);
    assert_nothing_left(&before);
    // The load that mounts is ended by the first, too.
    for (signal, code) in &ENDS[1..] {
        let mut run = Started::run(&format!("{all} --rate 20/s --duration 600s"), &[]);
        run.wait_measuring();
        // Everything that could remain exists; mounts come and go, but their namespace stays.
        eventually("a load mounts", || mount_namespaces() == namespaces + 2);
        eventually("the loads have folders", || load_folders() >= 5);
        eventually("the loads have ports", || !ports().is_subset(&before));
        assert!(processes(Some(run.pid())).len() > count);
        run.signal(*signal);
        assert_eq!(run.end().code, code.map(i32::from));
        assert_nothing_left(&before);
        eventually("mount namespaces are left", || mount_namespaces() == namespaces);
    }
}

/// Beside other loads a mount is too short to be seen; alone at full speed it is seen.
#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn nothing_is_left_of_a_load_that_mounts() {
    let before = ports();
    for (signal, code) in ENDS {
        let line = format!("--no-probe --builtin mount --load-dir {MEMORY} --duration 600s");
        let mut run = Started::run(&line, &[]);
        run.wait_measuring();
        eventually("the load mounts", is_mounted);
        run.signal(signal);
        assert_eq!(run.end().code, code.map(i32::from));
        assert_nothing_left(&before);
    }
}
