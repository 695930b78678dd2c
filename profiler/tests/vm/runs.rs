//! Runs that succeed.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use profiler_base::error::exit;
use profiler_load::{LoadFailure, LoadStatus};

use crate::cli::{
    Ended, Started, assert_every_call, assert_whole, folder, handler, profiler, saved,
};
use crate::ends::Left;
use crate::testbed::{self, TEN};
use crate::window::{MEMORY, assert_completed, expected, own_calls};

const CONNECT: &str = "--module hids_testbed --handler connect_syscall_entry_handler";

#[test]
#[ignore = "VM 6.1: elsewhere matrix:: counts the same handlers, by each backend"]
fn the_main_job_in_one_command() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("result.json");
    let handlers: String = TEN.iter().map(|name| format!(" --handler {name}")).collect();
    let ended = Ended::of(
        profiler(&format!(
            "run --module hids_testbed {handlers} --builtin connect,bind,execve,open,ptrace,udp-recv \
             --operations 110 --workers 2 --load-dir {MEMORY} --json"
        ))
        .arg(&file),
    );
    ended.assert_code(exit::OK);
    let profile = saved(file, &ended.stdout);
    assert_completed(&profile.loads);
    assert_eq!(profile.loads.len(), 6);
    let own = own_calls(&profile.loads);
    let names: Vec<&str> = profile.handlers.iter().map(|handler| handler.name.as_str()).collect();
    assert_eq!(names, TEN);
    for handler in &profile.handlers {
        assert_eq!(handler.count, expected(&own, &handler.name), "{}: {own:?}", handler.name);
        assert_eq!(handler.losses.entries, handler.count, "{handler:?}");
        assert_eq!(handler.losses.exits, handler.count, "{handler:?}");
        assert_whole(handler);
        let row = ended.stdout.lines().find(|line| line.contains(&format!("{} ", handler.name)));
        let row = row.unwrap_or_else(|| panic!("no row of {}: {}", handler.name, ended.stdout));
        assert!(row.contains(&handler.count.to_string()), "{row}");
    }
    let chosen = crate::matrix::kernel().handler.chosen.unwrap();
    assert_eq!(profile.backends(), [chosen]);
    assert!(!profile.interrupted);
    assert_eq!(profile.warnings, []);
    let release = testbed::run(std::process::Command::new("uname").arg("-r"));
    assert_eq!(profile.host.kernel_release.as_deref(), Some(release.trim_end()));
    assert_eq!(profile.host.cpus_online, Some(2));
    let [module] = profile.modules.as_slice() else { panic!("{:?}", profile.modules) };
    assert_eq!(module.name, testbed::NAME);
    assert!(module.build_id.is_some() || module.srcversion.is_some(), "{module:?}");
    for word in [release.trim_end(), chosen.name(), "hids_testbed", "wall", "calls/s"] {
        assert!(ended.stdout.contains(word), "`{word}` is missing: {}", ended.stdout);
    }
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn two_digits_are_enough_for_who_wants_less_memory() {
    testbed::load();
    let run = |digits| {
        let folder = folder();
        let file = folder.path().join("result.json");
        let line = format!("run {CONNECT} --builtin connect --operations 600 --precision {digits}");
        let ended = Ended::of(profiler(&format!("{line} --json")).arg(&file));
        ended.assert_code(exit::OK);
        saved(file, &ended.stdout)
    };
    let (two, three) = (run(2), run(3));
    assert_eq!((two.histogram.precision_digits, three.histogram.precision_digits), (2, 3));
    let memory = (two.histogram.kernel_memory_bytes, three.histogram.kernel_memory_bytes);
    assert!(memory.0 * 2 < memory.1, "{memory:?}");
    let (two, three) = (&two.handlers[0], &three.handlers[0]);
    assert_eq!((two.count, three.count), (600, 600));
    assert_whole(two);
    for bucket in &two.histogram.buckets {
        let width = bucket.to_ns - bucket.from_ns;
        assert!(width * 100 <= bucket.from_ns, "{bucket:?} is wider than 1 %");
    }
    assert!(two.histogram.buckets.iter().any(|bucket| bucket.from_ns < bucket.to_ns));
}

