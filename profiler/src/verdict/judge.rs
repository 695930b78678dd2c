//! The verdict on one figure.

use super::{ChangeRecord, Evidence, Shown, Side, Statistic, Threshold};

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

impl Terms {
    /// The floor, with the bucket's width.
    pub(super) fn floor(&self, record: &ChangeRecord) -> f64 {
        self.floor + record.resolution
    }

    /// The largest change that passes where calls were counted.
    pub(super) fn most(&self, record: &ChangeRecord) -> f64 {
        self.floor(record).max(self.share.unwrap_or(0.0) * record.base.unwrap_or(0.0))
    }
}

/// The evidence if a side has too few calls, or no value.
pub(super) fn insufficient(record: &ChangeRecord) -> Option<Evidence> {
    let needed = record.statistic.calls_needed(record.meter());
    let fewest = record.base_calls.fewest.min(record.candidate_calls.fewest);
    let side = if record.base_calls.fewest == fewest { Side::Baseline } else { Side::Candidate };
    match record.base.and(record.candidate) {
        _ if fewest < needed => Some(Evidence::FewCalls { needed, fewest, side: Some(side) }),
        None => Some(Evidence::NoValue),
        Some(_) => None,
    }
}

/// Judges a change; `p` and `p_faster` are its adjusted p-values of being slower and faster.
///
/// It fails if `p` is below alpha, the lower bound of the change is above the limit, that of the absolute
/// change is above the floor, and not too many calls were lost. It passes if an upper bound shows that
/// the limit or the floor is kept. Everything else is undecided.
///
/// Counted calls have no p-value and no bounds: the change itself is above the limit or is not, or passes
/// only if further placements say so.
pub(super) fn judge(record: &ChangeRecord, terms: &Terms, p: f64, p_faster: f64) -> Evidence {
    let Some(base) = record.base.filter(|_| record.candidate.is_some()) else {
        return Evidence::NoValue;
    };
    if record.lost_share > terms.max_loss {
        return Evidence::Lost { share: record.lost_share, allowed: terms.max_loss };
    }
    let Some([lowest, highest]) = record.change_bounds else { return Evidence::NoBounds };
    let floor = terms.floor(record);
    let shares = record.percent_bounds.map(|ends| ends.map(|percent| percent / 100.0));
    let relative = terms.share.zip(shares);
    let limit = match (terms.share, relative) {
        (None, _) => Threshold::By(floor),
        (Some(share), Some(_)) if floor <= share * base => Threshold::Share(share),
        _ => Threshold::Floor(floor),
    };
    if let (Some(change), Some(_)) = (record.change, record.placements) {
        let most = terms.most(record);
        let shown = if change > most {
            Shown::Slower { p: None }
        } else if record.is_open(most) {
            Shown::Undecided
        } else if change < -most && record.statistic == Statistic::Count {
            Shown::Fewer
        } else if change < -most {
            Shown::Faster { p: None }
        } else {
            Shown::Within
        };
        return Evidence::Change { limit, shown };
    }
    let above = relative.is_none_or(|(share, [lower, _])| lower > share) && lowest > floor;
    let within = relative.is_some_and(|(share, [_, upper])| upper <= share) || highest <= floor;
    let faster = relative.is_none_or(|(share, [_, upper])| upper < -share) && highest < -floor;
    let shown = if above && p < terms.alpha {
        Shown::Slower { p: Some(p) }
    } else if above {
        Shown::Overlap { p }
    } else if within && faster && p_faster < terms.alpha {
        Shown::Faster { p: Some(p_faster) }
    } else if within {
        Shown::Within
    } else {
        Shown::Undecided
    };
    Evidence::Change { limit, shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Calls, Verdict};

    const TERMS: Terms = Terms { share: Some(0.01), floor: 5.0, max_loss: 0.001, alpha: 0.05 };

    /// A handler that took `base` and whose change has these bounds.
    fn record(base: f64, change: f64, bounds: [f64; 2]) -> ChangeRecord {
        let calls = Calls { total: 800, fewest: 100, known: true };
        ChangeRecord {
            handler: "h".to_owned(),
            statistic: Statistic::Tp90,
            unit: "ns".to_owned(),
            base: Some(base),
            candidate: Some(base + change),
            change: Some(change),
            change_bounds: Some(bounds),
            percent: Some(change / base * 100.0),
            percent_bounds: Some(bounds.map(|bound| bound / base * 100.0)),
            base_calls: calls,
            candidate_calls: calls,
            ..ChangeRecord::default()
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
        assert_eq!(failed, of(share, Shown::Slower { p: Some(0.049) }));
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

    #[test]
    fn counted_calls_are_never_undecided() {
        let counted = |base: f64, change: f64, ends: [f64; 2]| ChangeRecord {
            unit: "instructions".to_owned(),
            placements: Some(3),
            ..record(base, change, ends)
        };
        let shown = |record: ChangeRecord, terms: &Terms| {
            let Evidence::Change { shown, .. } = judge(&record, terms, 1.0, 1.0) else { panic!() };
            shown
        };
        let (slower, faster) = (Shown::Slower { p: None }, Shown::Faster { p: None });
        // 1 % of 1,000 and the floor of 5 are both limits: the wider one counts.
        assert_eq!(shown(counted(1000.0, 10.0, [10.0; 2]), &TERMS), Shown::Within);
        assert_eq!(shown(counted(1000.0, 11.0, [-30.0, 12.0]), &TERMS), slower);
        assert_eq!(shown(counted(1000.0, -11.0, [-30.0, 12.0]), &TERMS), faster);
        assert_eq!(shown(counted(200.0, 5.0, [0.0, 90.0]), &TERMS), Shown::Within);
        assert_eq!(shown(counted(0.0, 6.0, [6.0; 2]), &TERMS), slower);
        let none = Terms { share: None, floor: 0.0, ..TERMS };
        assert_eq!(shown(counted(1000.0, 1.0, [-1.0, 1.0]), &none), slower);
        assert_eq!(shown(counted(1000.0, 0.0, [0.0, 2.0]), &none), Shown::Within);
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
