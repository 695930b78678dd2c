//! Files survive a power cut: what takes another's place is on disk before the rename, and the rename is when the command
//! ends. Shown by the order of system calls, for which strace has to be there.

use std::path::Path;
use std::process::Command;

use crate::common::sample;
use crate::program::text;

/// Runs `profiler` under strace, and gives the system calls that move files and wait for the disk.
pub(crate) fn calls(command: &Command) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-qq", "-e", "trace=fsync,syncfs,rename,renameat,renameat2", "-o"]);
    strace.arg(&log).arg(command.get_program()).args(command.get_args());
    strace.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = strace.output().expect("strace is needed: install package `strace`");
    assert!(output.status.success(), "{}", text(&output.stderr));
    std::fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect()
}

/// What came to `target` was on disk before, and its name afterwards.
#[track_caller]
pub(crate) fn assert_durable(calls: &[String], target: &Path) {
    let shown = calls.join("\n");
    let to = format!("\"{}\"", target.display());
    let at = calls.iter().position(|call| call.contains("rename") && call.contains(&to));
    let at = at.unwrap_or_else(|| panic!("nothing was moved to {to}:\n{shown}"));
    let from = calls[at].split('"').nth(1).unwrap();
    let synced = |calls: &[String], path: &str| {
        let path = format!("<{path}>");
        calls.iter().any(|call| call.contains("sync") && call.contains(&path))
    };
    assert!(synced(&calls[..at], from), "{from} is not synced before the rename:\n{shown}");
    let folder = target.parent().unwrap().to_str().unwrap();
    assert!(synced(&calls[at..], folder), "{folder} is not synced after the rename:\n{shown}");
}

#[test]
fn a_recording_is_on_disk_before_it_takes_the_others_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    sample().write(&path("run.json")).unwrap();
    let mut merge = Command::new(env!("CARGO_BIN_EXE_profiler"));
    merge.arg("merge").arg(path("run.json")).arg("-o").arg(path("sum.json"));
    assert_durable(&calls(&merge), &path("sum.json"));
}
