//! Runs that are ended from outside.

use std::error::Error;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use aya::maps::loaded_maps;
use aya::programs::links::{LinkInfo, LinkType};
use aya::programs::{loaded_links, loaded_programs};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;
use profiler_base::error::exit;
use profiler_load::{LoadStatus, StopReason};

use crate::cli::{Started, assert_whole, eventually, folder, saved};
use crate::testbed::{self, Counters};
use crate::window::{MEMORY, program};

const CONNECT: &str = "--module hids_testbed --handler connect_*";

/// The profiler's objects in the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Ids of programs.
    pub(crate) programs: Vec<u32>,
    maps: Vec<u32>,
    /// Links of tracing programs: the VM has no others.
    links: Vec<u32>,
}

impl Left {
    pub(crate) fn now() -> Self {
        let is_ours = |name: Option<&str>| name.is_some_and(|name| name.starts_with("profiler_"));
        let programs = there(loaded_programs()).filter(|program| is_ours(program.name_as_str()));
        let maps = there(loaded_maps()).filter(|map| is_ours(map.name_as_str()));
        let is_tracing = |link: &LinkInfo| matches!(link.link_type(), Ok(LinkType::Tracing));
        Self {
            programs: programs.map(|program| program.id()).collect(),
            maps: maps.map(|map| map.id()).collect(),
            links: there(loaded_links()).filter(is_tracing).map(|link| link.id()).collect(),
        }
    }

    /// The kernel frees programs and maps after a grace period.
    pub(crate) fn assert_nothing() {
        eventually("programs, maps or links are left", || {
            let left = Self::now();
            let nothing = left == Self::default();
            if !nothing {
                println!("left: {left:?}");
            }
            nothing
        });
    }
}

/// Objects of the kernel's list but for those that are made or freed while it is read.
pub(crate) fn there<T, E: Error + 'static>(
    listed: impl Iterator<Item = Result<T, E>>,
) -> impl Iterator<Item = T> {
    let is_passing = |error: &E| {
        let first: &(dyn Error + 'static) = error;
        let causes = std::iter::successors(Some(first), |&cause| cause.source());
        let mut causes = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
        // A link that is being made cannot be opened yet.
        let passing = [io::ErrorKind::NotFound, io::ErrorKind::WouldBlock];
        causes.any(|cause| passing.contains(&cause.kind()))
    };
    listed.filter_map(move |item| match item {
        Err(error) if is_passing(&error) => None,
        item => Some(item.unwrap()),
    })
}

/// Processes of the program except one.
pub(crate) fn processes(except: Option<nix::unistd::Pid>) -> Vec<String> {
    let except = except.map(|pid| pid.to_string());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|pid| Some(pid) != except.as_ref())
        .collect()
}

/// Folders of the `open` load.
pub(crate) fn load_folders() -> usize {
    let entries = fs::read_dir(MEMORY).unwrap().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("profiler-load-"))
        .count()
}

#[test]
#[ignore = "VM 6.1 7.2: killed:: kills runs of every backend on the others"]
fn sigkill_leaves_nothing_behind() {
    testbed::load();
    Left::assert_nothing();
    let mut killed = Started::run(
        &format!(
            "{CONNECT} --handler security_inode_create_pre_handler --handler ptrace_pre_handler \
             --builtin connect,open,ptrace,execve --load-dir {MEMORY} --duration 60s \
             --json {{}}/result.json"
        ),
        &[],
    );
    killed.wait_measuring();
    let there = Left::now();
    let programs = 4 * crate::matrix::programs_of_a_handler();
    assert_eq!((there.programs.len(), there.links.len()), (programs, programs), "{there:?}");
    // Three for each handler, and the displaced starts.
    assert!(there.maps.len() > 3 * 4, "{there:?}");
    eventually("the loads do not start", || {
        load_folders() == 1 && processes(Some(killed.pid())).len() >= 2
    });

    killed.signal(Signal::SIGKILL);
    assert_eq!(killed.end().code, None);
    Left::assert_nothing();
    eventually("processes of the loads are left", || processes(None).is_empty());
    eventually("the folder of the load is left", || load_folders() == 0);
    assert!(!killed.path("result.json").exists());
    testbed::remove();
    assert!(!testbed::is_loaded());
    testbed::load();
}

