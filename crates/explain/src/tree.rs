//! Merges the calls of one handler in all recordings into one tree.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use profiler_kernel::hooks::BPF;
use profiler_recording::Meter;
use profiler_recording::call_tree::{CallTree, TreePlace};

use super::{Figures, Function, NamedRuns};

/// Where instructions lie in the source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceLine {
    /// The source's function.
    pub(super) function: Function,
    /// The file's name without its folder, which may differ between builds.
    pub(super) file: Option<String>,
    /// The line, or the offset where there is no file; `None` is the whole function.
    pub(super) at: Option<u64>,
}

/// A function under its caller.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) parent: Option<usize>,
    pub(super) function: Function,
    pub(super) symbols: BTreeSet<String>,
    /// Of each recording.
    pub(super) figures: Vec<Figures>,
    /// Instructions of each recording, by place.
    pub(super) places: Vec<BTreeMap<SourceLine, u64>>,
}

/// The tree of one handler: parents come before what they called.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) branches: Vec<Branch>,
    /// The files by their last names, as the compiler was given them.
    pub(super) files: BTreeMap<String, String>,
    /// Texts of lines in each recording.
    pub(super) texts: Vec<BTreeMap<SourceLine, String>>,
    below: HashMap<(usize, Function), usize>,
}

/// The unit of debug information: a BPF program with its subprograms, or a module, whose `name` is empty.
fn unit(name: &str, module: Option<&String>) -> Function {
    let is_program = module.is_some_and(|module| module == BPF);
    let program = name.split(['/', '#']).next().filter(|_| is_program);
    Function { name: program.unwrap_or_default().to_owned(), module: module.cloned() }
}

/// Of each [`unit`] whether recordings that saw places of it have their lines: all, none, or only some have.
#[derive(Debug)]
pub(super) struct Details(BTreeMap<Function, BTreeSet<bool>>);

const LINES: [bool; 1] = [true];
const OFFSETS: [bool; 1] = [false];
const SOME: [bool; 2] = [false, true];

