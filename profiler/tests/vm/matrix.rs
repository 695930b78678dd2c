//! The backends that the table of expected backends names for this kernel count correctly, and there are no others.

use std::fs;
use std::path::{Path, PathBuf};

use profiler_base::error::exit;
use profiler_kernel::target::{KernelFiles, Target};
use profiler_load::{BuiltinKind, BuiltinLoad};
use profiler_probe::select::{Features, needs_btf, select};
use profiler_probe::{Options, Probes};
use profiler_recording::Backend;
use serde_json::Value;

use crate::cli::{Ended, assert_every_call, folder, profiler, saved};
use crate::common::backends::{self, Expected, Kernel};
use crate::testbed::{self, Counters, TEN};
use crate::window::{Measured, Window, builtin, expected, own_calls, resolve, run_loads};

/// Runs inside a kprobe.
const HANDLER: &str = "connect_syscall_entry_handler";

/// Runs outside of kprobes, in the kernel image.
pub(crate) const CORE: &str = "__sys_connect";

/// Runs outside of kprobes, in the module.
const PLAIN: &str = "testbed_outer";

/// The table's entry for the running kernel.
pub(crate) fn kernel() -> Kernel {
    let series = testbed::series();
    let found = backends::table().into_iter().find(|(name, _)| *name == series);
    found.unwrap_or_else(|| panic!("backends.toml has no Linux {series}")).1
}

/// Number of programs of the chosen backend per handler.
pub(crate) fn programs_of_a_handler() -> usize {
    match kernel().handler.chosen {
        Some(Backend::Fsession | Backend::KprobeSession) => 1,
        Some(Backend::Fentry | Backend::Kprobe) => 2,
        Some(Backend::FunctionGraph) | None => 0,
    }
}

/// Backends for functions of the module that do not run inside kprobes: kprobes too, where BTF says so.
fn for_plain(kernel: &Kernel) -> Vec<Backend> {
    let mut works = kernel.handler.works.clone();
    let kprobe = kernel.core.works.contains(&Backend::Kprobe) && testbed::has_btf();
    works.extend(kprobe.then_some(Backend::Kprobe));
    works
}

/// The same with those that have to be forced, because it is not known where such functions run.
pub(crate) fn for_plain_by_force(kernel: &Kernel) -> Vec<Options> {
    let works = for_plain(kernel);
    let forced = kernel
        .core
        .works
        .iter()
        .filter(|backend| **backend == Backend::Kprobe && !works.contains(backend));
    let options =
        |backend: &Backend, force| Options { backend: Some(*backend), force, ..Options::default() };
    let known = works.iter().map(|backend| options(backend, false));
    known.chain(forced.map(|backend| options(backend, true))).collect()
}

fn core() -> Target {
    KernelFiles::default().resolve(None, &[CORE.to_owned()]).unwrap().targets.remove(0)
}

/// The selection with one backend requested, and with none.
fn found(target: &Target) -> (Vec<Backend>, Option<Backend>) {
    let mut features = Features::default();
    let mut chosen = |backend| {
        let options = Options { backend, ..Options::default() };
        let choice = select(target, options, |backend| features.refusal(backend));
        if choice.backend.is_none() {
            println!("{}: {:?}", target.name, choice.obstacles);
        }
        choice.backend
    };
    let works = Backend::ALL.iter().copied().filter(|&backend| chosen(Some(backend)).is_some());
    (works.collect(), chosen(None))
}

#[test]
#[ignore = "VM 5.10 6.1 6.12 7.2"]
fn the_choice_is_that_of_the_table() {
    let kernel = kernel();
    let handler = resolve(&[HANDLER]).remove(0);
    for (target, Expected { works, chosen }) in
        [(&handler, &kernel.handler), (&core(), &kernel.core)]
    {
        assert_eq!(
            found(target),
            (works.clone(), *chosen),
            "{}: found, and the table",
            target.name
        );
    }
    let plain = resolve(&[PLAIN]).remove(0);
    assert_eq!(found(&plain).0, for_plain(&kernel), "{PLAIN}: found, and the table");
}

#[test]
#[ignore = "VM 5.10 6.1 6.12 7.2"]
fn doctor_says_what_the_table_says() {
    let kernel = kernel();
    testbed::load();
    let line = format!("doctor --module {} --handler {HANDLER} --json", testbed::NAME);
    let ended = Ended::of(&mut profiler(&line));
    let can_measure = kernel.handler.chosen.is_some();
    ended.assert_code(if can_measure { exit::OK } else { exit::CANNOT_MEASURE });
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["can_measure"], can_measure, "{ended:?}");
    assert_eq!(report["handlers"][0]["name"], HANDLER, "{ended:?}");
    let chosen = serde_json::to_value(kernel.handler.chosen).unwrap();
    assert_eq!(report["handlers"][0]["backend"], chosen, "{ended:?}");

    let available = |place: &str| -> Vec<Backend> {
        let backends = report["backends"].as_array().unwrap().iter();
        let works = backends.filter(|backend| backend[place]["available"] == true);
        works.map(|backend| serde_json::from_value(backend["backend"].clone()).unwrap()).collect()
    };
    assert_eq!(available("kernel_functions"), kernel.core.works);
    assert_eq!(available("module_functions"), for_plain(&kernel));

    let mut no = Vec::new();
    for check in report["checks"].as_array().unwrap() {
        let id = check["id"].as_str().unwrap();
        if check["status"] == "no" {
            assert!(check["remedy"].as_str().is_some_and(|remedy| remedy.len() > 20), "{check}");
            no.push(id.to_owned());
        }
    }
    no.sort();
    assert_eq!(no, kernel.doctor_no, "{ended:?}");
}

