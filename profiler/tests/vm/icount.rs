//! Virtual time: a nanosecond of the guest's clock is one instruction, on one CPU.
//!
//! The first run of code takes more instructions (pages are mapped, caches
//! filled), so each measurement is of a second run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use profiler::cmd::cost::{self, CostArgs};
use profiler_kernel::btf::{BTF_FOLDER, Btf};
use profiler_load::BuiltinKind;
use profiler_probe::feature::try_backend;
use profiler_probe::{Options, Probes, Session as _};
use profiler_recording::{Backend, Clock};

use crate::testbed::{self, TEN};
use crate::window::{Attached, Measured, Window, builtin, resolve, run_loads};

/// Largest error of a measured difference.
const TOLERANCE: f64 = 0.01;

/// Instructions of one iteration of the module's loop.
const ITERATION: f64 = 2.0;

/// Most instructions that the probes may add to one call beyond the limit: 54.1 were measured by fentry on 6.1, and 76.8 by
/// fsession on 7.2, where two rounds may differ by 10. Not as a multiple of the limit: operations without probes, to which that
/// compares, took 10,411 instructions in one round and 10,450 in the others.
const fn most(backend: Backend) -> f64 {
    if matches!(backend, Backend::Fsession) { 87.0 } else { 58.0 }
}

/// One window of a handler under its load. The probes stay.
fn measure(session: Attached, kind: BuiltinKind, operations: u64) -> (Measured, Attached) {
    let window = Window::of(session);
    run_loads(vec![builtin(kind, operations)]);
    let (mut measured, session) = window.end_and_keep();
    let measured = measured.remove(0);
    measured.assert_exact();
    assert!(measured.count() >= operations, "{measured:?}");
    (measured, session)
}

/// The same of `calls` that the testbed makes itself at a command.
fn trigger(session: Attached, command: &str, calls: u64) -> (Vec<Measured>, Attached) {
    let window = Window::of(session);
    testbed::trigger(&format!("{command} {calls}"));
    let (measured, session) = window.end_and_keep();
    measured.iter().for_each(|measured| measured.assert_exact());
    (measured, session)
}

fn attach(handlers: &[&str], options: Options) -> Attached {
    Attached::new(Probes::attach(&resolve(handlers), options).unwrap())
}

#[test]
#[ignore = "VM 6.1, virtual time"]
fn an_added_delay_is_measured_to_one_percent() {
    for (handler, kind) in [
        ("connect_syscall_entry_handler", BuiltinKind::Connect),
        ("bind_handler", BuiltinKind::Bind),
        ("ptrace_pre_handler", BuiltinKind::Ptrace),
    ] {
        let (_, mut session) = measure(attach(&[handler], Options::default()), kind, 500);
        let mut bare = None;
        for iterations in [0, 1_000, 10_000] {
            testbed::spin(handler, iterations);
            let (measured, again) = measure(session, kind, 4_000);
            session = again;
            testbed::spin(handler, 0);
            let mean = measured.uninterrupted_mean_ns();
            println!(
                "{handler}, {iterations} iterations: {mean:.2} ns, all {:.2}",
                measured.mean_ns()
            );
            let added = mean - *bare.get_or_insert(mean);
            let known = ITERATION * iterations as f64;
            assert!(
                (added - known).abs() <= TOLERANCE * known,
                "{handler}: {iterations} iterations add {added} ns and not {known}"
            );
        }
    }
}

/// Writes the values that two boots have to agree on. All handlers have probes throughout: attaching takes longer than a load.
#[test]
#[ignore = "VM 6.1, virtual time, twice"]
fn two_boots_measure_the_same() {
    let mut values = BTreeMap::new();
    let mut session = attach(&TEN, Options::default());
    for (hook, kind, operations) in [
        ("connect_", BuiltinKind::Connect, 1_000),
        ("bind_", BuiltinKind::Bind, 1_000),
        ("execve_", BuiltinKind::Execve, 60),
        ("udp_", BuiltinKind::UdpRecv, 1_000),
        ("security_", BuiltinKind::Open, 1_000),
        ("ptrace_", BuiltinKind::Ptrace, 1_000),
    ] {
        run_loads(vec![builtin(kind, operations / 8)]);
        let window = Window::of(session);
        run_loads(vec![builtin(kind, operations)]);
        let (all, again) = window.end_and_keep();
        session = again;
        for measured in all.iter().filter(|measured| measured.name().starts_with(hook)) {
            measured.assert_exact();
            assert!(measured.count() >= operations, "{measured:?}");
            let (handler, durations) = (measured.name(), &measured.measure.durations);
            let quantile = |q| durations.histogram().value_at_quantile(q) as f64;
            for (statistic, value) in [
                ("mean", measured.uninterrupted_mean_ns()),
                ("tp90", quantile(0.90)),
                ("tp95", quantile(0.95)),
                ("tp99", quantile(0.99)),
            ] {
                let before = values.insert(format!("{handler}.{statistic}"), value);
                assert_eq!(before, None, "{handler} twice");
            }
            println!(
                "{handler}: {} calls, min {:?}, mean {:.2}, TP99 {}, max {:?}",
                measured.count(),
                durations.min_ns(),
                measured.mean_ns(),
                quantile(0.99),
                durations.max_ns()
            );
        }
    }
    assert_eq!(values.len(), 4 * TEN.len(), "a handler has no load:\n{values:?}");
    let out = std::env::var_os("PROFILER_VM_OUT").expect("PROFILER_VM_OUT names the output folder");
    let values = serde_json::to_vec(&values).unwrap();
    std::fs::write(PathBuf::from(out).join("values.json"), values).unwrap();
}

