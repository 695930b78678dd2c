//! `profiler explain --live`: the call tree of a handler from ftrace, against the module's own counters.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use profiler_base::error::exit;
use serde_json::Value;

use crate::cli::{Ended, Started, eventually, profiler};
use crate::ftrace::{assert_as_found, found, tracefs};
use crate::testbed::{self, Counters};

const HANDLER: &str = "connect_syscall_handler";
const EXPLAIN: &str =
    "explain --live --module hids_testbed --handler connect_syscall_handler --builtin connect";
/// What limits the tracer.
const LIMIT: &str = "/sys/kernel/tracing/set_graph_function";

fn json(line: &str) -> Value {
    let ended = Ended::of(&mut profiler(&format!("{line} --format json")));
    ended.assert_code(exit::OK);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

fn figure(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no figure"))
}

/// The only handler of a report, whose parts add up to the whole and to those below each part.
fn whole(report: &Value) -> &Value {
    assert_eq!(report["unit"], "ns", "{report}");
    let handlers = report["handlers"].as_array().unwrap();
    let [handler] = handlers.as_slice() else { panic!("{report}") };
    let nodes = handler["nodes"].as_array().unwrap();
    let all = |name: &str| -> Vec<u64> {
        nodes.iter().map(|node| figure(&node["figures"][0][name])).collect()
    };
    let (own, inclusive) = (all("self"), all("inclusive"));
    assert_eq!(own.iter().sum::<u64>(), inclusive[0]);
    let mut sums = own;
    for (at, node) in nodes.iter().enumerate().rev() {
        assert_eq!(sums[at], inclusive[at], "{node}");
        if let Some(parent) = node["parent"].as_u64() {
            sums[parent as usize] += sums[at];
        }
    }
    assert_eq!(handler["calls"][0], nodes[0]["figures"][0]["calls"]);
    assert!(nodes.iter().all(|node| node["figures"][0].get("loads").is_none()), "{handler}");
    assert_eq!(
        (&handler["lines"], &handler["functions"]),
        (&Value::from([0; 0]), &Value::from([0; 0]))
    );
    handler
}

fn names(handler: &Value) -> Vec<&str> {
    let nodes = handler["nodes"].as_array().unwrap().iter();
    nodes.map(|node| node["function"]["name"].as_str().unwrap()).collect()
}

#[test]
#[ignore = "VM 6.1 7.2: without and with instances of the tracer"]
fn a_live_tree_has_every_call_and_tracefs_is_as_it_was_found() {
    testbed::load();
    let found = found();
    let before = Counters::calls().of(HANDLER);
    let report = json(&format!("{EXPLAIN} --operations 50"));
    let calls = Counters::calls().of(HANDLER) - before;
    let handler = whole(&report);
    println!("{}", serde_json::to_string(&report["recordings"]).unwrap());
    assert!(calls >= 50, "{calls}");
    assert_eq!(figure(&handler["calls"][0]), calls, "{report}");
    let losses = &report["recordings"][0]["losses"];
    for lost in ["lost", "overrun", "in_flight", "unpaired_exits"] {
        // Counters that few handlers need are absent where they are 0.
        assert!(losses.get(lost).is_none_or(|count| *count == 0), "{report}");
    }
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("the tracer's own cost, some hundred ns for each traced call"),
        "{notes}"
    );
    assert_eq!(handler["handler"]["module"], "hids_testbed");
    let names = names(handler);
    assert!(names.len() > 2 && !names.iter().any(|name| name.starts_with("0x")), "{names:?}");
    assert_eq!(tracefs(), found);

    // The handler sleeps until a process has ended, and other tasks run on its CPU meanwhile.
    let report = json(
        "explain --live --handler call_usermodehelper_exec --builtin call-usermodehelper --operations 2",
    );
    let handler = whole(&report);
    assert!(figure(&handler["calls"][0]) >= 2, "{report}");
    assert!(self::names(handler).contains(&"schedule"), "{report}");

    assert_as_found(&found);
}

