//! What a tree differs by from one recording to the other.
//!
//! Each place of the source is a line, a whole function where no lines are known. What all functions together spend on
//! a line differs by its change. Where some functions spend more on it and others less, that much moved between them:
//! the change belongs to those that differ in its direction, the largest first, and the rest moved. So in each function
//! change and moved cost add up to the difference, and what moved adds up to nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::align::{self, align};
use super::tree::{Branch, SourceLine, Tree};
use super::{Exact, Explained, Fate, Function, Line, Node, SourceFunction};

/// How much more a call took from the first to the second of these totals.
pub(super) fn change(calls: &[u64], totals: impl Fn(usize) -> u64) -> Exact {
    let &[before, after] = calls else { return Exact::default() };
    let [first, second] = [totals(0), totals(1)].map(i128::from);
    Exact {
        numerator: second * i128::from(before) - first * i128::from(after),
        denominator: u128::from(before) * u128::from(after),
    }
}

/// Splits what differs, and puts all in order.
pub(super) fn explained(tree: &Tree) -> Explained {
    let calls: Vec<u64> = tree.branches[0].figures.iter().map(|figures| figures.calls).collect();
    let Lines { all: mut lines, numbers, .. } = lines(tree, &calls);
    let mut own = vec![(0_i128, 0_i128); tree.branches.len()];
    // By line, what each branch spends on it in each recording.
    let mut spent: Vec<BTreeMap<usize, [u64; 2]>> = vec![BTreeMap::new(); lines.len()];
    for (at, branch) in tree.branches.iter().enumerate() {
        for (recording, places) in branch.places.iter().enumerate() {
            for (place, count) in places {
                let Some(&number) = numbers[recording].get(place) else { continue };
                spent[number].entry(at).or_default()[recording] += count;
                let line = &mut lines[number];
                line.within[recording].insert(branch.function.clone());
                line.instructions[recording] += count;
            }
        }
    }
    for (line, spent) in lines.iter_mut().zip(&spent) {
        split(line, spent, &calls, &mut own);
    }
    let mut explained = Explained {
        handler: tree.branches[0].function.clone(),
        nodes: nodes(tree, &calls, &own),
        functions: if calls.len() == 2 { functions(&lines, &calls) } else { Vec::new() },
        lines,
        calls,
    };
    explained.lines.sort_by_cached_key(|line| {
        let most: u128 = line.instructions.iter().map(|count| u128::from(*count)).sum();
        let differs = line.change.numerator.unsigned_abs();
        let moved = line.moved.numerator.unsigned_abs();
        (std::cmp::Reverse((differs, moved, most)), line.function.clone(), line.at.clone())
    });
    explained
}

/// Splits the difference of one line into change and what moved, and adds both to the functions in `own`.
fn split(
    line: &mut Line,
    spent: &BTreeMap<usize, [u64; 2]>,
    calls: &[u64],
    own: &mut [(i128, i128)],
) {
    let instructions = line.instructions.clone();
    line.change = change(calls, |recording| instructions[recording]);
    let mut differ: Vec<(usize, i128)> = spent
        .iter()
        .map(|(at, counts)| (*at, change(calls, |recording| counts[recording]).numerator))
        .collect();
    differ.sort_by_key(|(at, by)| (std::cmp::Reverse(by.unsigned_abs()), *at));
    let mut left = line.change.numerator;
    let mut moved = 0;
    for (at, by) in differ {
        let changed = if left >= 0 { by.clamp(0, left) } else { by.clamp(left, 0) };
        left -= changed;
        moved += (by - changed).max(0);
        own[at].0 += changed;
        own[at].1 += by - changed;
    }
    line.moved = Exact { numerator: moved, ..line.change };
}

/// The lines of all recordings, and their indexes by the places of each recording.
struct Lines<'a> {
    tree: &'a Tree,
    all: Vec<Line>,
    numbers: Vec<BTreeMap<SourceLine, usize>>,
}

fn lines<'a>(tree: &'a Tree, calls: &[u64]) -> Lines<'a> {
    type Totals = Vec<BTreeMap<u64, u64>>;
    let mut groups: BTreeMap<(Function, Option<String>), Totals> = BTreeMap::new();
    let mut wholes: BTreeSet<&SourceLine> = BTreeSet::new();
    let all = tree.branches.iter().flat_map(|branch| branch.places.iter().enumerate());
    for (recording, places) in all {
        for (place, count) in places {
            let Some(at) = place.at else {
                wholes.insert(place);
                continue;
            };
            let group = groups.entry((place.function.clone(), place.file.clone()));
            let totals = group.or_insert_with(|| vec![BTreeMap::new(); calls.len()]);
            *totals[recording].entry(at).or_default() += count;
        }
    }
    // In the order of the source, so that a function starts with the shift that the one before it ended with.
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_cached_key(|((function, file), totals)| {
        let first = totals.iter().filter_map(|totals| totals.keys().next()).min().copied();
        (function.module.clone(), file.clone(), first)
    });
    let numbers = vec![BTreeMap::new(); calls.len()];
    let mut lines = Lines { tree, all: Vec::new(), numbers };
    wholes.into_iter().for_each(|p| lines.push(&p.function, &p.file, vec![None; calls.len()]));
    let mut expected = (&None, &None, 0);
    for ((function, file), totals) in &groups {
        if file.is_none() || (&function.module, file) != (expected.0, expected.1) {
            expected = (&function.module, file, 0);
        }
        if calls.len() < 2 {
            totals[0].keys().for_each(|at| lines.push(function, file, vec![Some(*at)]));
            continue;
        }
        let costs = [0, 1].map(|recording| -> Vec<align::Cost> {
            let calls = calls[recording] as f64;
            totals[recording].iter().map(|(at, count)| (*at, *count as f64 / calls)).collect()
        });
        let pairs = align(&costs[0], &costs[1], expected.2, |a, b| {
            let [a, b] = [(0, a), (1, b)].map(|(recording, at)| {
                let texts = Some(&tree.texts[recording]).filter(|texts| !texts.is_empty())?;
                texts.get(&place(function, file, Some(at)))
            });
            a.zip(b).is_some_and(|(a, b)| a != b)
        });
        for (a, b) in pairs {
            if let (Some(a), Some(b)) = (a, b) {
                expected.2 = align::shift(a, b);
            }
            lines.push(function, file, vec![a, b]);
        }
    }
    lines
}

