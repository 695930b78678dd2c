//! What a gate says of operations: of their cost around the handlers, and of budgets on it.

use profiler_base::error::exit;
use profiler_load::BuiltinKind;
use profiler_recording::measure::Losses;
use profiler_recording::{
    CallTree, Distribution, DriverCost, HandlerRecording, HistogramLayout, OperationPercentile,
    Percentile, SeriesPosition,
};
use profiler_tests::recording::{drawn, runs};

use super::*;

/// Two boots of 4 v 4 runs in turns: one handler that takes 9 instructions on both sides, and an operation of which the driver
/// takes 6,972 in the baseline and `more` beyond that in the candidate.
fn sides(more: f64) -> [Vec<Run>; 2] {
    sides_of(more, [(300, 0); 2])
}

/// The same with these calls and iterations of a handler in each run.
fn sides_of(more: f64, [of_base, of_candidate]: [(u64, u64); 2]) -> [Vec<Run>; 2] {
    let counted = |(calls, repeated): (u64, u64)| {
        let instructions = (calls > 0).then_some(9);
        HandlerRecording {
            name: "connect_handler".to_owned(),
            module: Some("d".to_owned()),
            by_glob: true,
            count: calls,
            sum_ns: 9 * calls,
            min_ns: instructions,
            max_ns: instructions,
            own_instructions: Some(9 * calls),
            repeated: Some(repeated),
            ordering: Some(0),
            losses: Losses { entries: calls, exits: calls, ..Losses::default() },
            histogram: Distribution::of_durations(&[(9, calls)], &HistogramLayout::of_digits(3)),
            ..HandlerRecording::default()
        }
    };
    let run = |boot: u32, order: u32, more: f64, of: (u64, u64)| {
        let mut recording = runs(&[CallTree::default()]).remove(0);
        recording.handlers.push(counted(of));
        recording.warn();
        recording.check().unwrap();
        recording.place = Some(SeriesPosition { boot, order, part: None });
        recording.host.boot_id = Some(format!("boot-{boot}"));
        recording.started += jiff::SignedDuration::from_secs(i64::from(boot * 100 + order));
        // By where objects lie, as between boots.
        let without_ns = 2_042.0 + f64::from(boot) * 3.0;
        recording.driver_costs = vec![DriverCost {
            load: BuiltinKind::Connect,
            operations: 1_000,
            without_ns,
            with_ns: without_ns + 6_972.0 + f64::from(order % 2) * 0.25 + more,
            repeated: None,
            elsewhere: None,
            within: None,
            tail: Vec::new(),
        }];
        Run { name: format!("boot {boot}, run {order}"), recording }
    };
    let all = |orders: [u32; 4], more: f64, of| {
        (0..2).flat_map(|boot| orders.map(|order| run(boot, order, more, of))).collect()
    };
    [all([0, 3, 4, 7], 0.0, of_base), all([1, 2, 5, 6], more, of_candidate)]
}

fn report(more: f64, budget: Option<&str>) -> GateReport {
    let budgets = budget.into_iter().map(|budget| budget.parse().unwrap()).collect();
    let rule = Rule { budgets, ..Rule::default() };
    GateReport::of(&Evidence { rule, ..of_builds(sides(more)) })
}

/// These runs, measured by the gate itself.
fn of_builds(runs: [Vec<Run>; 2]) -> Evidence {
    Evidence { runs, left_out: Some(LeftOut::default()), ..Evidence::default() }
}

fn line<'a>(report: &'a GateReport, figure: &str) -> &'a Line {
    let is_it = |line: &&Line| line.handler == "operation of connect" && line.figure() == figure;
    report.lines.iter().find(is_it).unwrap_or_else(|| panic!("no {figure}: {report:#?}"))
}

