//! What changed, a bar for each handler and operation: the axis is the change in percent, and the figures stand beside it.

use super::drawing::{Axis, INK, Plot, series};
use crate::document::Figure;

/// Width of the figures.
const FIGURES: f64 = 300.0;

const CAPTION: &str = "Change from baseline to candidate: orange is beyond its limit, green is faster, blue is within. The thin line is \
                       the range over placements or the bounds, the upright stroke the limit";

/// A handler or operation that changed.
pub(super) struct Change {
    pub(super) name: String,
    /// In percent of the baseline.
    pub(super) percent: f64,
    /// Bounds, or the lowest and highest of a placement.
    pub(super) ends: Option<[f64; 2]>,
    /// The limit, where it is a share.
    pub(super) limit: Option<f64>,
    /// By how much, from what to what.
    pub(super) words: String,
    /// That of its verdict.
    pub(super) colour: usize,
}

/// All of them; `None` if nothing changed.
pub(super) fn drawn(changes: &[Change]) -> Option<Figure> {
    if changes.is_empty() {
        return None;
    }
    let values = changes.iter().flat_map(|it| it.ends.into_iter().flatten().chain([it.percent]));
    let (low, high) = (values.clone().fold(0.0, f64::min), values.fold(0.0, f64::max));
    let edge = ((high - low) * 0.04).max(0.01);
    let (low, high) = (if low < 0.0 { low - edge } else { low }, high + edge);
    let axis = Axis {
        range: [low, high],
        is_logarithmic: false,
        what: "change in percent",
        labels: 6,
        format: |x| format!("{:+} %", (x * 1e6).round() / 1e6),
    };
    let mut plot = Plot::of_rows(changes.len(), FIGURES, axis);
    plot.line(&[(0.0, 0.0), (0.0, changes.len() as f64)], INK, 1);
    for (number, change) in changes.iter().enumerate() {
        plot.row(number, &change.name, &change.words);
        let y = number as f64 + 0.5;
        let colour = series(change.colour);
        plot.bar((0.0, y - 0.25), (change.percent, y + 0.25), colour, 1.0);
        let outline = [(0.0, y - 0.25), (change.percent, y - 0.25), (change.percent, y + 0.25)];
        plot.line(&outline, colour, 1);
        if let Some([from, to]) = change.ends.filter(|[from, to]| from != to) {
            plot.line(&[(from, y), (to, y)], INK, 1);
        }
        if let Some(limit) = change.limit.filter(|limit| *limit < high) {
            plot.line(&[(limit, y - 0.4), (limit, y + 0.4)], INK, 1);
        }
    }
    Some(Figure {
        label: "change of each handler and operation in percent".to_owned(),
        svg: plot.svg(),
        caption: CAPTION.to_owned(),
        wide: true,
    })
}
