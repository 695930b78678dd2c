//! Collecting lines.

use super::super::line::{COMMA, NO_FUNCTION, NO_NUMBER};
use super::*;

/// Name, calls, their nanoseconds, calls without duration.
type TestRow = (String, u64, u64, u64);

fn collect(text: &str) -> (Vec<TestRow>, Collector) {
    let mut collector = Collector::default();
    text.split_inclusive('\n').for_each(|line| collector.line(line.as_bytes()));
    let rows = collector.finish().into_iter().map(|of| {
        let calls = of.counts.values().sum();
        let of = of.handler;
        (of.name, calls, of.sum_ns, of.losses.lost + of.losses.in_flight)
    });
    (rows.collect(), collector)
}

fn row(name: &str, calls: u64, ns: u64, gone: u64) -> TestRow {
    (name.to_owned(), calls, ns, gone)
}

fn faults(of: &Collector) -> Vec<(u64, u64)> {
    of.faults.values().copied().collect()
}

#[test]
fn nested_calls_of_tasks_that_take_turns_and_move() {
    let (rows, of) = collect(
        "x-1 [000] 1.0: funcgraph_entry:            |  outer() {\n\
         y-2 [000] 1.1: funcgraph_entry:            |  other() {\n\
         x-1 [001] 1.2: funcgraph_entry:   0.500 us |    inner();\n\
         y-2 [000] 1.3: funcgraph_exit:    7.000 us |  }\n\
         x-1 [001] 1.4: funcgraph_exit:    2.000 us |  }\n",
    );
    assert_eq!(rows, [row("other", 1, 7000, 0), row("outer", 1, 2000, 0), row("inner", 1, 500, 0)]);
    assert!(of.faults.is_empty());
}

#[test]
fn idle_tasks_are_told_apart_by_their_cpu() {
    let (rows, _) = collect(
        "<idle>-0 [000] 1.0: funcgraph_entry:            |  a() {\n\
         <idle>-0 [001] 1.1: funcgraph_entry:            |  b() {\n\
         <idle>-0 [000] 1.2: funcgraph_exit:    2.000 us |  }\n\
         <idle>-0 [001] 1.3: funcgraph_exit:    3.000 us |  }\n",
    );
    assert_eq!(rows, [row("b", 1, 3000, 0), row("a", 1, 2000, 0)]);
}

#[test]
fn a_return_after_a_loss_is_not_given_to_an_earlier_call() {
    let (rows, of) = collect(
        "x-1 [000] 1.0: funcgraph_entry:            |  a() {\n\
         CPU:0 [12 EVENTS DROPPED]\n\
         x-1 [000] 1.2: funcgraph_exit:    2.000 us |  }\n\
         x-1 [000] 1.3: funcgraph_exit:    3.000 us |  } /* b */\n",
    );
    assert_eq!(rows, [row("b", 1, 3000, 0), row("a", 0, 0, 1)]);
    assert_eq!((of.lost_records, faults(&of)), (12, vec![(1, 3)]));
}

#[test]
fn the_kernel_names_what_does_not_match() {
    let (rows, of) = collect(
        " 0)               |  a() {\n\
         CPU:0 [LOST 12 EVENTS]\n\
         \x20 0)   3.000 us    |  } /* b */\n\
         \x20 0)               |  c() {\n\
         CPU:0 [LOST EVENTS]\n\
         \x20 0)   4.000 us    |  }\n",
    );
    assert_eq!(rows, [row("c", 1, 4000, 0), row("b", 1, 3000, 0), row("a", 0, 0, 1)]);
    assert_eq!(of.lost_records, 12);
    assert!(of.faults.keys().any(|fault| fault.starts_with("place where the tracer lost")));
}

#[test]
fn calls_without_return_and_returns_without_call() {
    let (rows, of) = collect(
        "x-1 [000] 1.0: funcgraph_exit:    9.000 us |    }\n\
         x-1 [000] 1.0: funcgraph_entry:            |  a() {\n\
         x-1 [000] 1.1: funcgraph_entry:            |    b() {\n\
         x-1 [000] 1.2: funcgraph_exit:    2.000 us |  }\n\
         x-1 [000] 1.3: funcgraph_entry:            |  c() {\n\
         x-1 [000] 1.4: funcgraph_entry:            |  d() {\n",
    );
    assert_eq!(
        rows,
        [row("a", 1, 2000, 0), row("b", 0, 0, 1), row("c", 0, 0, 1), row("d", 0, 0, 1)]
    );
    assert_eq!(faults(&of), [(1, 1)]);
}