#[test]
fn an_operation_is_judged_though_no_handler_differs() {
    let same = report(0.0, None);
    assert_eq!((same.outcome, line(&same, "avg").verdict), (Outcome::Pass, Verdict::Pass));
    assert_eq!(same.sentence(), "no handler became slower, of 1");

    // 0.5 % of 6,972 are 35.
    assert_eq!(report(30.0, None).outcome, Outcome::Pass);
    let slower = report(60.0, None);
    assert_eq!(slower.outcome, Outcome::Fail);
    let of_handler: Vec<_> =
        slower.lines.iter().filter(|line| line.handler == "connect_handler").collect();
    assert!(of_handler.iter().all(|line| line.verdict == Verdict::Pass), "{of_handler:#?}");
    assert_eq!(
        slower.sentence(),
        "no handler became slower, of 1; an operation of connect became slower: the cost lies around the handlers"
    );
    let evidence = &line(&slower, "avg").evidence;
    assert!(
        evidence.starts_with("+0.86 % (6972.1 instructions to 7032.1 instructions)"),
        "{evidence}"
    );
    assert!(report(-60.0, None).sentence().ends_with("; an operation of connect became faster"));
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

fn judged(runs: &[Vec<Run>; 2]) -> GateReport {
    GateReport::of(&of_builds(runs.clone()))
}

fn words<'a>(report: &'a GateReport, subject: &str, figure: &str) -> (Verdict, &'a str) {
    let is_it = |line: &&Line| line.handler == subject && line.figure() == figure;
    let line = report.lines.iter().find(is_it);
    let line = line.unwrap_or_else(|| panic!("no {figure}: {report:#?}"));
    (line.verdict, &line.evidence)
}

#[test]
fn a_handler_that_fires_more_often_fails_and_one_that_fires_less_is_said() {
    let of = |base: u64, candidate: u64| judged(&sides_of(0.0, [(base, 0), (candidate, 0)]));
    let twice = of(300, 600);
    let expected = (Verdict::Fail, "300 to 600 calls in each of 2 placements, limit +4");
    assert_eq!(words(&twice, "connect_handler", "count"), expected);
    assert_eq!(twice.sentence(), "no handler became slower, 1 called more often, of 1");
    assert!(crate::gate::text(&twice, None).contains("fail: connect_handler count: 300 to 600"));
    // What an operation puts off may be done after the run.
    for (base, candidate) in [(1_000, 1_001), (60, 64), (1_000, 1_010), (300, 300)] {
        let verdict = words(&of(base, candidate), "connect_handler", "count").0;
        assert_eq!(verdict, Verdict::Pass, "{base} to {candidate}");
    }
    assert_eq!(of(60, 65).outcome, Outcome::Fail);
    let same = of(1_000, 1_000);
    let (_, evidence) = words(&same, "connect_handler", "count");
    assert_eq!(evidence, "1,000 to 1,000 calls in each of 2 placements, limit 1 %");
    let fewer = of(600, 300);
    assert_eq!(
        (fewer.outcome, fewer.lines.iter().any(|line| line.improved)),
        (Outcome::Pass, false)
    );
    let text = crate::gate::text(&fewer, None);
    assert!(text.contains("calls: connect_handler count: fewer: 600 to 300 calls"), "{text}");
}

#[test]
fn iterations_of_instructions_that_repeat_are_judged_by_their_weight() {
    let of = |base: u64, candidate: u64| {
        judged(&sides_of(0.0, [(300, 300 * base), (300, 300 * candidate)]))
    };
    let larger = of(8, 131_072);
    let expected = "8 to 131,072 iterations a call in each of 2 placements, limit +16: 4 weigh as an instruction";
    assert_eq!(words(&larger, "connect_handler", "repeated"), (Verdict::Fail, expected));
    assert_eq!(words(&larger, "connect_handler", "avg").0, Verdict::Pass);
    assert_eq!((of(8, 24).outcome, of(8, 25).outcome), (Outcome::Pass, Outcome::Fail));
    let none = of(0, 0);
    assert!(none.lines.iter().all(|line| line.figure() != "repeated"), "{none:#?}");
}

