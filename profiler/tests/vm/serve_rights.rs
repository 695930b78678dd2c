//! What the daemon can still do once it has dropped its rights, what it cannot do without each capability that it keeps, and
//! handlers whose probes come off and on again.

use std::fs;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use profiler::serve::rights::{self, Exec, KEPT};
use profiler_kernel::target::{KernelFiles, Target};
use profiler_probe::{Options, ProbeError, Probes, Session as _, hit_cost};
use profiler_recording::Backend;
use rustix::thread::CapabilitySet;

use crate::matrix;
use crate::replaced::{build_id, other_build, put_back};
use crate::testbed;

const INNER: &str = "testbed_inner";
const OUTER: &str = "testbed_outer";

fn resolved(names: &[&str]) -> Vec<Target> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    KernelFiles::default().resolve(Some(testbed::NAME), &names).unwrap().targets
}

fn attached(names: &[&str], backend: Option<Backend>) -> Result<Probes, ProbeError> {
    attached_to(&resolved(names), backend)
}

fn attached_to(targets: &[Target], backend: Option<Backend>) -> Result<Probes, ProbeError> {
    Probes::attach(targets, Options { backend, force: true, ..Options::default() })
}

/// Calls of the only handler since the last drain.
fn drained(session: &mut Probes) -> u64 {
    session.drain().unwrap().iter().map(|drained| drained.durations.len()).sum()
}

/// What a thread with these rights does; the others keep theirs.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// A line of `/proc/thread-self/status`.
fn status(name: &str) -> String {
    let text = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit('\t').next().unwrap().to_owned()
}

/// Backends that this kernel takes for the testbed, by the table that [`matrix`] checks.
fn usable() -> Vec<Backend> {
    let all = matrix::for_plain_by_force(&matrix::kernel());
    all.into_iter().filter_map(|options| options.backend).collect()
}

/// One of each kind that takes rights of its own: tracing programs, function probes, tracefs, perf events.
fn kinds() -> Vec<Backend> {
    let kind = |backend: &mut Backend| match backend {
        Backend::Fsession | Backend::Fentry => 0,
        Backend::KprobeSession => 1,
        Backend::FunctionGraph => 2,
        Backend::Kprobe => 3,
    };
    let mut kinds = usable();
    kinds.dedup_by_key(kind);
    kinds
}

#[test]
#[ignore = "VM 5.10 7.2: 7.2 has all backends of the others"]
fn with_the_rights_that_are_kept_counts_are_exact_and_the_next_build_is_attached_to() {
    put_back();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let other = other_build(folder.path());
    let backends = kinds();
    println!("backends: {backends:?}");
    let first = build_id();
    for backend in backends.into_iter().map(Some) {
        put_back();
        let (ask, asked) = channel();
        let (answer, answered) = channel();
        thread::scope(|scope| {
            let daemon = scope.spawn(move || {
                let mut session = attached(&[INNER], backend).unwrap();
                let kept = rights::drop_rights_of_thread(Exec::Keeper).unwrap();
                println!("{backend:?}: {kept:?}");
                let held = KEPT.iter().map(|kept| kept.bit.bits()).sum::<u64>();
                for set in ["CapPrm", "CapEff", "CapBnd"] {
                    assert_eq!(u64::from_str_radix(&status(set), 16), Ok(held), "{set}");
                }
                for set in ["CapInh", "CapAmb"] {
                    assert_eq!(u64::from_str_radix(&status(set), 16), Ok(0), "{set}");
                }
                assert_eq!((status("NoNewPrivs"), status("Seccomp:")), ("1".into(), "2".into()));
                // The module cannot be unloaded from here: neither the capability nor the call is left.
                let unloaded = nix::kmod::delete_module(
                    c"hids_testbed",
                    nix::kmod::DeleteModuleFlags::empty(),
                );
                assert_eq!(unloaded, Err(nix::errno::Errno::EPERM));
                testbed::trigger("nested 137");
                assert_eq!(drained(&mut session), 137, "{backend:?}");
                drop(session);
                ask.send(()).unwrap();
                answered.recv().unwrap();
                let mut session = attached(&[INNER], backend).unwrap();
                testbed::trigger("nested 211");
                let books = session.drain().unwrap().remove(0);
                assert_eq!((books.durations.len(), books.books.entries), (211, 211), "{backend:?}");
                build_id()
            });
            // A thread that still may.
            if asked.recv().is_ok() {
                testbed::remove();
                testbed::insert(&other);
                answer.send(()).unwrap();
            }
            let second = daemon.join().unwrap();
            assert_ne!(first, second, "{backend:?}");
        });
    }
    put_back();
}

