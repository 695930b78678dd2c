//! The decision on one figure.

use super::{ChangeRecord, Verdict};

/// What one figure is held against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Terms {
    /// How much slower it may become, as a share of the baseline.
    pub(super) share: f64,
    /// Least change that counts, in nanoseconds, the bucket's width not included.
    pub(super) floor_ns: f64,
    /// Largest share of the calls that may be missing.
    pub(super) max_loss: f64,
    /// Chance of a false alarm over all comparisons.
    pub(super) alpha: f64,
}

/// What is said, whether it is faster, and why in one line.
pub(super) type Finding = (Verdict, bool, String);

/// Too few calls of a side, in one line; `None` if they are enough.
pub(super) fn insufficient(record: &ChangeRecord) -> Option<String> {
    let needed = record.statistic.calls_needed();
    let fewest = record.base_calls.fewest.min(record.candidate_calls.fewest);
    (fewest < needed).then(|| {
        let side = if record.base_calls.fewest == fewest { "baseline" } else { "candidate" };
        format!(
            "{} needs {needed} calls in every run, and a run of the {side} has {fewest}: raise the \
             load's operations, or turn {} off for this handler",
            record.statistic, record.statistic
        )
    })
}

/// Judges a change. `p` is the chance of its being slower by chance, adjusted for all comparisons.
///
/// It fails if that chance is below alpha, and the lower bound of the change is above the limit, and
/// that of the absolute change above the floor, and no more calls were lost than may be. It passes if an
/// upper bound shows that limit or floor is kept. Everything else is undecided.
pub(super) fn judge(record: &ChangeRecord, terms: &Terms, p: f64, p_faster: f64) -> Finding {
    let (Some(base), Some(candidate)) = (record.base, record.candidate) else {
        return (Verdict::Inconclusive, false, "one side has no value".to_owned());
    };
    let values = format!("{} to {}", ns(base), ns(candidate));
    if record.lost_share > terms.max_loss {
        let text = format!(
            "{} of the calls of a run were lost, and {} may be: {values} says nothing certain; lower the \
             load's workers",
            percent(record.lost_share),
            percent(terms.max_loss)
        );
        return (Verdict::Inconclusive, false, text);
    }
    let Some(difference) = record.difference() else {
        let text = format!("{values}: too few runs for bounds");
        return (Verdict::Inconclusive, false, text);
    };
    let floor = terms.floor_ns + record.resolution;
    let relative = record.relative();
    let change = record.percent.map_or_else(
        || signed_ns(candidate - base),
        |change| format!("{} ({values})", signed_percent(change / 100.0)),
    );
    let limit = if relative.is_none() || floor > terms.share * base {
        format!("limit {} (floor)", ns(floor))
    } else {
        format!("limit {}", percent(terms.share))
    };
    let (low, high) = match relative {
        Some(bounds) => (signed_percent(bounds.lower), signed_percent(bounds.upper)),
        None => (signed_ns(difference.lower), signed_ns(difference.upper)),
    };
    let above =
        relative.is_none_or(|bounds| bounds.lower > terms.share) && difference.lower > floor;
    let within =
        relative.is_some_and(|bounds| bounds.upper <= terms.share) || difference.upper <= floor;
    if above && p < terms.alpha {
        let text = format!("{change}, at least {low}, {limit}; p {} adjusted", chance(p));
        return (Verdict::Fail, false, text);
    }
    if above {
        let text = format!(
            "{change}, at least {low}, {limit}, and yet runs of both sides overlap (p {} adjusted): more runs",
            chance(p)
        );
        return (Verdict::Inconclusive, false, text);
    }
    if within {
        let faster = relative.is_none_or(|bounds| bounds.upper < -terms.share)
            && difference.upper < -floor
            && p_faster < terms.alpha;
        let text = if faster {
            format!("faster: {change}, at most {high}; p {} adjusted", chance(p_faster))
        } else {
            format!("{change}, at most {high}, {limit}")
        };
        return (Verdict::Pass, faster, text);
    }
    let text =
        format!("{change}, between {low} and {high}, {limit}: more runs, or a quieter machine");
    (Verdict::Inconclusive, false, text)
}

/// A duration in words: 6215.2 ns, 62.152 us.
pub(crate) fn ns(ns: f64) -> String {
    let size = ns.abs();
    if size < 1e4 {
        format!("{ns:.1} ns")
    } else if size < 1e7 {
        format!("{:.3} us", ns / 1e3)
    } else {
        format!("{:.3} ms", ns / 1e6)
    }
}

fn signed_ns(value: f64) -> String {
    format!("{}{}", if value < 0.0 { "" } else { "+" }, ns(value))
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let places = if percent != 0.0 && percent.abs() < 0.095 { 3 } else { 2 };
    let text = format!("{percent:.places$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} %")
}

fn signed_percent(share: f64) -> String {
    format!("{:+.2} %", share * 100.0)
}