/// The same of operations: what the kernel clears for a handler is in no figure of instructions.
#[test]
fn iterations_in_an_operation_are_judged_by_their_weight() {
    let of = |candidate: f64| {
        with_costs(|cost, is_candidate| {
            cost.repeated = Some(if is_candidate { candidate } else { 8.0 });
        })
    };
    let larger = of(8_200.0);
    let expected = "8 to 8,200 iterations an operation in each of 2 placements, limit +139.4";
    let (verdict, evidence) = words(&larger, "operation of connect", "repeated");
    assert!(verdict == Verdict::Fail && evidence.starts_with(expected), "{evidence}");
    assert_eq!((of(140.0).outcome, of(150.0).outcome), (Outcome::Pass, Outcome::Fail));
}

/// As of a driver that no load of the gate reaches: its operations cost nothing more.
#[test]
fn operations_are_no_pass_where_no_handler_ran() {
    let never = judged(&sides_of(0.0, [(0, 0); 2]));
    assert_eq!(never.outcome, Outcome::Inconclusive);
    let (verdict, evidence) = words(&never, "connect_handler", "handler");
    assert!(verdict == Verdict::Insufficient && evidence.starts_with("no call"), "{evidence}");
    let mut none = sides(0.0);
    none.iter_mut().flatten().for_each(|run| run.recording.handlers.clear());
    let none = judged(&none);
    assert_eq!(line(&none, "avg").verdict, Verdict::Pass);
    assert_eq!((none.outcome, none.exit_code), (Outcome::Inconclusive, exit::INCONCLUSIVE));
    assert_eq!(none.sentence(), "no load reached a handler");
    // What failed is a failure.
    let mut slower = sides(60.0);
    slower.iter_mut().flatten().for_each(|run| run.recording.handlers.clear());
    assert_eq!(judged(&slower).outcome, Outcome::Fail);
}

/// Figures of the other loads are judged.
#[test]
fn a_load_that_failed_is_no_pass_and_no_refusal() {
    let of = |more: f64| {
        let words = "head.ko, placement 0, ipv6: the load broke off: x".to_owned();
        let left_out = LeftOut { failed: vec![words], ..LeftOut::default() };
        let left_out = Some(left_out);
        let report = GateReport::of(&Evidence { left_out, ..of_builds(sides(more)) });
        let text = crate::gate::text(&report, None);
        assert!(text.contains("\nundecided: head.ko, placement 0, ipv6: the load"), "{text}");
        let junit = String::from_utf8(crate::gate::junit(&report)).unwrap();
        assert!(junit.contains("errors=\"1\""), "{junit}");
        report.outcome
    };
    assert_eq!((of(0.0), of(60.0)), (Outcome::Inconclusive, Outcome::Fail));
}

/// A run that was counted with `--no-cost`, beside some that were not.
#[test]
fn an_operation_that_not_every_run_has_counted_does_not_pass() {
    let without = |side: usize, runs: usize| {
        let mut sides = sides(0.0);
        let of_side = sides[side].iter_mut().take(runs);
        of_side.for_each(|run| run.recording.driver_costs.clear());
        sides
    };
    for (side, runs) in [(0, 8), (1, 8), (1, 1)] {
        let report = judged(&without(side, runs));
        assert_eq!(report.outcome, Outcome::Inconclusive, "{runs} of side {side}");
        let (verdict, evidence) = words(&report, "operation of connect", "avg");
        let is_known = evidence.starts_with("not known of all runs");
        assert!(verdict == Verdict::Inconclusive && is_known, "{evidence}");
    }
    let rule = "[[handler]]\nname = \"operation of *\"\nmax-regression = { avg = \"off\" }\n";
    let rule = Rule::parse(rule, std::path::Path::new("gate.toml")).unwrap();
    let runs = without(0, 8);
    let judged = GateReport::of(&Evidence { runs, rule, ..Evidence::default() });
    assert_eq!(judged.outcome, Outcome::Pass, "nobody asks for it");
}

