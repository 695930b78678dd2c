//! The change of a counted figure. A run is repeatable to the bit, so nothing is estimated: builds are compared placement by
//! placement, and what differs from one to the other is shown.

use super::{Design, Observed};
use crate::stats::{ends, median};

/// Placements that are measured of what differs. One may be the odd one, in which an object lies elsewhere, and of two nobody
/// knows which; the median of three is not the odd one's.
pub const FIRST_PLACEMENTS: usize = 3;

/// Placements that are measured where they disagree about a limit. Of a figure that the builds have alike, with two values by
/// placement and each in half of them, one placement in four is beyond the limit; that five of nine are happens in one of 20
/// decisions, where it is one of six with two of three.
pub const MOST_PLACEMENTS: usize = 9;

/// A figure on both sides over placements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Placed {
    /// Medians of the baseline and of the candidate.
    pub(super) sides: [f64; 2],
    /// Median of the differences.
    pub(super) change: f64,
    /// Lowest and highest difference.
    pub(super) ends: [f64; 2],
    /// What a single call makes, or of an operation what is no build's, which is not in the change.
    pub(super) one_call: f64,
}

impl Placed {
    /// `None` unless some placement has both sides; runs of one placement and side are averaged.
    pub(super) fn of(
        design: &Design,
        base: &[Option<Observed>],
        candidate: &[Option<Observed>],
    ) -> Option<Self> {
        let pairs: Vec<[Observed; 2]> = design
            .pairs()
            .into_iter()
            .filter_map(|[of_base, of_candidate]| {
                Some([mean(base, of_base)?, mean(candidate, of_candidate)?])
            })
            .collect();
        let all = |of: fn(&[Observed; 2]) -> f64| pairs.iter().map(of).collect::<Vec<f64>>();
        let differences = all(difference);
        let change = median(&differences)?;
        Some(Self {
            sides: [median(&all(|[base, _]| base.value))?, median(&all(|[_, new]| new.value))?],
            change,
            ends: ends(&differences)?,
            one_call: median(&all(|[base, new]| new.value - base.value))? - change,
        })
    }
}

fn mean(observed: &[Option<Observed>], runs: &[usize]) -> Option<Observed> {
    let found: Vec<Observed> = runs.iter().filter_map(|run| *observed.get(*run)?).collect();
    let mean = |of: fn(&Observed) -> f64| found.iter().map(of).sum::<f64>() / found.len() as f64;
    (!found.is_empty()).then(|| Observed {
        value: mean(|it| it.value),
        resolution: mean(|it| it.resolution),
        beside: [mean(|it| it.beside[0]), mean(|it| it.beside[1])],
        is_tail: found.iter().any(|it| it.is_tail),
        outside: found.iter().all(|it| it.outside.is_some()).then(|| {
            [
                mean(|it| it.outside.map_or(0.0, |it| it[0])),
                mean(|it| it.outside.map_or(0.0, |it| it[1])),
            ]
        }),
    })
}

/// Instructions of an operation that are no news: the driver's functions run before the first operation, too.
const NOTHING: f64 = 0.5;

