//! The hidden program that waits for the profiler's death. What it puts back is tested in VMs
//! (`tests/vm/killed.rs`), where there is something to put back.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program::PATIENCE;

/// A keeper of a process that there never was: what it waits for is the end of its input alone.
fn keeper() -> Child {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let namespace = namespace.to_str().unwrap().trim_matches(|c: char| !c.is_ascii_digit());
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    // The largest process id there can be.
    command.args(["__keeper", &format!("{namespace}_4194303_1")]);
    let mut keeper = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    keeper.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    keeper
}

fn open_files(process: &Child) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap().flatten();
    let mut names: Vec<String> =
        files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_keeper_ends_with_its_input_and_with_nothing_else() {
    for word in [Some(b"\n"), None] {
        // Open in every program that this one starts.
        let inherited = nix::unistd::pipe().unwrap();
        let mut keeper = keeper();
        drop(inherited);
        assert_eq!(open_files(&keeper), ["0", "1", "2"]);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            kill(Pid::from_raw(keeper.id().cast_signed()), signal).unwrap();
        }
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(keeper.try_wait().unwrap(), None);

        let mut input = keeper.stdin.take().unwrap();
        if let Some(word) = word {
            input.write_all(word).unwrap();
        } else {
            drop(input);
        }
        let patience = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = keeper.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < patience, "it does not end: {word:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{word:?}: {status}");
    }
}

#[test]
fn a_keeper_of_nobody_does_not_start() {
    for life in [&[][..], &["1"], &["1_2_x"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        let output = command.arg("__keeper").args(life).stdin(Stdio::null()).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{life:?}");
    }
}
