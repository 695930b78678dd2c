//! Trees of drawn events, and of random ones.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::ftrace::page::Exit;

const H: u64 = 0x1000;

/// Events as the kernel draws them, in the order in which they are read. A line is `TIME CPU TASK |`, and behind it,
/// two spaces further to the right than the caller's, `f {` or `} f` for a function of one letter.
fn drawn(text: &str) -> Vec<(usize, Event)> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let event = |line: &str| {
        let (head, call) = line.split_once('|').unwrap();
        let head: Vec<u64> = head.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let &[time, cpu, pid] = head.as_slice() else { panic!("{line}") };
        let exit = Exit { too_deep: 0, times: None };
        let letter = call.chars().find(char::is_ascii_lowercase).unwrap();
        let event = Event {
            time,
            func: H + 4 + 0x100 * u64::from(letter as u32 - 'h' as u32),
            pid: pid as u32,
            depth: (call.len() - call.trim_start().len()) as u32 / 2,
            exit: call.trim_start().starts_with('}').then_some(exit),
        };
        (cpu as usize, event)
    };
    lines.map(event).collect()
}

fn calls() -> Calls {
    Calls::new(H, Precision::Three)
}

fn read(calls: &mut Calls, text: &str) {
    drawn(text).into_iter().for_each(|(cpu, event)| calls.add(cpu, event));
}

/// All that was read is known to be whole.
fn look(calls: &mut Calls, lost: u64) {
    calls.end_round(None);
    calls.look(Look { lost, from: u64::MAX, to: 0 });
}

/// Functions with calls and own time, callees to the right of their callers.
fn tree(calls: &Calls) -> String {
    let mut depths: Vec<usize> = Vec::new();
    let line = |node: &Node| {
        let depth = node.caller.map_or(0, |caller| depths[caller as usize] + 1);
        depths.push(depth);
        let letter = char::from_u32(((node.func - H) / 0x100) as u32 + 'h' as u32).unwrap();
        format!("{}{letter} {} {}\n", "  ".repeat(depth), node.calls, node.own)
    };
    calls.nodes.iter().map(line).collect()
}

/// Calls that were counted, lost and under way, and the sum of their durations.
fn books(calls: &mut Calls) -> (u64, u64, u64, u64) {
    let drained = calls.take(0).remove(0);
    let books = drained.books;
    assert_eq!(books.entries, calls.tally.paired + books.lost + books.in_flight);
    (drained.durations.len(), books.lost, books.in_flight, drained.durations.sum_ns())
}

fn of(text: &str) -> (String, (u64, u64, u64, u64)) {
    let mut calls = calls();
    read(&mut calls, text);
    look(&mut calls, 0);
    (tree(&calls), books(&mut calls))
}