#[test]
#[ignore = "VM 5.10 7.2: matrix:: has it on the others"]
fn a_function_of_the_kernel_image() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("result.json");
    let line = "run --handler __sys_connect --builtin connect --operations 1000 --workers 2 \
                --max-loss 50 --json";
    let ended = Ended::of(profiler(line).arg(&file));
    ended.assert_code(exit::OK);
    let profile = saved(file, &ended.stdout);
    assert_eq!(profile.modules, []);
    assert_eq!(profile.handlers[0].module, None);
    let own = own_calls(&profile.loads).connect;
    assert_eq!(own, 1000);
    assert_every_call(&profile.handlers[0], own);
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn no_hit_is_said_and_explained() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("result.json");
    let line = "run --module hids_testbed --handler testbed_hold --builtin connect --operations 50";
    let ended = Ended::of(profiler(&format!("{line} --json")).arg(&file));
    ended.assert_code(exit::NO_HITS).assert_error(&["no handler had a single hit"]);
    let warning = ended.stdout.lines().find(|line| line.starts_with("warning: 0 hits"));
    let warning = warning.unwrap_or_else(|| panic!("{ended:?}"));
    for word in ["testbed_hold", "inlined", "registered"] {
        assert!(warning.contains(word), "{warning}");
    }
    let profile = saved(file, &ended.stdout);
    assert_eq!((profile.handlers[0].count, profile.handlers[0].min_ns), (0, None));
    assert_eq!(profile.warnings[0].code, "zero-hits");

    // One of two without a hit is a warning and no failure.
    let ended = Ended::of(&mut profiler(&format!(
        "run {CONNECT} --handler testbed_hold --builtin connect --operations 50"
    )));
    ended.assert_code(exit::OK);
    assert!(ended.stdout.contains("warning: 0 hits: testbed_hold:"), "{ended:?}");
}

/// Another process keeps the handlers so busy that their books balance only when the probes are off. Its calls after the
/// window are not counted. Two handlers, because code is patched under that load when the probes come off.
#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn calls_per_second_hold_while_the_books_are_settled() {
    testbed::load();
    const TRIVIAL: &str = "testbed_trivial_00";
    let mut run = Started::run(
        "--module hids_testbed --handler testbed_trivial_0[01] --duration 2s \
         --json {}/result.json",
        &[],
    );
    run.wait_measuring();
    // The window began a moment before: see `late`.
    let (from, seen) = (Instant::now(), jiff::Timestamp::now());
    let (ended, made) = std::thread::scope(|scope| {
        let ended = scope.spawn(|| run.end());
        let mut made = Vec::new();
        // Each calls all of them.
        while !ended.is_finished() {
            made.push(Instant::now());
            testbed::trigger("trivial 1");
            std::thread::sleep(Duration::from_millis(2));
        }
        (ended.join().unwrap(), made)
    });
    ended.assert_code(exit::OK);
    let profile = saved(run.path("result.json"), &ended.stdout);
    let window = Duration::from_nanos(profile.window_ns);
    let measured = handler(&profile, TRIVIAL);
    let made_in = |time| made.iter().filter(|at| **at - from <= time).count() as u64;
    // A drain knows the window's start and reported end.
    let late = Duration::try_from(seen.duration_since(profile.started)).unwrap_or_default();
    let least = made_in(window.saturating_sub(late + Duration::from_secs(1)));
    let most = made_in(window);
    println!("{} calls in {window:?}: {least} to {most} of {}", measured.count, made.len());
    assert!((least..=most).contains(&measured.count), "{least} to {most}: {measured:?}");
    assert!(made.len() as u64 > most, "nobody called after the window");
    assert_whole(measured);
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn what_the_warm_up_saw_is_left_out() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("result.json");
    let line =
        format!("run {CONNECT} --builtin connect --rate 200/s --warmup 3s --duration 2s --json");
    let ended = Ended::of(profiler(&line).arg(&file));
    ended.assert_code(exit::OK);
    let profile = saved(file, &ended.stdout);
    assert!(profile.warmup_ns >= 3_000_000_000, "{}", profile.warmup_ns);
    let measured = &profile.handlers[0];
    let own = own_calls(&profile.loads).connect;
    assert_whole(measured);
    // About half of the calls were in the warm-up; the load takes a while to start.
    assert!(measured.count * 4 <= own * 3, "{} of {own} calls", measured.count);
    assert!(measured.count * 4 >= own, "{} of {own} calls", measured.count);
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_load_that_fails_is_reported_and_so_is_what_it_did() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("result.json");
    let run = format!("run {CONNECT} --json");
    // bash makes a connect(2) of it.
    let script = "exec 3<>/dev/udp/127.0.0.1/9; exit 3";
    let ended = Ended::of(profiler(&run).arg(&file).args(["--", "bash", "-c", script]));
    ended.assert_code(exit::LOAD_FAILED).assert_error(&["exit code 3", "the report covers"]);
    let profile = saved(file, &ended.stdout);
    assert_eq!(
        profile.loads[0].outcome.status,
        LoadStatus::Failed(LoadFailure::ExitCode { code: 3 })
    );
    // The name service may have been asked as well.
    assert!(handler(&profile, "connect_syscall_entry_handler").count >= 1);

    let file = folder.path().join("missing.json");
    let ended = Ended::of(profiler(&run).arg(&file).args(["--", "no-such-load-command"]));
    ended.assert_code(exit::LOAD_FAILED).assert_error(&["could not start", "no-such-load-command"]);
    let profile = saved(file, &ended.stdout);
    assert!(
        matches!(
            &profile.loads[0].outcome.status,
            LoadStatus::Failed(LoadFailure::CouldNotStart { text }) if text.contains("no-such-load")
        ),
        "{:?}",
        profile.loads
    );
}

