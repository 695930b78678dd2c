//! Hand-made trees and random ones: what explain says of them, and that parts add up to the whole.

use std::collections::BTreeMap;
use std::slice;

use proptest::prelude::*;

use profiler_base::error::Failure;
use profiler_recording::call_tree::{CallTree, TreeFunction, TreeNode};
use profiler_tests::recording::{drawn, drawn_place, index, runs};

use super::*;

/// What explain says of recordings with one run each.
pub(crate) fn of_trees(
    trees: &[CallTree],
    handler: Option<&str>,
) -> Result<(Vec<Explained>, Vec<String>), Failure> {
    let runs = runs(trees);
    let recordings: Vec<NamedRuns<'_>> = runs
        .iter()
        .zip(["base.json", "candidate.json"])
        .map(|(run, name)| NamedRuns { name: name.to_owned(), runs: vec![run] })
        .collect();
    explain(&recordings, handler)
}

fn only(trees: &[&str]) -> Explained {
    let trees: Vec<CallTree> = trees.iter().map(|text| drawn(text)).collect();
    let (mut handlers, notes) = of_trees(&trees, Some("h")).unwrap();
    assert_eq!((handlers.len(), notes), (1, Vec::new()));
    handlers.remove(0)
}

/// Parts add up to the whole, in each recording and in what differs.
#[track_caller]
fn adds_up(of: &Explained) {
    for recording in 0..of.calls.len() {
        let own: u64 = of.nodes.iter().map(|node| node.figures[recording].own).sum();
        let lines: u64 = of.lines.iter().map(|line| line.instructions[recording]).sum();
        assert_eq!((own, lines), (of.total(recording), of.total(recording)));
        for (at, node) in of.nodes.iter().enumerate() {
            let below = of.nodes.iter().filter(|child| child.parent == Some(at));
            let below: u64 = below.map(|child| child.figures[recording].inclusive).sum();
            assert_eq!(node.figures[recording].inclusive, node.figures[recording].own + below);
        }
    }
    let whole = of.change(|recording| of.total(recording)).numerator;
    let sum = |exact: fn(&Node) -> Exact| -> i128 {
        of.nodes.iter().map(|node| exact(node).numerator).sum()
    };
    assert_eq!((sum(|node| node.change), sum(|node| node.moved)), (whole, 0));
    assert_eq!(of.lines.iter().map(|line| line.change.numerator).sum::<i128>(), whole);
    for node in &of.nodes {
        let own = of.change(|recording| node.figures[recording].own).numerator;
        assert_eq!(node.change.numerator + node.moved.numerator, own, "{}", node.function);
    }
    if of.is_difference() {
        let functions = of.functions.iter().map(|function| function.change.numerator);
        assert_eq!(functions.sum::<i128>(), whole);
    }
}

/// The lines that changed: function, lines, by how much a call.
fn changed(of: &Explained) -> Vec<(&str, Vec<Option<u64>>, f64)> {
    let changed = of.lines.iter().filter(|line| line.change.numerator != 0);
    changed.map(|line| (&*line.function.name, line.at.clone(), line.change.per_call())).collect()
}

fn node<'a>(of: &'a Explained, path: &str) -> &'a Node {
    let path_of = |node: &Node| {
        let (mut names, mut above) = (node.function.name.clone(), node.parent);
        while let Some(parent) = above.map(|parent| &of.nodes[parent]) {
            names = format!("{}/{names}", parent.function.name);
            above = parent.parent;
        }
        names
    };
    of.nodes.iter().find(|node| path_of(node) == path).unwrap_or_else(|| panic!("no {path}"))
}

fn fate<'a>(of: &'a Explained, name: &str) -> &'a SourceFunction {
    of.functions.iter().find(|function| function.function.name == name).unwrap()
}

/// A function that two others call, `h` once and `other` twice, takes another lock; one is called once more, and one was inlined.
#[test]
fn a_difference_is_of_the_function_that_is_called_as_often_as_before() {
    let causes = |base, candidate| only(&[base, candidate]).causes();
    let found = causes(
        "
h 10 1=100
  check 10 20=30 21=10
    lock 10 =70
    spent 10 40=20
  log 10 60=50
",
        "
h 10 1=100
  check 10 22=40 23=20
    lock_irq 10 =230
      save 10 =10
    spent 20 40=40
  log 10 60=50
",
    );
    let changed = |what: &str, instructions| Changed { what: what.to_owned(), instructions };
    let check = Cause {
        function: Function { name: "check".to_owned(), module: Some("m".to_owned()) },
        calls: 1.0,
        own: 2.0,
        callees: vec![changed("lock_irq", 24.0), changed("lock", -7.0), changed("spent", 2.0)],
        lines: vec![changed("hooks.c:22", 1.0), changed("hooks.c:23", 1.0)],
    };
    assert_eq!(found, [check]);
    assert_eq!(found[0].total(), 21.0);

    let twice = causes("h 5 1=5\n  check 10 20=30", "h 5 1=5\n  check 10 20=50");
    assert_eq!((twice[0].calls, twice[0].total()), (2.0, 2.0), "per call of its own");
    let inlined = causes("h 5 1=5 check@20=30", "h 5 1=5 check@20=50\n  lock 5 =10");
    assert_eq!((&*inlined[0].function.name, inlined[0].total()), ("check", 6.0));
}

