//! Instructions counted from outside, by the plugin in QEMU, against what the testbed knows of itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use profiler_base::emulator::{self, Counting};
use profiler_lab::counts::{self, Calls, Counts};
use profiler_load::BuiltinKind;

use crate::testbed::{self, Counters, TEN};
use crate::window::{builtin, run_loads};

/// The plugin's folder: xtask gave it the names of the files there.
fn folder() -> PathBuf {
    std::env::var_os("PROFILER_VM_COUNTING")
        .expect("PROFILER_VM_COUNTING is the plugin's folder")
        .into()
}

/// Asks for all functions of the testbed. The symbols are megabytes, for the plugin to take apart.
fn request() {
    static ASKED: Mutex<String> = Mutex::new(String::new());
    let modules = fs::read_to_string("/proc/modules").unwrap();
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if *asked != modules {
        let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
        let request = format!("module {}\n{}{symbols}", testbed::NAME, vectors(&symbols));
        fs::write(folder().join("symbols"), request).unwrap();
        *asked = modules;
    }
}

/// Lines of vectors by the names of what they lead to, for this guest cannot read its CPU's table.
fn vectors(kallsyms: &str) -> String {
    let symbol = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((address, words.nth(1)?.to_owned()))
    };
    let mut symbols: Vec<_> = kallsyms.lines().filter_map(symbol).collect();
    symbols.sort();
    let mut lines = String::new();
    for (at, (address, name)) in symbols.iter().enumerate() {
        let number = match name.as_str() {
            "asm_exc_debug" => 1,
            "asm_exc_nmi" => 2,
            "asm_exc_int3" => 3,
            "asm_exc_overflow" => 4,
            "asm_exc_double_fault" => 8,
            "asm_exc_machine_check" => 18,
            _ if name.starts_with("asm_exc_") => 13,
            "irq_entries_start" | "spurious_entries_start" => {
                // A few instructions for each.
                let end = symbols[at..].iter().find(|(next, _)| next > address).unwrap().0;
                let each = (*address..end).step_by(8);
                lines.extend(each.map(|address| format!("vector 32 {address:x}\n")));
                continue;
            }
            _ if name.starts_with("asm_sysvec_") => 32,
            _ => continue,
        };
        lines += &format!("vector {number} {address:x}\n");
    }
    lines
}

/// What is counted during `work`, of all functions of the testbed.
fn counted(work: impl FnOnce()) -> Counts {
    testbed::load();
    request();
    let file = folder().join("counts");
    let _ = fs::remove_file(&file);
    let counting = Counting::begin();
    work();
    drop(counting);
    // Or all that runs from here on takes three times as long.
    emulator::rest();
    let text = fs::read_to_string(&file).unwrap_or_else(|error| {
        panic!("{error}; {:?}", fs::read_to_string(folder().join("counts.error")))
    });
    counts::parse(&text).unwrap()
}

#[test]
#[ignore = "VM 6.1, virtual time"]
fn a_second_count_at_once_is_refused() {
    let error = folder().join("counts.error");
    let calls = counted(|| testbed::trigger("empty 7"));
    assert_eq!(one(&calls, "testbed_empty").ended, 7);
    fs::remove_file(folder().join("counts")).unwrap();
    let both = [Counting::begin(), Counting::begin()];
    testbed::trigger("empty 7");
    drop(both);
    let why = fs::read_to_string(&error).unwrap();
    assert_eq!(why, "it was asked to begin a second count while one was under way");
    assert!(!folder().join("counts").exists(), "half of what was asked for");
    fs::remove_file(error).unwrap();
    let calls = counted(|| testbed::trigger("empty 7"));
    assert_eq!(one(&calls, "testbed_empty").ended, 7);
}

/// Calls of a function; of several with one name, by address.
fn of<'a>(counts: &'a Counts, name: &str) -> Vec<&'a Calls> {
    let named = counts.calls.iter().map(|(id, calls)| (&counts.functions[id], calls));
    let found: BTreeMap<u64, &Calls> = named
        .filter(|(function, _)| function.name == name)
        .map(|(function, calls)| (function.address, calls))
        .collect();
    found.into_values().collect()
}