#[test]
fn calls_lie_below_their_callers_and_own_parts_add_up() {
    let (tree, books) = of("
        100 0 7 |h {
        110 0 7 |  i {
        115 0 7 |    j {
        125 0 7 |    } j
        130 0 7 |  } i
        140 0 7 |  i {
        145 0 7 |  } i
        200 0 7 |} h
        300 0 7 |h {
        310 0 7 |  j {
        314 0 7 |  } j
        350 0 7 |} h
    ");
    assert_eq!(tree, "h 2 121\n  i 2 15\n    j 1 10\n  j 1 4\n");
    assert_eq!(books, (2, 0, 0, 150));
}

/// A task sleeps in the handler, another one calls the handler on the same CPU meanwhile, and the first one wakes up on
/// another CPU, whose events are read first.
#[test]
fn tasks_are_told_apart_where_one_sleeps_and_changes_the_cpu() {
    let (tree, books) = of("
        170 1 7 |  } s
        180 1 7 |} h
        100 0 7 |h {
        110 0 7 |  s {
        120 0 8 |h {
        125 0 8 |  i {
        130 0 8 |  } i
        140 0 8 |} h
        150 0 8 |h {
        160 0 8 |} h
    ");
    assert_eq!(tree, "h 3 45\n  i 1 5\n  s 1 60\n");
    assert_eq!(books, (3, 0, 0, 80 + 20 + 10));
}

/// Of a sequence of rounds each has what one CPU gave.
#[test]
fn what_another_cpu_wrote_before_is_waited_for() {
    let mut calls = calls();
    read(&mut calls, "170 1 7 |  } s\n180 1 7 |} h");
    calls.end_round(Some(u64::MAX));
    read(&mut calls, "100 0 7 |h {\n110 0 7 |  s {");
    calls.end_round(Some(u64::MAX));
    calls.end_round(Some(u64::MAX));
    calls.look(Look { lost: 0, from: 1000, to: 1000 });
    assert_eq!(tree(&calls), "h 1 20\n  s 1 60\n");
    assert_eq!(books(&mut calls), (1, 0, 0, 80));
}

/// Functions of an interrupt, and of the soft interrupt after it, are below the one that it fell into; the handler within
/// the handler is part of the outer call.
#[test]
fn interrupts_and_recursion_are_part_of_the_call() {
    let (tree, books) = of("
        100 0 7 |h {
        105 0 7 |  i {
        110 0 7 |    x {
        111 0 7 |    } x
        112 0 7 |    y {
        115 0 7 |      h {
        118 0 7 |      } h
        119 0 7 |    } y
        120 0 7 |  } i
        130 0 7 |} h
    ");
    assert_eq!(tree, "h 1 15\n  i 1 7\n    x 1 1\n    y 1 4\n      h 1 3\n");
    assert_eq!(books, (1, 0, 0, 30));
}

/// The tracer has taken a call off the task's stack and not yet written its exit.
#[test]
fn an_interrupt_before_an_exit_event_cuts_no_call() {
    let (tree, books) = of("
        100 0 7 |h {
        105 0 7 |  i {
        110 0 7 |  s {
        111 0 7 |    t {
        112 0 7 |    } t
        113 0 7 |  } s
        120 0 7 |  } i
        130 0 7 |s {
        132 0 7 |} s
        140 0 7 |} h
    ");
    assert_eq!(tree, "h 1 23\n  i 1 12\n    s 1 2\n      t 1 1\n  s 1 2\n");
    assert_eq!(books, (1, 0, 0, 40));
}

#[test]
fn cut_calls_are_counted_and_not_mixed_in() {
    let whole = "900 0 7 |h {\n910 0 7 |  i {\n915 0 7 |  } i\n950 0 7 |} h\n";
    for (what, text, lost, in_flight) in [
        ("its exit", "100 0 7 |h {\n110 0 7 |  j {\n120 0 7 |  } j\n", 1, 0),
        ("a callee's exit", "100 0 7 |h {\n110 0 7 |  j {\n120 0 7 |} h\n", 1, 0),
        ("a callee's entry", "100 0 7 |h {\n110 0 7 |  } j\n120 0 7 |} h\n", 1, 0),
        (
            "an exit before another callee",
            "100 0 7 |h {\n110 0 7 |  j {\n112 0 7 |  i {\n114 0 7 |  } i\n120 0 7 |} h\n",
            1,
            0,
        ),
        ("its entry", "110 0 7 |  j {\n120 0 7 |  } j\n130 0 7 |} h\n", 0, 0),
        ("the end of the window", "980 0 8 |h {\n990 0 8 |  j {\n", 0, 1),
    ] {
        let (tree, books) = of(&format!("{text}{whole}"));
        assert_eq!(tree, "h 1 45\n  i 1 5\n", "{what}");
        assert_eq!(books, (1, lost, in_flight, 50), "{what}");
    }
    // What another function of the name calls, and the handler below it.
    let (tree, _) = of("10 0 7 |n {\n20 0 7 |  h {\n30 0 7 |  } h\n40 0 7 |} n");
    assert_eq!(tree, "h 1 10\n");
}

/// The entry of a callee was dropped, and nothing in the events shows it.
#[test]
fn calls_meanwhile_are_left_out_where_events_were_dropped() {
    let mut calls = calls();
    let call = |at: u64| format!("{at} 0 7 |h {{\n{} 0 7 |}} h\n", at + 1_000);
    for at in [10_000, 20_000, 30_000, 40_000] {
        read(&mut calls, &call(at));
    }
    calls.end_round(None);
    calls.look(Look { lost: 0, from: 15_000, to: 16_000 });
    assert_eq!(books(&mut calls), (1, 0, 3, 1_000), "the others may still turn out to be cut");
    // The second call and the third one may be concerned, up to a microsecond later.
    calls.look(Look { lost: 2, from: 28_000, to: 29_500 });
    assert_eq!(books(&mut calls), (0, 1, 2, 0));
    calls.look(Look { lost: 2, from: u64::MAX, to: 50_000 });
    assert_eq!(books(&mut calls), (1, 2, 0, 1_000));
    assert_eq!(calls.take(2)[0].books.overrun, 2);
    assert_eq!(tree(&calls), "h 2 2000\n");
}

/// An interrupt fell between a function's entry event and the tracer's own reading of the clock, which is in its exit.
#[test]
fn what_an_interrupt_calls_lies_within_the_function_by_its_time_too() {
    let mut calls = calls();
    let text = "100 0 7 |h {\n110 0 7 |  x {\n130 0 7 |  } x\n150 0 7 |} h";
    for (cpu, mut event) in drawn(text) {
        if let Some(exit) = &mut event.exit {
            let call = if event.depth == 0 { 140 } else { 111 };
            *exit = Exit { too_deep: 3, times: Some((call, event.time - 1)) };
        }
        calls.add(cpu, event);
    }
    look(&mut calls, 0);
    assert_eq!(tree(&calls), "h 1 30\n  x 1 20\n");
    assert_eq!(books(&mut calls), (1, 0, 0, 50));
    assert_eq!(calls.waiting.too_deep(), 3);
}

#[test]
fn functions_get_their_names() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("proc")).unwrap();
    let symbols = "1000 t handler\t[driver]\n10f0 t __pfx_kmalloc\n1100 T kmalloc\n1100 t alias\n1180 d table\n";
    fs::write(root.path().join("proc/kallsyms"), symbols).unwrap();
    let mut calls = calls();
    read(
        &mut calls,
        "1 0 7 |h {\n2 0 7 |  i {\n3 0 7 |  } i\n4 0 7 |  j {\n5 0 7 |  } j\n9 0 7 |} h",
    );
    look(&mut calls, 0);
    let Traced { tree, too_deep } = calls.traced(&KernelFiles::below(root.path())).unwrap();
    let names: Vec<(&str, Option<&str>)> =
        tree.functions.iter().map(|f| (f.name.as_str(), f.module.as_deref())).collect();
    assert_eq!(names, [("handler", Some("driver")), ("kmalloc", None), ("0x1204", None)]);
    let nodes: Vec<_> = tree.nodes.iter().map(|n| (n.parent, n.function, n.calls, n.own)).collect();
    assert_eq!(nodes, [(None, 0, 1, 6), (Some(0), 1, 1, 1), (Some(0), 2, 1, 1)]);
    assert_eq!(too_deep, 0);
    fs::remove_file(root.path().join("proc/kallsyms")).unwrap();
    assert!(calls.traced(&KernelFiles::below(root.path())).is_err());
}

/// Events of three tasks on two CPUs, each in a random walk through calls.
fn walks() -> impl Strategy<Value = Vec<(usize, Event)>> {
    let step = (0..3_u32, 0..2_usize, 0..4_u64, any::<bool>());
    prop::collection::vec(step, 0..200).prop_map(|steps| {
        let mut stacks: [Vec<u64>; 3] = Default::default();
        let mut events = Vec::new();
        for (time, (pid, cpu, func, enters)) in steps.into_iter().enumerate() {
            let stack = &mut stacks[pid as usize];
            let (func, exit) = match stack.last() {
                Some(last) if !enters || stack.len() > 4 => {
                    (*last, Some(Exit { too_deep: 0, times: None }))
                }
                // Nothing but the handler is traced outside of it.
                Some(_) => (H + func * 0x100, None),
                None => (H, None),
            };
            if exit.is_some() {
                stack.pop();
            }
            let depth = stack.len() as u32;
            if exit.is_none() {
                stack.push(func);
            }
            events.push((cpu, Event { time: 10 * time as u64, func, pid: pid + 1, depth, exit }));
        }
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn books_balance_and_parts_add_up(
        events in walks(),
        dropped in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut left = events.clone();
        for at in dropped {
            if !left.is_empty() {
                left.remove(at.index(left.len()));
            }
        }
        let is_whole = left.len() == events.len();
        let mut calls = calls();
        left.iter().for_each(|(cpu, event)| calls.add(*cpu, *event));
        look(&mut calls, 0);
        let (counted, lost, in_flight, sum) = books(&mut calls);
        prop_assert_eq!(calls.nodes.iter().map(|node| node.own).sum::<u64>(), sum);
        prop_assert_eq!(calls.nodes.first().map_or(0, |root| root.calls), counted);
        if is_whole {
            let ended = events.iter().filter(|(_, e)| e.depth == 0 && e.exit.is_some()).count();
            let entered = events.iter().filter(|(_, e)| e.depth == 0 && e.exit.is_none()).count();
            prop_assert_eq!((counted, lost), (ended as u64, 0));
            prop_assert_eq!(counted + in_flight, entered as u64);
        }
        prop_assert!(calls.ended.is_empty(), "what was counted or lost is held no longer");
    }
}
