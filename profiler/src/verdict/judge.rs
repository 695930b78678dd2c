//! The verdict on one figure.

use super::{ChangeRecord, Evidence, Shown, Side, Threshold};
use crate::recording::Meter;

/// The limits of one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Terms {
    /// The limit, as a share of the baseline; `None` if the floor is the limit.
    pub(super) share: Option<f64>,
    /// The floor in the figure's unit, without the bucket's width.
    pub(super) floor: f64,
    /// Largest share of the calls that may be lost.
    pub(super) max_loss: f64,
    /// Bound on the probability of a false alarm over all comparisons.
    pub(super) alpha: f64,
}

/// The evidence if a side has too few calls.
pub(super) fn insufficient(record: &ChangeRecord) -> Option<Evidence> {
    let needed = record.statistic.calls_needed(record.meter());
    let fewest = record.base_calls.fewest.min(record.candidate_calls.fewest);
    let side = if record.base_calls.fewest == fewest { Side::Baseline } else { Side::Candidate };
    (fewest < needed).then_some(Evidence::FewCalls { needed, fewest, side: Some(side) })
}

/// Judges a change; `p` and `p_faster` are its adjusted p-values of being slower and faster.
///
/// It fails if `p` is below alpha, the lower bound of the change is above the limit, that of the absolute
/// change is above the floor, and not too many calls were lost. It passes if an upper bound shows that
/// the limit or the floor is kept, or if counted runs [differ alike](has_same_ends). Everything else is undecided.
pub(super) fn judge(record: &ChangeRecord, terms: &Terms, p: f64, p_faster: f64) -> Evidence {
    let Some(base) = record.base.filter(|_| record.candidate.is_some()) else {
        return Evidence::NoValue;
    };
    if record.lost_share > terms.max_loss {
        return Evidence::Lost { share: record.lost_share, allowed: terms.max_loss };
    }
    let Some(difference) = record.difference() else { return Evidence::NoBounds };
    let floor = terms.floor + record.resolution;
    let relative = terms.share.zip(record.relative());
    let limit = match (terms.share, relative) {
        (None, _) => Threshold::By(floor),
        (Some(share), Some(_)) if floor <= share * base => Threshold::Share(share),
        _ => Threshold::Floor(floor),
    };
    let above =
        relative.is_none_or(|(share, bounds)| bounds.lower > share) && difference.lower > floor;
    let within =
        relative.is_some_and(|(share, bounds)| bounds.upper <= share) || difference.upper <= floor;
    let faster =
        relative.is_none_or(|(share, bounds)| bounds.upper < -share) && difference.upper < -floor;
    let shown = if above && p < terms.alpha {
        Shown::Slower { p }
    } else if above {
        Shown::Overlap { p }
    } else if within && faster && p_faster < terms.alpha {
        Shown::Faster { p: p_faster }
    } else if within {
        Shown::Within
    } else if has_same_ends(record, terms.share.map_or(floor, |share| floor.max(share * base))) {
        Shown::SameEnds
    } else {
        Shown::Undecided
    };
    Evidence::Change { limit, shown }
}

/// Runs of a side for its lowest and highest to be taken for its ends.
const RUNS_FOR_ENDS: usize = 4;