/// What can be done with some capabilities, in words.
fn possible(keep: CapabilitySet, backends: &[Backend]) -> Vec<(String, Result<(), String>)> {
    let mut all = Vec::new();
    let mut note = |what: &str, done: Result<(), String>| all.push((what.to_owned(), done));
    // One with maps.
    let backend = backends.iter().rev().find(|&&backend| backend != Backend::FunctionGraph);
    let mut session = attached(&[INNER], backend.copied()).unwrap();
    rights::drop_capabilities(keep).unwrap();
    let targets = resolved(&[INNER]);
    note("see addresses", if targets[0].address == 0 { Err("hidden".to_owned()) } else { Ok(()) });
    let drain = session.drain().map(drop).map_err(|error| error.to_string());
    note("drain", drain);
    let pause = session.pause(0).map(drop).map_err(|error| error.to_string());
    note("pause", pause);
    note("resume", session.resume(0).map(drop).map_err(|error| error.to_string()));
    drop(session);
    for &backend in backends {
        let attach = in_thread(|| {
            attached_to(&targets, Some(backend)).map(drop).map_err(|error| error.to_string())
        });
        note(&format!("attach {backend}"), attach);
    }
    all
}

#[test]
#[ignore = "VM 5.10 6.1: before and after bpf(2) was opened to maps by fd (5.19)"]
fn each_capability_that_is_kept_is_needed_and_no_other() {
    testbed::load();
    // As on most machines: without it, everybody sees addresses.
    fs::write("/proc/sys/kernel/kptr_restrict", "1").unwrap();
    let backends = kinds();
    let kept = KEPT.iter().fold(CapabilitySet::empty(), |all, kept| all | kept.bit);
    let narrower = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYSLOG;
    let failures = |name: &str, keep| {
        let failed = |(what, done): (String, Result<(), String>)| Some((what, done.err()?));
        let all = in_thread(|| possible(keep, &backends));
        let failed: Vec<_> = all.into_iter().filter_map(failed).collect();
        for (what, why) in &failed {
            let why: String = why.replace('\n', " ").chars().take(300).collect();
            println!("with {name}: cannot {what}: {why}");
        }
        failed
    };
    assert_eq!(failures("all that are kept", kept), []);
    for capability in &KEPT {
        let without = failures(&format!("all but {}", capability.name), kept - capability.bit);
        assert!(!without.is_empty(), "{} is not needed", capability.name);
    }
    // The capabilities for BPF and perf do not do: the kernel lists the BTF of modules for CAP_SYS_ADMIN.
    assert!(!failures("CAP_BPF CAP_PERFMON CAP_SYSLOG", narrower).is_empty());
    // On 5.10 even maps that are open are closed to it (commit c8644cd0efe7, Linux 5.19).
    let without = failures("none", CapabilitySet::empty());
    let is_drained = without.iter().all(|(what, _)| what != "drain");
    assert_eq!(is_drained, testbed::series() != "5.10");
}

/// Durations, entries, lost calls and those under way of each handler.
fn figures(session: &mut Probes) -> Vec<[u64; 4]> {
    let figures = |drained: profiler_probe::Drained| {
        let books = drained.books;
        [drained.durations.len(), books.entries, books.lost, books.in_flight]
    };
    session.drain().unwrap().into_iter().map(figures).collect()
}

/// Backends that put probes back on this kernel: before 5.13 a tracing program is attached once.
fn puts_back(backend: Backend) -> bool {
    let once =
        testbed::series() == "5.10" && matches!(backend, Backend::Fentry | Backend::Fsession);
    backend != Backend::FunctionGraph && !once
}

