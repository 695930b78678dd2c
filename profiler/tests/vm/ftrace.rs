//! The function-graph backend: every call is counted, and tracefs is as it was found.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use profiler_base::error::exit;
use profiler_load::{BuiltinKind, BuiltinLoad};
use profiler_probe::{Options, Probes};
use profiler_recording::{Backend, Recording};

use crate::cli::{Ended, Started, assert_whole, eventually, profiler, saved};
use crate::testbed::{self, Counters, TEN};
use crate::window::{MEMORY, Measured, Window, builtin, expected, own_calls, resolve, run_loads};

const TRACEFS: &str = "/sys/kernel/tracing";
const RUN: &str = "--module hids_testbed --handler connect_* --backend function-graph";

fn options() -> Options {
    Options { backend: Some(Backend::FunctionGraph), ..Options::default() }
}

fn traced(patterns: &[&str]) -> Window {
    Window::by(Backend::FunctionGraph, patterns)
}

/// Every file of tracefs that a profiler may change, and every instance.
pub(crate) fn tracefs() -> BTreeMap<PathBuf, String> {
    let top = Path::new(TRACEFS);
    let mut files: Vec<PathBuf> = [
        "current_tracer",
        "tracing_on",
        "trace_clock",
        "buffer_size_kb",
        "set_ftrace_filter",
        "set_ftrace_notrace",
        "set_ftrace_pid",
        "set_graph_function",
        "set_graph_notrace",
        "set_event",
        "max_graph_depth",
        "tracing_thresh",
        "tracing_cpumask",
        "trace_options",
        "enabled_functions",
        "kprobe_events",
        "buffer_percent",
        "saved_cmdlines_size",
    ]
    .iter()
    .map(|name| top.join(name))
    .collect();
    files.extend(fs::read_dir(top.join("options")).unwrap().map(|entry| entry.unwrap().path()));
    for cpu in fs::read_dir(top.join("per_cpu")).unwrap() {
        files.push(cpu.unwrap().path().join("buffer_size_kb"));
    }
    let mut texts: BTreeMap<PathBuf, String> = files
        .into_iter()
        .map(|file| {
            let text = fs::read_to_string(&file).unwrap_or_else(|error| error.to_string());
            let is_enabled = file.ends_with("enabled_functions");
            (file, if is_enabled { without_history(&text) } else { text })
        })
        .collect();
    let instances = fs::read_dir(top.join("instances")).unwrap();
    let instances: Vec<_> = instances.map(|entry| entry.unwrap().file_name()).collect();
    texts.insert(top.join("instances"), format!("{instances:?}"));
    texts
}

/// `enabled_functions` without the flag `M`, which a function keeps if it ever had a trampoline
/// (Documentation/trace/ftrace.rst).
fn without_history(text: &str) -> String {
    let line = |line: &str| match line.split_once(") ") {
        Some((function, flags)) => {
            let (flags, rest) = flags.split_once('\t').unwrap_or((flags, ""));
            format!("{function}) {} {rest}\n", flags.replace('M', " "))
        }
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// State of tracefs with settings that differ from the defaults. Buffers are allocated, because the kernel keeps those of
/// the first user.
pub(crate) fn found() -> BTreeMap<PathBuf, String> {
    set("trace_clock", "boot");
    set("buffer_size_kb", "200");
    set("options/sleep-time", "0");
    tracefs()
}

fn set(file: &str, value: &str) {
    fs::write(Path::new(TRACEFS).join(file), value)
        .unwrap_or_else(|error| panic!("{file}: {error}"));
}

pub(crate) fn assert_as_found(found: &BTreeMap<PathBuf, String>) {
    let now = tracefs();
    for (file, text) in &now {
        assert_eq!(Some(text), found.get(file), "{} is not as it was found", file.display());
    }
    assert_eq!(now.len(), found.len());
    for (file, value) in [("trace_clock", "global"), ("options/sleep-time", "1")] {
        set(file, value);
    }
}

#[test]
#[ignore = "VM 5.10 7.2: without and with instances of the tracer"]
fn traced_handlers_are_counted_to_the_call() {
    let window = traced(&TEN);
    let runs = run_loads(vec![
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Connect, 1_500) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Bind, 1_000) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Execve, 30) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Open, 200) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Ptrace, 300) },
        BuiltinLoad { workers: 2, ..builtin(BuiltinKind::UdpRecv, 1_000) },
    ]);
    let own = own_calls(&runs);
    for handler in window.end() {
        handler.assert_exact();
        assert!(handler.count() >= expected(&own, handler.name()), "{}", handler.name());
        println!(
            "{}: {} calls, average {:.0} ns",
            handler.name(),
            handler.count(),
            handler.mean_ns()
        );
    }
}

