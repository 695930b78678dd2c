//! The call trees of exact recordings, which unfold: what `profiler explain` says of one recording.

use crate::explain::{Explained, Function, NamedRuns, explain};
use crate::export::document::{Note, Table};
use crate::export::explain::{Shown, tree};
use crate::export::side::{Name, Side};
use crate::recording::Recording;

/// Functions below this percentage of the handler's instructions are summed, and so are those that many calls deep:
/// browsers have a limit of their own for elements within each other.
const SHOWN: Shown = Shown { depth: 100, min_share: 0.1, width: None };

const NOTE: &str = "Calls, and instructions with and without those of what a function called, per call of the handler; largest first. \
                    Functions below 0.1 % are summed. A click on a function unfolds it; `profiler explain` has source lines, and the \
                    difference between two builds.";

/// The call trees of a recording.
pub(super) struct Trees {
    mark: &'static str,
    handlers: Vec<Explained>,
    pub(super) notes: Vec<Note>,
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
        let notes = notes.into_iter().map(|note| Note::new("note", note)).collect();
        Some(Self { mark, handlers, notes })
    }

    /// The tree of one handler.
    pub(super) fn table(&self, name: &Name) -> Option<Table> {
        let function = Function::of(&name.name, name.module.as_ref());
        let of = self.handlers.iter().find(|of| of.handler == function)?;
        let mark = if self.mark.is_empty() { String::new() } else { format!(", {}", self.mark) };
        let title = format!("Where its instructions go{mark}");
        Some(Table { title, note: NOTE.to_owned(), ..tree(of, SHOWN) })
    }
}
