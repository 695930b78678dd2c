//! The call trees of exact recordings, which unfold: what `profiler explain` says of one recording.

use crate::document::{Note, Table};
use crate::explain::{Shown, tree};
use profiler_explain::{Explained, Function, NamedRuns, explain};
use profiler_recording::{HandlerRecording, Recording};

/// Functions below this percentage of the handler's instructions are summed, and so are those that many calls deep:
/// browsers have a limit of their own for elements within each other.
const SHOWN: Shown = Shown { depth: 100, min_share: 0.1, width: None };

const NOTE: &str = "Calls, and instructions with and without those of what a function called, per call of the handler; largest first. \
                    Functions below 0.1 % are summed. A click on a function unfolds it; `profiler explain` has source lines, and the \
                    difference between two builds.";

/// The call trees of these runs together.
pub(super) struct Trees {
    handlers: Vec<Explained>,
    pub(super) notes: Vec<Note>,
}

impl Trees {
    /// None for runs without call tree.
    pub(super) fn of(runs: &[Recording]) -> Option<Self> {
        let name = if runs.len() == 1 { "this recording" } else { "these runs" };
        let recording = NamedRuns { name: name.to_owned(), runs: runs.iter().collect() };
        let (handlers, notes) = explain(&[recording], None).ok()?;
        let notes = notes.into_iter().map(|note| Note::new("note", note)).collect();
        Some(Self { handlers, notes })
    }

    /// The tree of one handler.
    pub(super) fn table(&self, handler: &HandlerRecording) -> Option<Table> {
        let function = Function::of(&handler.name, handler.module.as_ref());
        let of = self.handlers.iter().find(|of| of.handler == function)?;
        let title = "Where its instructions go".to_owned();
        Some(Table { title, note: NOTE.to_owned(), ..tree(of, SHOWN) })
    }
}
