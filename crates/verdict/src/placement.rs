//! The change of a counted figure. A run is repeatable to the bit, so nothing is estimated: builds are compared placement by
//! placement, and what differs from one to the other is shown.

use profiler_base::stats::{ends, median};

use super::{ChangeRecord, Design, Observed};

/// Placements that are measured where builds differ. One placement may be an outlier, in which an object lies elsewhere; the median of
/// three is not the outlier's.
pub const FIRST_PLACEMENTS: usize = 3;

/// Placements that are measured where they disagree about a limit. Of a figure that the builds have alike, with two values by
/// placement and each in half of them, one placement in four is beyond the limit; that five of nine are happens in one of 20
/// decisions, where it is one of six with two of three.
pub const MOST_PLACEMENTS: usize = 9;

/// A figure of both sides, by run.
pub(super) type Figures = [Vec<Option<Observed>>; 2];

/// The change of a figure, in a record that says nothing else; `None` unless some placement has both sides.
pub(super) fn placed(pairs: &[Pair]) -> Option<ChangeRecord> {
    let Separation { apart, open } = outside_over(pairs);
    let otherwise = open.then(|| median(&differences(pairs, !apart))).flatten();
    changed(pairs, &differences(pairs, apart), otherwise)
}

/// The change of a tail over all percentiles, of whole operations and of what the driver's functions took of each, with the sides of
/// the percentile that is `shown`.
///
/// The operations that take most and those in which the driver takes most are not always the same, and the kernel has slow
/// operations of its own. So in each placement a tail has changed by no more than either the percentiles of whole operations or
/// those of the driver's part say, each by that which became worse by most, and not at all where one is longer and the other shorter;
/// but a percentile whose part outside of the driver's functions is [apart](Separation) counts as it is, and one of the driver's part
/// that is not does not count.
pub(super) fn placed_tail(percentiles: &[[Vec<Pair>; 2]], shown: &[Pair]) -> Option<ChangeRecord> {
    let over = percentiles.iter().map(|[whole, within]| {
        let values = within.iter().map(|pair| pair.map(|it| it.value));
        [outside_over(whole), separation(values, 0.0)]
    });
    let over: Vec<[Separation; 2]> = over.collect();
    let is_open = over.iter().flatten().any(|it| it.open);
    let otherwise =
        is_open.then(|| median(&tail_differences(percentiles, &over, |it| it.apart != it.open)));
    changed(shown, &tail_differences(percentiles, &over, |it| it.apart), otherwise.flatten())
}

fn changed(pairs: &[Pair], differences: &[f64], otherwise: Option<f64>) -> Option<ChangeRecord> {
    let all = |of: fn(&Pair) -> f64| median(&pairs.iter().map(of).collect::<Vec<f64>>());
    let (change, ends) = (median(differences)?, ends(differences)?);
    let base = all(|[base, _]| base.value)?;
    let one_call = all(|[base, new]| new.value - base.value)? - change;
    Some(ChangeRecord {
        base: Some(base),
        candidate: all(|[_, new]| new.value),
        change: Some(change),
        one_call: (one_call != 0.0).then_some(one_call),
        otherwise,
        change_bounds: Some(ends),
        percent: (base > 0.0).then(|| change / base * 100.0),
        percent_bounds: (base > 0.0).then(|| ends.map(|end| end / base * 100.0)),
        ..ChangeRecord::default()
    })
}

/// A placement's baseline and candidate.
pub(super) type Pair = [Observed; 2];

/// The placements that have both sides.
pub(super) fn pairs(design: &Design, [base, candidate]: &Figures) -> Vec<Pair> {
    let pairs = design.pairs().into_iter();
    pairs
        .filter_map(|[of_base, new]| Some([mean(base, &of_base)?, mean(candidate, &new)?]))
        .collect()
}

fn mean(observed: &[Option<Observed>], runs: &[usize]) -> Option<Observed> {
    let found: Vec<Observed> = runs.iter().filter_map(|run| *observed.get(*run)?).collect();
    let mean =
        |of: &dyn Fn(&Observed) -> f64| found.iter().map(of).sum::<f64>() / found.len() as f64;
    (!found.is_empty()).then(|| Observed {
        value: mean(&|it| it.value),
        resolution: mean(&|it| it.resolution),
        beside: [0, 1].map(|at| mean(&|it| it.beside[at])),
        outside: found
            .iter()
            .all(|it| it.outside.is_some())
            .then(|| [0, 1].map(|at| mean(&|it| it.outside.unwrap_or_default()[at]))),
    })
}

/// Smaller differences of an operation are noise: the driver's functions run before the first operation, too.
const NOTHING: f64 = 0.5;