fn chance(p: f64) -> String {
    if p < 0.0001 { "below 0.0001".to_owned() } else { format!("{p:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Statistic;

    const TERMS: Terms = Terms { share: 0.01, floor_ns: 5.0, max_loss: 0.001, alpha: 0.05 };

    /// A handler that took `base` and whose change has these bounds.
    fn record(base: f64, change: f64, bounds: [f64; 2]) -> ChangeRecord {
        ChangeRecord {
            part: None,
            handler: "h".to_owned(),
            module: None,
            statistic: Statistic::Tp90,
            unit: "ns".to_owned(),
            base: Some(base),
            candidate: Some(base + change),
            change: Some(change),
            change_bounds: Some(bounds),
            percent: Some(change / base * 100.0),
            percent_bounds: Some(bounds.map(|bound| bound / base * 100.0)),
            p_slower: None,
            p_faster: None,
            base_runs: Vec::new(),
            candidate_runs: Vec::new(),
            base_calls: crate::verdict::change::Calls { total: 800, fewest: 100, known: true },
            candidate_calls: crate::verdict::change::Calls { total: 800, fewest: 100, known: true },
            resolution: 0.0,
            lost_share: 0.0,
            base_spread: None,
        }
    }

    /// Every condition of a failure holds in the first case, and one after the other does not.
    #[test]
    fn each_condition_of_a_failure_is_needed() {
        let slow = record(1000.0, 30.0, [20.0, 40.0]);
        let (verdict, _, evidence) = judge(&slow, &TERMS, 0.049, 1.0);
        assert_eq!(verdict, Verdict::Fail);
        assert_eq!(
            evidence,
            "+3.00 % (1000.0 ns to 1030.0 ns), at least +2.00 %, limit 1 %; p 0.0490 adjusted"
        );
        let not_fail = |record: &ChangeRecord, terms: &Terms, p: f64, part: &str| {
            let (verdict, faster, evidence) = judge(record, terms, p, 1.0);
            assert_eq!((verdict, faster), (Verdict::Inconclusive, false), "{evidence}");
            assert!(evidence.contains(part), "{evidence}");
        };
        not_fail(&slow, &TERMS, 0.05, "runs of both sides overlap (p 0.0500 adjusted)");
        not_fail(&record(1000.0, 30.0, [9.0, 51.0]), &TERMS, 0.001, "between +0.90 % and +5.10 %");
        not_fail(&slow, &Terms { floor_ns: 20.0, ..TERMS }, 0.001, "limit 20.0 ns (floor)");
        let coarse = ChangeRecord { resolution: 16.0, ..slow.clone() };
        not_fail(&coarse, &TERMS, 0.001, "limit 21.0 ns (floor)");
        let lossy = ChangeRecord { lost_share: 0.0011, ..slow.clone() };
        not_fail(&lossy, &TERMS, 0.001, "0.11 % of the calls of a run were lost");
        let bare = ChangeRecord { change_bounds: None, percent_bounds: None, ..slow };
        not_fail(&bare, &TERMS, 0.001, "too few runs for bounds");
    }

    #[test]
    fn a_pass_takes_an_upper_bound() {
        let verdict = |record: &ChangeRecord, p_faster| {
            let (verdict, faster, _) = judge(record, &TERMS, 1.0, p_faster);
            (verdict, faster)
        };
        assert_eq!(verdict(&record(1000.0, 3.0, [-4.0, 10.0]), 1.0), (Verdict::Pass, false));
        assert_eq!(verdict(&record(1000.0, 3.0, [-4.0, 11.0]), 1.0).0, Verdict::Inconclusive);
        // Twice its limit, and less than anybody can feel.
        assert_eq!(verdict(&record(200.0, 4.0, [3.0, 5.0]), 1.0).0, Verdict::Pass);
        assert_eq!(verdict(&record(1000.0, -30.0, [-40.0, -20.0]), 0.01), (Verdict::Pass, true));
        assert_eq!(verdict(&record(1000.0, -30.0, [-40.0, -20.0]), 0.06), (Verdict::Pass, false));
        assert_eq!(verdict(&record(1000.0, -30.0, [-60.0, -9.0]), 0.01), (Verdict::Pass, false));
    }

    #[test]
    fn a_handler_that_took_no_time_is_judged_by_the_floor() {
        let none = |bounds| ChangeRecord {
            percent: None,
            percent_bounds: None,
            ..record(0.0, 8.0, bounds)
        };
        assert_eq!(judge(&none([6.0, 9.0]), &TERMS, 0.001, 1.0).0, Verdict::Fail);
        assert_eq!(judge(&none([1.0, 4.0]), &TERMS, 0.001, 1.0).0, Verdict::Pass);
    }

    #[test]
    fn every_run_needs_its_calls() {
        let mut few = record(1000.0, 0.0, [0.0, 0.0]);
        assert_eq!(insufficient(&few), None);
        few.candidate_calls.fewest = 99;
        assert!(
            insufficient(&few).unwrap().starts_with(
                "tp90 needs 100 calls in every run, and a run of the candidate has 99: "
            )
        );
    }

    #[test]
    fn quantities_in_words() {
        assert_eq!(
            [6215.23, 62_152.3, 62_152_345.0].map(ns),
            ["6215.2 ns", "62.152 us", "62.152 ms"]
        );
        assert_eq!(
            [0.005, 0.1, 0.0005, 0.0, 1.0].map(percent),
            ["0.5 %", "10 %", "0.05 %", "0 %", "100 %"]
        );
        assert_eq!(signed_percent(0.0203), "+2.03 %");
        assert_eq!((signed_ns(2.0), signed_ns(-2.0)), ("+2.0 ns".to_owned(), "-2.0 ns".to_owned()));
        assert_eq!(chance(0.000_01), "below 0.0001");
    }
}