#[test]
#[ignore = "VM 5.10 6.1 7.2: 6.12 takes the backend of 6.1"]
fn the_driver_can_be_unloaded_when_the_first_byte_of_a_report_is_out() {
    testbed::load();
    let folder = folder();
    let fifo = folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // The reader does not read yet, and the pipe is smaller than the output.
    let mut reader = fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    fcntl(&reader, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    let fifo = fifo.display();
    let mut run = Started::run(
        &format!(
            "--module hids_testbed --handler *_handler --builtin connect --operations 300 --json {fifo}"
        ),
        &[],
    );
    let mut byte = [0; 1];
    reader.read_exact(&mut byte).unwrap();
    testbed::remove();
    assert!(!testbed::is_loaded());

    // The reader stays blocked at the end: this process is a writer of the pipe, too.
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let ended = run.end();
    testbed::load();
    ended.assert_code(exit::OK);
}

#[test]
#[ignore = "VM 5.10 7.2: the oldest and the newest"]
fn signals_end_a_run_with_its_report() {
    testbed::load();
    for (signal, code) in [
        (Signal::SIGINT, exit::INTERRUPTED),
        (Signal::SIGTERM, exit::TERMINATED),
        (Signal::SIGHUP, exit::HUNG_UP),
    ] {
        let mut run = Started::run(
            &format!("{CONNECT} --builtin connect --duration 60s --json {{}}/result.json"),
            &[],
        );
        run.wait_measuring();
        let connects = || Counters::calls().of("connect_syscall_handler");
        let before = connects();
        eventually("the load does not begin", || connects() >= before + 10);
        run.signal(signal);
        let ended = run.end();
        ended.assert_code(code).assert_error(&[signal.as_str()]);
        let profile = saved(run.path("result.json"), &ended.stdout);
        assert!(profile.interrupted);
        assert!(profile.window_ns < 30_000_000_000, "{}", profile.window_ns);
        let by = StopReason::Interrupted;
        assert_eq!(profile.loads[0].outcome.status, LoadStatus::Stopped { by });
        for handler in &profile.handlers {
            assert!(handler.count > 0, "{handler:?}");
            assert_whole(handler);
        }
        assert_eq!(profile.warnings[0].code, "interrupted");
        Left::assert_nothing();
    }
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_load_that_will_not_end_is_ended() {
    testbed::load();
    // It and its orphaned child ignore SIGTERM.
    let script = "trap '' TERM INT HUP; (setsid sleep 1234.5 &); echo $$ >\"$0\"; \
                  while :; do echo x >/dev/udp/127.0.0.1/9; sleep 0.1; done";
    let pids = tempfile::NamedTempFile::new_in(MEMORY).unwrap();
    let pid_file = pids.path().to_str().unwrap();
    let mut run = Started::run(
        &format!("{CONNECT} --json {{}}/result.json"),
        &["bash", "-c", script, pid_file],
    );
    run.wait_measuring();
    let mut pid = String::new();
    eventually("the load does not start", || {
        pid = fs::read_to_string(pids.path()).unwrap().trim().to_owned();
        !pid.is_empty() && sleepers() == 1
    });
    run.signal(Signal::SIGTERM);
    let ended = run.end();
    ended.assert_code(exit::TERMINATED);
    let profile = saved(run.path("result.json"), &ended.stdout);
    assert!(profile.interrupted);
    assert!(profile.handlers[0].count > 0, "{:?}", profile.handlers[0]);
    assert!(!Path::new("/proc").join(&pid).exists(), "the load is still there");
    assert_eq!(sleepers(), 0, "what the load started is still there");
    assert_eq!(processes(None), Vec::<String>::new());
}

fn sleepers() -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| {
            fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == b"sleep\x001234.5\x00")
        })
        .count()
}
