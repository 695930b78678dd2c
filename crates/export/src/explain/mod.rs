//! Explained handlers as bytes: one file a format.

mod folded;
mod json;
mod notes;
#[cfg(test)]
mod tests;
mod view;

use std::path::Path;

use profiler_recording::json::indented;

pub use json::{EXPLAIN_SCHEMA, EXPLAIN_VERSION, ExplainReport, RecordingRecord};
pub use notes::notes;
pub(super) use view::tree;

/// The formats, as they are named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Format {
    /// Tables for people.
    #[strum(serialize = "txt", to_string = "table")]
    Table,
    /// Markdown for a comment on a change.
    #[strum(serialize = "md", to_string = "markdown")]
    Markdown,
    /// Everything.
    Json,
    /// Folded stacks for flame graphs: `a;b;c N`, or `a;b;c N M` for two recordings.
    Folded,
}

impl Format {
    /// The format that the extension of `path` stands for.
    pub fn of_file(path: &Path) -> Option<Self> {
        super::of_extension(path)
    }
}

/// What tables show.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    /// Calls within each other that are shown, from the handler down; `None` is all.
    pub depth: Option<usize>,
    /// Percent of the handler's total that a function has to take, or to differ by, to be shown.
    pub min_share: f64,
    /// Columns of the terminal; `None` never wraps.
    pub width: Option<u16>,
}

/// The report in a format; `shown` is for tables alone.
pub fn render(report: &ExplainReport, format: Format, shown: Shown) -> Vec<u8> {
    match format {
        Format::Table => view::document(report, shown).text(shown.width).into_bytes(),
        Format::Markdown => view::document(report, shown).markdown().into_bytes(),
        Format::Json => indented(report),
        Format::Folded => folded::folded(report).into_bytes(),
    }
}