impl Details {
    pub(super) fn of(recordings: &[NamedRuns<'_>]) -> Self {
        let mut found: BTreeMap<Function, BTreeSet<bool>> = BTreeMap::new();
        for recording in recordings {
            let mut has_lines: BTreeMap<Function, bool> = BTreeMap::new();
            for tree in trees(recording) {
                for node in tree.nodes.iter().filter(|node| !node.lines.is_empty()) {
                    let function = &tree.functions[node.function as usize];
                    let unit = unit(&function.name, function.module.as_ref());
                    let mut places = node.lines.iter();
                    *has_lines.entry(unit).or_default() |=
                        places.any(|(place, _)| tree.places[*place as usize].line.is_some());
                }
            }
            for (unit, has_lines) in has_lines {
                found.entry(unit).or_default().insert(has_lines);
            }
        }
        Self(found)
    }

    /// Modules and BPF programs whose lines one recording has and the other has not.
    pub(super) fn partial(&self) -> Vec<&str> {
        let units = self.0.iter().filter(|(_, known)| known.iter().eq(&SOME));
        let names = units.map(|(unit, _)| match (unit.name.as_str(), &unit.module) {
            ("", Some(module)) => module,
            ("", None) => "the kernel image",
            (program, _) => program,
        });
        names.collect()
    }

    /// Modules without source lines, and BPF programs without.
    pub(super) fn without_lines(&self) -> [Vec<&str>; 2] {
        let units = self.0.iter().filter(|(_, known)| known.iter().eq(&OFFSETS));
        let (modules, programs): (Vec<&Function>, Vec<_>) =
            units.map(|(unit, _)| unit).partition(|unit| unit.name.is_empty());
        let modules = modules.into_iter().filter_map(|unit| unit.module.as_deref());
        [modules.collect(), programs.into_iter().map(|unit| unit.name.as_str()).collect()]
    }

    /// Where instructions of `of` lie, as far as all recordings know: a line, an offset, or the whole function.
    fn place(&self, of: &Function, place: &TreePlace) -> SourceLine {
        let whole = SourceLine { function: of.clone(), file: None, at: None };
        let module = of.module.as_ref();
        let known = self.0.get(&unit(&of.name, module)).into_iter().flatten();
        match place {
            TreePlace { file: Some(file), line: Some(line), .. } if known.clone().eq(&LINES) => {
                let source = place.function.as_deref();
                SourceLine {
                    function: source.map_or(whole.function, |name| Function::of(name, module)),
                    file: Some(last_name(file).to_owned()),
                    at: Some(u64::from(*line)),
                }
            }
            _ if known.eq(&OFFSETS) => SourceLine { at: place.offset, ..whole },
            _ => whole,
        }
    }
}

/// The call trees of a recording's runs.
pub(super) fn trees<'a>(recording: &'a NamedRuns<'_>) -> impl Iterator<Item = &'a CallTree> {
    recording.runs.iter().filter_map(|run| run.call_tree.as_ref())
}

pub(super) fn last_name(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

impl Tree {
    /// The calls of `handler`; recursive ones are part of the outer call.
    pub(super) fn of(handler: &Function, recordings: &[NamedRuns<'_>], details: &Details) -> Self {
        let mut tree = Self {
            branches: Vec::new(),
            files: BTreeMap::new(),
            texts: vec![BTreeMap::new(); recordings.len()],
            below: HashMap::new(),
        };
        tree.branch(None, handler.clone(), recordings.len());
        for (number, recording) in recordings.iter().enumerate() {
            let meter = recording.meter();
            for calls in trees(recording) {
                tree.add((number, recordings.len()), meter, calls, details);
            }
        }
        // What was called comes after its caller.
        for at in (0..tree.branches.len()).rev() {
            for number in 0..recordings.len() {
                let figures = &mut tree.branches[at].figures[number];
                figures.inclusive = figures.inclusive.saturating_add(figures.own);
                let all = figures.inclusive;
                if let Some(parent) = tree.branches[at].parent {
                    let above = &mut tree.branches[parent].figures[number].inclusive;
                    *above = above.saturating_add(all);
                }
            }
        }
        tree
    }

    fn branch(&mut self, parent: Option<usize>, function: Function, recordings: usize) -> usize {
        let at = self.branches.len();
        if let Some(parent) = parent {
            match self.below.get(&(parent, function.clone())) {
                Some(known) => return *known,
                None => self.below.insert((parent, function.clone()), at),
            };
        }
        self.branches.push(Branch {
            parent,
            function,
            symbols: BTreeSet::new(),
            figures: vec![Figures::default(); recordings],
            places: vec![BTreeMap::new(); recordings],
        });
        at
    }

    fn add(
        &mut self,
        (number, recordings): (usize, usize),
        meter: Meter,
        calls: &CallTree,
        details: &Details,
    ) {
        let sources: Vec<Function> =
            calls.functions.iter().map(|f| Function::of(&f.name, f.module.as_ref())).collect();
        for file in calls.places.iter().filter_map(|place| place.file.as_ref()) {
            self.files.insert(last_name(file).to_owned(), file.clone());
        }
        let mut at: Vec<Option<usize>> = Vec::with_capacity(calls.nodes.len());
        for node in &calls.nodes {
            let function = &sources[node.function as usize];
            let parent = node.parent.and_then(|parent| at[parent as usize]);
            let branch = match parent {
                Some(_) => Some(self.branch(parent, function.clone(), recordings)),
                None => (*function == self.branches[0].function).then_some(0),
            };
            at.push(branch);
            let Some(branch) = branch.map(|branch| &mut self.branches[branch]) else { continue };
            branch.symbols.insert(calls.functions[node.function as usize].name.clone());
            branch.figures[number].add(&Figures {
                calls: node.calls,
                inclusive: 0,
                own: node.own,
                iterations: (meter == Meter::Exact).then_some(node.iterations),
            });
            let mut add = |place: SourceLine, count: u64| {
                let sum = branch.places[number].entry(place).or_default();
                *sum = sum.saturating_add(count);
            };
            if node.lines.is_empty() {
                add(SourceLine { function: function.clone(), file: None, at: None }, node.own);
            }
            for (place, count) in &node.lines {
                let place = &calls.places[*place as usize];
                let line = details.place(function, place);
                if let (Some(text), Some(_)) = (&place.text, &line.file) {
                    self.texts[number].entry(line.clone()).or_insert_with(|| text.clone());
                }
                add(line, *count);
            }
        }
    }
}

/// The functions that were called from outside of all handlers, in order.
pub(super) fn handlers(recording: &NamedRuns<'_>) -> Vec<Function> {
    unique(trees(recording).flat_map(|tree| {
        tree.nodes.iter().filter(|node| node.parent.is_none()).map(|node| {
            let function = &tree.functions[node.function as usize];
            Function::of(&function.name, function.module.as_ref())
        })
    }))
}

/// Each function once, in order.
pub(super) fn unique(functions: impl IntoIterator<Item = Function>) -> Vec<Function> {
    let mut seen = HashSet::new();
    functions.into_iter().filter(|function| seen.insert(function.clone())).collect()
}