/// Whether the lowest and the highest run of both sides agree within `limit`, where instructions were counted. By where
/// objects lie in memory all calls of a run may take one path or the other, so that the runs of one build have two
/// values: bounds of the difference then tell which side happened to have more of the one. A slower build moves both.
fn has_same_ends(record: &ChangeRecord, limit: f64) -> bool {
    let ends = |runs: &[Option<f64>]| -> Option<[f64; 2]> {
        let runs = || runs.iter().copied().flatten();
        let enough = runs().count() >= RUNS_FOR_ENDS;
        enough.then(|| [runs().fold(f64::MAX, f64::min), runs().fold(f64::MIN, f64::max)])
    };
    let (Meter::Exact, Some(base), Some(candidate)) =
        (record.meter(), ends(&record.base_runs), ends(&record.candidate_runs))
    else {
        return false;
    };
    base.iter().zip(candidate).all(|(base, candidate)| (candidate - base).abs() <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Statistic, Verdict};

    const TERMS: Terms = Terms { share: Some(0.01), floor: 5.0, max_loss: 0.001, alpha: 0.05 };

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
        let failed = judge(&slow, &TERMS, 0.049, 1.0);
        assert_eq!(failed.verdict(), Verdict::Fail);
        let share = Threshold::Share(0.01);
        let of = |limit, shown| Evidence::Change { limit, shown };
        assert_eq!(failed, of(share, Shown::Slower { p: 0.049 }));
        let not_fail = |record: &ChangeRecord, terms: &Terms, p: f64, expected: Evidence| {
            let evidence = judge(record, terms, p, 1.0);
            assert_eq!(evidence, expected);
            assert_eq!(evidence.verdict(), Verdict::Inconclusive);
        };
        not_fail(&slow, &TERMS, 0.05, of(share, Shown::Overlap { p: 0.05 }));
        let near = record(1000.0, 30.0, [9.0, 51.0]);
        not_fail(&near, &TERMS, 0.001, of(share, Shown::Undecided));
        let undecided = |floor| of(Threshold::Floor(floor), Shown::Undecided);
        not_fail(&slow, &Terms { floor: 20.0, ..TERMS }, 0.001, undecided(20.0));
        let coarse = ChangeRecord { resolution: 16.0, ..slow.clone() };
        not_fail(&coarse, &TERMS, 0.001, undecided(21.0));
        let lossy = ChangeRecord { lost_share: 0.0011, ..slow.clone() };
        not_fail(&lossy, &TERMS, 0.001, Evidence::Lost { share: 0.0011, allowed: 0.001 });
        let bare = ChangeRecord { change_bounds: None, percent_bounds: None, ..slow };
        not_fail(&bare, &TERMS, 0.001, Evidence::NoBounds);
    }

    #[test]
    fn a_pass_takes_an_upper_bound() {
        let verdict = |record: &ChangeRecord, p_faster| {
            let evidence = judge(record, &TERMS, 1.0, p_faster);
            (evidence.verdict(), evidence.improved())
        };
        assert_eq!(verdict(&record(1000.0, 3.0, [-4.0, 10.0]), 1.0), (Verdict::Pass, false));
        assert_eq!(verdict(&record(1000.0, 3.0, [-4.0, 11.0]), 1.0).0, Verdict::Inconclusive);
        // Twice its limit, and less than anybody can feel.
        assert_eq!(verdict(&record(200.0, 4.0, [3.0, 5.0]), 1.0).0, Verdict::Pass);
        assert_eq!(verdict(&record(1000.0, -30.0, [-40.0, -20.0]), 0.01), (Verdict::Pass, true));
        assert_eq!(verdict(&record(1000.0, -30.0, [-40.0, -20.0]), 0.06), (Verdict::Pass, false));
        assert_eq!(verdict(&record(1000.0, -30.0, [-60.0, -9.0]), 0.01), (Verdict::Pass, false));
    }

    /// Runs of `execve_handler` take 21,973 or 22,332.
    #[test]
    fn counted_runs_that_differ_alike_on_both_sides_pass() {
        let judged = |unit: &str, base: [i32; 4], candidate: &[i32]| {
            let runs = |of: &[i32]| of.iter().map(|run| Some(f64::from(*run))).collect::<Vec<_>>();
            let record = ChangeRecord {
                unit: unit.to_owned(),
                base_runs: runs(&base),
                candidate_runs: runs(candidate),
                ..record(22_000.0, 90.0, [-300.0, 480.0])
            };
            let Evidence::Change { shown, .. } = judge(&record, &TERMS, 0.5, 1.0) else { panic!() };
            shown
        };
        let [low, high] = [21_973, 22_332];
        let base = [low, low, low, high];
        let exact = |candidate: &[i32]| judged("instructions", base, candidate);
        assert_eq!(exact(&[high, low, high, high]), Shown::SameEnds);
        assert_eq!(exact(&[high + 219, low + 219, high, high]), Shown::SameEnds, "1 %, the limit");
        assert_eq!(exact(&[high + 221, low, high, high]), Shown::Undecided);
        assert_eq!(exact(&[high; 4]), Shown::Undecided);
        assert_eq!(exact(&[high, low, high]), Shown::Undecided, "three runs");
        assert_eq!(judged("ns", base, &[high, low, high, high]), Shown::Undecided);
    }

    #[test]
    fn a_handler_that_took_no_time_is_judged_by_the_floor() {
        let none = |bounds| ChangeRecord {
            percent: None,
            percent_bounds: None,
            ..record(0.0, 8.0, bounds)
        };
        let verdict = |bounds| judge(&none(bounds), &TERMS, 0.001, 1.0).verdict();
        assert_eq!(verdict([6.0, 9.0]), Verdict::Fail);
        assert_eq!(verdict([1.0, 4.0]), Verdict::Pass);
    }

    #[test]
    fn every_run_needs_its_calls() {
        let mut few = record(1000.0, 0.0, [0.0, 0.0]);
        assert_eq!(insufficient(&few), None);
        few.candidate_calls.fewest = 99;
        let side = Some(Side::Candidate);
        assert_eq!(insufficient(&few), Some(Evidence::FewCalls { needed: 100, fewest: 99, side }));
    }
}
