//! What the formats say of hand-made trees.

use std::collections::BTreeMap;

use profiler_explain::{NamedRuns, explain};
use profiler_recording::Meter;
use profiler_tests::recording::{drawn, runs};

use super::*;

const BASE: &str = "
connect_handler 10 10=40 11=30 12=20 14=70 20=20
  check_port 10 3=40 4=60 5=20
  fill.isra.0 10 30=55 31=20
  kmalloc 10 =400
    slab_alloc 5 =100
    prefetch 10 =1
bind_handler 4 40=36
";

/// A line is new, a check is inlined, memory is freed, and `fill` has a part of its own.
const CANDIDATE: &str = "
connect_handler 20 10=80 11=40 12=40 13=100 15=140 21=40 check_port@4=120
  fill 20 31=110
    fill.cold 3 32=46
  kmalloc 20 =800
    slab_alloc 10 =200
    prefetch 20 =2
  kfree 20 =900
bind_handler 4 50=36
unbind_handler 4 60=36
";

fn report(trees: &[&str]) -> ExplainReport {
    let runs: Vec<_> = trees.iter().map(|text| runs(&[drawn(text)])).collect();
    let recordings: Vec<NamedRuns<'_>> = runs
        .iter()
        .zip(["base.json", "candidate.json"])
        .map(|(runs, name)| NamedRuns { name: name.to_owned(), runs: runs.iter().collect() })
        .collect();
    let (handlers, notes) = explain(&recordings, None).unwrap();
    ExplainReport::new(&recordings, handlers, notes)
}

fn rendered(trees: &[&str], format: Format, shown: Shown) -> String {
    String::from_utf8(render(&report(trees), format, shown)).unwrap()
}

#[test]
fn one_recording() {
    let tables = rendered(&[BASE], Format::Table, Shown::default());
    insta::assert_snapshot!("one-table", tables);
    let markdown = rendered(&[BASE], Format::Markdown, Shown::default());
    insta::assert_snapshot!("one-markdown", markdown);
}

#[test]
fn what_differs() {
    let tables = rendered(&[BASE, CANDIDATE], Format::Table, Shown::default());
    insta::assert_snapshot!("two-table", tables);
    let markdown = rendered(&[BASE, CANDIDATE], Format::Markdown, Shown::default());
    insta::assert_snapshot!("two-markdown", markdown);
}

/// What is not shown is in a row, so that each column adds up whatever is shown.
#[test]
fn rows_that_are_not_shown_are_summed() {
    for trees in [&[BASE][..], &[BASE, CANDIDATE]] {
        let report = report(trees);
        let of = &report.handlers[0];
        let nothing = Shown { depth: Some(0), ..Shown::default() };
        assert_eq!(view::rows(of, nothing).len(), 2);
        for (depth, min_share) in [(0, 0.0), (1, 0.0), (9, 1.0), (9, 20.0), (9, 100.0), (1, 20.0)] {
            let shown = Shown { depth: Some(depth), min_share, width: None };
            let rows = view::rows(of, shown);
            let count: usize = rows.iter().map(|row| row.others.max(1)).sum();
            assert_eq!(count, of.nodes.len(), "{depth} {min_share}");
            for recording in 0..trees.len() {
                let own: u64 = rows.iter().map(|row| row.node.figures[recording].own).sum();
                assert_eq!(own, of.total(recording), "{depth} {min_share}");
                let below = rows.iter().filter(|row| row.node.depth == 1);
                let below: u64 = below.map(|row| row.node.figures[recording].inclusive).sum();
                assert_eq!(below + rows[0].node.figures[recording].own, of.total(recording));
            }
            let change: i128 = rows.iter().map(|row| row.node.change.numerator).sum();
            assert_eq!(change, of.change(|recording| of.total(recording)).numerator);
            assert_eq!(rows.iter().map(|row| row.node.moved.numerator).sum::<i128>(), 0);
        }
    }
    let shown = Shown { min_share: 12.0, ..Shown::default() };
    insta::assert_snapshot!("one-table-of-few", rendered(&[BASE], Format::Table, shown));
}

#[test]
fn where_code_moved_is_said() {
    let (f, g) = ("h 1 1=9\n  f 1 2=9", "\n  g 1 3=9");
    let called = format!("{f} i@7=5{g} i@7=5\n    i 1 7=5");
    let inlined = format!("{f} i@7=5{g} i@7=10");
    let of = |before: &str, after: &str| {
        let text = rendered(&[before, after], Format::Table, Shown::default());
        let line = text.lines().find(|line| line.starts_with("moved: ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{text}"))
    };
    assert_eq!(of(&called, &inlined), "moved: 5.00 of i, inlined into f and g; changed by 0");
    assert_eq!(
        of(&inlined, &called),
        "moved: 5.00 of i, no longer inlined into f and g alone; changed by 0"
    );
    let (in_f, in_g) = (format!("{f} i@7=5{g}"), format!("{f}{g} i@7=6"));
    assert_eq!(of(&in_f, &in_g), "moved: 5.00 of i, from f to g; changed by +1.00");
    let itself = format!("{f}{g}\n    i 1 7=5");
    assert_eq!(of(&itself, &in_g), "moved: 5.00 of i, inlined into g; changed by +1.00");
    assert_eq!(of(&in_g, &itself), "moved: 5.00 of i, no longer inlined into g; changed by -1.00");
}

