use profiler_kernel::hooks::{Hook, Hooks};
use profiler_kernel::module::ModuleFacts;
use profiler_recording::SeriesPosition;
use profiler_recording::loads::BuiltinKind;
use profiler_tests::recording::{drawn, runs};

use super::*;

/// Runs of a load: one of an operation, and one of eleven, which took so much of an operation with the subject.
fn pair(
    load: BuiltinKind,
    trees: [&str; 2],
    with: f64,
    within: f64,
    elsewhere: f64,
) -> Vec<Recording> {
    let mut runs = runs(&trees.map(drawn));
    for run in &mut runs {
        let part = Some(load.name().to_owned());
        run.place = Some(SeriesPosition { boot: 0, order: 0, part });
        run.host.kernel_release = Some("6.1".to_owned());
    }
    runs[1].driver_costs = vec![DriverCost {
        load,
        operations: 11,
        without_ns: 300.0,
        with_ns: with,
        repeated: None,
        elsewhere: Some(elsewhere),
        within: Some(within),
        tail: Vec::new(),
    }];
    runs
}

/// One of a load that sets itself up with 7 calls of a handler, each of 26 instructions, and calls it once an operation.
fn getppid(with: f64) -> Vec<Recording> {
    let trees = ["h 8 1=208\n  called.part.0 1 =9", "h 18 1=468\n  called.part.0 1 =9"];
    pair(BuiltinKind::Getppid, trees, with, 26.0, 0.0)
}

fn column(label: &str, runs: Vec<Recording>) -> Column {
    Column { given: format!("/a/{label}"), label: label.to_owned(), runs }
}

fn report(columns: &[Column]) -> TaxReport {
    TaxReport::of(columns, &["getppid", "fork", "stat"].map(str::to_owned))
}

#[test]
fn what_a_load_takes_to_set_itself_up_is_not_of_its_operations() {
    let report = report(&[column("m.ko", getppid(384.0))]);
    let [operation] = report.operations.as_slice() else { panic!("{report:?}") };
    assert_eq!((operation.operations, operation.without_instructions), (11, 300.0));
    let tax = operation.with[0].as_ref().unwrap();
    assert_eq!((tax.more, tax.in_handlers, tax.around_handlers), (84.0, 26.0, 58.0));
    let function = Function { name: "h".to_owned(), module: Some("m".to_owned()) };
    assert_eq!(tax.functions, [FunctionTax { function, calls: 1.0, instructions: 26.0 }]);
    assert_eq!(report.unreached(), [""; 0]);
}

#[test]
fn subjects_stand_beside_each_other() {
    let trees = ["f 1 1=10\n  k 2 =8", "f 21 1=200\n  k 12 =48\n  l 10 =10"];
    let fork = pair(BuiltinKind::Fork, trees, 321.0, 20.0, 4.0);
    let mut first = getppid(384.0);
    first.extend(fork);
    let idle = pair(BuiltinKind::Getppid, ["", ""], 300.04, 0.0, 0.0);
    let report = report(&[column("m.ko", first), column("idle", idle)]);
    assert_eq!(report.operations[1].with[1], None, "its guest failed before");
    assert_eq!(report.unreached(), ["idle"]);
    insta::assert_snapshot!(document(&report).text(None));
}

#[test]
fn hooks_that_could_not_be_read_are_not_none() {
    let mut runs = getppid(384.0);
    let mut hooks = |list: Vec<Hook>, unknown: &[&str]| {
        let unknown = unknown.iter().map(|why| (*why).to_owned()).collect();
        let hooks = Some(Hooks { list, unknown });
        runs[0].modules = vec![ModuleFacts { hooks, ..ModuleFacts::default() }];
        SubjectRecord::of(&column("m.ko", runs.clone())).hooks
    };
    assert_eq!(hooks(Vec::new(), &["no symbols of data"]), None);
    assert_eq!(hooks(Vec::new(), &[]), Some(0));
}

#[test]
fn without_runs_nothing_is_shown() {
    let report = report(&[column("m.ko", Vec::new())]);
    assert!(report.operations.is_empty());
    assert_eq!(report.unreached(), ["m.ko"]);
}