/// The [`difference`] in each placement.
fn differences(pairs: &[Pair], apart: bool) -> Vec<f64> {
    pairs.iter().map(|pair| difference(pair, apart)).collect()
}

/// Candidate minus baseline, less what a single call makes, or less what an operation takes more outside of the driver's functions
/// if that may be, or if placements do not hold it [apart](Separation).
fn difference(pair: &Pair, apart: bool) -> f64 {
    let [base, candidate] = pair;
    // By how much an operation differs outside of the driver's functions, and by how much it may.
    let outside = base.outside.zip(candidate.outside).map(|([was, may], [is, _])| (is - was, may));
    match outside {
        Some((outside, may)) if outside.abs() >= NOTHING && !(apart && outside.abs() > may) => {
            candidate.value - base.value - outside
        }
        _ => but_for_one_call(pair),
    }
}

/// Candidate minus baseline, less what a single call makes.
///
/// Calls come in kinds, such as those that refill a cache, and where a run begins in a cache's cycle decides whether 10 or 11 of
/// 1,000 do: a percentile between two kinds jumps by their distance for one call. So one call may lie on the other side. If that
/// is all, the candidate's figure is what comes next in the baseline, and the baseline's is what comes before it in the
/// candidate: what is left of the change is by how much this fails. Two calls more, or a jump of the candidate's own, stay.
fn but_for_one_call([base, candidate]: &Pair) -> f64 {
    let change = candidate.value - base.value;
    let [before, after] = if change > 0.0 { [0, 1] } else { [1, 0] };
    let left = f64::max(
        (candidate.beside[before] - base.value).abs(),
        (candidate.value - base.beside[after]).abs(),
    );
    change.clamp(-left, left)
}

/// Whether a part of an operation, at its mean or at a percentile, differs over all placements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Separation {
    /// By more than it may: the lowest of one side is above the highest of the other by that much, of [`MOST_PLACEMENTS`] but for
    /// one placement of each side, which may be the odd one.
    apart: bool,
    /// Further placements have to decide that: the median of one side is above the highest of the other.
    open: bool,
}

/// Placements that suffice where the sides are apart by several times what placements move either of them.
const CLEAR_PLACEMENTS: usize = 5;
const CLEAR: f64 = 3.0;

/// Where the kernel refills a cache in some operations, placements of one build differ by more than two builds of equal cost do in
/// one placement (`ipv6` on 6.1: 7,961 to 12,464 instructions of one BPF agent, 9,101 to 10,900 of its copy in another folder). Of
/// such figures nine of one side are apart from nine of the other by chance, upwards, in 0.2 % of cases, and three from three in 5 %;
/// of figures with two values, each in half of the placements, five are from five in 0.1 %.
fn outside_over(pairs: &[Pair]) -> Separation {
    let sides = pairs.iter().map(|[base, new]| Some((base.outside?, new.outside?)));
    let Some(sides) = sides.collect::<Option<Vec<_>>>() else { return Separation::default() };
    let may = median(&sides.iter().map(|([_, may], _)| *may).collect::<Vec<_>>());
    separation(sides.iter().map(|([was, _], [is, _])| [*was, *is]), may.unwrap_or(0.0))
}

/// Whether values of both sides, by placement, are apart by more than `may`.
fn separation(sides: impl Iterator<Item = [f64; 2]>, may: f64) -> Separation {
    let (mut base, mut new): (Vec<f64>, Vec<f64>) = sides.map(|[base, new]| (base, new)).unzip();
    base.sort_by(f64::total_cmp);
    new.sort_by(f64::total_cmp);
    let (Some(was), Some(is)) = (median(&base), median(&new)) else { return Separation::default() };
    let (lower, upper, middle) = if was <= is { (base, new, is) } else { (new, base, was) };
    let last = lower.len() - 1;
    let decides = lower.len() >= MOST_PLACEMENTS;
    let odd = usize::from(decides);
    let clear = [&lower, &upper].map(|side| (side[last] - side[0]) * CLEAR);
    let is_clear =
        lower.len() >= CLEAR_PLACEMENTS && upper[0] - lower[last] > clear[0].max(clear[1]).max(may);
    Separation {
        apart: upper[odd] - lower[last - odd] > may,
        open: !decides && !is_clear && middle - lower[last] > may,
    }
}

/// As [`placed_tail`], in each placement.
fn tail_differences(
    percentiles: &[[Vec<Pair>; 2]],
    over: &[[Separation; 2]],
    is_apart: fn(Separation) -> bool,
) -> Vec<f64> {
    let apart: Vec<[bool; 2]> = over.iter().map(|both| both.map(is_apart)).collect();
    let placements = percentiles.iter().flatten().map(Vec::len).min().unwrap_or(0);
    let differences = (0..placements).map(|at| {
        let pairs = percentiles.iter().map(|[whole, within]| [whole[at], within[at]]);
        tail_difference(&pairs.collect::<Vec<_>>(), &apart)
    });
    differences.collect()
}