#[test]
fn a_line_is_named_with_the_function_that_it_came_to() {
    let (before, after) = ("h 1 1=9 lock@5=4\n  f 1 2=9", "h 1 1=9 lock@5=4\n  f 1 2=9 lock@5=4");
    let text = rendered(&[before, after], Format::Table, Shown::default());
    assert!(text.contains("\nlock hooks.c:5 in f  4.00 → 8.00   +4.00"), "{text}");
    assert!(!text.contains("moved: "), "{text}");
}

/// The sums of folded stacks by their first function.
fn sums(folded: &str) -> BTreeMap<&str, Vec<u64>> {
    let mut sums: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in folded.lines() {
        let mut words = line.split(' ');
        let root = words.next().unwrap().split(';').next().unwrap();
        let counts: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        let sum = sums.entry(root).or_insert_with(|| vec![0; counts.len()]);
        sum.iter_mut().zip(&counts).for_each(|(sum, count)| *sum += count);
    }
    sums
}

#[test]
fn folded_stacks_add_up() {
    let one = rendered(&[BASE], Format::Folded, Shown::default());
    assert!(one.contains("\nconnect_handler_[m];kmalloc;slab_alloc 100\n"), "{one}");
    let expected = [("connect_handler_[m]", vec![876]), ("bind_handler_[m]", vec![36])];
    assert_eq!(sums(&one), expected.into());
    // As many as the candidate's calls would have taken.
    let two = rendered(&[BASE, CANDIDATE], Format::Folded, Shown::default());
    assert!(two.contains("\nconnect_handler_[m];kfree 0 900\n"), "{two}");
    let expected =
        [("connect_handler_[m]", vec![876 * 2, 2618]), ("bind_handler_[m]", vec![36, 36])];
    assert_eq!(sums(&two), expected.into());
    let thirds =
        rendered(&["h 3 1=1\n  a 1 1=1\n  b 1 1=2", "h 2 1=2"], Format::Folded, Shown::default());
    assert_eq!(sums(&thirds), [("h_[m]", vec![4 * 2 / 3, 2])].into());
}

#[test]
fn names_are_words_in_folded_stacks() {
    let mut tree = drawn("h 1 =5\n  a 1 =7");
    tree.functions[1].name = "a;b c\u{1b}".to_owned();
    let runs = runs(&[tree]);
    let recording = NamedRuns { name: "x".to_owned(), runs: runs.iter().collect() };
    let (handlers, notes) = explain(std::slice::from_ref(&recording), None).unwrap();
    let report = ExplainReport::new(&[recording], handlers, notes);
    let text = String::from_utf8(render(&report, Format::Folded, Shown::default()));
    assert_eq!(text.unwrap(), "h 5\nh;a_b_c\u{fffd} 7\n");
}

/// Durations have a unit of their own everywhere, and neither lines nor accesses to memory.
#[test]
fn a_live_tree_is_in_nanoseconds() {
    let mut runs = runs(&[drawn("h 4 =100\n  i 8 =300\n    j 8 =40")]);
    runs[0].meter = Meter::Probes;
    let recording = NamedRuns { name: "a live trace".to_owned(), runs: runs.iter().collect() };
    let (handlers, notes) = explain(std::slice::from_ref(&recording), None).unwrap();
    assert_eq!(handlers[0].total(0), 440);
    let report = ExplainReport::new(&[recording], handlers, notes);
    let rendered = |format| String::from_utf8(render(&report, format, Shown::default())).unwrap();
    for format in [Format::Table, Format::Markdown, Format::Json, Format::Folded] {
        assert!(!rendered(format).contains("instructions"), "{format:?}");
    }
    let table = rendered(Format::Table);
    insta::assert_snapshot!("live-table", table);
    assert!(rendered(Format::Markdown).contains("\nh: 110.00 ns a call in a live trace (4 calls"));
    assert_eq!(rendered(Format::Folded), "h 100\nh;i 300\nh;i;j 40\n");
    let json: serde_json::Value = serde_json::from_str(&rendered(Format::Json)).unwrap();
    assert_eq!(
        (&json["unit"], &json["handlers"][0]["lines"]),
        (&"ns".into(), &serde_json::json!([]))
    );
    let figures = serde_json::json!([{"calls": 8, "inclusive": 340, "self": 300}]);
    assert_eq!(json["handlers"][0]["nodes"][1]["figures"], figures);
}

#[test]
fn formats_are_told_by_names_and_endings() {
    let names = ["table", "markdown", "json", "folded"];
    assert_eq!(<Format as strum::VariantNames>::VARIANTS, names);
    assert!(names.iter().all(|name| name.parse::<Format>().is_ok()));
    let of = |file: &str| Format::of_file(Path::new(file));
    assert_eq!(of("a/b.FOLDED"), Some(Format::Folded));
    assert_eq!(of("b.md"), Some(Format::Markdown));
    assert_eq!((of("b.pdf"), of("b")), (None, None));
}
