//! Functions that a pattern matches and that have no row: not called, or left out.

use std::collections::{BTreeMap, BTreeSet};

use profiler_base::text::{listed, plural};
use profiler_kernel::target::LeftOut;
use profiler_recording::{HandlerRecording, Recording};

use super::document::Note;

/// A note on handlers without a hit in any run, and one for each reason why functions were left out.
pub(super) fn notes(runs: &[Recording]) -> Vec<Note> {
    let mut idle: Vec<&str> = Vec::new();
    for handler in runs.iter().flat_map(Recording::without_a_hit) {
        if !idle.contains(&handler.name.as_str()) && !is_shown(handler, runs) {
            idle.push(&handler.name);
        }
    }
    let left: BTreeSet<&LeftOut> = runs.iter().flat_map(|run| &run.left_out).collect();
    no_hit(idle).into_iter().chain(left_out(left)).collect()
}

/// Whether a handler has a row.
fn is_shown(handler: &HandlerRecording, runs: &[Recording]) -> bool {
    let mut shown = runs.iter().flat_map(Recording::shown);
    shown.any(|other| other.name == handler.name && other.module == handler.module)
}

fn no_hit(names: Vec<&str>) -> Option<Note> {
    let count = names.len();
    (count > 0).then(|| {
        let (s, names) = (plural(count), listed(&names));
        Note::new("no hit", format!("{count} function{s} that a pattern matches: {names}"))
    })
}

fn left_out<'a>(left_out: impl IntoIterator<Item = &'a LeftOut>) -> impl Iterator<Item = Note> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for left in left_out {
        by_reason.entry(&left.reason).or_default().push(&left.name);
    }
    by_reason.into_iter().map(|(reason, names)| {
        let count = names.len();
        let names = listed(&names);
        Note::new("left out", format!("{count} function{} ({names}): {reason}", plural(count)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_reason_and_not_all_names() {
        let left = |name: &str, reason: &str| LeftOut {
            name: name.to_owned(),
            module: None,
            reason: reason.to_owned(),
        };
        let all: Vec<LeftOut> = (0..20)
            .map(|number| left(&format!("f{number:02}"), "marked notrace"))
            .chain([left("g", "split off")])
            .collect();
        let found: Vec<Note> = left_out(&all).collect();
        assert!(found.iter().all(|note| note.what == "left out"));
        let words: Vec<&str> = found.iter().map(|note| note.words.as_str()).collect();
        assert_eq!(
            words,
            [
                "20 functions (f00, f01, f02, f03, f04, f05, f06, f07, f08, f09, f10, f11 and \
                 8 more): marked notrace",
                "1 function (g): split off",
            ]
        );
        assert!(no_hit(Vec::new()).is_none());
        let two = no_hit(vec!["a", "b"]).unwrap();
        assert_eq!(
            (&*two.what, &*two.words),
            ("no hit", "2 functions that a pattern matches: a, b")
        );
    }
}