fn one<'a>(counts: &'a Counts, name: &str) -> &'a Calls {
    match of(counts, name).as_slice() {
        [calls] => calls,
        other => panic!("{} functions are called {name}", other.len()),
    }
}

/// The instructions that all calls but a few took.
fn usual(calls: &Calls) -> u64 {
    let most = calls.inclusive.iter().max_by_key(|(_, times)| *times).unwrap();
    assert!(most.1 * 10 >= calls.ended * 9, "{calls:?}");
    most.0
}

/// Instructions a call of `name` that depend on where things lie in memory: to know that an object is not on the
/// task's stack, `check_stack_object` (mm/usercopy.c) compares one address less where the object lies above it.
fn by_place(counts: &Counts, name: &str) -> u64 {
    let mut inside = vec![false; counts.nodes.len()];
    let (mut calls, mut instructions) = (0, 0);
    for (at, node) in counts.nodes.iter().enumerate() {
        let function = &counts.functions[&node.function].name;
        inside[at] = function == name || node.parent.is_some_and(|parent| inside[parent as usize]);
        match function.as_str() {
            _ if function == name => calls += node.sums[0],
            "check_stack_object" if inside[at] => instructions += node.sums[1],
            _ => (),
        }
    }
    assert_eq!(instructions % calls, 0, "{name} was called on two sides of it");
    instructions / calls
}

fn trigger_all() {
    for command in [
        "empty 100",
        "trivial 20",
        "nested 50",
        "recurse 10",
        "sleep 1000 20",
        "irq 20",
        "clear 4096 10",
        "twins 10",
        "many 10",
        "notrace 10",
    ] {
        testbed::trigger(command);
    }
}

#[test]
#[ignore = "VM 6.1 7.2, virtual time: the lab counts on the others"]
fn each_call_is_counted_whatever_it_does() {
    testbed::load();
    let counters = || (Counters::calls(), Counters::nested());
    let (mut before, mut after) = (counters(), counters());
    let counts = counted(|| {
        before = counters();
        trigger_all();
        let kinds = [
            (BuiltinKind::Connect, 100),
            (BuiltinKind::Bind, 50),
            (BuiltinKind::Execve, 10),
            (BuiltinKind::Open, 20),
            (BuiltinKind::Ptrace, 10),
            (BuiltinKind::UdpRecv, 20),
        ];
        run_loads(kinds.map(|(kind, operations)| builtin(kind, operations)).into());
        after = counters();
    });
    let made = |name: &str| after.0.of(name) - before.0.of(name);
    let names = [
        "empty",
        "trivial_00",
        "trivial_49",
        "outer",
        "inner",
        "recurse",
        "sleep",
        "clear",
        "many",
        "notrace",
    ];
    let own = names.map(|name| format!("testbed_{name}"));
    for name in own.iter().map(String::as_str).chain(TEN) {
        let calls = one(&counts, name);
        assert_eq!(
            (calls.entered, calls.ended, calls.abandoned),
            (made(name), made(name), 0),
            "{name}"
        );
        assert!(made(name) >= 10, "{name} was called {} times", made(name));
        let told: u64 = calls.inclusive.iter().chain(&calls.own).map(|(_, times)| times).sum();
        assert_eq!(told, 2 * calls.ended, "{name}");
    }
    // An interrupt enters the function within each of its calls, and is in none of them.
    let victim = one(&counts, "testbed_irq_victim");
    let inner = after.1 - before.1;
    assert_eq!((victim.ended, inner), (made("testbed_irq_victim"), 20));
    assert!(victim.interrupted >= 20, "{victim:?}");
    let twins: Vec<u64> = of(&counts, "testbed_twin").iter().map(|calls| calls.ended).collect();
    let mut known = [made("testbed_twin_first"), made("testbed_twin_second")].to_vec();
    known.sort_unstable();
    let mut sorted = twins.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, known, "{twins:?}");
    // Each level of a recursion takes as much more as every other.
    let recurse = &one(&counts, "testbed_recurse").inclusive;
    let steps: Vec<u64> = recurse.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(steps.len() == 9 && steps.iter().all(|step| *step == steps[0]), "{recurse:?}");
}