/// What the builds register, beside figures that pass.
#[test]
fn what_builds_register_is_in_the_verdict() {
    let of = |change: fn(&mut HookReport), rule: &Rule| {
        let list = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect();
        let mut registered = HookReport { hooks: 4, ..HookReport::default() };
        registered.unreached = list(&["kprobe a (b)"]);
        change(&mut registered);
        let (registered, rule) = (Some(registered), rule.clone());
        let report = GateReport::of(&Evidence { registered, rule, ..of_builds(sides(0.0)) });
        assert_eq!(report.exit_code, report.outcome as u8);
        report
    };
    let rule = Rule::default();
    let some = of(|_| (), &rule);
    assert_eq!(some.outcome, Outcome::Pass);
    let headline = "3 of 4 hooks reached, 1 operation; no handler became slower, of 1";
    assert_eq!(some.sentence(), headline);
    let strict = Rule { require_reached: true, ..Rule::default() };
    assert_eq!(of(|_| (), &strict).outcome, Outcome::Fail);
    assert_eq!(of(|it| it.unreached.clear(), &strict).outcome, Outcome::Pass);
    let none = of(|it| it.unreached = vec![String::new(); 4], &rule);
    assert_eq!(none.outcome, Outcome::Inconclusive, "no hook was reached");
    let new =
        of(|it| it.undecided.push("tracepoint sys_exit (x): no load reached it".to_owned()), &rule);
    assert_eq!(new.outcome, Outcome::Inconclusive);
    let text = crate::gate::text(&new, None);
    assert!(text.contains("\nundecided: tracepoint sys_exit (x): no load reached it"), "{text}");
    let registered = Some(HookReport::default());
    let failed = GateReport::of(&Evidence { registered, ..of_builds(sides(60.0)) });
    assert_eq!(failed.outcome, Outcome::Fail, "hooks make nothing better");
}

/// The costs of both sides' operations as `change` leaves them, for the candidate with `true`.
fn with_costs(change: impl Fn(&mut DriverCost, bool)) -> GateReport {
    let mut sides = sides(0.0);
    for (side, is_candidate) in sides.iter_mut().zip([false, true]) {
        side.iter_mut().for_each(|run| change(&mut run.recording.driver_costs[0], is_candidate));
    }
    judged(&sides)
}

#[test]
fn work_that_runs_outside_of_system_calls_is_judged() {
    let of = |base: f64, candidate: f64| {
        with_costs(|cost, is_candidate| {
            cost.elsewhere = Some(if is_candidate { candidate } else { base });
        })
    };
    let often = of(20.5, 205.0);
    let (verdict, evidence) = words(&often, "operation of connect", "elsewhere");
    assert_eq!(verdict, Verdict::Fail);
    assert!(
        evidence.starts_with("+900.00 % (20.5 instructions to 205.0 instructions)"),
        "{evidence}"
    );
    assert_eq!((of(20.5, 24.0).outcome, of(0.0, 0.0).outcome), (Outcome::Pass, Outcome::Pass));
    // Of 1,000 operations.
    assert_eq!(of(0.0, 8.0).outcome, Outcome::Pass, "one event: 4,000, and the floor");
    assert_eq!(of(0.0, 8.1).outcome, Outcome::Fail, "work items that were none");
}

