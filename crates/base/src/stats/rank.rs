//! An exact rank test of whether the candidate's runs are slower or faster than the baseline's.
//!
//! Each block's mean is subtracted from its values (aligned ranks: Hodges and Lehmann, "Rank methods for
//! combination of independent experiments in analysis of variance", 1962). All values are ranked
//! together, ties at their mean rank; the statistic is the sum of the candidate's ranks. Under the null
//! hypothesis any runs of a block could be the candidate's, so the statistic is permuted within blocks.
//! Its distribution is computed exactly, not by sampling: ties and runs without variance need no
//! correction.
//!
//! With one block this is the Mann-Whitney test, exact with ties too. With one run a side in each block
//! it is a signed-rank test with the weight 2 k - 1 for the k-th smallest difference; Wilcoxon's is 2 k.

use statrs::distribution::{ContinuousCDF as _, Normal};

use super::block::{Block, average};

/// Most runs with an exact distribution. Beyond, the normal approximation (with the variance under ties)
/// is close enough.
const MOST_EXACT: usize = 120;

/// Values closer than this share of the largest are ties, because alignment rounds.
const TIE: f64 = 1e-10;

/// One-sided p-values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankTest {
    /// Against the alternative that the candidate is slower.
    pub slower: f64,
    /// Against the alternative that the candidate is faster.
    pub faster: f64,
}

/// Tests whether the candidate's values are larger, and whether they are smaller. `None` if no block has
/// both sides.
pub fn rank_test(blocks: &[Block]) -> Option<RankTest> {
    let blocks: Vec<&Block> = blocks
        .iter()
        .filter(|block| !block.base.is_empty() && !block.candidate.is_empty())
        .collect();
    let runs: usize = blocks.iter().map(|block| block.base.len() + block.candidate.len()).sum();
    if runs == 0 {
        return None;
    }
    let ranks = aligned_ranks(&blocks);
    let observed: f64 = ranks.iter().flat_map(|block| &block.candidate).sum();
    Some(if runs <= MOST_EXACT { exact(&ranks, observed) } else { normal(&ranks, observed) })
}

/// Smallest possible p-value for blocks of these sizes: one over the number of permutations. 1 without
/// blocks.
pub fn smallest_p(sizes: impl IntoIterator<Item = (usize, usize)>) -> f64 {
    sizes.into_iter().map(|(base, candidate)| 1.0 / choices(base + candidate, candidate)).product()
}

/// Number of ways to choose `k` of `n`.
fn choices(n: usize, k: usize) -> f64 {
    (0..k.min(n.saturating_sub(k)))
        .fold(1.0, |ways, i| (ways * (n - i) as f64 / (i + 1) as f64).round())
}

/// The ranks of the values of each block, doubled, so that the mean rank of ties is a whole number.
fn aligned_ranks(blocks: &[&Block]) -> Vec<Block> {
    // (value, block, whether it is the candidate's)
    let mut values: Vec<(f64, usize, bool)> = Vec::new();
    let mut largest = 0.0_f64;
    for (number, block) in blocks.iter().enumerate() {
        let all: Vec<f64> = block.base.iter().chain(&block.candidate).copied().collect();
        // A single block needs no alignment, and stays exact without.
        let center = if blocks.len() > 1 { average(&all) } else { 0.0 };
        largest = all.iter().fold(largest, |largest, value| largest.max(value.abs()));
        values.extend(block.base.iter().map(|value| (value - center, number, false)));
        values.extend(block.candidate.iter().map(|value| (value - center, number, true)));
    }
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut ranks = vec![Block::default(); blocks.len()];
    let tie = largest * TIE;
    let mut first = 0;
    while let Some(&(smallest, ..)) = values.get(first) {
        let tied = values[first..].iter().take_while(|(value, ..)| value - smallest <= tie).count();
        // Ranks first + 1 to first + tied, twice their mean.
        let rank = (2 * first + tied + 1) as f64;
        for (_, block, is_candidate) in &values[first..first + tied] {
            if let Some(ranks) = ranks.get_mut(*block) {
                if *is_candidate { ranks.candidate.push(rank) } else { ranks.base.push(rank) }
            }
        }
        first += tied;
    }
    ranks
}

fn exact(ranks: &[Block], observed: f64) -> RankTest {
    // Probability of each sum of ranks.
    let mut shares = vec![1.0];
    for block in ranks {
        shares = convolve(&shares, &sums(block));
    }
    let observed = observed as usize;
    let slower: f64 = shares.iter().skip(observed).sum();
    let faster: f64 = shares.iter().take(observed + 1).sum();
    RankTest { slower: slower.min(1.0), faster: faster.min(1.0) }
}