/// As [`placed_tail`], of one placement: whole operations and the driver's part by percentile, and which are apart, of the first
/// what is outside of the driver's functions.
fn tail_difference(percentiles: &[[Pair; 2]], apart: &[[bool; 2]]) -> f64 {
    let all = percentiles.iter().zip(apart);
    let [whole, whole_apart] = [false, true].map(|is_apart| {
        let of = all.clone().filter(|(_, [apart, _])| *apart == is_apart);
        of.map(|([whole, _], _)| but_for_one_call(whole)).max_by(f64::total_cmp)
    });
    let within = all.map(|([_, within], [_, apart])| match apart {
        true => but_for_one_call(within),
        false => 0.0,
    });
    let agreed = whole.zip(within.max_by(f64::total_cmp)).map(|(whole, within)| {
        let agree = whole.signum() == within.signum();
        if agree { whole.signum() * whole.abs().min(within.abs()) } else { 0.0 }
    });
    whole_apart.into_iter().chain(agreed).max_by(f64::total_cmp).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DesignKind;

    fn design(kind: DesignKind, blocks: Vec<[Vec<Vec<usize>>; 2]>) -> Design {
        Design { kind, blocks, in_turns: false, left_out: 0 }
    }

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
        assert_eq!(difference(&[base, of(4_250.0, 49_933.0)], true), 17.0);
        assert_eq!(difference(&[base, of(4_417.0, 50_100.0)], true), 17.0);
        assert_eq!(difference(&[base, of(4_418.0, 50_101.0)], true), 118.0);
        assert_eq!(difference(&[base, of(4_418.0, 50_101.0)], false), 17.0);
        assert_eq!(difference(&[base, of(4_182.0, 49_899.0)], true), -118.0);
        assert_eq!(difference(&[base, of(4_300.0, 49_999.9)], false), 0.0, "a tenth of one");
        assert_eq!(difference(&[base, Observed::exact(4_250.0)], true), -50.0, "not known of both");
    }

    #[test]
    fn a_tail_became_worse_by_what_whole_operations_and_the_drivers_part_both_say() {
        // The candidate's percentiles of whole operations and of the driver's part; the baseline's take 60,000 and 4,000.
        let of = |percentiles: &[[f64; 2]]| {
            let pair = |base: f64, candidate: f64| [base, candidate].map(Observed::exact);
            let of = |[whole, within]: &[f64; 2]| {
                let mut whole = pair(60_000.0, *whole);
                whole[0].outside = Some([56_000.0, 2_800.0]);
                whole[1].outside = Some([whole[1].value - within, 0.0]);
                [whole, pair(4_000.0, *within)]
            };
            let percentiles = percentiles.iter().map(of).collect::<Vec<_>>();
            let apart = |[whole, _]: &[Pair; 2]| [outside_over(&[*whole]).apart, true];
            tail_difference(&percentiles, &percentiles.iter().map(apart).collect::<Vec<_>>())
        };
        let (same, kernels) = ([60_000.0, 4_000.0], [62_000.0, 4_000.0]);
        assert_eq!(of(&[same, same]), 0.0);
        assert_eq!(of(&[same, kernels]), 0.0, "the kernel's alone");
        assert_eq!(of(&[[60_117.0, 4_017.0]; 2]), 17.0);
        assert_eq!(of(&[[60_010.0, 4_017.0]; 2]), 10.0);
        assert_eq!(of(&[[59_950.0, 4_017.0]; 2]), 0.0, "as a whole it became shorter");
        assert_eq!(of(&[[59_900.0, 3_970.0]; 2]), -30.0);
        // The driver's slow path is at another percentile than the kernel's.
        assert_eq!(of(&[[60_000.0, 5_000.0], kernels]), 1_000.0);
        assert_eq!(of(&[same, [63_000.0, 4_000.0]]), 3_000.0, "more outside than may be");
        assert_eq!(of(&[]), 0.0);
    }

    #[test]
    fn what_placements_of_one_build_move_by_more_is_no_difference_outside_of_the_driver() {
        let of = |base: &[f64], candidate: &[f64]| {
            let of = |outside: f64| Observed {
                outside: Some([outside, outside * 0.05]),
                ..Observed::exact(outside)
            };
            let pairs = base.iter().zip(candidate).map(|(was, is)| [of(*was), of(*is)]);
            let Separation { apart, open } = outside_over(&pairs.collect::<Vec<_>>());
            (apart, open)
        };
        assert_eq!(of(&[9_191.0, 9_323.0, 9_514.0], &[9_101.0, 9_323.0, 10_900.0]), (false, false));
        assert_eq!(of(&[9_000.0, 9_500.0], &[9_900.0, 9_950.0]), (false, false), "4 %");
        assert_eq!(of(&[9_000.0, 9_400.0], &[9_900.0, 9_950.0]), (true, true));
        assert_eq!(of(&[9_900.0, 9_950.0], &[9_000.0, 9_400.0]), (true, true));
        assert_eq!(of(&[9_000.0; 3], &[9_000.0, 9_900.0, 9_900.0]), (false, true), "an odd one");
        let with = |odd: f64, most: f64| [odd, most, most, most, most, most, most, most, most];
        assert_eq!(of(&with(9_950.0, 9_000.0), &with(9_000.0, 9_900.0)), (true, false));
        let two = [9_000.0, 9_000.0, 9_900.0, 9_900.0, 9_900.0, 9_900.0, 9_900.0, 9_900.0, 9_900.0];
        assert_eq!(of(&with(9_950.0, 9_000.0), &two), (false, false));
        assert_eq!(of(&[9_000.0; 4], &[9_900.0; 4]), (true, true), "two values may be");
        assert_eq!(of(&[9_000.0; 5], &[9_900.0; 5]), (true, false), "by far");
        let moved = [9_000.0, 9_000.0, 9_000.0, 9_000.0, 9_300.0];
        assert_eq!(of(&moved, &[10_000.0; 5]), (true, true), "by twice what a placement moves");
        let unknown = [Observed::exact(1.0), Observed::exact(1_000.0)];
        assert_eq!(outside_over(&[unknown]), Separation::default(), "nobody knows what is outside");
        assert_eq!(outside_over(&[]), Separation::default());
    }

    #[test]
    fn a_tail_of_the_drivers_part_counts_if_placements_hold_it_apart() {
        let of_placements = |placements: usize| {
            let placement = |run| [vec![vec![run]], vec![vec![run]]];
            design(DesignKind::Shared, (0..placements).map(placement).collect())
        };
        let of = |within: [&[f64]; 2]| {
            let figures = |more: f64| {
                within.map(|side| side.iter().map(|it| Some(Observed::exact(it + more))).collect())
            };
            let of_whole = |it: Observed| Observed { outside: Some([56_000.0, 2_800.0]), ..it };
            let whole = figures(56_000.0).map(|side: Vec<Option<Observed>>| {
                side.into_iter().map(|it| it.map(of_whole)).collect()
            });
            let design = of_placements(within[0].len());
            let tail = [whole, figures(0.0)].map(|figures| pairs(&design, &figures));
            let placed = placed_tail(std::slice::from_ref(&tail), &tail[0]).unwrap();
            (placed.change.unwrap(), placed.otherwise)
        };
        assert_eq!(of([&[400.0], &[417.0]]), (17.0, Some(0.0)));
        assert_eq!(of([&[400.0; 5], &[417.0; 5]]), (17.0, None));
        // A slow operation more or less is at the percentile in some placements of each.
        let mixed =
            [&[400.0, 400.0, 400.0, 400.0, 751.0][..], &[751.0, 751.0, 751.0, 751.0, 400.0]];
        assert_eq!(of(mixed), (0.0, None));
    }

    #[test]
    fn one_call_beyond_a_percentile_is_no_change_and_two_are() {
        let of = |base: (f64, [f64; 2]), candidate: (f64, [f64; 2])| {
            let [base, candidate] =
                [base, candidate].map(|(value, beside)| observed(value, beside));
            (but_for_one_call(&[base, candidate]), but_for_one_call(&[candidate, base]))
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
        let boots = [vec![vec![0], vec![1]], vec![vec![0, 1], vec![2]]];
        let design = design(DesignKind::Apart, vec![boots]);
        let side = |values: &[f64]| -> Vec<Option<Observed>> {
            values.iter().map(|value| Some(Observed::exact(*value))).collect()
        };
        let of = |figures: Figures| placed(&pairs(&design, &figures));
        let change = of([side(&[10.0, 12.0]), side(&[14.0, 16.0, 17.0])]).unwrap();
        assert_eq!((change.base, change.candidate), (Some(11.0), Some(16.0)));
        assert_eq!(change.change_bounds, Some([3.0, 7.0]));
        assert_eq!(change.change, Some(5.0), "of 3, 5, 5 and 7");
        assert_eq!(of([side(&[]), side(&[1.0])]), None);
    }
}