/// The part of `doctor`'s output that depends on the kernel alone, exactly: `profiler/tests/vm/doctor` has
/// a file for each kernel.
#[test]
#[ignore = "VM 5.10 6.1 6.12 7.2"]
fn doctor_prints_what_it_printed() {
    testbed::load();
    let series = testbed::series();
    let line = format!("doctor --module {} --handler {HANDLER} --handler {PLAIN}", testbed::NAME);
    let ended = Ended::of(&mut profiler(&line));
    ended.assert_code(exit::OK);
    let printed = of_the_kernel(&ended.stdout, &series);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vm/doctor");
    let wanted = Path::new(folder).join(format!("{series}.txt"));
    let out = PathBuf::from(std::env::var_os("PROFILER_VM_OUT").expect("PROFILER_VM_OUT"));
    let found = out.join(format!("doctor-{series}.txt"));
    fs::write(&found, &printed).unwrap();
    let before = fs::read_to_string(&wanted).unwrap_or_default();
    assert_eq!(printed, before, "if it is right, copy {} to {}", found.display(), wanted.display());
}

/// Without what is installed on this machine, numbers that differ between builds or by the tests before, and the widths of
/// columns.
fn of_the_kernel(text: &str, series: &str) -> String {
    let installed = ["LTP", "QEMU"];
    let is_rule = |line: &str| line.bytes().all(|byte| b"- ".contains(&byte));
    let lines = text.lines().filter(|line| {
        !is_rule(line) && !installed.iter().any(|name| line.trim_start().starts_with(name))
    });
    let mut printed = String::new();
    for line in lines {
        let words: Vec<String> = line
            .split("  ")
            .map(|cell| cell.trim())
            .filter(|cell| !cell.is_empty())
            .map(|cell| match cell.split_once(": ") {
                _ if cell.starts_with("kernel ") && cell.contains(series) => {
                    format!("kernel {series}")
                }
                Some((what, count)) if count.bytes().all(|byte| byte.is_ascii_digit()) => {
                    format!("{what}: N")
                }
                _ => cell.to_owned(),
            })
            .collect();
        // What kprobes missed depends on the tests before.
        let words = match words.as_slice() {
            [hook, on, calls, by, most, missed, beyond]
                if [missed, beyond].iter().all(|cell| is_count(cell)) =>
            {
                &[hook.as_str(), on, calls, by, most, "N", "N"].map(str::to_owned)[..]
            }
            words => words,
        };
        printed.push_str(&words.join("  "));
        printed.push('\n');
    }
    printed
}

/// A number, or a dash where there is none.
fn is_count(cell: &str) -> bool {
    cell == "-" || cell.parse::<u64>().is_ok()
}

#[test]
#[ignore = "VM 5.10 6.1 6.12 7.2"]
fn each_backend_counts_handlers_in_kprobes_to_the_call() {
    for backend in kernel().handler.works {
        let window = Window::by(backend, &TEN);
        let missed = Counters::missed();
        let own = own_calls(&run_loads(vec![
            BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Connect, 300) },
            BuiltinLoad { workers: 2, ..builtin(BuiltinKind::Bind, 200) },
            builtin(BuiltinKind::Execve, 12),
            builtin(BuiltinKind::Open, 100),
            builtin(BuiltinKind::Ptrace, 100),
            BuiltinLoad { workers: 2, ..builtin(BuiltinKind::UdpRecv, 200) },
        ]));
        for handler in window.end() {
            let name = handler.name();
            println!("{backend}: {name}: {} calls", handler.count());
            handler.assert_exact();
            assert!(handler.count() >= expected(&own, name), "{backend}: {name}: {own:?}");
        }
        assert_eq!(Counters::missed(), missed, "{backend}: the module's own probes miss calls");
    }
}

#[test]
#[ignore = "VM 5.10 6.1 6.12 7.2"]
fn each_backend_counts_a_function_of_the_kernel_to_the_call() {
    testbed::load();
    for backend in kernel().core.works {
        let folder = folder();
        let file = folder.path().join("result.json");
        let line = format!(
            "run --handler {CORE} --backend {backend} --builtin connect --operations 300 \
             --workers 2 --max-loss 50 --json"
        );
        let ended = Ended::of(profiler(&line).arg(&file));
        ended.assert_code(exit::OK);
        let profile = saved(file, &ended.stdout);
        assert_eq!(profile.backends(), [backend]);
        assert_every_call(&profile.handlers[0], own_calls(&profile.loads).connect);
    }
}