/// The reader is too slow for a buffer of so few pages.
#[test]
#[ignore = "VM 6.1: the events are the same on each kernel"]
fn calls_in_a_live_tree_are_whole_where_events_were_dropped() {
    testbed::load();
    let before = Counters::calls().of(HANDLER);
    let ended = Ended::of(&mut profiler(&format!(
        "{EXPLAIN} --operations 1000 --trace-buffer 8 --format json"
    )));
    let calls = Counters::calls().of(HANDLER) - before;
    // Nothing may be left, or so little that no call is whole.
    assert!(
        [exit::LOSSES, exit::NO_HITS].map(i32::from).contains(&ended.code.unwrap()),
        "{ended:?}"
    );
    ended.assert_error(&[]);
    if ended.code == Some(i32::from(exit::LOSSES)) {
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        let handler = whole(&report);
        let losses = &report["recordings"][0]["losses"];
        println!("{} of {calls}: {losses}", handler["calls"][0]);
        let counted = figure(&handler["calls"][0]);
        assert!(figure(&losses["overrun"]) > 0, "nothing was dropped: {losses}");
        assert_eq!(
            counted + figure(&losses["lost"]) + figure(&losses["in_flight"]),
            figure(&losses["entries"])
        );
        assert!(figure(&losses["lost"]) > 0 && counted < calls, "{losses}");
        let notes = report["notes"].to_string();
        assert!(notes.contains("left out: cut off") && notes.contains("--trace-buffer"), "{notes}");
        // A whole call has all callees: none of them was called a broken number of times.
        for node in handler["nodes"].as_array().unwrap().iter().filter(|node| node["depth"] == 1) {
            println!("{} {}", node["function"]["name"], node["figures"][0]["calls"]);
        }
    }
}

#[test]
#[ignore = "VM 6.1: the events are the same on each kernel"]
fn a_live_tree_that_cannot_be_is_refused() {
    testbed::load();
    let found = found();
    let refused = |line: &str, code: u8, words: &[&str]| {
        let ended = Ended::of(&mut profiler(line));
        ended.assert_code(code).assert_error(words);
        assert_eq!(ended.stdout, "");
        assert_eq!(tracefs(), found, "{line}");
    };
    let of = |handler: &str| {
        format!(
            "explain --live --module hids_testbed --handler {handler} --builtin connect --operations 20"
        )
    };
    refused(&of("no_such_handler"), exit::NO_TARGET, &["no_such_handler"]);
    refused(&of("connect_*"), exit::CANNOT_MEASURE, &["one function", "name one of them"]);
    refused(&of("bind_handler"), exit::NO_HITS, &["no handler had a single hit"]);
    refused(&of("testbed_notrace"), exit::NO_TARGET, &["`testbed_notrace`", "notrace"]);
    assert_as_found(&found);

    // Another tool has the tracer, or has limited it. Of all functions it would be half a minute here.
    let instance = Path::new("/sys/kernel/tracing/instances/other");
    fs::create_dir(instance).unwrap();
    let tracer = instance.join("current_tracer");
    let has_own = fs::write(&tracer, "blk").is_ok();
    if !has_own {
        fs::write("/sys/kernel/tracing/current_tracer", "blk").unwrap();
    }
    let ended = Ended::of(&mut profiler(EXPLAIN));
    ended.assert_code(exit::CANNOT_MEASURE).assert_error(&["current_tracer", "blk", "echo nop"]);
    assert_eq!(
        fs::read_to_string(LIMIT).unwrap().lines().filter(|l| !l.starts_with('#')).count(),
        0
    );
    let used =
        if has_own { tracer.as_path() } else { Path::new("/sys/kernel/tracing/current_tracer") };
    fs::write(used, "nop").unwrap();
    fs::write("/sys/kernel/tracing/trace", "").unwrap();
    fs::remove_dir(instance).unwrap();
}

#[test]
#[ignore = "VM 6.1: the events are the same on each kernel"]
fn a_live_tree_that_is_ended_leaves_nothing() {
    testbed::load();
    let found = found();
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut trace = Started::with(&format!("{EXPLAIN} --operations 100000000 --depth 1"), &[]);
        trace.wait_measuring();
        assert!(fs::read_to_string(LIMIT).unwrap().contains(HANDLER), "{signal}");
        let calls = || Counters::calls().of(HANDLER);
        let before = calls();
        eventually("the load does not begin", || calls() >= before + 10);
        trace.signal(signal);
        let ended = trace.end();
        if signal == Signal::SIGINT {
            ended.assert_code(exit::INTERRUPTED);
            println!("{}", ended.stdout);
            let text = &ended.stdout;
            assert!(text.contains(" ns a call in a live trace under the load connect ("), "{text}");
            assert!(text.contains("note: durations contain the tracer's own cost"), "{text}");
            assert!(!text.contains("instructions"), "{text}");
        }
        eventually("tracefs is not put back", || tracefs() == found);
    }
    assert_as_found(&found);
}