/// Operations of which `long` in 1,000 take 3,000 instructions more, by the kernel's doing, and `more` take 1,000 more in the
/// candidate. Their mean is the same, as if others became faster.
#[test]
fn a_slow_path_in_a_few_operations_is_seen_beside_the_kernels_own() {
    let of = |long: [u64; 2], more: u64| {
        with_costs(|cost, is_candidate| {
            let (long, more) = if is_candidate { (long[1], more) } else { (long[0], 0) };
            let at = |rank: u64| match rank {
                _ if rank > 1_000 - long => 83_000,
                _ if rank > 1_000 - long - more => 81_000,
                _ => 80_000,
            };
            // What the driver takes, by another order.
            let within = |rank: u64| if rank > 1_000 - more { 2_000 } else { 1_000 };
            cost.tail = (90..=99_u8)
                .map(|percent| {
                    let rank = u64::from(percent) * 10;
                    let of = |at: &dyn Fn(u64) -> u64| Percentile {
                        instructions: at(rank),
                        before: at(rank - 5),
                        behind: at(rank + 5),
                    };
                    OperationPercentile { percent, whole: of(&at), within: of(&within) }
                })
                .collect();
        })
    };
    for long in [0, 9, 41, 55] {
        let slow = of([long; 2], 20);
        let (verdict, evidence) = words(&slow, "operation of connect", "tail");
        assert_eq!((verdict, slow.outcome), (Verdict::Fail, Outcome::Fail), "{long}: {evidence}");
        assert_eq!(of([long; 2], 0).outcome, Outcome::Pass, "{long}");
        // Where the kernel refills something is not the driver's.
        assert_eq!(of([long, long + 4], 0).outcome, Outcome::Pass, "{long}");
    }
    assert_eq!(of([41; 2], 200).outcome, Outcome::Fail, "every fifth");
}

/// Which placement or run they fail in may be a matter of chance.
#[test]
fn operations_that_fail_in_a_later_run_alone_are_not_compared() {
    let of = |failed: u64, allowed: &[What]| {
        let mut sides = sides(-60.0);
        for (number, run) in sides.iter_mut().flatten().enumerate() {
            let failed = if number == 13 { failed } else { 0 };
            let load = serde_json::json!({
                "spec": {"kind": "builtin", "name": "connect", "workers": 1},
                "outcome": {
                    "status": {"state": "completed"}, "operations": 1_000 - failed, "elapsed_ns": 1,
                    "errors": [{"kind": "EPERM", "count": failed, "first": ""}],
                },
            });
            run.recording.loads = vec![serde_json::from_value(load).unwrap()];
        }
        let allowed = allowed.to_vec();
        GateReport::of(&Evidence { runs: sides, allowed, ..Evidence::default() })
    };
    let refused = of(500, &[]);
    assert_eq!(refused.outcome, Outcome::NotComparable, "{}", refused.summary);
    let expected = "errors: 0 of 8000 operations fail with EPERM (builtin connect, 1 worker, as fast as possible) in ";
    assert!(refused.summary.contains(expected), "{}", refused.summary);
    assert!(refused.summary.contains(", 500 of 8000 operations fail with EPERM"));
    assert_eq!(of(500, &[What::Errors]).outcome, Outcome::Pass);
    assert_eq!(of(8, &[]).outcome, Outcome::Pass, "one in 1,000");
}

#[test]
fn operations_that_fail_otherwise_are_not_compared() {
    let of = |base: &[(&str, u64)], candidate: &[(&str, u64)], allowed: &[What]| {
        let mut sides = sides(-60.0);
        for (side, errors) in sides.iter_mut().zip([base, candidate]) {
            let failed: u64 = errors.iter().map(|(_, count)| count).sum();
            let errors: Vec<_> = errors
                .iter()
                .map(|(kind, count)| serde_json::json!({"kind": kind, "count": count, "first": ""}))
                .collect();
            let load = serde_json::json!({
                "spec": {"kind": "builtin", "name": "connect", "workers": 1},
                "outcome": {"status": {"state": "completed"}, "operations": 1_000 - failed, "elapsed_ns": 1, "errors": errors},
            });
            let load: profiler_load::LoadRun = serde_json::from_value(load).unwrap();
            side.iter_mut().for_each(|run| run.recording.loads = vec![load.clone()]);
        }
        let allowed = allowed.to_vec();
        GateReport::of(&Evidence { runs: sides, allowed, ..Evidence::default() })
    };
    let refused = of(&[], &[("EPERM", 500)], &[]);
    assert_eq!(refused.outcome, Outcome::NotComparable);
    let expected = "errors: 0 of 8000 operations fail with EPERM (builtin connect, 1 worker, as fast as possible) in all runs from boot 0, run 0 on, 4000 of";
    assert!(refused.summary.contains(expected), "{}", refused.summary);
    assert!(refused.summary.ends_with("add --allow-different errors"), "{}", refused.summary);
    assert_eq!(of(&[], &[("EPERM", 500)], &[What::Errors]).outcome, Outcome::Pass);
    let other = of(&[("EAGAIN", 9)], &[("EPERM", 9)], &[]);
    assert_eq!(other.outcome, Outcome::NotComparable);
    assert_eq!(of(&[("EPERM", 9)], &[("EPERM", 10)], &[]).outcome, Outcome::Pass);
}

