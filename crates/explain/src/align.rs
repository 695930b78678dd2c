//! Pairs the lines of a function in two builds.
//!
//! Lines shift when code is added above them, so numbers alone do not tell. Lines are paired in order, like letters of
//! two words in an edit distance: a pair costs the share by which its instructions differ, a line without a partner a
//! fixed price, and so does each place from where on lines are shifted by another number.

use std::collections::HashMap;

/// Price of a line without a partner: two cost more than any pair.
const ALONE: f64 = 0.6;
/// Price of a pair whose texts differ: less than two lines alone, so that a line that was edited stays one.
const EDITED: f64 = 0.8;
/// Price of another shift than that of the pair before.
const SHIFT: f64 = 0.1;
/// Price of a shift that is new for the whole function, as if lines had been added before it.
const SHIFTED_WHOLE: f64 = 0.05;
/// Most pairs that are weighed; larger functions are paired by number.
const MOST_PAIRS: usize = 1 << 20;

/// A line and its instructions a call of the handler.
pub(super) type Cost = (u64, f64);

/// Pairs the lines of two builds, each sorted by number; `expected` is by how much the lines before the function are
/// shifted, and `differ` says of a line in both whether its texts are known and differ. Returns the number of each in both builds, in
/// order.
pub(super) fn align(
    a: &[Cost],
    b: &[Cost],
    expected: i128,
    differ: impl Fn(u64, u64) -> bool,
) -> Vec<(Option<u64>, Option<u64>)> {
    let pairs = if a.len().saturating_mul(b.len()) > MOST_PAIRS {
        by_number(a, b, expected)
    } else {
        cheapest(a, b, expected, differ)
    };
    let mut lines = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (to_i, to_j) in pairs.into_iter().chain([(a.len(), b.len())]) {
        lines.extend(a[i..to_i].iter().map(|line| (Some(line.0), None)));
        lines.extend(b[j..to_j].iter().map(|line| (None, Some(line.0))));
        if let (Some(a), Some(b)) = (a.get(to_i), b.get(to_j)) {
            lines.push((Some(a.0), Some(b.0)));
        }
        (i, j) = ((to_i + 1).min(a.len()), (to_j + 1).min(b.len()));
    }
    lines
}

/// By how much the second line of a pair is further down.
pub(super) fn shift(a: u64, b: u64) -> i128 {
    i128::from(b) - i128::from(a)
}

fn by_number(a: &[Cost], b: &[Cost], expected: i128) -> Vec<(usize, usize)> {
    let places: HashMap<i128, usize> =
        b.iter().enumerate().map(|(at, line)| (i128::from(line.0), at)).collect();
    let partners = a.iter().map(|line| places.get(&(i128::from(line.0) + expected)).copied());
    partners.enumerate().filter_map(|(at, partner)| Some((at, partner?))).collect()
}

/// What the pairs up to one cost, less the price of all lines up to it as ones without a partner; and the last of these pairs.
type Best = (f64, Option<(usize, usize)>);

const NONE: Best = (f64::INFINITY, None);

fn cheaper(a: Best, b: Best) -> Best {
    if b.0 < a.0 { b } else { a }
}

fn cheapest(
    a: &[Cost],
    b: &[Cost],
    expected: i128,
    differ: impl Fn(u64, u64) -> bool,
) -> Vec<(usize, usize)> {
    let mut before: Vec<Option<(usize, usize)>> = vec![None; a.len() * b.len()];
    // The best of all pairs above and left of a column, and of those with one shift.
    let mut above = vec![NONE; b.len() + 1];
    let mut shifts: HashMap<i128, Best> = HashMap::new();
    let mut last = (0.0, None);
    for (i, line) in a.iter().enumerate() {
        let mut row = vec![NONE; b.len() + 1];
        for (j, other) in b.iter().enumerate() {
            let shift = shift(line.0, other.0);
            let start = match (shift == expected, (i, j)) {
                (true, _) => 0.0,
                (false, (0, 0)) => SHIFTED_WHOLE,
                (false, _) => SHIFT,
            };
            let same = shifts.get(&shift).copied().unwrap_or(NONE);
            let (price, pair) = above[j];
            let best = cheaper(cheaper((start, None), (price + SHIFT, pair)), same);
            before[i * b.len() + j] = best.1;
            let edited = if differ(line.0, other.0) { EDITED } else { 0.0 };
            let this = (best.0 + unlike(line.1, other.1) + edited - 2.0 * ALONE, Some((i, j)));
            // A later pair of that shift is in a later row.
            shifts.insert(shift, cheaper(same, this));
            row[j + 1] = this;
            last = cheaper(last, this);
        }
        for j in 0..b.len() {
            let left = above[j];
            above[j + 1] = cheaper(cheaper(above[j + 1], row[j + 1]), left);
        }
    }
    let mut pairs = Vec::new();
    let mut at = last.1;
    while let Some((i, j)) = at {
        pairs.push((i, j));
        at = before[i * b.len() + j];
    }
    pairs.reverse();
    pairs
}