/// Probability of each sum of the candidate's ranks in one block.
fn sums(block: &Block) -> Vec<f64> {
    let chosen = block.candidate.len();
    let all: Vec<usize> =
        block.base.iter().chain(&block.candidate).map(|rank| *rank as usize).collect();
    let total: usize = all.iter().sum();
    // ways[k][s]: choices of k ranks whose sum is s.
    let mut ways = vec![vec![0.0; total + 1]; chosen + 1];
    ways[0][0] = 1.0;
    for (seen, rank) in all.iter().enumerate() {
        for k in (1..=chosen.min(seen + 1)).rev() {
            let (fewer, more) = ways.split_at_mut(k);
            let (from, to) = (&fewer[k - 1], &mut more[0]);
            for (to, from) in to[*rank..].iter_mut().zip(from) {
                *to += from;
            }
        }
    }
    let all = choices(all.len(), chosen);
    let mut shares = ways.swap_remove(chosen);
    shares.iter_mut().for_each(|share| *share /= all);
    shares
}

fn convolve(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; a.len() + b.len() - 1];
    for (i, a) in a.iter().enumerate().filter(|(_, a)| **a > 0.0) {
        for (to, b) in sum[i..].iter_mut().zip(b) {
            *to += a * b;
        }
    }
    sum
}