/// Functions whose calls nest, sleep, migrate and are interrupted, a window for each backend.
#[test]
#[ignore = "VM 5.10 6.1 6.12 7.2"]
fn each_backend_pairs_hard_calls_or_says_what_it_lost() {
    const HARD: [(&str, &str, u64); 4] = [
        ("testbed_recurse", "recurse 32", 32),
        ("testbed_sleep", "sleep 100 25", 25),
        ("testbed_migrate", "migrate 50", 50),
        ("testbed_irq_victim", "irq 50", 100),
    ];
    // Twice, because an emulated CPU takes long for code that it has not run before, such as the
    // first exit of all: that of the innermost call.
    const ROUNDS: u64 = 2;
    let kernel = kernel();
    testbed::load();
    for options in for_plain_by_force(&kernel) {
        let backend = options.backend.unwrap();
        let few_returns = kernel.few_returns.contains(&backend);
        let nested = Counters::nested();
        let targets = resolve(&HARD.map(|(name, ..)| name));
        let window = Window::attached(Probes::attach(&targets, options).unwrap());
        for (_, command, _) in HARD.repeat(ROUNDS as usize) {
            testbed::trigger(command);
        }
        let measured = window.end();
        assert_eq!(Counters::nested() - nested, ROUNDS * 50, "{backend}");
        for (handler, (name, _, calls)) in measured.iter().zip(HARD) {
            println!(
                "{backend}: {name}: {} of {}: {:?}",
                handler.count(),
                handler.truth,
                handler.measure.losses
            );
            assert_eq!((handler.name(), handler.truth), (name, ROUNDS * calls), "{backend}");
            handler.assert_accounted(backend);
        }
        // Calls are paired correctly: with another call's start a duration is too short or too long.
        let [recurse, sleep, migrate, irq] = measured.as_slice() else { panic!("{measured:?}") };
        let ends = |handler: &Measured| {
            (
                handler.measure.durations.min_ns().unwrap(),
                handler.measure.durations.max_ns().unwrap(),
            )
        };
        assert!(ends(sleep).0 >= 100_000, "{backend}: {sleep:?}");
        for exact in [sleep, migrate] {
            exact.assert_exact();
        }
        // An interrupt within a probe itself may be lost by any that the kernel keeps from running twice.
        assert!(irq.count() * 2 >= irq.truth, "{backend}: {irq:?}");
        if few_returns {
            assert!(
                recurse.count() > 0 && recurse.count() < recurse.truth,
                "{backend}: {recurse:?}"
            );
            assert_eq!(recurse.count() + recurse.measure.losses.missed, recurse.truth, "{backend}");
        } else {
            recurse.assert_exact();
            let (min, max) = ends(recurse);
            assert!(max >= 8 * min, "{backend}: 32 levels take {min} to {max} ns");
        }
    }
}

#[test]
#[ignore = "VM 5.10 6.1 6.12 7.2"]
fn two_functions_of_one_name_are_told_apart_or_refused() {
    const TWINS: [&str; 2] = ["testbed_twin#1", "testbed_twin#2"];
    testbed::load();
    let line = "run --module hids_testbed --handler testbed_twin --duration 1s";
    let refused = Ended::of(&mut profiler(line));
    refused.assert_code(exit::NO_TARGET).assert_error(&["2 functions", TWINS[0], TWINS[1]]);
    refused.assert_nothing_done();
    let listed = Ended::of(&mut profiler("list --module hids_testbed testbed_twin"));
    listed.assert_code(exit::OK);
    for name in TWINS {
        assert!(listed.stdout.contains(name), "{listed:?}");
    }

    for Options { backend, .. } in for_plain_by_force(&kernel()) {
        let backend = backend.unwrap();
        let options = Options { backend: Some(backend), ..Options::default() };
        // A kprobe finds the right one of two; but their type, which would tell whether they run inside
        // kprobes, is not known of either.
        let force = backend == Backend::Kprobe;
        if needs_btf(backend) || force {
            let refused =
                Probes::attach(&resolve(&TWINS), options).err().expect("refused").to_string();
            let why = if force { "--force" } else { "several functions" };
            assert!(refused.contains(why), "{backend}: {refused}");
        }
        if needs_btf(backend) {
            continue;
        }
        let options = Options { force, ..options };
        let window = Window::attached(Probes::attach(&resolve(&TWINS), options).unwrap());
        testbed::trigger("twins 25");
        let measured = window.end();
        for (handler, calls) in measured.iter().zip([25, 50]) {
            assert_eq!(handler.truth, calls, "{backend}: {handler:?}");
            handler.assert_exact();
        }
    }
}
