//! The module `hids_testbed` and its counters.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

pub(crate) const NAME: &str = "hids_testbed";

pub(crate) use crate::common::ten::TEN;

/// Series of the running kernel, such as `6.1`, as `xtask/src/test/mod.rs` names it.
pub(crate) fn series() -> String {
    std::env::var("PROFILER_VM_KERNEL").expect("PROFILER_VM_KERNEL is the kernel's series")
}

/// The module built for the running kernel.
pub(crate) fn file() -> PathBuf {
    let path = std::env::var_os("PROFILER_VM_TESTBED");
    path.expect("PROFILER_VM_TESTBED names the module: run these tests by `cargo xtask test`")
        .into()
}

pub(crate) fn is_loaded() -> bool {
    Path::new("/sys/module").join(NAME).exists()
}

/// Loads the module unless it is there.
pub(crate) fn load() {
    if !is_loaded() {
        insert(&file());
    }
}

pub(crate) fn insert(file: &Path) {
    run(Command::new("insmod").arg(file));
    // Helpers of udev start programs: their calls are not the loads'.
    let _ = Command::new("udevadm").args(["settle", "--timeout=150"]).status();
}

/// Whether the kernel has the module's BTF, as it may since 5.11.
pub(crate) fn has_btf() -> bool {
    Path::new("/sys/kernel/btf").join(NAME).exists()
}

pub(crate) fn remove() {
    run(Command::new("rmmod").arg(NAME));
}

/// Runs a command that has to succeed, and returns what it wrote.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// Counters of the module, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    fn read(file: &str) -> Self {
        let text = fs::read_to_string(proc(file)).unwrap();
        let counter = |line: &str| {
            let (name, value) = line.split_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        };
        Self(text.lines().map(counter).collect())
    }

    /// Calls of every function so far.
    pub(crate) fn calls() -> Self {
        Self::read("calls")
    }

    /// Calls from an interrupt inside another call, so far.
    pub(crate) fn nested() -> u64 {
        Self::read("nested").0.values().sum()
    }

    /// Hits of the module's own probes for which the kernel did not call its handlers.
    pub(crate) fn missed() -> u64 {
        Self::read("missed").0.values().sum()
    }

    /// Whether the module has a function of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn of(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("the module counts no {name}"))
    }
}

/// The longest call of `testbed_timed` since the last reset, in nanoseconds, including what probes add.
pub(crate) fn longest() -> u64 {
    Counters::read("longest").of("testbed_timed")
}

pub(crate) fn reset_longest() {
    fs::write(proc("longest"), "0").unwrap();
}

/// Makes each call of a handler longer by iterations of two instructions each.
pub(crate) fn spin(handler: &str, iterations: u64) {
    fs::write(proc("spin"), format!("{handler} {iterations}")).unwrap();
}

/// Runs a command of the module; returns when its work is done.
pub(crate) fn trigger(command: &str) {
    fs::write(proc("trigger"), command).unwrap_or_else(|error| panic!("{command}: {error}"));
}

/// Has this thread do `work` on the first CPU alone: a task that is moved between nested calls finds another slot, and a
/// start that it would have displaced stays where it is.
pub(crate) fn on_first_cpu(work: impl FnOnce()) {
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this).unwrap();
    let mut first = CpuSet::new();
    first.set(0).unwrap();
    sched_setaffinity(this, &first).unwrap();
    work();
    sched_setaffinity(this, &all).unwrap();
}

fn proc(file: &str) -> PathBuf {
    Path::new("/proc").join(NAME).join(file)
}
