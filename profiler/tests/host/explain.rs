//! `profiler explain` from files to exit code, on recordings with hand-made call trees.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use profiler_load::LoadStatus;
use profiler_recording::call_tree::{CallTree, TreeFunction, TreeNode, TreePlace};
use profiler_recording::{Meter, Recording, Series};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{handler, measure, sample};
use crate::gate::assert_schema;

/// A handler that calls two functions, the second of which takes `more` instructions a call in one more line.
fn tree(calls: u64, more: u64) -> CallTree {
    let function = |name: &str, module: Option<&str>| TreeFunction {
        name: name.to_owned(),
        module: module.map(str::to_owned),
    };
    let place = |function: &str, line: u64| TreePlace {
        function: Some(function.to_owned()),
        file: Some("hooks.c".to_owned()),
        line: Some(line as u32),
        ..TreePlace::default()
    };
    let node = |parent, function, lines: &[(u32, u64)], own: u64| TreeNode {
        parent,
        function,
        calls,
        own: own * calls,
        iterations: 2 * calls,
        lines: lines.iter().map(|(place, count)| (*place, count * calls)).collect(),
    };
    let lines = if more > 0 { vec![(1, 40), (2, more), (3, 20)] } else { vec![(1, 40), (3, 20)] };
    CallTree {
        functions: vec![
            function("connect_handler", Some("hids_testbed")),
            function("fill.isra.0", Some("hids_testbed")),
            function("kmalloc", None),
        ],
        places: vec![
            place("connect_handler", 10),
            place("fill", 30),
            place("fill", 31),
            place("fill", if more > 0 { 32 } else { 31 }),
        ],
        nodes: vec![
            node(None, 0, &[(0, 30)], 30),
            node(Some(0), 1, &lines, 60 + more),
            node(Some(0), 2, &[], 110),
        ],
    }
}

pub(crate) fn recording(calls: u64, more: u64, second: i64) -> Recording {
    let mut profile = sample();
    profile.meter = Meter::Exact;
    profile.started = jiff::Timestamp::from_second(1_700_000_000 + second).unwrap();
    profile.loads[0].outcome.status = LoadStatus::Completed;
    let durations = vec![200 + more; calls as usize];
    profile.handlers = vec![handler(&measure("connect_handler", &durations))];
    profile.call_tree = Some(tree(calls, more));
    profile
}

/// A folder with `a.json`, `b.json` which takes 7 instructions more, and `series.json` of two runs.
struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, profile: &Recording| profile.write(&folder.path().join(name)).unwrap();
        write("a.json", &recording(10, 0, 0));
        write("b.json", &recording(20, 7, 1));
        let bare = Recording { call_tree: None, ..recording(10, 0, 2) };
        write("bare.json", &bare);
        let mut other = recording(10, 0, 3);
        other.call_tree.as_mut().unwrap().functions[0].name = "bind_handler".to_owned();
        write("other.json", &other);
        let series = Series::new("baseline", vec![recording(10, 0, 4), recording(5, 1, 5)]);
        series.write(&folder.path().join("series.json")).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Exit code, standard output, standard error.
    fn run(&self, arguments: &str) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        command.current_dir(self.0.path()).arg("explain").args(arguments.split_whitespace());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
    }

    #[track_caller]
    fn passes(&self, arguments: &str) -> String {
        let (code, out, error) = self.run(arguments);
        assert_eq!((code, error.as_str()), (0, ""), "{arguments}: {out}");
        out
    }

    #[track_caller]
    fn refused(&self, arguments: &str, code: i32, text: &str) {
        let (ended, out, error) = self.run(arguments);
        assert!((ended, out.as_str()) == (code, "") && error.contains(text), "{ended}: {error}");
    }
}

#[test]
fn a_recording_and_a_difference_are_told() {
    let bench = Bench::new();
    let one = bench.passes("a.json");
    assert!(one.contains(
        "connect_handler [hids_testbed]: 200.00 instructions a call in a.json (10 calls, 1 run)\n"
    ));
    assert!(one.contains("  fill.isra.0 [hids_testbed]"), "{one}");
    let two = bench.passes("a.json b.json");
    assert!(two.contains("200.00 instructions a call in a.json (10 calls, 1 run), 207.00 in b.json (20 calls, 1 run): +7.00\n"), "{two}");
    assert!(two.contains("\nfill hooks.c:31, new"), "{two}");
    assert!(!two.contains("note:"), "the table has the same sums: {two}");
    // Both runs of a series.
    let series = bench.passes("series.json --depth 0");
    assert!(
        series.contains("200.33 instructions a call in series.json (15 calls, 2 runs)"),
        "{series}"
    );
    assert!(series.contains("\n  (2 others)"), "{series}");
    assert!(!series.contains("kmalloc"), "{series}");
    let few = bench.passes("a.json --min-share 40");
    assert!(
        few.contains("\n  kmalloc") && few.contains("\n  fill.isra.0"),
        "one that is left over: {few}"
    );
    assert!(bench.passes("a.json --handler fill").starts_with("fill [hids_testbed]: 60.00"));
}

#[test]
fn a_table_of_other_sums_is_told() {
    let bench = Bench::new();
    let mut more = recording(10, 0, 9);
    more.handlers = vec![handler(&measure("connect_handler", &[200; 11]))];
    more.write(&bench.path("more.json")).unwrap();
    let text = bench.passes("more.json");
    let note = "note: more.json: the table of handlers has 11 calls and 2200 instructions of connect_handler \
                [hids_testbed], and the tree 10 and 2000\n";
    assert!(text.contains(note), "{text}");
}