/// By which share of the larger one two figures differ.
fn unlike(a: f64, b: f64) -> f64 {
    if a == b { 0.0 } else { (a - b).abs() / a.max(b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(a: &[Cost], b: &[Cost]) -> Vec<(Option<u64>, Option<u64>)> {
        align(a, b, 0, |_, _| false)
    }

    #[test]
    fn an_inlined_function_keeps_its_lines_though_its_first_and_last_are_gone() {
        let a = [(10, 4.0), (11, 3.0), (14, 2.0)];
        let gone = |line| (Some(line), None);
        assert_eq!(pairs(&a, &[(11, 3.0)]), [gone(10), (Some(11), Some(11)), gone(14)]);
        assert_eq!(pairs(&a, &[(36, 3.0)]), [gone(10), (Some(11), Some(36)), gone(14)]);
        assert_eq!(pairs(&a, &[]), [gone(10), gone(11), gone(14)]);
    }

    #[test]
    fn a_new_line_beside_a_similar_one_changes_no_other() {
        let same = |line, by| (Some(line), Some(line + by));
        assert_eq!(
            pairs(&[(10, 3.0), (11, 5.0)], &[(10, 3.0), (11, 4.0), (12, 5.0)]),
            [same(10, 0), (None, Some(11)), same(11, 1)]
        );
        // Nothing tells them apart but the shift of the lines before the function.
        let (a, b) = ([(20, 2.0)], [(20, 2.0), (21, 2.0)]);
        assert_eq!(align(&a, &b, 0, |_, _| false), [same(20, 0), (None, Some(21))]);
        assert_eq!(align(&a, &b, 1, |_, _| false), [(None, Some(20)), same(20, 1)]);
    }

    #[test]
    fn large_functions_are_paired_by_number() {
        let lines = |from: u64| -> Vec<Cost> { (from..from + 1100).map(|l| (l, 1.0)).collect() };
        let pairs = align(&lines(1), &lines(5), 3, |_, _| false);
        assert_eq!(pairs.len(), 1101);
        assert_eq!((pairs[0], pairs[1]), ((Some(1), None), (Some(2), Some(5))));
        assert_eq!(pairs[1100], (None, Some(1104)));
    }

    /// Lines with gaps between them, none with the instructions of its neighbours.
    fn function() -> impl Strategy<Value = Vec<(u64, u32)>> {
        prop::collection::vec((1..4_u64, 0..5_u32), 2..40).prop_map(|steps| {
            let (mut line, mut before) = (100, 0);
            let step = |(gap, power): (u64, u32)| {
                line += gap;
                before = if power == before { (power + 1) % 5 } else { power };
                (line, before)
            };
            steps.into_iter().map(step).collect()
        })
    }

    fn costs(lines: &[(u64, u32)]) -> Vec<Cost> {
        lines.iter().map(|(line, power)| (*line, 3_f64.powi(*power as i32))).collect()
    }

    proptest! {
        /// Lines are added above a function, one is added in it, and another one changes.
        #[test]
        fn a_new_line_and_a_changed_one_are_found(
            a in function(),
            above in 0..50_u64,
            new in any::<prop::sample::Index>(),
            power in 5..8_u32,
            changed in prop::option::of(any::<prop::sample::Index>()),
            removed in any::<bool>(),
        ) {
            let new = new.index(a.len() - 1) + 1;
            let changed = changed.map(|at| at.index(a.len())).filter(|at| at.abs_diff(new) > 1);
            let moved = |(at, (line, power)): (usize, &(u64, u32))| {
                let power = if changed == Some(at) { power + 1 } else { *power };
                (line + above + u64::from(at >= new), power)
            };
            let mut b: Vec<(u64, u32)> = a.iter().enumerate().map(moved).collect();
            let pair = |(a, b): (&(u64, u32), &(u64, u32))| (Some(a.0), Some(b.0));
            let mut expected: Vec<_> = a.iter().zip(&b).map(pair).collect();
            b.insert(new, (a[new].0 + above, power));
            expected.insert(new, (None, Some(b[new].0)));
            let (mut a, mut b) = (costs(&a), costs(&b));
            if removed {
                (a, b) = (b, a);
                expected = expected.into_iter().map(|(a, b)| (b, a)).collect();
            }
            prop_assert_eq!(pairs(&a, &b), expected);
        }
    }
}