#[test]
fn a_hook_more_is_the_cause_of_what_operations_take_more() {
    let mut sides = sides(840.0);
    // A work item happened to run in the candidate alone.
    let trees = [
        "h 1000 1=9",
        "h 1000 1=9\nhook 1000 1=200000\n  below 1000 =70000\nwork_item 1 1=400000000",
    ]
    .map(drawn);
    for (side, (tree, within)) in sides.iter_mut().zip(trees.into_iter().zip([10.0, 280.0])) {
        for run in side {
            run.recording.call_tree = Some(tree.clone());
            run.recording.driver_costs[0].within = Some(within);
        }
    }
    let words = |runs: &[Vec<Run>; 2]| judged(runs).causes.iter().map(Cause::words).collect();
    let found: Vec<String> = words(&sides);
    let expected = "hook, a handler in the candidate alone, takes 270.0 instructions a call: below +70.0, itself +200.0; \
                    reaches operation of connect +12.05 % (6972.1 to 7812.1, +570.0 of it around handlers)";
    assert_eq!(found, [expected]);
    sides.reverse();
    let found: Vec<String> = words(&sides);
    assert!(
        found[0].starts_with("hook, a handler in the baseline alone, takes 270.0"),
        "{found:?}"
    );
    // Two that contain the same code are one cause.
    sides.reverse();
    let twice = "h 1000 1=9\nhook 1000 1=200000\n  below 1000 =70000\ntwin 1000 1=200000\n  below 1000 =70000";
    for run in &mut sides[1] {
        run.recording.call_tree = Some(drawn(twice));
        run.recording.driver_costs[0].within = Some(550.0);
    }
    let found: Vec<String> = words(&sides);
    let expected = "hook, twin, handlers in the candidate alone, take 270.0 instructions a call of each: below +70.0, itself +200.0; \
                    reaches operation of connect +12.05 % (6972.1 to 7812.1, +300.0 of it around handlers)";
    assert_eq!(found, [expected]);
    // What is around handlers alone has no function of the driver as its cause.
    for run in sides.iter_mut().flatten() {
        run.recording.driver_costs[0].within = Some(10.0);
    }
    assert_eq!(words(&sides), [""; 0]);
}

#[test]
fn atomic_instructions_and_fences_are_said_and_have_no_limit() {
    let mut sides = sides(0.0);
    for (side, ordering) in sides.iter_mut().zip([600, 900]) {
        side.iter_mut().for_each(|run| run.recording.handlers[0].ordering = Some(ordering));
    }
    let report = judged(&sides);
    assert_eq!(report.outcome, Outcome::Pass);
    let expected = "connect_handler: 2.0 to 3.0 instructions a call are atomic, fences or serialising, each of which takes as \
                    long as tens of others";
    assert_eq!(report.notes, [expected]);
    for known in [Some(600), None] {
        sides[1].iter_mut().for_each(|run| run.recording.handlers[0].ordering = known);
        assert_eq!(judged(&sides).notes, [""; 0], "{known:?}");
    }
}