impl Lines<'_> {
    /// Adds a line, which is at these places in the recordings; a whole function at none.
    fn push(&mut self, function: &Function, file: &Option<String>, at: Vec<Option<u64>>) {
        let is_whole = at.iter().all(Option::is_none);
        let mut text = None;
        for (recording, at) in at.iter().enumerate().filter(|(_, at)| is_whole || at.is_some()) {
            let place = place(function, file, *at);
            text = self.tree.texts[recording].get(&place).cloned().or(text);
            self.numbers[recording].insert(place, self.all.len());
        }
        self.all.push(Line {
            function: function.clone(),
            file: file.as_ref().map(|file| self.tree.files.get(file).unwrap_or(file).clone()),
            within: vec![BTreeSet::new(); at.len()],
            instructions: vec![0; at.len()],
            at,
            text,
            ..Line::default()
        });
    }
}

fn place(function: &Function, file: &Option<String>, at: Option<u64>) -> SourceLine {
    SourceLine { function: function.clone(), file: file.clone(), at }
}

/// The branches as nodes, in order.
fn nodes(tree: &Tree, calls: &[u64], own: &[(i128, i128)]) -> Vec<Node> {
    let branches = &tree.branches;
    let two = calls.len() == 2;
    // Changed, and moved, in it and below it.
    let weights = own.iter().map(|(changed, moved)| (changed.unsigned_abs(), moved.unsigned_abs()));
    let mut weights: Vec<(u128, u128)> = weights.collect();
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); branches.len()];
    for (at, branch) in branches.iter().enumerate().rev() {
        if !two {
            weights[at].0 = u128::from(branch.figures[0].inclusive);
        }
        if let Some(parent) = branch.parent {
            weights[parent].0 += weights[at].0;
            weights[parent].1 += weights[at].1;
            below[parent].push(at);
        }
    }
    for children in &mut below {
        // The last on the stack comes first.
        children.sort_by_key(|at| {
            let Branch { figures, function, .. } = &branches[*at];
            let all: u128 = figures.iter().map(|of| u128::from(of.inclusive)).sum();
            (weights[*at], all, std::cmp::Reverse(function))
        });
    }
    let denominator = change(calls, |_| 0).denominator;
    let mut nodes: Vec<Node> = Vec::with_capacity(branches.len());
    let mut stack = vec![(0, None)];
    while let Some((at, parent)) = stack.pop() {
        let branch = &branches[at];
        stack.extend(below[at].iter().map(|child| (*child, Some(nodes.len()))));
        nodes.push(Node {
            parent,
            depth: parent.map_or(0, |parent: usize| nodes[parent].depth + 1),
            function: branch.function.clone(),
            symbols: branch.symbols.clone(),
            figures: branch.figures.clone(),
            change: Exact { numerator: own[at].0, denominator },
            moved: Exact { numerator: own[at].1, denominator },
            weight: weights[at].0,
        });
    }
    nodes
}

/// The functions of the source, what differs most first.
fn functions(lines: &[Line], calls: &[u64]) -> Vec<SourceFunction> {
    let mut found: BTreeMap<&Function, SourceFunction> = BTreeMap::new();
    for line in lines {
        let function = found.entry(&line.function).or_insert_with(|| SourceFunction {
            function: line.function.clone(),
            fate: Fate::Stayed,
            within: vec![BTreeSet::new(); calls.len()],
            instructions: vec![0; calls.len()],
            change: change(calls, |_| 0),
            moved: change(calls, |_| 0),
        });
        function.moved.numerator += line.moved.numerator;
        function.change.numerator += line.change.numerator;
        for recording in 0..calls.len() {
            function.instructions[recording] += line.instructions[recording];
            function.within[recording].extend(line.within[recording].iter().cloned());
        }
    }
    let mut functions: Vec<SourceFunction> = found.into_values().collect();
    for function in &mut functions {
        let [before, after] = [&function.within[0], &function.within[1]];
        function.fate = match (before.is_empty(), after.is_empty()) {
            (true, _) => Fate::Added,
            (_, true) => Fate::Gone,
            _ if before != after && function.moved.numerator > 0 => Fate::Moved,
            _ => Fate::Stayed,
        };
    }
    functions.sort_by_key(|function| std::cmp::Reverse(function.change.numerator.unsigned_abs()));
    functions
}