/// Candidate minus baseline, less what a single call makes, or less what an operation takes more outside of the driver's functions if
/// that may be.
///
/// Calls come in kinds, such as those that refill a cache, and where a run begins in a cache's cycle decides whether 10 or 11 of
/// 1,000 do: a percentile between two kinds jumps by their distance for one call. So one call may lie on the other side. If that
/// is all, the candidate's figure is what comes next in the baseline, and the baseline's is what comes before it in the
/// candidate: what is left of the change is by how much this fails. Two calls more, or a jump of the candidate's own, stay.
///
/// The operations that take most and those in which the driver takes most are not always the same. So a tail has changed by no more than
/// either says, and not at all where one is longer and the other shorter.
fn difference([base, candidate]: &[Observed; 2]) -> f64 {
    let change = candidate.value - base.value;
    let [before, after] = if change > 0.0 { [0, 1] } else { [1, 0] };
    let left = f64::max(
        (candidate.beside[before] - base.value).abs(),
        (candidate.value - base.beside[after]).abs(),
    );
    let whole = change.clamp(-left, left);
    let within = match (base.outside, candidate.outside) {
        (Some([was, most]), Some([is, _])) if (NOTHING..=most).contains(&(is - was).abs()) => {
            change - (is - was)
        }
        _ => return whole,
    };
    match base.is_tail {
        false => within,
        true if within.signum() != whole.signum() => 0.0,
        true => whole.signum() * whole.abs().min(within.abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(value: f64, beside: [f64; 2]) -> Observed {
        Observed { beside, ..Observed::exact(value) }
    }

    #[test]
    fn what_an_operation_takes_outside_of_the_driver_is_no_builds_unless_it_is_much() {
        let of = |value: f64, outside: f64| Observed {
            outside: Some([outside, outside * 0.002]),
            ..Observed::exact(value)
        };
        let base = of(4_300.0, 50_000.0);
        assert_eq!(difference(&[base, of(4_250.0, 49_933.0)]), 17.0);
        assert_eq!(difference(&[base, of(4_417.0, 50_100.0)]), 17.0);
        assert_eq!(difference(&[base, of(4_418.0, 50_101.0)]), 118.0);
        assert_eq!(difference(&[base, of(4_182.0, 49_899.0)]), -118.0);
        assert_eq!(difference(&[base, of(4_300.0, 49_999.9)]), 0.0, "a tenth of an instruction");
        assert_eq!(difference(&[base, Observed::exact(4_250.0)]), -50.0, "not known of both");
        // Of a tail: 17 more within, and so much more as a whole.
        let of_tail = |value: f64, outside: f64| {
            let tail = Observed { is_tail: true, ..of(value, outside) };
            difference(&[Observed { is_tail: true, ..base }, tail])
        };
        assert_eq!(of_tail(4_417.0, 50_100.0), 17.0);
        assert_eq!(of_tail(4_310.0, 49_993.0), 10.0);
        assert_eq!(of_tail(4_250.0, 49_933.0), 0.0, "as a whole it became shorter");
        assert_eq!(of_tail(4_220.0, 49_950.0), -30.0);
    }

    #[test]
    fn one_call_beyond_a_percentile_is_no_change_and_two_are() {
        let of = |base: (f64, [f64; 2]), candidate: (f64, [f64; 2])| {
            let [base, candidate] =
                [base, candidate].map(|(value, beside)| observed(value, beside));
            (difference(&[base, candidate]), difference(&[candidate, base]))
        };
        let (short, long) = (2_399.0, 2_671.0);
        let last_short = (short, [short, long]);
        assert_eq!(of(last_short, last_short), (0.0, 0.0));
        assert_eq!(of(last_short, (long, [short, long])), (0.0, 0.0), "one more");
        assert_eq!(of(last_short, (long, [long, long])), (272.0, -272.0), "two more");
        assert_eq!(of((short, [short; 2]), (5_000.0, [short, 5_000.0])).0, 2_601.0, "a new kind");
        // All calls take 9 more, and one more is long.
        let slower = (long + 9.0, [short + 9.0, long + 9.0]);
        assert_eq!(of(last_short, slower), (9.0, -9.0));
        // Each call is a kind of its own.
        assert_eq!(of((100.0, [90.0, 110.0]), (101.0, [91.0, 111.0])), (1.0, -1.0));
    }

    #[test]
    fn without_a_placement_in_common_each_is_paired_with_each() {
        let design =
            Design::Apart { base: vec![vec![0], vec![1]], candidate: vec![vec![0, 1], vec![2]] };
        let side = |values: &[f64]| -> Vec<Option<Observed>> {
            values.iter().map(|value| Some(Observed::exact(*value))).collect()
        };
        let placed = Placed::of(&design, &side(&[10.0, 12.0]), &side(&[14.0, 16.0, 17.0])).unwrap();
        assert_eq!((placed.sides, placed.ends), ([11.0, 16.0], [3.0, 7.0]));
        assert_eq!(placed.change, 5.0, "of 3, 5, 5 and 7");
        assert_eq!(Placed::of(&design, &[], &side(&[1.0])), None);
    }
}