const BASE: &str = "
h 10 10=40 11=30 12=20 14=70 20=20
  check 10 3=40 4=60 5=20
  kmalloc 10 =400
    slab 5 =100
";

#[test]
fn one_recording_is_a_tree_with_the_largest_first() {
    let of = only(&[BASE]);
    adds_up(&of);
    let order: Vec<_> = of.nodes.iter().map(|node| (node.depth, &*node.function.name)).collect();
    assert_eq!(order, [(0, "h"), (1, "kmalloc"), (2, "slab"), (1, "check")]);
    assert_eq!((of.calls.clone(), of.total(0)), (vec![10], 800));
    assert_eq!(node(&of, "h/kmalloc").figures[0].inclusive, 500);
    assert_eq!(node(&of, "h/check").figures[0].iterations, Some(0));
    assert_eq!((of.lines[0].function.name.as_str(), of.lines[0].instructions[0]), ("kmalloc", 400));
    assert!(of.functions.is_empty());
}

#[test]
fn runs_are_summed() {
    let trees = [drawn(BASE), drawn("h 6 10=24\n  other 1 9=5")];
    let runs = runs(&trees);
    let recording = NamedRuns { name: "a".to_owned(), runs: runs.iter().collect() };
    let (handlers, _) = explain(&[recording], None).unwrap();
    adds_up(&handlers[0]);
    assert_eq!((handlers[0].calls[0], handlers[0].total(0)), (16, 829));
    assert_eq!(node(&handlers[0], "h/other").figures[0].calls, 1);
}

#[test]
fn a_handler_is_taken_wherever_it_was_called_and_once_where_it_recurs() {
    let text = "
h 4 1=40
  h 2 1=20
    h 1 1=10
outer 3 50=30
  h 3 1=30
    leaf 3 7=9
";
    let of = only(&[text]);
    adds_up(&of);
    assert_eq!((of.calls[0], of.total(0)), (7, 109));
    assert_eq!(node(&of, "h/h/h").figures[0].calls, 1);
    let (all, _) = of_trees(&[drawn(text)], None).unwrap();
    let names: Vec<String> = all.iter().map(|of| of.handler.to_string()).collect();
    assert_eq!(names, ["h [m]", "outer [m]"]);
    assert_eq!(all[1].total(0), 69);
}

#[test]
fn a_changed_line_below_an_inserted_one_is_named_with_both_numbers() {
    let of = only(&[
        BASE,
        "
h 10 12=40 13=30 14=50 15=20 17=90 23=20
  check 10 5=40 6=60 7=20
  kmalloc 10 =400
    slab 5 =100
",
    ]);
    adds_up(&of);
    assert_eq!(
        changed(&of),
        [("h", vec![None, Some(14)], 5.0), ("h", vec![Some(14), Some(17)], 2.0)]
    );
    assert_eq!(node(&of, "h/check").weight, 0);
    assert!(of.functions.iter().all(|function| function.fate == Fate::Stayed));
}

#[test]
fn calls_differ_between_recordings() {
    let of = only(&["h 3 1=10 2=7", "h 7 1=24 2=7"]);
    adds_up(&of);
    assert_eq!(of.change(|recording| of.total(recording)).numerator, 31 * 3 - 17 * 7);
    assert_eq!(changed(&of)[0], ("h", vec![Some(2), Some(2)], -4.0 / 3.0));
}

#[test]
fn what_was_inlined_has_moved_but_for_its_call() {
    let of = only(&[
        BASE,
        "
h 10 10=40 11=20 12=20 14=70 20=20 check@4=60
  kmalloc 10 =400
    slab 5 =100
",
    ]);
    adds_up(&of);
    // The call itself, and the function's first and last line, are no longer needed.
    assert_eq!(
        changed(&of),
        [
            ("check", vec![Some(3), None], -4.0),
            ("check", vec![Some(5), None], -2.0),
            ("h", vec![Some(11), Some(11)], -1.0),
        ]
    );
    let (h, check) = (node(&of, "h"), node(&of, "h/check"));
    assert_eq!((h.change.per_call(), h.moved.per_call()), (-1.0, 6.0));
    assert_eq!((check.change.per_call(), check.moved.per_call()), (-6.0, -6.0));
    let check = fate(&of, "check");
    assert_eq!((check.fate, check.moved.per_call()), (Fate::Moved, 6.0));
    let within = check.within.iter().flatten().map(ToString::to_string);
    assert_eq!(within.collect::<Vec<_>>(), ["check [m]", "h [m]"]);
}

