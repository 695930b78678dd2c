//! The design of a comparison: which runs are compared with which.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::recording::Recording;
use crate::stats::{Block, smallest_p};

/// How the runs of the two sides share boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Design {
    /// Both sides ran in the same boots of one machine. Runs are compared within each boot, so that
    /// differences between boots cancel.
    Shared {
        /// The boots that both sides have.
        boots: Vec<Boot>,
        /// Number of runs in boots that only one side has, which are left out.
        left_out: usize,
    },
    /// No boot in common. A boot makes its runs alike, so each boot counts as one value, the average of
    /// its runs.
    Apart {
        /// Runs of the baseline, by boot.
        base: Vec<Vec<usize>>,
        /// Runs of the candidate, by boot.
        candidate: Vec<Vec<usize>>,
    },
}

/// A boot with runs of both sides, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Boot {
    /// Runs of the baseline.
    pub base: Vec<usize>,
    /// Runs of the candidate.
    pub candidate: Vec<usize>,
    /// Whether the sides took turns, so that a drift of the machine does not look like a change.
    pub interleaved: bool,
}

/// Runs that suffice to show a regression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enough {
    /// Boots that both sides share.
    Boots {
        /// Number of boots.
        boots: usize,
        /// Runs of the baseline in each.
        base: usize,
        /// Runs of the candidate in each.
        candidate: usize,
        /// Or this many runs of each side in each of the existing boots, and their number.
        here: Option<(usize, usize)>,
    },
    /// Runs of each side, each in a boot of its own.
    Runs(usize),
    /// Boots of each side, each with several runs.
    BootsApart(usize),
}

/// Whether boots are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DesignKind {
    /// Runs are compared within the boots that both sides have.
    Shared,
    /// Boots are compared with each other; a run of an unknown boot counts as one.
    Apart,
}

/// The identity of a boot. A run with neither part shares its boot with no other.
type Key<'a> = (Option<&'a str>, Option<u32>);

fn key(recording: &Recording) -> Option<Key<'_>> {
    let key = (recording.host.boot_id.as_deref(), recording.place.as_ref().map(|place| place.boot));
    (key != (None, None)).then_some(key)
}

impl Design {
    /// The design of these runs. `independent` treats runs as independent, whatever their boot.
    pub fn of(base: &[&Recording], candidate: &[&Recording], independent: bool) -> Self {
        if independent {
            let each = |runs: &[&Recording]| (0..runs.len()).map(|run| vec![run]).collect();
            return Self::Apart { base: each(base), candidate: each(candidate) };
        }
        let (of_base, of_candidate) = (by_boot(base), by_boot(candidate));
        let mut boots = Vec::new();
        for (key, base_runs) in &of_base {
            let Some(key) = key else { continue };
            let Some((_, candidate_runs)) =
                of_candidate.iter().find(|(other, _)| other.as_ref() == Some(key))
            else {
                continue;
            };
            let runs = [
                base_runs.iter().map(|run| base[*run]).collect::<Vec<_>>(),
                candidate_runs.iter().map(|run| candidate[*run]).collect(),
            ];
            if !collide(&runs) {
                let (base, candidate) = (base_runs.clone(), candidate_runs.clone());
                boots.push(Boot { base, candidate, interleaved: take_turns(&runs) });
            }
        }
        if boots.is_empty() {
            let runs = |groups: Vec<(Option<Key<'_>>, Vec<usize>)>| {
                groups.into_iter().map(|(_, runs)| runs).collect()
            };
            return Self::Apart { base: runs(of_base), candidate: runs(of_candidate) };
        }
        let used: usize = boots.iter().map(|boot| boot.base.len() + boot.candidate.len()).sum();
        Self::Shared { boots, left_out: base.len() + candidate.len() - used }
    }

    /// Whether boots are shared.
    pub fn kind(&self) -> DesignKind {
        match self {
            Self::Shared { .. } => DesignKind::Shared,
            Self::Apart { .. } => DesignKind::Apart,
        }
    }

    /// Whether a slow drift of the machine cannot look like a change.
    pub fn is_interleaved(&self) -> bool {
        match self {
            Self::Shared { boots, .. } => boots.iter().all(|boot| boot.interleaved),
            Self::Apart { .. } => false,
        }
    }

