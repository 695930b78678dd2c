//! The design of a comparison: which runs are compared with which.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::stats::{Block, smallest_p};
use profiler_recording::Recording;

/// How the runs of the two sides share boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Design {
    /// Whether boots are shared.
    pub kind: DesignKind,
    /// What is compared with each other: the runs of a shared boot, or all. Each side has groups of runs, by index; a group is one
    /// value, the average of its runs.
    pub blocks: Vec<[Vec<Vec<usize>>; 2]>,
    /// Whether the sides took turns in each boot, so that a drift of the machine does not look like a change.
    pub in_turns: bool,
    /// Runs in boots that only one side has, which are not compared.
    pub left_out: usize,
}

/// Whether boots are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DesignKind {
    /// Runs are compared within the boots that both sides have.
    Shared,
    /// Boots are compared with each other; a run of an unknown boot counts as one.
    Apart,
}

/// The identity of a boot. A run with neither part shares its boot with no other.
type Key<'a> = (Option<&'a str>, Option<u32>);

impl Design {
    /// The design of these runs. `independent` treats runs as independent, whatever their boot.
    pub fn of(base: &[&Recording], candidate: &[&Recording], independent: bool) -> Self {
        let sides = [base, candidate];
        if independent {
            return Self::apart(sides.map(|runs| (0..runs.len()).map(|run| vec![run]).collect()));
        }
        let [of_base, of_candidate] = sides.map(by_boot);
        let (mut blocks, mut in_turns) = (Vec::new(), true);
        for (key, base_runs) in of_base.iter().filter(|(key, _)| key.is_some()) {
            let same = of_candidate.iter().find(|(other, _)| other == key);
            let Some((_, candidate_runs)) = same else { continue };
            let runs = [
                base_runs.iter().map(|run| base[*run]).collect(),
                candidate_runs.iter().map(|run| candidate[*run]).collect(),
            ];
            if !collide(&runs) {
                in_turns &= take_turns(&runs);
                let sides = [base_runs, candidate_runs];
                blocks.push(sides.map(|runs| runs.iter().map(|run| vec![*run]).collect()));
            }
        }
        if blocks.is_empty() {
            return Self::apart(
                [of_base, of_candidate]
                    .map(|boots| boots.into_iter().map(|(_, runs)| runs).collect()),
            );
        }
        let used: usize = blocks.iter().flatten().map(Vec::len).sum();
        let left_out = base.len() + candidate.len() - used;
        Self { kind: DesignKind::Shared, blocks, in_turns, left_out }
    }

    fn apart(groups: [Vec<Vec<usize>>; 2]) -> Self {
        Self { kind: DesignKind::Apart, blocks: vec![groups], in_turns: false, left_out: 0 }
    }

    /// Where calls were counted and a boot is a placement: runs of the baseline and of the candidate that are compared, those of
    /// one placement or else of any two.
    pub(super) fn pairs(&self) -> Vec<[Vec<usize>; 2]> {
        if self.kind == DesignKind::Shared {
            let boots = self.blocks.iter();
            return boots.map(|sides| sides.each_ref().map(|runs| runs.concat())).collect();
        }
        let mut pairs = Vec::new();
        for [base, candidate] in &self.blocks {
            for base in base {
                pairs.extend(candidate.iter().map(|other| [base.clone(), other.clone()]));
            }
        }
        pairs
    }

    /// How many placements both sides have.
    pub fn placements(&self) -> usize {
        match self.kind {
            DesignKind::Shared => self.blocks.len(),
            DesignKind::Apart => self.sizes().into_iter().map(|(a, b)| a.min(b)).sum(),
        }
    }

    /// The values of each run as blocks to compare; runs without a value are left out.
    pub fn blocks(&self, base: &[Option<f64>], candidate: &[Option<f64>]) -> Vec<Block> {
        let blocks = self.blocks.iter().map(|[of_base, of_candidate]| Block {
            base: averages(base, of_base),
            candidate: averages(candidate, of_candidate),
        });
        blocks.collect()
    }

    /// How many values of each side are compared, block by block.
    pub fn sizes(&self) -> Vec<(usize, usize)> {
        self.blocks.iter().map(|[base, candidate]| (base.len(), candidate.len())).collect()
    }

    /// The smallest p-value that these runs can give.
    pub fn smallest_p(&self) -> f64 {
        smallest_p(self.sizes())
    }
}

/// The average of each group that has a value.
fn averages(values: &[Option<f64>], groups: &[Vec<usize>]) -> Vec<f64> {
    let known = groups.iter().map(|runs| runs.iter().filter_map(|run| *values.get(*run)?));
    let known = known.map(Vec::<f64>::from_iter).filter(|group| !group.is_empty());
    known.map(|group| group.iter().sum::<f64>() / group.len() as f64).collect()
}

/// Runs by boot, in the order in which the boots first appear.
fn by_boot<'a>(runs: &[&'a Recording]) -> Vec<(Option<Key<'a>>, Vec<usize>)> {
    let mut boots: Vec<(Option<Key<'_>>, Vec<usize>)> = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let place = run.place.as_ref();
        let key = (run.host.boot_id.as_deref(), place.map(|place| place.boot));
        let key = (key != (None, None)).then_some(key);
        match boots.iter_mut().find(|(other, _)| key.is_some() && *other == key) {
            Some((_, runs)) => runs.push(number),
            None => boots.push((key, vec![number])),
        }
    }
    boots
}

/// Whether runs of both sides have the same place in the boot. Then they are of two boots: under virtual
/// time with a fixed seed even the random boot id can be the same.
fn collide(sides: &[Vec<&Recording>; 2]) -> bool {
    let [base, candidate] = sides.each_ref().map(|runs| -> HashSet<u32> {
        runs.iter().filter_map(|run| run.place.as_ref().map(|place| place.order)).collect()
    });
    !base.is_disjoint(&candidate)
}

/// Whether the sides took turns: in order of time, the side changes twice or more. ABBA and ABAB do,
/// AABB does not. A boot with one run per side can only take turns together with other boots.
fn take_turns(sides: &[Vec<&Recording>; 2]) -> bool {
    let numbered = sides.iter().enumerate();
    let runs = numbered.flat_map(|(side, runs)| runs.iter().map(move |run| (side, run)));
    let mut runs: Vec<(usize, &&Recording)> = runs.collect();
    // A run without a place in its boot is ordered by its time stamp.
    runs.sort_by_key(|(_, run)| (run.place.as_ref().map(|place| place.order), run.started));
    let changes = runs.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
    changes >= 2 || runs.len() == 2
}