#[test]
#[ignore = "VM 6.1 7.2, virtual time"]
fn the_probes_cost_what_they_may() {
    let targets = resolve(&["connect_syscall_entry_handler"]);
    // What the guest does beside it, such as udev's work after a boot, is in one round or two: five tell it from a cost.
    let args = CostArgs {
        module: None,
        handler: targets[0].name.clone(),
        builtin: BuiltinKind::Connect,
        backend: None,
        operations: 6_000,
        rounds: 5,
        clock: Clock::Virtual,
        json: None,
    };
    let cost = cost::measure(&targets[0], &args).unwrap();
    println!("{cost:?}");
    let (floor, limit, added) =
        (cost.floor_per_hit_ns, cost.limit_per_hit_ns, cost.added_per_hit_ns);
    assert!((0.99..1.01).contains(&cost.hits_per_operation), "{cost:?}");
    assert!(100.0 < floor, "{cost:?}");
    // A clock read takes tens of instructions, and there are two.
    assert!(
        (floor + 40.0..floor + 200.0).contains(&limit),
        "the floor is {floor}, the limit {limit}"
    );
    assert!(limit < added, "the limit is {limit}, and {added} are added");
    cost.ratio_to_limit.expect("rounds agree under virtual time");
    let beyond = added - limit;
    assert!(
        beyond <= most(cost.backend),
        "{added} instructions are added to each call, {beyond} beyond the limit"
    );
}

/// Without chance in the clock, the 32 levels of a recursion take 32 times, each longer than the
/// one inside it.
#[test]
#[ignore = "VM 6.1, virtual time"]
fn each_level_of_a_recursion_contains_the_next() {
    const DEPTH: u64 = 32;
    testbed::load();
    testbed::trigger(&format!("recurse {DEPTH}"));
    let window = Window::on(&["testbed_recurse"]);
    testbed::trigger(&format!("recurse {DEPTH}"));
    let measured = window.end().remove(0);
    measured.assert_exact();
    let levels: Vec<u64> = measured
        .measure
        .durations
        .histogram()
        .iter_recorded()
        .map(|bucket| bucket.count_at_value())
        .collect();
    assert_eq!(levels, [1; DEPTH as usize], "{:?}", measured.measure);
}

/// Largest difference in instructions between two backends on one handler, after subtracting their floors.
const AGREEMENT: f64 = 40.0;

/// Each backend's duration of a handler less its floor, since both contain the backend's
/// bias.
#[test]
#[ignore = "VM 6.1 7.2, virtual time"]
fn the_backends_agree_after_their_floors() {
    const SPIN: u64 = 500;
    const CALLS: u64 = 4_000;
    testbed::load();
    let functions = Btf::of(None, Path::new(BTF_FOLDER)).unwrap();
    let plain = |backend, handler, command: &str| {
        let options = Options { backend: Some(backend), ..Options::default() };
        let (_, session) = trigger(attach(&[handler], options), command, 500);
        let (mut measured, _) = trigger(session, command, CALLS);
        measured.remove(0).uninterrupted_mean_ns()
    };
    let mut table = format!(
        "{:<15} {:>8} {:>10} {:>8} {:>10} {:>8}\n",
        "backend", "empty", "in kprobe", "less", "plain", "less"
    );
    let mut compared: Vec<(Backend, Option<f64>, f64)> = Vec::new();
    for &backend in Backend::ALL {
        if let Err(refusal) = try_backend(backend, Some(&functions)) {
            writeln!(table, "{backend:<15} not on this kernel: {}", refusal.what).unwrap();
            continue;
        }
        // Work of the kernel beside it came upon its calls of the empty function there.
        if backend == Backend::FunctionGraph && testbed::series() == "7.2" {
            continue;
        }
        let floor = plain(backend, "testbed_empty", "empty");
        testbed::spin("testbed_inner", SPIN);
        let outside = plain(backend, "testbed_inner", "nested");
        testbed::spin("testbed_inner", 0);
        // A kprobe counts nothing in a kprobe.
        let inside = (backend != Backend::Kprobe).then(|| {
            let options = Options { backend: Some(backend), ..Options::default() };
            let session = attach(&["connect_syscall_entry_handler"], options);
            let (_, session) = measure(session, BuiltinKind::Connect, 500);
            let (measured, _) = measure(session, BuiltinKind::Connect, CALLS);
            measured.uninterrupted_mean_ns()
        });
        let cell = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        writeln!(
            table,
            "{backend:<15} {floor:>8.1} {:>10} {:>8} {outside:>10.1} {:>8.1}",
            cell(inside),
            cell(inside.map(|mean| mean - floor)),
            outside - floor
        )
        .unwrap();
        compared.push((backend, inside.map(|mean| mean - floor), outside - floor));
    }
    println!("{table}");
    let out = std::env::var_os("PROFILER_VM_OUT").expect("PROFILER_VM_OUT names the output folder");
    std::fs::write(PathBuf::from(out).join("backends.txt"), &table).unwrap();
    assert!(compared.len() >= 2, "nothing to compare:\n{table}");
    for (one, inside, outside) in &compared {
        for (other, other_inside, other_outside) in &compared {
            assert!((outside - other_outside).abs() <= AGREEMENT, "{one}, {other}:\n{table}");
            if let (Some(inside), Some(other_inside)) = (inside, other_inside) {
                assert!((inside - other_inside).abs() <= AGREEMENT, "{one}, {other}:\n{table}");
            }
        }
    }
}