fn normal(ranks: &[Block], observed: f64) -> RankTest {
    let (mut mean, mut variance) = (0.0, 0.0);
    for block in ranks {
        let all: Vec<f64> = block.base.iter().chain(&block.candidate).copied().collect();
        let (n, m) = (all.len() as f64, block.candidate.len() as f64);
        let center = average(&all);
        let scatter: f64 = all.iter().map(|rank| (rank - center).powi(2)).sum();
        mean += m * center;
        // Variance of the sum of m values drawn from n without replacement.
        variance += m * (n - m) / (n * (n - 1.0)) * scatter;
    }
    // Nor is it a number where a block has one run in all.
    if variance.is_nan() || variance <= 0.0 {
        return RankTest { slower: 1.0, faster: 1.0 };
    }
    let below = Normal::standard().cdf((observed - mean) / variance.sqrt());
    RankTest { slower: 1.0 - below, faster: below }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(base: &[f64], candidate: &[f64]) -> Block {
        Block { base: base.to_vec(), candidate: candidate.to_vec() }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn the_smallest_chance_of_a_design() {
        assert!(close(smallest_p([(4, 4)]), 1.0 / 70.0));
        assert!(close(smallest_p([(5, 5)]), 1.0 / 252.0));
        assert!(close(smallest_p([(2, 2), (2, 2)]), 1.0 / 36.0));
        assert!(close(smallest_p([(4, 4), (4, 4)]), 1.0 / 4900.0));
        assert!(close(smallest_p([(1, 1); 5]), 1.0 / 32.0));
        assert!(close(smallest_p([]), 1.0));
    }

    /// Every choice tried by hand, as the definition says.
    fn by_enumeration(blocks: &[Block]) -> RankTest {
        let refs: Vec<&Block> = blocks.iter().collect();
        let ranks = aligned_ranks(&refs);
        let observed: f64 = ranks.iter().flat_map(|block| &block.candidate).sum();
        let mut sums = vec![0.0];
        for block in &ranks {
            let all: Vec<f64> = block.base.iter().chain(&block.candidate).copied().collect();
            let mut next = Vec::new();
            for mask in 0_u32..1 << all.len() {
                if mask.count_ones() as usize == block.candidate.len() {
                    let sum: f64 = all
                        .iter()
                        .enumerate()
                        .filter(|(i, _)| mask >> i & 1 == 1)
                        .map(|(_, r)| r)
                        .sum();
                    next.extend(sums.iter().map(|before| before + sum));
                }
            }
            sums = next;
        }
        let share = |count: usize| count as f64 / sums.len() as f64;
        RankTest {
            slower: share(sums.iter().filter(|sum| **sum >= observed).count()),
            faster: share(sums.iter().filter(|sum| **sum <= observed).count()),
        }
    }

    /// SciPy 1.17.1: `mannwhitneyu(b, a, alternative="greater", method="exact")`, and, with ties,
    /// `permutation_test` of the rank sum over all choices.
    #[test]
    fn known_values() {
        let plain = rank_test(&[block(
            &[12.1, 13.4, 11.8, 12.9, 15.0],
            &[13.9, 14.2, 15.3, 13.6, 16.1, 12.5],
        )]);
        assert!(close(plain.unwrap().slower, 0.062_770_562_770_562_77), "{plain:?}");
        let ties = rank_test(&[block(&[3.0, 3.0, 4.0, 5.0, 5.0], &[5.0, 6.0, 4.0, 7.0])]);
        assert!(close(ties.unwrap().slower, 0.079_365_079_365_079_36), "{ties:?}");
    }

    /// Seven pairs, two of them the other way round, with the smallest differences: weights 1 and 3 of
    /// 1, 3, .. 13. No more weight than 4 is with 4 of the 128 choices of signs.
    #[test]
    fn pairs_are_a_signed_rank_test() {
        let pairs = [1.2, -0.4, 2.2, 0.9, 3.1, -0.2, 1.7].map(|d| block(&[50.0], &[50.0 + d]));
        let test = rank_test(&pairs).unwrap();
        assert!(close(test.slower, 4.0 / 128.0), "{test:?}");
    }

    #[test]
    fn runs_without_scatter() {
        let test = rank_test(&[block(&[180.0; 4], &[182.0; 4]), block(&[181.0; 4], &[183.0; 4])]);
        let test = test.unwrap();
        assert!(close(test.slower, 1.0 / 4900.0), "{test:?}");
        assert!(close(test.faster, 1.0), "{test:?}");
        let same = rank_test(&[block(&[180.0; 4], &[180.0; 4])]).unwrap();
        assert_eq!((same.slower, same.faster), (1.0, 1.0));
    }

    #[test]
    fn blocks_differ_in_level_and_not_in_the_change() {
        let test = rank_test(&[
            block(&[100.0, 101.0], &[103.0, 104.0]),
            block(&[500.0, 501.0], &[503.0, 504.0]),
            block(&[900.0, 901.0], &[903.0, 904.0]),
        ]);
        assert!(close(test.unwrap().slower, 1.0 / 216.0), "{test:?}");
        // Thrown together, the levels hide the change.
        let pooled = rank_test(&[block(
            &[100.0, 101.0, 500.0, 501.0, 900.0, 901.0],
            &[103.0, 104.0, 503.0, 504.0, 903.0, 904.0],
        )]);
        assert!(pooled.unwrap().slower > 0.15, "{pooled:?}");
    }

    #[test]
    fn nothing_to_test() {
        assert_eq!(rank_test(&[]), None);
        assert_eq!(rank_test(&[block(&[1.0], &[])]), None);
    }

    #[test]
    fn many_runs_are_approximated() {
        let base: Vec<f64> = (0..60).map(f64::from).collect();
        let few: Vec<f64> = base.iter().map(|value| value + 6.5).collect();
        let exact = rank_test(&[block(&base, &few)]).unwrap();
        let mut more = base.clone();
        more.push(30.25);
        let approximate = rank_test(&[block(&more, &few)]).unwrap();
        assert!((exact.slower - approximate.slower).abs() < 0.005, "{exact:?} {approximate:?}");
        assert_eq!(rank_test(&[block(&[1.0; 61], &[1.0; 61])]).unwrap().slower, 1.0);
    }

    fn values() -> impl Strategy<Value = Vec<f64>> {
        // Few different values: ties are the rule.
        prop::collection::vec((0_u8..9).prop_map(f64::from), 1..5)
    }

    proptest! {
        #[test]
        fn agrees_with_enumeration(sides in prop::collection::vec((values(), values()), 1..3)) {
            let blocks: Vec<Block> = sides.iter().map(|(b, c)| block(b, c)).collect();
            let (found, expected) = (rank_test(&blocks).unwrap(), by_enumeration(&blocks));
            prop_assert!((found.slower - expected.slower).abs() < 1e-9, "{found:?} {expected:?}");
            prop_assert!((found.faster - expected.faster).abs() < 1e-9, "{found:?} {expected:?}");
            let sizes = blocks.iter().map(Block::size);
            prop_assert!(found.slower >= smallest_p(sizes) - 1e-12);
        }

        #[test]
        fn exchanging_the_sides_exchanges_the_chances(base in values(), candidate in values()) {
            let one = rank_test(&[block(&base, &candidate)]).unwrap();
            let other = rank_test(&[block(&candidate, &base)]).unwrap();
            prop_assert!((one.slower - other.faster).abs() < 1e-9);
            prop_assert!((one.faster - other.slower).abs() < 1e-9);
        }

        /// The test's promise: without a difference, a chance of at most p comes up in at most the
        /// share p of all choices.
        #[test]
        fn the_chance_is_honest(values in prop::collection::vec(0_u8..20, 6..9), p in 0.01..0.5_f64) {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let chosen = values.len() / 2;
            let (mut all, mut below) = (0_u32, 0_u32);
            for mask in 0_u32..1 << values.len() {
                if mask.count_ones() as usize != chosen {
                    continue;
                }
                let side = |bit: u32| -> Vec<f64> {
                    values.iter().enumerate().filter(|(i, _)| mask >> i & 1 == bit).map(|(_, v)| *v).collect()
                };
                all += 1;
                below += u32::from(rank_test(&[block(&side(0), &side(1))]).unwrap().slower <= p);
            }
            prop_assert!(f64::from(below) <= p * f64::from(all) + 1e-9);
        }
    }
}