/// A gate's recordings have a handler in the table of one load alone.
#[test]
fn a_handler_is_explained_by_the_runs_that_have_it_in_their_table() {
    let bench = Bench::new();
    let mut first = recording(10, 0, 9);
    first.handlers = vec![handler(&measure("connect_handler", &[200; 10]))];
    let mut other = recording(7, 0, 10);
    other.handlers.clear();
    Series::new("baseline", vec![first, other]).write(&bench.path("two.json")).unwrap();
    let text = bench.passes("two.json --handler connect_handler");
    assert!(text.contains("(10 calls, 1 run)") && !text.contains("note:"), "{text}");
    assert!(bench.passes("two.json --handler kmalloc").contains("(17 calls, 2 runs)"));
}

#[test]
fn json_is_that_of_the_schema() {
    let bench = Bench::new();
    for files in ["a.json", "a.json b.json", "series.json"] {
        let json: Value =
            serde_json::from_str(&bench.passes(&format!("{files} --format json"))).unwrap();
        assert_schema(&json, "explain-v1.schema.json");
        let handler = &json["handlers"][0];
        let sums: Vec<u64> = (0..handler["calls"].as_array().unwrap().len())
            .map(|recording| {
                let nodes = handler["nodes"].as_array().unwrap().iter();
                nodes.map(|node| node["figures"][recording]["self"].as_u64().unwrap()).sum()
            })
            .collect();
        let whole = handler["nodes"][0]["figures"].as_array().unwrap().iter();
        let whole: Vec<u64> = whole.map(|of| of["inclusive"].as_u64().unwrap()).collect();
        assert_eq!(sums, whole, "{files}");
    }
}

#[test]
fn stacks_add_up() {
    let bench = Bench::new();
    let folded = bench.passes("a.json b.json --format folded");
    let mut sums = [0, 0];
    for line in folded.lines() {
        let counts: Vec<u64> =
            line.split(' ').skip(1).map(|count| count.parse().unwrap()).collect();
        sums = [sums[0] + counts[0], sums[1] + counts[1]];
    }
    assert_eq!(sums, [200 * 20, 207 * 20], "both with the calls of the second");
    bench.passes("a.json --output a.md");
    let markdown = fs::read_to_string(bench.path("a.md")).unwrap();
    assert!(markdown.starts_with("### connect_handler"), "{markdown}");
}

#[test]
fn what_is_missing_in_a_module_is_said_with_the_remedy() {
    let bench = Bench::new();
    let mut bare = recording(10, 0, 9);
    let tree = bare.call_tree.as_mut().unwrap();
    for place in &mut tree.places {
        *place = TreePlace { offset: place.line.map(u64::from), ..TreePlace::default() };
    }
    bare.write(&bench.path("no_lines.json")).unwrap();
    let text = bench.passes("no_lines.json");
    assert!(text.contains("\nconnect_handler +0xa "), "{text}");
    let note = "\nnote: no source lines of hids_testbed are known";
    assert!(text.contains(note) && text.contains("CONFIG_DEBUG_INFO"), "{text}");
    assert!(!text.contains("without a symbol"), "{text}");
    bare.call_tree.as_mut().unwrap().functions[1].name = "0x1a0".to_owned();
    bare.write(&bench.path("stripped.json")).unwrap();
    let text = bench.passes("stripped.json");
    assert!(text.contains("\n  0x1a0 [hids_testbed] "), "{text}");
    assert!(
        text.contains("\nnote: functions of hids_testbed without a symbol are named by"),
        "{text}"
    );
    assert!(!bench.passes("a.json").contains("note: "), "it has lines and symbols");
}

#[test]
fn what_cannot_be_explained_is_refused() {
    let bench = Bench::new();
    bench.refused(
        "bare.json",
        7,
        "bare.json has no call tree: measure with `profiler lab --meter exact`",
    );
    bench.refused("a.json bare.json", 7, "bare.json has no call tree");
    bench.refused("a.json --handler conect_handler", 4, "did you mean connect_handler?");
    bench.refused("a.json other.json", 12, "no handler was called in both recordings");
    bench.refused("none.json", 7, "none.json");
    bench.refused("a.json --format pdf", 2, "possible values: table, markdown, json, folded");
    bench.refused("a.json --output /proc/no/such.md", 8, "/proc/no/such.md");
    let mut unlike = recording(10, 0, 7);
    unlike.host.kernel_release = Some("6.12.0".to_owned());
    unlike.write(&bench.path("unlike.json")).unwrap();
    bench.refused("a.json unlike.json", 12, "kernel");
    bench.passes("a.json unlike.json --allow-different kernel");
}

#[test]
fn damaged_trees_are_refused() {
    let bench = Bench::new();
    type Damage = fn(&mut CallTree);
    let damages: [(Damage, &str); 6] = [
        (|tree| tree.nodes[1].parent = Some(1), "node 1 comes before its parent"),
        (|tree| tree.nodes[1].function = 3, "node 1 is of a function that is not there"),
        (|tree| tree.nodes[1].lines[0].0 = 4, "node 1 has a place that is not there"),
        (
            |tree| tree.nodes[1].lines[0].1 = 4,
            "node 1, fill.isra.0, has 600 instructions, and its lines 204",
        ),
        (|tree| tree.functions[0].name.clear(), "the name of a function is empty or too long"),
        (
            |tree| {
                for parent in 2..5_000 {
                    let node = TreeNode { parent: Some(parent), ..tree.nodes[2].clone() };
                    tree.nodes.push(node);
                }
            },
            "has more than 4096 calls within each other",
        ),
    ];
    for (damage, reason) in damages {
        let mut profile = recording(10, 0, 8);
        damage(profile.call_tree.as_mut().unwrap());
        profile.write(&bench.path("bad.json")).unwrap();
        bench.refused("bad.json", 7, &format!("call_tree: {reason}"));
    }
}
