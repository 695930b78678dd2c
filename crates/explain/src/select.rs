//! Which handlers are explained, and which recordings cannot be.

use std::collections::BTreeSet;

use profiler_base::error::{Failure, bail};
use profiler_base::text::{alike, listed};
use profiler_recording::Meter;
use profiler_recording::call_tree::{MOST, TreeFunction};

use super::difference::explained;
use super::tree::{Details, Tree, handlers, trees, unique};
use super::{Explained, Function, NamedRuns};

/// Explains `handler`, or every handler, in one recording or by what differs in a second. Returns that, with notes for the reader.
///
/// # Errors
/// If a recording has no call tree, there is no such handler, or none in both.
pub fn explain(
    recordings: &[NamedRuns<'_>],
    handler: Option<&str>,
) -> Result<(Vec<Explained>, Vec<String>), Failure> {
    let bare = recordings.iter().find(|recording| {
        recording.runs.is_empty() || trees(recording).count() < recording.runs.len()
    });
    if let Some(bare) = bare {
        bail!(
            BAD_INPUT,
            "{} has no call tree: measure with `profiler lab --meter exact`",
            bare.name
        );
    }
    let details = Details::of(recordings);
    let mut notes = of_symbols(recordings, &details);
    let (mut all, mut missing) = (Vec::new(), Vec::new());
    for function in chosen(recordings, handler)? {
        let tree = Tree::of(&function, recordings, &details);
        let root = &tree.branches[0].figures;
        if let Some(without) = root.iter().position(|figures| figures.calls == 0) {
            missing.push(format!("{function} has no call in {}", recordings[without].name));
            continue;
        }
        if let Some(at) = root.iter().position(|of| of.calls.max(of.inclusive) > MOST) {
            let name = &recordings[at].name;
            bail!(BAD_INPUT, "{name} has more calls or larger sums than can be: measure again");
        }
        let mut explained = explained(&tree);
        if recordings.iter().any(|recording| recording.meter() == Meter::Probes) {
            explained.lines.clear();
        }
        for (number, recording) in recordings.iter().enumerate() {
            notes.extend(other_books(&explained, number, recording));
        }
        all.push(explained);
    }
    if all.is_empty() {
        bail!(NOT_COMPARABLE, "no handler was called in both recordings: {}", listed(&missing));
    }
    notes.extend(missing);
    Ok((all, notes))
}

/// The handlers that only one of two recordings has: the number of that recording, and what their calls consist of.
pub(super) fn alone(recordings: &[NamedRuns<'_>; 2]) -> Vec<(usize, Explained)> {
    let details = Details::of(recordings);
    let mut found = Vec::new();
    let all = recordings.each_ref().map(handlers);
    for (side, of_side) in all.iter().enumerate() {
        for function in of_side.iter().filter(|function| !all[1 - side].contains(function)) {
            let tree = Tree::of(function, &recordings[side..=side], &details);
            let root = tree.branches[0].figures[0];
            if root.calls.max(root.inclusive) <= MOST {
                found.push((side, explained(&tree)));
            }
        }
    }
    found
}

/// Notes on missing symbols and debug information.
fn of_symbols(recordings: &[NamedRuns<'_>], details: &Details) -> Vec<String> {
    let partial = details.partial();
    let mut notes = Vec::new();
    if !partial.is_empty() {
        notes.push(format!(
            "only one recording has source lines of {}: its functions are compared as wholes; build both with debug \
             information",
            listed(&partial)
        ));
    }
    let remedies = [
        "measure a .ko with debug information (CONFIG_DEBUG_INFO, and no strip)",
        "compile BPF programs with `clang -g`, so that their BTF has lines, and load it",
    ];
    for (without, remedy) in details.without_lines().iter().zip(remedies) {
        if !without.is_empty() {
            notes.push(format!(
                "no source lines of {} are known, and instructions stand with their distance from the function's \
                 symbol: {remedy}",
                listed(without)
            ));
        }
    }
    // No symbol begins with a digit.
    let unnamed = functions(recordings).filter(|function| function.name.starts_with("0x"));
    let unnamed: BTreeSet<&str> =
        unnamed.filter_map(|function| function.module.as_deref()).collect();
    if !unnamed.is_empty() {
        notes.push(format!(
            "functions of {} without a symbol are named by their distance from its start, such as 0x1a0: measure a .ko \
             that was not stripped",
            listed(&unnamed.into_iter().collect::<Vec<_>>())
        ));
    }
    notes
}

fn functions<'a>(recordings: &'a [NamedRuns<'_>]) -> impl Iterator<Item = &'a TreeFunction> {
    recordings.iter().flat_map(trees).flat_map(|tree| &tree.functions)
}

/// The functions to explain: those called `name`, or all handlers.
fn chosen(recordings: &[NamedRuns<'_>], name: Option<&str>) -> Result<Vec<Function>, Failure> {
    let mut handlers: Vec<Function> = recordings.iter().flat_map(handlers).collect();
    let Some(name) = name else { return Ok(unique(handlers)) };
    let named = functions(recordings).filter_map(|function| {
        let source = Function::of(&function.name, function.module.as_ref());
        let is_it = function.name == name || source.name == name || source.to_string() == name;
        is_it.then_some(source)
    });
    let named = unique(named);
    if !named.is_empty() {
        return Ok(named);
    }
    let names = functions(recordings).map(|function| function.name.clone());
    let hint = match alike(name, names) {
        Some(near) => format!("did you mean {near}?"),
        None => {
            handlers.dedup();
            let handlers: Vec<String> = handlers.iter().map(ToString::to_string).collect();
            format!("its handlers are {}", listed(&handlers))
        }
    };
    let recordings: Vec<&str> = recordings.iter().map(|recording| &*recording.name).collect();
    bail!(NO_TARGET, "no function `{name}` was called in {}: {hint}", recordings.join(" and "))
}

/// A note if the table of handlers, which has only calls that ended in the window, has other sums than the tree.
fn other_books(of: &Explained, number: usize, recording: &NamedRuns<'_>) -> Option<String> {
    // The table counts recursive calls separately.
    if of.nodes.iter().skip(1).any(|node| node.function == of.handler) {
        return None;
    }
    let handlers = recording.runs.iter().flat_map(|run| &run.handlers);
    let of_it = handlers.filter(|it| Function::of(&it.name, it.module.as_ref()) == of.handler);
    let books = of_it.map(|handler| (handler.count, handler.sum_ns));
    let (calls, sum) = books.reduce(|(calls, sum), (more, time)| {
        (calls.saturating_add(more), sum.saturating_add(time))
    })?;
    let (tree_calls, tree_sum) = (of.calls[number], of.total(number));
    ((calls, sum) != (tree_calls, tree_sum)).then(|| {
        format!(
            "{}: the table of handlers has {calls} calls and {sum} {} of {}, and the tree {tree_calls} and {tree_sum}",
            recording.name,
            recording.meter().unit(),
            of.handler
        )
    })
}