#[test]
#[ignore = "VM 5.10 7.2: 7.2 has all backends of the others"]
fn a_paused_handler_is_not_measured_and_all_else_is_exact() {
    testbed::load();
    for backend in usable() {
        let mut session = attached(&[INNER, OUTER], Some(backend)).unwrap();
        testbed::trigger("nested 100");
        let begun = Instant::now();
        let is_off = session.pause(0).unwrap();
        let paused = begun.elapsed();
        assert_eq!(is_off, backend != Backend::FunctionGraph, "{backend}");
        if !is_off {
            testbed::trigger("nested 50");
            assert_eq!(figures(&mut session), [[150, 150, 0, 0]; 2], "{backend}: as before");
            continue;
        }
        testbed::trigger("nested 50");
        assert_eq!(figures(&mut session), [[100, 100, 0, 0], [150, 150, 0, 0]], "{backend}");
        let begun = Instant::now();
        let is_on = session.resume(0).unwrap();
        println!("{backend}: off in {paused:?}, on in {:?}", begun.elapsed());
        assert_eq!(is_on, puts_back(backend), "{backend}");
        testbed::trigger("nested 25");
        let inner = if is_on { [25, 125, 0, 0] } else { [0, 100, 0, 0] };
        assert_eq!(figures(&mut session), [inner, [25, 175, 0, 0]], "{backend}");
        if is_on {
            for _ in 0..2 {
                assert!(session.pause(0).unwrap() && session.resume(0).unwrap(), "{backend}");
            }
            testbed::trigger("nested 5");
            assert_eq!(figures(&mut session), [[5, 130, 0, 0], [5, 180, 0, 0]], "{backend}");
        }
        drop(session);
        // Nothing holds the module.
        testbed::remove();
        testbed::load();
    }
}

#[test]
#[ignore = "VM 5.10 7.2: 7.2 has all backends of the others"]
fn a_call_under_way_when_its_handler_is_paused_is_lost_and_mistaken_for_no_other() {
    testbed::load();
    for backend in usable().into_iter().filter(|&backend| puts_back(backend)) {
        let mut session = attached(&["testbed_hold"], Some(backend)).unwrap();
        let holding = thread::spawn(|| testbed::trigger("hold 3000"));
        let begun = Instant::now();
        while session.drain().unwrap()[0].books.entries == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the call does not begin");
        }
        session.pause(0).unwrap();
        assert_eq!(figures(&mut session), [[0, 1, 1, 0]], "{backend}");
        assert!(session.resume(0).unwrap(), "{backend}");
        holding.join().unwrap();
        testbed::trigger("hold 1");
        let drained = session.drain().unwrap().remove(0);
        let books = drained.books;
        assert_eq!((drained.durations.len(), books.entries), (1, 2), "{backend}: {books:?}");
        assert_eq!((books.lost, books.in_flight), (1, 0), "{backend}: {books:?}");
        // Of the call that began before its probes were back, the exit alone is seen, if at all.
        assert!(books.unpaired_exits <= 1, "{backend}: {books:?}");
        assert!(drained.durations.max_ns().unwrap() < 2_000_000_000, "{backend}");
    }
}

#[test]
#[ignore = "VM 5.10 7.2: 7.2 has all backends of the others"]
fn what_a_hit_costs_is_measured_without_a_load() {
    testbed::load();
    for backend in backends_of_the_image() {
        let begun = Instant::now();
        let cost = hit_cost::measure(backend, Options::default()).unwrap();
        println!("a hit by {backend} costs {cost:.0} ns; measured in {:?}", begun.elapsed());
        // An emulated CPU takes some ten times longer than a real one.
        assert!((20.0..200_000.0).contains(&cost), "{backend}: {cost}");
    }
}

/// Backends that this kernel takes for functions of its image.
fn backends_of_the_image() -> Vec<Backend> {
    let all = Backend::ALL.iter().copied();
    let btf = profiler_kernel::btf::Btf::of(None, profiler_kernel::btf::BTF_FOLDER.as_ref()).ok();
    all.filter(|&backend| profiler_probe::feature::try_backend(backend, btf.as_deref()).is_ok())
        .collect()
}