#[test]
fn parts_that_the_compiler_made_are_the_function() {
    let split = "
h.constprop.0 10 10=40 11=30 12=20 14=70 20=20
  check.isra.0 10 3=40 4=10
    check.isra.0.cold 10 4=50 5=20
  kmalloc 10 =400
    slab 5 =100
";
    let of = only(&[BASE, split]);
    adds_up(&of);
    assert_eq!(changed(&of), []);
    assert_eq!(node(&of, "h/check/check").moved.per_call(), 7.0);
    assert_eq!(node(&of, "h/check").moved.per_call(), -7.0);
    assert_eq!(fate(&of, "check").fate, Fate::Stayed);
    assert_eq!(of.nodes[0].symbols.len(), 2);
    let named = of_trees(&[drawn(split)], Some("h.constprop.0")).unwrap().0;
    assert_eq!(named[0].handler.name, "h");
}

#[test]
fn new_and_gone_functions_are_named() {
    let of = only(&[
        "h 10 10=40 12=20\n  old 10 3=40",
        "h 10 10=40 12=20\n  kfree 20 =60\n    slab 10 =50",
    ]);
    adds_up(&of);
    let fates: Vec<_> =
        of.functions.iter().map(|f| (&*f.function.name, f.fate, f.change.per_call())).collect();
    assert_eq!(
        fates,
        [
            ("kfree", Fate::Added, 6.0),
            ("slab", Fate::Added, 5.0),
            ("old", Fate::Gone, -4.0),
            ("h", Fate::Stayed, 0.0)
        ]
    );
    let order: Vec<&str> = of.nodes.iter().map(|node| &*node.function.name).collect();
    assert_eq!(order, ["h", "kfree", "slab", "old"]);
}

#[test]
fn more_of_a_function_in_another_place_has_not_moved() {
    let of = only(&["h 10 lock@1=10 9=5", "h 10 lock@1=10 9=5\n  check 10 lock@1=10"]);
    adds_up(&of);
    assert_eq!(changed(&of), [("lock", vec![Some(1), Some(1)], 1.0)]);
    let lock = fate(&of, "lock");
    assert_eq!((lock.fate, lock.within[1].len()), (Fate::Stayed, 2));
}

#[test]
fn a_kernel_function_that_another_caller_calls_has_moved() {
    let of = only(&[
        "h 10 10=40\n  check 10 3=40\n    memset 10 =90",
        "h 10 10=40 check@3=40\n  memset 10 =120",
    ]);
    adds_up(&of);
    assert_eq!(changed(&of), [("memset", vec![None, None], 3.0)]);
    assert_eq!(node(&of, "h/check/memset").moved.per_call(), -9.0);
    assert_eq!(node(&of, "h/memset").change.per_call(), 3.0);
}

#[test]
fn offsets_stand_for_lines_where_there_are_none_and_wholes_where_one_side_has_lines() {
    let trees = ["h 1 +0=5 +8=9", "h 1 +0=5 +4=2 +12=9"].map(drawn);
    let (handlers, notes) = of_trees(&trees, None).unwrap();
    adds_up(&handlers[0]);
    assert_eq!(changed(&handlers[0]), [("h", vec![None, Some(4)], 2.0)]);
    assert!(notes[0].starts_with("no source lines of m are known"), "{notes:?}");
    let trees = [drawn("h 1 +0=5 +8=9"), drawn("h 1 10=5 11=9 g@3=4")];
    let (handlers, notes) = of_trees(&trees, None).unwrap();
    adds_up(&handlers[0]);
    assert_eq!(changed(&handlers[0]), [("h", vec![None, None], 4.0)]);
    assert!(notes[0].starts_with("only one recording has source lines of m:"), "{notes:?}");
}

