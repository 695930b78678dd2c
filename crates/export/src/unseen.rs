//! Functions that a pattern matches and that have no row: not called, or left out.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use indexmap::IndexMap;

use profiler_base::text::{listed, plural};
use profiler_kernel::target::LeftOut;
use profiler_recording::{HandlerRecording, Recording};

use super::document::Note;

/// Notes on the runs of each part, by its name if there are several.
pub(super) fn notes(runs: &[Recording]) -> Vec<Note> {
    let mut parts: IndexMap<Option<&str>, Vec<&Recording>> = IndexMap::new();
    for run in runs {
        parts.entry(run.part()).or_default().push(run);
    }
    let several = parts.len() > 1;
    let notes = parts.into_iter().flat_map(|(part, of)| {
        let prefix = part.filter(|_| several).map_or(String::new(), |part| format!("{part}: "));
        let notes = of_part(&of).into_iter();
        notes.map(move |note| Note { words: format!("{prefix}{}", note.words), ..note })
    });
    notes.collect()
}

/// A note on handlers without a hit in any run, and one for each reason why functions were left out.
fn of_part(runs: &[&Recording]) -> Vec<Note> {
    let shown = runs.iter().flat_map(|run| run.shown());
    // Those that have a row, and those that are named already.
    let mut seen: HashSet<_> = shown.map(|of| (&of.module, &of.name)).collect();
    let mut idle: Vec<&HandlerRecording> =
        runs.iter().flat_map(|run| run.without_a_hit()).collect();
    idle.retain(|of| seen.insert((&of.module, &of.name)));
    let left: BTreeSet<&LeftOut> = runs.iter().flat_map(|run| &run.left_out).collect();
    let idle = idle.into_iter().map(|of| &*of.name).collect();
    no_hit(idle).into_iter().chain(left_out(left)).collect()
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
    use profiler_recording::SeriesPosition;
    use profiler_recording::measure::Losses;

    use super::*;

    #[test]
    fn parts_are_apart() {
        let run = |part: &str, count: u64| {
            let of = |module: &str| HandlerRecording {
                name: "f".to_owned(),
                module: Some(module.to_owned()),
                by_glob: true,
                count,
                losses: Losses { entries: count, ..Losses::default() },
                ..HandlerRecording::default()
            };
            let place = SeriesPosition { boot: 0, order: 0, part: Some(part.to_owned()) };
            Recording {
                place: Some(place),
                handlers: vec![of("a"), of("b")],
                ..Recording::default()
            }
        };
        let words = |runs: &[Recording]| -> Vec<String> {
            notes(runs).into_iter().map(|note| note.words).collect()
        };
        let idle = "2 functions that a pattern matches: f, f";
        let runs = [run("connect", 0), run("mkdir", 1), run("connect", 0)];
        assert_eq!(words(&runs), [format!("connect: {idle}")]);
        assert_eq!(words(&runs[..1]), [idle]);
    }

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
