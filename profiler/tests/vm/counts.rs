//! Every call is counted under all conditions.

use std::process::Command;

use profiler_load::{BuiltinKind, BuiltinLoad};
use profiler_probe::{Options, Probes, Session as _};
use profiler_recording::Backend;

use crate::preempted::OneCpu;
use crate::testbed::{self, Counters, TEN};
use crate::window::{Window, builtin, expected, own_calls, resolve, run_loads};

#[test]
#[ignore = "VM 6.1: elsewhere matrix:: counts the same handlers, by each backend"]
fn ten_handlers_under_six_loads_are_counted_to_the_call() {
    let window = Window::on(&TEN);
    let missed_before = Counters::missed();
    let runs = run_loads(vec![
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Connect, 6_000) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Bind, 3_000) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Execve, 30) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Open, 600) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Ptrace, 1_000) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::UdpRecv, 3_000) },
    ]);
    let measured = window.end();
    assert_eq!(Counters::missed(), missed_before, "the module's own probes miss calls");
    let own = own_calls(&runs);
    for handler in &measured {
        handler.assert_exact();
        let at_least = expected(&own, handler.name());
        assert!(handler.count() >= at_least, "{}: {own:?}", handler.name());
        println!("{}: {} calls", handler.name(), handler.count());
    }
    let total: u64 = measured.iter().map(|handler| handler.count()).sum();
    assert!(total >= 20_000, "{total} calls are too few to show anything");
}

/// There are records of its own for each CPU that is online at the start; the others share one.
#[test]
#[ignore = "VM 5.10 6.1 7.2: 6.12 takes the backend of 6.1"]
fn calls_on_a_cpu_that_comes_online_later_are_counted() {
    const CALLS: u64 = 200;
    let targets = resolve(&["testbed_trivial_0?"]);
    let one = OneCpu::new();
    // The default of 5.10 has no programs.
    let is_old = testbed::series() == "5.10";
    let backend = is_old.then_some(Backend::Kprobe);
    let options = Options { backend, force: is_old, ..Options::default() };
    let session = Probes::attach(&targets, options).unwrap();
    // By hand with `--cpus 20`: more than fits into a value of 4 MiB.
    let online = std::thread::available_parallelism().unwrap().get();
    let fits = online < 19;
    assert_eq!(session.is_direct(), Some(fits || !is_old));
    drop(one);
    let window = Window::attached(session);
    for cpu in ["0", "1", "1"] {
        let command = format!("echo trivial {CALLS} >/proc/hids_testbed/trigger");
        let status = Command::new("taskset").args(["-c", cpu, "sh", "-c", &command]).status();
        assert!(status.unwrap().success(), "on CPU {cpu}");
    }
    for handler in &window.end() {
        handler.assert_exact();
        assert_eq!(handler.count(), 3 * CALLS, "{}", handler.name());
    }
}

#[test]
#[ignore = "VM 6.1: icount:: attaches as many by the other backends"]
fn sixty_handlers_attach_at_once_and_are_all_counted() {
    let mut patterns = TEN.to_vec();
    patterns.push("testbed_trivial_*");
    let targets = resolve(&patterns);
    assert_eq!(targets.len(), 60);
    // An emulated CPU shares the machine with other work: `icount::` checks the times of this and of drains.
    let session = Probes::attach(&targets, Options::default()).unwrap();
    assert_eq!(session.targets().len(), 60);
    assert_memory(&session);

    let mut window = Window::attached(session);
    testbed::trigger("trivial 20");
    let own = own_calls(&run_loads(vec![builtin(BuiltinKind::Connect, 500)]));
    window.drain();
    window.drain();
    let measured = window.end();
    for handler in &measured {
        handler.assert_exact();
        if handler.name().starts_with("testbed_trivial_") {
            assert_eq!(handler.count(), 20, "{}", handler.name());
        } else if handler.name().starts_with("connect_") {
            assert_eq!(handler.count(), own.connect, "{}", handler.name());
        }
    }
}

/// The kernel puts the value of a mappable array at a page (`array_map_alloc`), and of any other behind `struct bpf_array`. By
/// layout, slots and records begin at multiples of a cache line in the value (`probe::counters`).
#[test]
#[ignore = "VM 5.10 7.2: the oldest and the newest"]
fn values_do_not_begin_within_a_cache_line() {
    const MAPPABLE: u64 = 1 << 10;
    const LINE: u64 = 64;
    let session = Probes::attach(
        &resolve(&["testbed_empty"]),
        Options { backend: Some(Backend::Kprobe), force: true, ..Options::default() },
    );
    let session = session.unwrap();
    let text = testbed::run(Command::new("bpftool").args(["-j", "map", "show"]));
    let maps: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    for name in ["profiler_bss", "profiler_record"] {
        let map = maps.iter().find(|map| map["name"] == name).unwrap_or_else(|| panic!("{text}"));
        let flags = map["flags"].as_u64().unwrap();
        assert_eq!(flags & MAPPABLE, MAPPABLE, "{name} lies behind its head: {map}");
    }
    drop(session);
    let text = testbed::run(Command::new("bpftool").args([
        "btf",
        "dump",
        "file",
        "/sys/kernel/btf/vmlinux",
    ]));
    let mut lines = text.lines().skip_while(|line| !line.contains("STRUCT 'bpf_array' "));
    lines.next().expect("the kernel's BTF has struct bpf_array");
    let members = lines.take_while(|line| line.starts_with('\t'));
    let offset = members.last().and_then(|line| line.rsplit_once("bits_offset="));
    let offset = offset.unwrap().1.trim().parse::<u64>().unwrap() / 8;
    println!("bpf_array.value at {offset}, {} into a cache line", offset % LINE);
    assert_ne!(offset % LINE, 0, "a value that is not mapped would do, too");
}

/// What 60 handlers take: records of three digits for the CPUs that are online now, those that come online later share
/// one, and a cache line for each that is possible.
fn assert_memory(session: &Probes) {
    let cpus = |name: &str| {
        let list = std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).unwrap();
        let last = |part: &str| part.rsplit('-').next().unwrap().trim().parse::<u64>().unwrap();
        last(&list) + 1
    };
    let (online, possible) = (cpus("online"), cpus("possible"));
    let bytes = session.memory_bytes();
    println!(
        "sixty handlers: {:.1} MiB, {online} of {possible} CPUs, direct: {:?}",
        bytes as f64 / f64::from(1 << 20),
        session.is_direct()
    );
    let most = 60 * (2 * 110 * 1024 * (online + 1) + 64 * possible.next_power_of_two());
    assert!(bytes <= most, "{bytes} bytes, {online} of {possible} CPUs");
}