#[test]
#[ignore = "VM 5.10 7.2: without and with instances of the tracer"]
fn traced_calls_that_nest_sleep_migrate_or_are_interrupted() {
    const DEPTH: u64 = 32;
    const ROUNDS: u64 = 2;
    testbed::load();
    let nested = Counters::nested();
    let hard = ["testbed_recurse", "testbed_sleep", "testbed_migrate", "testbed_irq_victim"];
    let window = traced(&hard);
    // Twice, because an emulated CPU takes long for code that it has not run before, such as the first
    // exit of all: that of the innermost call.
    for _ in 0..ROUNDS {
        testbed::on_first_cpu(|| testbed::trigger("recurse 32"));
    }
    for command in ["sleep 100 50", "migrate 200", "irq 200"] {
        testbed::trigger(command);
    }
    let measured = window.end();
    assert_eq!(Counters::nested() - nested, 200);
    let [recurse, sleep, migrate, irq] = &measured[..] else { panic!("{measured:?}") };
    for handler in &measured {
        handler.assert_exact();
    }
    assert_eq!(recurse.count(), ROUNDS * DEPTH);
    // One less for each round of the reader that ends within a recursion, as one may where the host is slow: it takes
    // the start that the next call would have displaced.
    let displaced = recurse.displaced;
    assert!(0 < displaced && displaced <= ROUNDS * (DEPTH - 1), "{displaced}");
    let (min, max) =
        (recurse.measure.durations.min_ns().unwrap(), recurse.measure.durations.max_ns().unwrap());
    assert!(min * DEPTH / 4 <= max, "recursion takes {min} to {max} ns");
    assert!(sleep.measure.durations.min_ns().unwrap() >= 100_000, "{sleep:?}");
    assert_eq!((migrate.count(), migrate.migrated), (200, 200));
    assert_eq!(irq.count(), 400);
}

#[test]
#[ignore = "VM 5.10 7.2: without and with instances of the tracer"]
fn a_traced_call_under_way_is_in_flight() {
    let window = traced(&["testbed_hold"]);
    let calls = || Counters::calls().of("testbed_hold");
    let before = calls();
    let holding = std::thread::spawn(|| testbed::trigger("hold 3000"));
    // The module counts it after the tracer has seen it.
    eventually("the call does not begin", || calls() > before);
    let Measured { measure, .. } = window.end().remove(0);
    let losses = measure.losses;
    assert_eq!((losses.entries, losses.in_flight, losses.lost), (1, 1, 0), "{losses:?}");
    assert_eq!((measure.durations.len(), losses.imbalance(0)), (0, 0));
    holding.join().unwrap();
}

/// The reader is too slow for a buffer of so few pages.
#[test]
#[ignore = "VM 5.10 7.2: without and with instances of the tracer"]
fn what_a_small_buffer_drops_adds_up() {
    let options = Options { trace_buffer_kib: Some(8), ..options() };
    let targets = resolve(&["testbed_empty", "testbed_recurse"]);
    let window = Window::attached(Probes::attach(&targets, options).unwrap());
    testbed::trigger("empty 100000");
    for _ in 0..50 {
        testbed::trigger("recurse 32");
    }
    let measured = window.end();
    let truth: u64 = measured.iter().map(|handler| handler.truth).sum();
    let overrun = measured[0].measure.losses.overrun;
    let mut known = overrun;
    for handler in &measured {
        let losses = handler.measure.losses;
        println!("{}: {} of {} calls, {losses:?}", handler.name(), handler.count(), handler.truth);
        assert_eq!(losses.imbalance(handler.count()), 0, "{losses:?}");
        assert_eq!(losses.overrun, overrun, "of all together");
        known += handler.count() + losses.lost + losses.in_flight;
        assert!(handler.count() + losses.unmeasured() >= handler.truth, "{losses:?}");
    }
    assert!(overrun > 0, "nothing was dropped");
    // A call that seems to be in flight, because its task has made no other since, counts as dropped, too.
    let open: u64 = measured.iter().map(|handler| handler.measure.losses.in_flight).sum();
    assert!(known >= truth && known <= truth + open, "{known} of {truth} calls, {open} open");
}