/// Here a second is a billion instructions, whatever else the machine does. Each handler has programs of its own, which the
/// kernel verifies, compiles and links one by one, also where a link could take many functions: most of the time is the
/// kernel's.
#[test]
#[ignore = "VM 6.1 7.2, virtual time"]
fn sixty_handlers_attach_soon() {
    let (backend, longest) = match testbed::series().as_str() {
        "6.1" => (Backend::Fentry, Duration::from_secs(3)),
        _ => (Backend::KprobeSession, Duration::from_secs(2)),
    };
    let mut patterns = TEN.to_vec();
    patterns.push("testbed_trivial_*");
    let targets = resolve(&patterns);
    assert_eq!(targets.len(), 60);
    let options = Options { backend: Some(backend), ..Options::default() };
    // The program's own code is read over 9p when it first runs, and the clock goes on meanwhile.
    drop(Probes::attach(&targets[..1], options).unwrap());
    let in_kernel = time_in_kernel();
    let attaching = Instant::now();
    let mut session = Probes::attach(&targets, options).unwrap();
    let (took, in_kernel) = (attaching.elapsed(), time_in_kernel() - in_kernel);
    println!("sixty handlers attached by {backend} in {took:?}, {in_kernel:?} of it in the kernel");
    assert_eq!(session.targets().len(), 60);
    assert!(took < longest, "attaching by {backend} took {took:?}");
    let own = took.saturating_sub(in_kernel);
    assert!(own < Duration::from_secs(1), "the profiler itself took {own:?}");
    // The first drain's code is read over 9p, too.
    session.drain().unwrap();
    for after in ["no handler was called", "each was called"] {
        let before = cpu_time();
        session.drain().unwrap();
        let took = cpu_time() - before;
        println!("sixty handlers drained by {backend} in {took:?}: {after}");
        assert!(took < DRAIN, "{after}: {took:?}");
        testbed::trigger("trivial 20");
    }
}

/// Most CPU time that a drain of sixty handlers takes; it also waits for the kernel.
const DRAIN: Duration = Duration::from_millis(100);

/// CPU time of this thread.
fn cpu_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// CPU time of this thread in system calls.
fn time_in_kernel() -> Duration {
    let used = getrusage(UsageWho::RUSAGE_THREAD).unwrap().system_time();
    Duration::from_micros(u64::try_from(used.num_microseconds()).unwrap())
}

/// Flags of CPUs with fast `rep stosb` and `rep movsb`: the kernel then uses them, one step per byte.
const FAST_STRINGS: [&str; 5] = ["erms", "fsrm", "fzrm", "fsrs", "fsrc"];

/// Hardware clears 4 KiB in less than a hundred cycles, and QEMU counts each step of `rep stosb`.
#[test]
#[ignore = "VM 6.1, virtual time"]
fn a_memset_is_not_an_instruction_a_byte() {
    const BYTES: [u64; 2] = [8, 4096];
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap();
    let fast: Vec<&str> =
        flags.split_whitespace().filter(|flag| FAST_STRINGS.contains(flag)).collect();
    testbed::load();
    let mean = |bytes| {
        testbed::trigger(&format!("clear {bytes} 500"));
        let window = Window::on(&["testbed_clear"]);
        testbed::trigger(&format!("clear {bytes} 4000"));
        let measured = window.end().remove(0);
        measured.assert_exact();
        measured.mean_ns()
    };
    let [few, many] = BYTES.map(mean);
    // 6.1 clears by `rep stosq`; 6.12 by a loop of 11 instructions for 64 bytes.
    let words = (BYTES[1] - BYTES[0]) as f64 / 8.0;
    let added = (many - few) / words;
    println!("{} bytes take {few:.1} and {} take {many:.1}: {added:.2} a word", BYTES[0], BYTES[1]);
    assert!((0.98..1.5).contains(&added), "{added:.2} instructions for 8 bytes, flags {fast:?}");
    assert_eq!(fast, [""; 0], "{flags}");
}
