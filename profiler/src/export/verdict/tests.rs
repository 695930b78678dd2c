//! What a gate says of operations: of their cost around the handlers, and of budgets on it.

use super::*;
use crate::explain::tests::runs;
use crate::lab::plan::CountedHandler;
use crate::lab::{counts, exact};
use crate::load::BuiltinKind;
use crate::recording::{CallTree, DriverCost, Meter, SeriesPosition};
use crate::verdict::{Rule, gate};

/// Two boots of 4 v 4 runs in turns: one handler that takes 9 instructions on both sides, and an operation of which the driver
/// takes 6,972 in the baseline and `more` beyond that in the candidate.
fn sides(more: f64) -> [Vec<Run>; 2] {
    let text = "profiler-qemu 1\nfunction 1 1 connect_handler d\ncalls 1 300 300 0 0 0\ninclusive 1 9 300\nown 1 9 300\nend\n";
    let handler = CountedHandler {
        name: "connect_handler".to_owned(),
        module: Some("d".to_owned()),
        by_glob: true,
        address: 1,
    };
    let run = |boot: u32, order: u32, more: f64| {
        let mut recording = runs(&[CallTree::default()]).remove(0);
        let counts = counts::parse(text).unwrap();
        let (lines, symbols) = Default::default();
        let handlers = vec![handler.clone()];
        exact::fill(&mut recording, &counts, handlers, &lines, &symbols).unwrap();
        recording.place = Some(SeriesPosition { boot, order, part: None });
        recording.host.boot_id = Some(format!("boot-{boot}"));
        recording.started += jiff::SignedDuration::from_secs(i64::from(boot * 100 + order));
        // By where objects lie, as between boots.
        let without_ns = 2_042.0 + f64::from(boot) * 3.0;
        recording.driver_costs = vec![DriverCost {
            load: BuiltinKind::Connect,
            operations: 1_000,
            meter: Meter::Exact,
            without_ns,
            with_ns: without_ns + 6_972.0 + f64::from(order % 2) * 0.25 + more,
        }];
        Run { name: format!("boot {boot}, run {order}"), recording }
    };
    let all = |orders: [u32; 4], more: f64| {
        (0..2).flat_map(|boot| orders.map(|order| run(boot, order, more))).collect()
    };
    [all([0, 3, 4, 7], 0.0), all([1, 2, 5, 6], more)]
}

fn report(more: f64, budget: Option<&str>) -> GateReport {
    let [base, candidate] = sides(more);
    let budgets = budget.into_iter().map(|budget| budget.parse().unwrap()).collect();
    let rule = Rule { budgets, ..Rule::default() };
    let sides = Sides::new(&base, &candidate, &[], false);
    GateReport::of(gate(sides, &rule)).without(LeftOut::default())
}

fn line<'a>(report: &'a GateReport, figure: &str) -> &'a Line<String> {
    let is_it =
        |line: &&Line<String>| line.handler == "operation of connect" && line.figure() == figure;
    report.lines.iter().find(is_it).unwrap_or_else(|| panic!("no {figure}: {report:#?}"))
}

#[test]
fn an_operation_is_judged_though_no_handler_differs() {
    let same = report(0.0, None);
    assert_eq!((same.outcome, line(&same, "avg").verdict), (Outcome::Pass, Verdict::Pass));
    assert_eq!(same.headline(), "no handler became slower, of 1");

    // 0.5 % of 6,972 are 35.
    assert_eq!(report(30.0, None).outcome, Outcome::Pass);
    let slower = report(60.0, None);
    assert_eq!(slower.outcome, Outcome::Fail);
    let of_handler: Vec<_> =
        slower.lines.iter().filter(|line| line.handler == "connect_handler").collect();
    assert!(of_handler.iter().all(|line| line.verdict == Verdict::Pass), "{of_handler:#?}");
    assert_eq!(
        slower.headline(),
        "no handler became slower, of 1; an operation of connect became slower: the cost lies around the handlers"
    );
    let evidence = &line(&slower, "avg").evidence;
    assert!(
        evidence.starts_with("+0.86 % (6972.1 instructions to 7032.1 instructions)"),
        "{evidence}"
    );
    assert!(report(-60.0, None).headline().ends_with("; an operation of connect became faster"));
}

#[test]
fn a_budget_of_a_load_is_on_what_the_driver_costs_its_operation() {
    let verdict = |budget: &str| {
        let report = report(0.0, Some(budget));
        let line = line(&report, &format!("budget {budget}"));
        (report.outcome, line.verdict)
    };
    assert_eq!(verdict("connect:<7000"), (Outcome::Pass, Verdict::Pass));
    assert_eq!(verdict("connect:<6900 instructions"), (Outcome::Fail, Verdict::Fail));
    let other = report(0.0, Some("bind:<7000"));
    let unmatched = other.lines.iter().find(|line| line.budget.is_some()).unwrap();
    assert_eq!(other.outcome, Outcome::Inconclusive);
    assert_eq!(
        unmatched.evidence,
        "no operation of bind was counted with the driver and without it"
    );
}

/// CPU time of older recordings does not repeat as counts do.
#[test]
fn cpu_time_is_not_judged() {
    let [mut base, candidate] = sides(60.0);
    let costs = base.iter_mut().flat_map(|run| &mut run.recording.driver_costs);
    costs.for_each(|cost| cost.meter = Meter::Probes);
    let judged = gate(Sides::new(&base, &candidate, &[], false), &Rule::default());
    assert_eq!(judged.conclusion.outcome(), Outcome::Pass);
}