#[test]
#[ignore = "VM 5.10 7.2: without and with instances of the tracer"]
fn tracefs_is_as_it_was_found_after_a_run_a_signal_and_a_panic() {
    testbed::load();
    let found = found();
    let whole = Ended::of(&mut profiler(&format!(
        "run {RUN} --builtin connect --operations 100 --load-dir {MEMORY}"
    )));
    whole.assert_code(exit::OK);
    assert!(whole.stdout.contains("function-graph"), "{whole:?}");
    let cost = Ended::of(&mut profiler(
        "cost --module hids_testbed --handler connect_syscall_handler --builtin connect \
         --operations 50 --rounds 1 --backend function-graph",
    ));
    cost.assert_code(exit::OK);
    assert!(cost.stdout.contains("function-graph"), "{cost:?}");
    assert_as_found(&found);

    let found = self::found();
    // `ends::` has the others.
    let (signal, code) = (Signal::SIGTERM, exit::TERMINATED);
    let mut run = Started::run(
        &format!("{RUN} --builtin connect --duration 60s --json {{}}/result.json"),
        &[],
    );
    run.wait_measuring();
    assert_ne!(tracefs(), found, "it traces");
    let connects = || Counters::calls().of("connect_syscall_handler");
    let before = connects();
    eventually("the load does not begin", || connects() >= before + 10);
    run.signal(signal);
    let ended = run.end();
    ended.assert_code(code);
    let profile = saved(run.path("result.json"), &ended.stdout);
    for handler in &profile.handlers {
        assert_eq!(handler.backend, Some(Backend::FunctionGraph));
        assert!(handler.count > 0, "{handler:?}");
        assert_whole(handler);
    }
    assert_as_found(&found);

    let found = self::found();
    let targets = resolve(&["connect_*"]);
    let panicked = std::panic::catch_unwind(|| {
        let _probes = Probes::attach(&targets, options()).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.is_err());
    assert_as_found(&found);
}

/// The keeper was killed first; `killed::` tests the others.
#[test]
#[ignore = "VM 5.10 7.2: without and with instances of the tracer"]
fn the_next_start_puts_back_what_a_killed_tracer_left() {
    testbed::load();
    let found = found();
    for next in ["doctor", "restore", "run"] {
        let mut killed = Started::run(
            &format!("{RUN} --builtin connect --duration 60s --load-dir {MEMORY}"),
            &[],
        );
        killed.wait_measuring();
        if next == "run" {
            // Two at once: the second reports the first, and changes nothing.
            let line = format!("run {RUN} --duration 1s --quiet --allow-shared");
            let second = Ended::of(&mut profiler(&line));
            second.assert_code(exit::CANNOT_MEASURE);
            second.assert_error(&["another profiler", &killed.pid().to_string()]);
        }

        let keeper = crate::killed::keeper_of(killed.pid()).expect("it has no keeper");
        kill(keeper, Signal::SIGKILL).unwrap();
        eventually("the keeper does not end", || crate::killed::keeper_of(killed.pid()).is_none());
        killed.signal(Signal::SIGKILL);
        assert_eq!(killed.end().code, None);
        assert_ne!(tracefs(), found, "nothing undoes it by itself");
        let ended = match next {
            "doctor" => Ended::of(&mut profiler("doctor")),
            "restore" => Ended::of(&mut profiler("restore")),
            _ => Ended::of(&mut profiler(&format!(
                "run {RUN} --builtin connect --operations 200 --load-dir {MEMORY}"
            ))),
        };
        if next != "doctor" {
            ended.assert_code(exit::OK);
        }
        let says = format!("(process {}) was killed", killed.pid());
        assert!(ended.stderr.contains(&says), "{ended:?}");
        assert_eq!(tracefs(), found);
    }
    let again = Ended::of(&mut profiler("restore"));
    again.assert_code(exit::OK);
    assert_eq!(again.stderr, "");
    assert_as_found(&found);
}

/// If the tracer cannot have a separate instance, settings of other users stay.
#[test]
#[ignore = "VM 5.10 7.2: without and with instances of the tracer"]
fn a_tracer_in_use_is_refused_or_left_alone() {
    testbed::load();
    let instance = Path::new(TRACEFS).join("instances/try");
    fs::create_dir(&instance).unwrap();
    let tracers = fs::read_to_string(instance.join("available_tracers")).unwrap();
    fs::remove_dir(&instance).unwrap();
    let own_instance = tracers.split_whitespace().any(|tracer| tracer == "function_graph");
    let uses = [
        ("current_tracer", "blk", "nop"),
        ("set_ftrace_filter", "vfs_open", ""),
        ("events/sched/sched_switch/enable", "1", "0"),
        ("set_ftrace_pid", "1", ""),
    ];
    // These hold for all instances.
    let global = [("max_graph_depth", "1", "0"), ("set_graph_function", "vfs_open", "")];
    let run = format!("run {RUN} --builtin connect --operations 50 --load-dir {MEMORY}");
    for (shared, uses) in [(false, &uses[..]), (true, &global[..])] {
        for (file, value, before) in uses {
            set(file, value);
            let in_use = tracefs();
            let ended = Ended::of(&mut profiler(&run));
            if own_instance && !shared {
                ended.assert_code(exit::OK);
            } else {
                ended.assert_code(exit::CANNOT_MEASURE);
                let name = file.split('/').next().unwrap();
                ended.assert_error(&[name, "echo"]);
            }
            assert_eq!(tracefs(), in_use, "{file}");
            fs::write(Path::new(TRACEFS).join(file), format!("{before}\n")).unwrap();
            set("trace", "");
        }
    }
    Ended::of(&mut profiler(&run)).assert_code(exit::OK);
}

/// trace-cmd and the profiler on the same calls: both have the module's own count.
#[test]
#[ignore = "VM 5.10 7.2: without and with instances of the tracer"]
fn an_imported_report_of_trace_cmd_has_the_same_count() {
    let targets = resolve(&["connect_syscall_handler", "connect_syscall_entry_handler"]);
    // Without BTF of modules the profiler has trace-cmd's own tracer, which only one can have.
    let beside = targets.iter().all(|target| target.btf_id.is_some());
    assert_eq!(beside, testbed::has_btf());
    let shared = Options { allow_shared: true, ..Options::default() };
    let window = beside.then(|| Window::attached(Probes::attach(&targets, shared).unwrap()));
    let folder = crate::cli::folder();
    let data = folder.path().join("trace.dat");
    let mut trace_cmd = Command::new("trace-cmd");
    trace_cmd.args(["start", "-p", "function_graph", "-b", "20000"]);
    for target in &targets {
        trace_cmd.args(["-l", &target.name]);
    }
    testbed::run(&mut trace_cmd);
    let before = Counters::calls();
    run_loads(vec![BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Connect, 500) }]);
    let after = Counters::calls();
    testbed::run(Command::new("trace-cmd").arg("stop"));
    testbed::run(Command::new("trace-cmd").args(["extract", "-o"]).arg(&data));
    testbed::run(Command::new("trace-cmd").arg("reset"));
    let report = testbed::run(Command::new("trace-cmd").args(["report", "-i"]).arg(&data));

    let text = folder.path().join("report.txt");
    fs::write(&text, report).unwrap();
    let json = folder.path().join("import.json");
    let mut import = profiler("import trace-cmd --json");
    let imported = Ended::of(import.arg(&json).arg(&text));
    imported.assert_code(exit::OK);
    let recording = Recording::read(&json).unwrap();
    for target in &targets {
        let truth = after.of(&target.name) - before.of(&target.name);
        let handler = recording.handlers.iter().find(|handler| handler.name == target.name);
        assert_eq!(handler.map(|handler| handler.count), Some(truth), "{recording:?}");
        assert!(truth >= 500, "{truth}");
        println!("{}: {truth} calls by trace-cmd and the module", target.name);
    }
    for handler in window.map(Window::end).unwrap_or_default() {
        handler.assert_exact();
        assert_eq!(handler.count(), after.of(handler.name()) - before.of(handler.name()));
    }
}
