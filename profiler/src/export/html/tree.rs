//! The call trees of exact recordings, which unfold: what `profiler explain` says of one recording.

use serde::Serialize;

use super::{Side, rows::Name};
use crate::explain::{Explained, Function, NamedRuns, explain};
use crate::export::cell::clean;
use crate::export::explain::{Row, Shown, rows};
use crate::recording::Recording;

/// Functions below this percentage of the handler's instructions are summed, and so are those that many calls deep:
/// browsers have a limit of their own for elements within each other.
const SHOWN: Shown = Shown { depth: 100, min_share: 0.1, width: None };

/// Functions down to here are unfolded at first.
const UNFOLDED: usize = 1;

/// The call trees of a recording.
pub(super) struct Trees {
    mark: &'static str,
    handlers: Vec<Explained>,
    pub(super) notes: Vec<String>,
}

/// The call tree of a handler in a recording.
#[derive(Serialize)]
pub(super) struct Tree {
    mark: &'static str,
    branches: Vec<Branch>,
}

/// A function below its caller. Branches stand in the order of the page, each with what it opens and closes there: a
/// template within itself for each call would be limited in depth.
#[derive(Serialize)]
struct Branch {
    name: String,
    /// Per call of the handler: calls, inclusive, share in percent, self.
    figures: [String; 4],
    unfolded: bool,
    /// Others stand below it.
    has_below: bool,
    /// Callers that end after it.
    ends: usize,
}

impl Trees {
    /// None for a recording without call tree.
    pub(super) fn of(side: &Side<'_>) -> Option<Self> {
        let name = match side.mark {
            "" => "this recording".to_owned(),
            mark => format!("recording {mark}"),
        };
        Self::of_recording(side.mark, NamedRuns { name, runs: vec![side.recording] })
    }

    /// Those of several runs together.
    pub(super) fn of_runs(runs: &[Recording]) -> Option<Self> {
        let recording = NamedRuns { name: "these runs".to_owned(), runs: runs.iter().collect() };
        Self::of_recording("", recording)
    }

    fn of_recording(mark: &'static str, recording: NamedRuns<'_>) -> Option<Self> {
        let (handlers, notes) = explain(&[recording], None).ok()?;
        let notes = notes.iter().map(|note| clean(note).into_owned()).collect();
        Some(Self { mark, handlers, notes })
    }

    /// The tree of one handler.
    pub(super) fn find(&self, name: &Name) -> Option<Tree> {
        let function = Function::of(&name.name, name.module.as_ref());
        let of = self.handlers.iter().find(|of| of.handler == function)?;
        Some(Tree { mark: self.mark, branches: branches(of) })
    }
}

fn branches(of: &Explained) -> Vec<Branch> {
    let rows = rows(of, SHOWN);
    let depth_after = |at: usize| rows.get(at + 1).map_or(0, |row| row.depth);
    let figure = |total: u64| format!("{:.2}", of.per_call(0, total));
    let branch = |(at, row): (usize, &Row)| {
        let figures = row.figures.first().copied().unwrap_or_default();
        let share = figures.inclusive as f64 / of.total(0).max(1) as f64 * 100.0;
        Branch {
            name: clean(&row.name).into_owned(),
            figures: [
                figure(figures.calls),
                figure(figures.inclusive),
                format!("{share:.1} %"),
                figure(figures.own),
            ],
            unfolded: row.depth <= UNFOLDED,
            has_below: depth_after(at) > row.depth,
            ends: row.depth.saturating_sub(depth_after(at)),
        }
    };
    rows.iter().enumerate().map(branch).collect()
}