#[test]
#[ignore = "VM 6.1 7.2, virtual time: the lab counts on the others"]
fn the_parts_of_the_tree_are_the_whole() {
    let counts = counted(|| {
        trigger_all();
        run_loads(vec![builtin(BuiltinKind::Connect, 20)]);
    });
    // What a node's calls took is its own instructions and those of all below it.
    let mut inclusive: Vec<u64> = counts.nodes.iter().map(|node| node.sums[1]).collect();
    for at in (0..counts.nodes.len()).rev() {
        if let Some(parent) = counts.nodes[at].parent {
            inclusive[parent as usize] += inclusive[at];
        }
    }
    for (id, calls) in &counts.calls {
        let name = &counts.functions[id].name;
        let nodes = || counts.nodes.iter().zip(&inclusive).filter(|(node, _)| node.function == *id);
        assert_eq!(nodes().map(|(node, _)| node.sums[0]).sum::<u64>(), calls.entered, "{name}");
        let own: u64 = calls.own.iter().map(|(instructions, times)| instructions * times).sum();
        assert_eq!(nodes().map(|(node, _)| node.sums[1]).sum::<u64>(), own, "{name}");
        if name != "testbed_recurse" {
            let whole: u64 = calls.inclusive.iter().map(|(value, times)| value * times).sum();
            assert_eq!(nodes().map(|(_, inclusive)| inclusive).sum::<u64>(), whole, "{name}");
        }
    }
    // The driver's instructions, one by one.
    for (at, node) in counts.nodes.iter().enumerate() {
        let function = &counts.functions[&node.function];
        if function.module.is_some() {
            let of_node = counts.code.iter().filter(|code| code.node as usize == at);
            let told: u64 = of_node.map(|code| code.times * code.sizes.len() as u64).sum();
            assert_eq!(told, node.sums[1], "{}", function.name);
        }
    }
}

#[test]
#[ignore = "VM 6.1 7.2, virtual time: the lab counts on the others"]
fn one_more_iteration_is_two_more_instructions() {
    for (handler, kind) in [
        ("connect_syscall_handler", BuiltinKind::Connect),
        ("bind_entry_handler", BuiltinKind::Bind),
        ("security_inode_create_pre_handler", BuiltinKind::Open),
        ("ptrace_pre_handler", BuiltinKind::Ptrace),
    ] {
        let with = |iterations| {
            testbed::load();
            testbed::spin(handler, iterations);
            let counts = counted(|| drop(run_loads(vec![builtin(kind, 50)])));
            testbed::spin(handler, 0);
            let calls = one(&counts, handler);
            println!("{handler} with {iterations}: {:?}", calls.inclusive);
            usual(calls) - by_place(&counts, handler)
        };
        let (ten, eleven) = (with(10), with(11));
        assert_eq!(eleven, ten + 2, "{handler}");
    }
}

#[test]
#[ignore = "VM 6.1, virtual time"]
fn a_call_that_goes_on_is_told_as_such() {
    let mut command = std::process::Command::new("sh");
    testbed::load();
    command.args(["-c", &format!("echo hold 60000 > /proc/{}/trigger", testbed::NAME)]);
    let mut child = None;
    let counts = counted(|| {
        let calls = || Counters::calls().of("testbed_hold");
        let before = calls();
        child = Some(command.spawn().unwrap());
        while calls() == before {
            std::thread::yield_now();
        }
    });
    let mut child = child.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let hold = one(&counts, "testbed_hold");
    assert_eq!((hold.entered, hold.ended, hold.abandoned), (1, 0, 0));
}
