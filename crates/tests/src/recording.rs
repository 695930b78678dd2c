//! Recordings of trees that a test draws.

use profiler_recording::Recording;
use profiler_recording::call_tree::{CallTree, TreeFunction, TreeNode, TreePlace};

/// The tree that `text` draws. A line is `SYMBOL CALLS PLACE...`, two spaces further to the right than its caller's; a
/// place is `LINE=COUNT` or `FUNCTION@LINE=COUNT` of the driver `m`, `+OFFSET=COUNT` there, or `=COUNT` of the kernel.
pub fn drawn(text: &str) -> CallTree {
    let mut tree = CallTree::default();
    let mut open: Vec<u32> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let depth = (line.len() - line.trim_start().len()) / 2;
        let mut words = line.split_whitespace();
        let (symbol, calls) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        let words: Vec<&str> = words.collect();
        let is_kernel = words.iter().all(|word| word.starts_with('='));
        let module = (!is_kernel).then(|| "m".to_owned());
        let function = TreeFunction { name: symbol.to_owned(), module };
        let mut node = TreeNode {
            parent: depth.checked_sub(1).map(|above| open[above]),
            function: index(&mut tree.functions, function),
            calls,
            own: 0,
            iterations: 0,
            lines: Vec::new(),
        };
        for word in words {
            let (place, count) = word.split_once('=').unwrap();
            let count: u64 = count.parse().unwrap();
            node.own += count;
            if !place.is_empty() {
                node.lines.push((index(&mut tree.places, drawn_place(place, symbol)), count));
            }
        }
        open.truncate(depth);
        open.push(tree.nodes.len() as u32);
        tree.nodes.push(node);
    }
    tree
}

pub fn drawn_place(text: &str, symbol: &str) -> TreePlace {
    if let Some(offset) = text.strip_prefix('+') {
        let offset = Some(offset.parse().unwrap());
        return TreePlace { offset, ..TreePlace::default() };
    }
    let own = symbol.split('.').next().unwrap();
    let (function, line) = text.split_once('@').unwrap_or((own, text));
    TreePlace {
        function: Some(function.to_owned()),
        file: Some("/build/m/hooks.c".to_owned()),
        line: Some(line.parse().unwrap()),
        ..TreePlace::default()
    }
}

pub fn index<T: PartialEq>(all: &mut Vec<T>, one: T) -> u32 {
    let at = all.iter().position(|known| *known == one).unwrap_or_else(|| {
        all.push(one);
        all.len() - 1
    });
    at as u32
}

/// A recording of these trees, one a run.
pub fn runs(trees: &[CallTree]) -> Vec<Recording> {
    let sample = r#"{"schema": "profiler/recording", "version": 1, "tool": {"name": "p", "version": "1"},
        "started": "2026-11-22T12:00:00Z", "clock": "virtual", "meter": "exact", "window_ns": 1, "warmup_ns": 0,
        "interrupted": false, "histogram": {"precision_digits": 3, "lowest": 1, "highest": 60000000000,
        "kernel_memory_bytes": 0}, "host": {"arch": "x86_64", "mitigations": {}}, "modules": [], "loads": [],
        "handlers": [], "warnings": []}"#;
    let sample: Recording = serde_json::from_str(sample).unwrap();
    let run = |tree: &CallTree| Recording { call_tree: Some(tree.clone()), ..sample.clone() };
    let runs: Vec<Recording> = trees.iter().map(run).collect();
    runs.iter().for_each(|run| run.check().unwrap());
    runs
}