#[test]
fn faults_are_counted_with_their_line_and_function() {
    let (rows, of) = collect(
        "x-1 [0] 1.0: funcgraph_entry:   0.5 us    |  a();\nx-1 [0] 1.0: funcgraph_entry:   0x5 us    |  a();\n\
         x-1 [0] 1.0: funcgraph_entry:   0,5 us    |  a();\nx-1 [0] 1.0: funcgraph_entry:   0.5 us    |\n",
    );
    assert_eq!(rows, [row("a", 1, 500, 2)]);
    assert_eq!(of.faults, [(COMMA, (1, 3)), (NO_NUMBER, (1, 2)), (NO_FUNCTION, (1, 4))].into());
}

#[test]
fn the_last_line_may_lack_its_end() {
    for (end, is_cut_off) in [
        ("x-1 [0] 1.0: funcgraph_entry:   0.5 us    |  a(", true),
        ("x-1 [0] 1.0: funcgraph_entry:   0.5 us    |  a();", false),
        ("x-1 [0] 1.0: funcg", true),
        (" 0)", true),
        ("# tracer", false),
        ("  ", false),
        ("CPU:0 [LOST 3 EVENTS]", false),
        ("x-1 [0] 1.0: funcgraph_entry:        |  a() {", false),
    ] {
        let (_, of) = collect(&format!("x-1 [0] 1.0: funcgraph_entry:   0.5 us    |  a();\n{end}"));
        let cut: Vec<_> = of.faults.keys().filter(|fault| fault.contains("cut off")).collect();
        assert_eq!(cut.len(), usize::from(is_cut_off), "{end}");
    }
    assert!(collect("some text").1.faults.is_empty());
}

#[test]
fn too_many_different_durations_cost_digits_and_not_calls() {
    let mut collector = Collector::default();
    let id = collector.id("a").unwrap();
    let many = MAX_EXACT as u64 + 10_000;
    (0..many).for_each(|ns| collector.record(id, ns));
    assert_eq!(collector.functions[id].counts.values().sum::<u64>(), many);
    assert_eq!(collector.functions[id].handler.sum_ns, many * (many - 1) / 2);
    assert!(collector.distinct < MAX_EXACT + 100, "{}", collector.distinct);
    assert!(collector.faults.keys().any(|fault| fault.contains("three digits")));
    // Each function has some of its own, until there is no room at all.
    let ids: Vec<usize> = (0..500).filter_map(|of| collector.id(&of.to_string())).collect();
    for at in 0..2 * MAX_EXACT {
        collector.record(ids[at % ids.len()], at as u64 * 4099);
    }
    assert_eq!(collector.distinct, 2 * MAX_EXACT);
    let calls = |of: &Function| of.counts.values().sum::<u64>() + of.handler.losses.lost;
    assert_eq!(collector.finish().iter().map(calls).sum::<u64>(), many + 2 * MAX_EXACT as u64);
}

#[test]
fn a_sum_beyond_the_format_is_lost_calls() {
    let mut collector = Collector::default();
    let id = collector.id("a").unwrap();
    [u64::MAX - 5, 3, 7].iter().for_each(|ns| collector.record(id, *ns));
    let of = &collector.functions[id];
    assert_eq!((of.counts.len(), of.handler.sum_ns, of.handler.losses.lost), (2, u64::MAX - 2, 1));
}

#[test]
fn functions_beyond_the_limit_are_counted() {
    let mut collector = Collector::default();
    for at in 0..MAX_FUNCTIONS + 7 {
        collector.line(format!("x-1 [0] 1.0: funcgraph_entry:   0.1 us |  f{at}();\n").as_bytes());
    }
    assert_eq!(faults(&collector), [(7, MAX_FUNCTIONS as u64 + 1)]);
    assert_eq!(collector.finish().len(), MAX_FUNCTIONS);
}
