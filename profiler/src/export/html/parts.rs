//! Parts that a page is made of.

use serde::Serialize;

use crate::recording::Recording;

/// One recording of the page.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    /// `A` or `B`; empty if there is only one recording.
    pub(super) mark: &'static str,
    /// 0 for the first, 1 for the second.
    pub(super) number: usize,
    pub(super) recording: &'a Recording,
}

/// A text on one recording.
#[derive(Serialize)]
pub(super) struct Marked {
    /// As [`Side::mark`].
    pub(super) mark: &'static str,
    pub(super) text: String,
}

/// A drawing.
#[derive(Serialize)]
pub(super) struct Figure {
    /// For readers who do not see it.
    pub(super) label: String,
    pub(super) svg: String,
    pub(super) caption: String,
}

impl Figure {
    /// Nothing where nothing is drawn.
    pub(super) fn of(
        svg: Option<String>,
        label: String,
        caption: impl Into<String>,
    ) -> Option<Self> {
        svg.map(|svg| Self { label, svg, caption: caption.into() })
    }
}
