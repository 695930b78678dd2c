//! The files in `ltp-profiles`, and `profiler profiles`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profiler_load::BuiltinKind;
use profiler_load::profile::{Library, LoadProfile};

use crate::common::ten::TEN;
use crate::program::text;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ltp-profiles")
}

fn all() -> Vec<LoadProfile> {
    let listed = Library::default().list().unwrap();
    listed.into_iter().map(|entry| entry.profile.unwrap()).collect()
}

/// `profiler profiles ARGS...` without any folder of this machine's user.
fn profiles(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    command.arg("profiles").args(args).env_remove("PROFILER_PROFILES");
    command.output().unwrap()
}

#[test]
fn every_file_is_whole_and_every_builtin_load_has_one() {
    let mut loads = BTreeSet::new();
    for profile in all() {
        let place = &profile.name;
        assert!(!profile.notes.is_empty(), "{place}: no notes");
        assert_eq!(profile.modules, ["hids_driver", "elkeid", "hids_testbed"], "{place}");
        let hook = &profile.hook;
        if !profile.parts.is_empty() {
            continue;
        }
        if let Some(builtin) = &hook.builtin {
            loads.insert(builtin.kind.name());
            let most = hook.handlers.iter().map(|wanted| wanted.least_hits).max().unwrap();
            assert!(builtin.operations >= most, "{place}: too few operations for its hits");
        }
        let ltp = hook.ltp.as_ref().unwrap();
        assert_eq!(ltp.suite, "syscalls", "{place}");
        assert!(ltp.tests.starts_with('^') && ltp.tests.ends_with('$'), "{place}: matches more");
        // Hooks that are off in the driver's default say so, and where they are switched on.
        assert_eq!(hook.parameter.is_some(), profile.notes.contains(" default"), "{place}");
    }
    // General loads are for no hook.
    let of_hooks = BuiltinKind::ALL.iter().filter(|kind| !BuiltinKind::GENERAL.contains(kind));
    let known: BTreeSet<&str> = of_hooks.map(|kind| kind.name()).collect();
    let without: Vec<_> = known.difference(&loads).collect();
    assert!(without.is_empty(), "built-in loads without a profile: {without:?}");
}

#[test]
fn the_hooks_of_elkeid_have_a_profile_each() {
    let names: BTreeSet<String> = all().into_iter().map(|profile| profile.name).collect();
    for hook in [
        "connect",
        "bind",
        "execve",
        "security_inode_create",
        "ptrace",
        "udp_recvmsg",
        "dns",
        "rename",
        "link",
        "setsid",
        "prctl",
        "mount",
        "memfd_create",
        "do_init_module",
        "update_cred",
        "call_usermodehelper",
        "accept",
        "mprotect",
        "nanosleep",
        "kill",
        "tkill",
        "exit",
        "unlink",
        "rmdir",
        "open",
        "write",
    ] {
        assert!(names.contains(hook), "no profile {hook}");
    }
}

#[test]
fn the_parts_of_elkeid_are_the_rows_of_its_table() {
    let library = Library::default();
    let elkeid = library.find(&folder().join("elkeid.toml").to_string_lossy()).unwrap();
    assert!(!elkeid.parts.is_empty());
    let mut rows = Vec::new();
    for part in library.parts(&elkeid).unwrap() {
        let hook = &part.hook;
        assert!(hook.builtin.is_some(), "{}", part.name);
        rows.extend(hook.handlers.iter().map(|wanted| wanted.name.clone()));
    }
    assert_eq!(rows, TEN);
}

#[test]
fn the_list_has_every_profile_and_can_be_read_by_machines() {
    let output = profiles(&[]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let table = text(&output.stdout);
    let output = profiles(&["--json"]);
    assert_eq!(output.status.code(), Some(0));
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let listed = listed.as_array().unwrap();
    let files = fs::read_dir(folder()).unwrap().flatten();
    let files = files.filter(|file| file.path().extension().is_some_and(|end| end == "toml"));
    assert_eq!(listed.len(), files.count());
    for entry in listed {
        let name = entry["name"].as_str().unwrap();
        assert!(table.lines().any(|line| line.split_whitespace().next() == Some(name)), "{table}");
        assert_eq!(entry["error"], serde_json::Value::Null);
        assert_eq!(entry["profile"]["name"], name);
    }
}

#[test]
fn the_files_of_some_are_printed() {
    let output = profiles(&["bind", "elkeid"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for words in [
        "# built-in bind.toml",
        "name = \"bind_entry_handler\"",
        "^bind0[1-6]$",
        "about 30 times",
        "# built-in elkeid.toml",
    ] {
        assert!(shown.contains(words), "`{words}` is missing:\n{shown}");
    }
}

#[test]
fn a_bad_file_of_the_user_is_told_with_its_place() {
    let mine = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let good = fs::read_to_string(folder().join("bind.toml")).unwrap();
    fs::write(mine.path().join("bind.toml"), &good).unwrap();
    fs::write(mine.path().join("bad.toml"), good.replace("operations", "operation")).unwrap();
    let path = mine.path().to_str().unwrap();
    let output = profiles(&["--profiles-dir", path]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let line = good.lines().position(|line| line.starts_with("operations")).unwrap() + 1;
    let error = text(&output.stderr);
    assert!(
        error.contains(&format!("bad.toml:{line}:1: ")) && error.contains("operation"),
        "{error}"
    );
    let table = text(&output.stdout);
    assert!(table.contains("hidden by one above") && table.contains("cannot be used"), "{table}");

    for (args, code, words) in [
        (["bnid", "--json"], 2, "did you mean `bind`?"),
        (["--profiles-dir", "/nowhere"], 7, "/nowhere"),
        (["nowhere/bind.toml", "--json"], 7, "--profile bind"),
    ] {
        let output = profiles(&args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains(words), "{args:?}: {output:?}");
    }
}