#[test]
fn what_cannot_be_explained_is_refused_with_what_to_do() {
    let (a, b) = (drawn(BASE), drawn("bind_handler 1 =3"));
    let refused = |handler: Option<&str>, trees: &[CallTree]| {
        of_trees(trees, handler).unwrap_err().to_string()
    };
    assert_eq!(
        refused(Some("chek"), slice::from_ref(&a)),
        "no function `chek` was called in base.json: did you mean check?"
    );
    assert_eq!(
        refused(Some("zzz"), &[a.clone(), b.clone()]),
        "no function `zzz` was called in base.json and candidate.json: its handlers are h [m], bind_handler"
    );
    assert_eq!(
        refused(None, &[a.clone(), b.clone()]),
        "no handler was called in both recordings: h [m] has no call in candidate.json, bind_handler has no call in \
         base.json"
    );
    // Each is sound, and their sum is not.
    let large = runs(&[drawn("h 1 1=4000000000000000000"), drawn("h 1 1=4000000000000000000")]);
    let large = NamedRuns { name: "large.json".to_owned(), runs: large.iter().collect() };
    assert_eq!(
        explain(&[large], None).unwrap_err().to_string(),
        "large.json has more calls or larger sums than can be: measure again"
    );
    let bare = Recording { call_tree: None, ..runs(slice::from_ref(&a)).remove(0) };
    let bare = NamedRuns { name: "bare.json".to_owned(), runs: vec![&bare] };
    assert_eq!(
        explain(&[bare], None).unwrap_err().to_string(),
        "bare.json has no call tree: measure with `profiler lab --meter exact`"
    );
    let both = drawn(&format!("{BASE}bind_handler 1 =3"));
    let (handlers, notes) = of_trees(&[a, both], None).unwrap();
    assert_eq!(handlers.len(), 1);
    assert_eq!(notes, ["bind_handler has no call in base.json"]);
}

/// A random tree of few functions, so that all that can happen does.
fn random_tree() -> impl Strategy<Value = CallTree> {
    let node =
        (0..8_usize, 0..5_usize, 1..50_u64, prop::collection::vec((0..24_u32, 1..9_u64), 0..5));
    prop::collection::vec(node, 1..24).prop_map(|nodes| {
        let names = ["h", "check", "check.isra.0", "h.cold", "kmalloc"];
        let mut tree = drawn("h 5 1=20");
        for (parent, name, calls, mut lines) in nodes {
            lines.dedup_by_key(|(line, _)| *line);
            let is_kernel = names[name] == "kmalloc";
            let module = (!is_kernel).then(|| "m".to_owned());
            let function = TreeFunction { name: names[name].to_owned(), module };
            let places = lines.iter().map(|(line, count)| {
                let text = format!("{}@{}", ["h", "check", "other"][*line as usize % 3], line + 1);
                (index(&mut tree.places, drawn_place(&text, "h")), *count)
            });
            let lines: Vec<(u32, u64)> = if is_kernel { Vec::new() } else { places.collect() };
            let own: u64 = lines.iter().map(|(_, count)| count).sum();
            tree.nodes.push(TreeNode {
                parent: (parent < tree.nodes.len()).then_some(parent as u32),
                function: index(&mut tree.functions, function),
                calls,
                own: if lines.is_empty() { calls * 3 } else { own },
                iterations: 0,
                lines,
            });
        }
        tree
    })
}

proptest! {
    #[test]
    fn parts_of_random_trees_add_up(a in random_tree(), b in random_tree()) {
        for trees in [vec![a.clone()], vec![b.clone()], vec![a, b]] {
            let (handlers, _) = of_trees(&trees, Some("h")).unwrap();
            handlers.iter().for_each(adds_up);
        }
    }

    /// All instructions of the handler are there, by a count that knows nothing of trees.
    #[test]
    fn nothing_is_lost(tree in random_tree()) {
        let mut within = Vec::new();
        let mut whole = BTreeMap::from([("calls", 0), ("all", 0)]);
        for node in &tree.nodes {
            let is_h = tree.functions[node.function as usize].name.starts_with('h');
            let above = node.parent.is_some_and(|parent| within[parent as usize]);
            within.push(is_h || above);
            if is_h && !above {
                *whole.get_mut("calls").unwrap() += node.calls;
            }
            if is_h || above {
                *whole.get_mut("all").unwrap() += node.own;
            }
        }
        let (handlers, _) = of_trees(&[tree], Some("h")).unwrap();
        prop_assert_eq!((handlers[0].calls[0], handlers[0].total(0)), (whole["calls"], whole["all"]));
    }

    /// A recording does not differ from itself, nor from one with twice the calls.
    #[test]
    fn a_tree_does_not_differ_from_itself(tree in random_tree()) {
        let mut twice = tree.clone();
        for node in &mut twice.nodes {
            node.calls *= 2;
            node.own *= 2;
            node.lines.iter_mut().for_each(|(_, count)| *count *= 2);
        }
        let (handlers, _) = of_trees(&[tree, twice], Some("h")).unwrap();
        prop_assert_eq!(changed(&handlers[0]), Vec::new());
        let differs = |node: &Node| node.change.numerator != 0 || node.moved.numerator != 0;
        prop_assert!(!handlers[0].nodes.iter().any(differs));
    }
}

/// The largest that a recording may have.
#[test]
fn large_figures_add_up() {
    let text = format!(
        "h {most} 1={half}\n  check 1 2={half}",
        most = (1_u64 << 62) - 1,
        half = 1_u64 << 61
    );
    for pair in [[&*text, "h 1 1=1"], ["h 1 1=1", &*text], [&*text, &*text]] {
        adds_up(&only(&pair));
    }
}