    /// Where calls were counted and a boot is a placement: runs of the baseline and of the candidate that are compared, those of
    /// one placement or else of any two.
    pub(super) fn pairs(&self) -> Vec<[&[usize]; 2]> {
        match self {
            Self::Shared { boots, .. } => {
                boots.iter().map(|boot| [&boot.base[..], &boot.candidate[..]]).collect()
            }
            Self::Apart { base, candidate } => base
                .iter()
                .flat_map(|base| candidate.iter().map(|candidate| [&base[..], &candidate[..]]))
                .collect(),
        }
    }

    /// How many placements both sides have.
    pub fn placements(&self) -> usize {
        match self {
            Self::Shared { boots, .. } => boots.len(),
            Self::Apart { base, candidate } => base.len().min(candidate.len()),
        }
    }

    /// The values of each run as blocks to compare; runs without a value are left out.
    pub fn blocks(&self, base: &[Option<f64>], candidate: &[Option<f64>]) -> Vec<Block> {
        let of = |values: &[Option<f64>], runs: &[usize]| -> Vec<f64> {
            runs.iter().filter_map(|run| values.get(*run).copied().flatten()).collect()
        };
        let average = |group: Vec<f64>| group.iter().sum::<f64>() / group.len() as f64;
        let averages = |values: &[Option<f64>], groups: &[Vec<usize>]| -> Vec<f64> {
            let groups = groups.iter().map(|runs| of(values, runs));
            groups.filter(|group| !group.is_empty()).map(average).collect()
        };
        match self {
            Self::Shared { boots, .. } => {
                let block = |boot: &Boot| Block {
                    base: of(base, &boot.base),
                    candidate: of(candidate, &boot.candidate),
                };
                boots.iter().map(block).collect()
            }
            Self::Apart { base: of_base, candidate: of_candidate } => {
                let (base, candidate) =
                    (averages(base, of_base), averages(candidate, of_candidate));
                vec![Block { base, candidate }]
            }
        }
    }

    /// How many values of each side are compared, block by block.
    pub fn sizes(&self) -> Vec<(usize, usize)> {
        match self {
            Self::Shared { boots, .. } => {
                boots.iter().map(|boot| (boot.base.len(), boot.candidate.len())).collect()
            }
            Self::Apart { base, candidate } => vec![(base.len(), candidate.len())],
        }
    }

    /// The smallest p-value that these runs can give.
    pub fn smallest_p(&self) -> f64 {
        smallest_p(self.sizes())
    }

    /// Runs that suffice for the smallest p-value to be at most `level`.
    pub fn enough(&self, level: f64) -> Enough {
        let runs_in =
            |boots: usize| (1..=1_000).find(|n| smallest_p(vec![(*n, *n); boots]) <= level);
        match self {
            Self::Shared { boots, .. } => {
                let sizes = self.sizes();
                let (base, candidate) = sizes.iter().copied().max().unwrap_or((2, 2));
                let more = (1..=10_000)
                    .find(|count| smallest_p(vec![(base, candidate); *count]) <= level)
                    .unwrap_or(10_000);
                let here = runs_in(boots.len()).map(|n| (n, boots.len()));
                Enough::Boots { boots: more, base, candidate, here }
            }
            Self::Apart { base, candidate } => {
                let n = runs_in(1).unwrap_or(1_000);
                let single = base.iter().chain(candidate).all(|runs| runs.len() == 1);
                if single { Enough::Runs(n) } else { Enough::BootsApart(n) }
            }
        }
    }
}

/// Runs by boot, in the order in which the boots first appear.
fn by_boot<'a>(runs: &[&'a Recording]) -> Vec<(Option<Key<'a>>, Vec<usize>)> {
    let mut boots: Vec<(Option<Key<'_>>, Vec<usize>)> = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let key = key(run);
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
    // A run without a place in its boot is ordered by its time stamp.
    let order = |run: &Recording| (run.place.as_ref().map(|place| place.order), run.started);
    let of_side = |side: usize| sides[side].iter().map(move |run| (order(run), side));
    let mut runs: Vec<_> = of_side(0).chain(of_side(1)).collect();
    runs.sort_by_key(|(order, _)| *order);
    let changes = runs.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    changes >= 2 || runs.len() == 2
}