/// Nothing calls the handler while probes come and go: with calls under way a guest of QEMU 7.2
/// without KVM once died of a breakpoint (`int3`) of the kernel's own code patching. Reports such
/// as <https://bugzilla.redhat.com/show_bug.cgi?id=2216496> see the same of emulated CPUs; that it
/// is the same fault is likely and not shown.
#[test]
#[ignore = "VM 6.1 7.2: the tracer of 5.10 has one user, 6.12 takes the backend of 6.1"]
fn two_runs_on_one_handler() {
    testbed::load();
    let json = "--json {}/result.json";
    let mut first = Started::run(&format!("{CONNECT} --duration 60s {json}"), &[]);
    first.wait_measuring();

    let second =
        Ended::of(&mut profiler(&format!("run {CONNECT} --builtin connect --duration 1s")));
    second.assert_code(exit::CANNOT_MEASURE).assert_nothing_done();
    second.assert_error(&["connect_syscall_entry_handler", "--allow-shared"]);
    let programs = Left::now().programs;
    assert_eq!(programs.len(), crate::matrix::programs_of_a_handler(), "{programs:?}");
    let named = |id: &u32| second.stderr.contains(&format!("(id {id})"));
    assert!(programs.iter().any(named), "{programs:?}: {second:?}");

    let load = "--builtin connect --operations 500 --allow-shared";
    let mut shared = Started::run(&format!("{CONNECT} {load} {json}"), &[]);
    let ended = shared.end();
    ended.assert_code(exit::OK);
    let profile = saved(shared.path("result.json"), &ended.stdout);
    assert_eq!(profile.handlers[0].count, 500);
    assert_whole(&profile.handlers[0]);
    let codes: Vec<&str> = profile.warnings.iter().map(|warning| warning.code.as_str()).collect();
    assert_eq!(codes, ["shared"]);
    assert!(ended.stdout.contains("warning: another tracing program"), "{ended:?}");

    // The first measured the other's load, too, and lost nothing when that started and ended.
    first.signal(Signal::SIGINT);
    let ended = first.end();
    ended.assert_code(exit::INTERRUPTED);
    let profile = saved(first.path("result.json"), &ended.stdout);
    assert_eq!(profile.handlers[0].count, 500);
    assert_whole(&profile.handlers[0]);
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn json_on_standard_output_is_nothing_but_json() {
    testbed::load();
    let ended = Ended::of(&mut profiler(&format!(
        "run {CONNECT} --builtin connect --operations 200 --json -"
    )));
    ended.assert_code(exit::OK);
    crate::common::assert_valid(&serde_json::from_str(&ended.stdout).unwrap());
    assert!(ended.stderr.contains("connect_syscall_entry_handler"), "{ended:?}");
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn without_a_load_what_happens_anyway_is_measured() {
    testbed::load();
    let mut idle =
        Started::run("--module hids_testbed --handler testbed_trivial_0? --duration 2s", &[]);
    idle.wait_measuring();
    testbed::trigger("trivial 7");
    let ended = idle.end();
    ended.assert_code(exit::OK);
    // The table of latencies and the account of the calls, each with one row per handler.
    let rows_of =
        |table: &str| table.lines().filter(|line| line.contains("testbed_trivial_0")).count();
    let tables = ended.stdout.split("\n\n").filter(|part| part.starts_with("handler "));
    assert_eq!(tables.map(rows_of).collect::<Vec<_>>(), [10, 10], "{ended:?}");
    Left::assert_nothing();
}
