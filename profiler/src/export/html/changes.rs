//! What changed, a bar for each handler and operation: the axis is the change in percent, and the figures stand beside it.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{self, Axis, Drawn, NAMES, WIDTH};
use super::paint;
use crate::export::document::Figure;

/// Width of the figures.
const FIGURES: u32 = 300;

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
    let height = chart::height(changes.len());
    let svg = chart::drawn_in((WIDTH, height), |area| draw(area, changes));
    let caption = "Change from baseline to candidate: orange is beyond its limit, green is faster, blue is within. The thin line is \
                   the range over placements or the bounds, the upright stroke the limit";
    let label = "change of each handler and operation in percent".to_owned();
    Some(Figure { wide: true, ..Figure::of(svg, label, caption)? })
}

fn draw(area: &chart::Area<'_>, changes: &[Change]) -> Drawn {
    let values = || changes.iter().flat_map(|it| it.ends.into_iter().flatten().chain([it.percent]));
    let (low, high) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
    let edge = ((high - low) * 0.04).max(0.01);
    let (low, high) = (if low < 0.0 { low - edge } else { low }, high + edge);
    let (names, rest) = area.split_horizontally(NAMES);
    let (plot, figures) = rest.split_horizontally(WIDTH - NAMES - FIGURES);
    let count = changes.len() as f64;
    let axis = Axis {
        range: low..high,
        what: "change in percent",
        labels: 6,
        format: |x| format!("{:+} %", (x * 1e6).round() / 1e6),
        free_corner: false,
    };
    let mut chart = chart::framed(&plot, &axis, low..high, 0.0..count, None)?;
    let of_zero = [PathElement::new(vec![(0.0, 0.0), (0.0, count)], paint::INK)];
    chart.draw_series(of_zero)?;
    let right = chart::font().pos(Pos::new(HPos::Right, VPos::Top));
    for (number, change) in changes.iter().enumerate() {
        let top = chart::top_of(number);
        names.draw(&Text::new(change.name.clone(), (NAMES as i32 - 6, top), right.clone()))?;
        figures.draw(&Text::new(change.words.clone(), (4, top), chart::font()))?;
        let y = count - number as f64 - 0.5;
        let colour = paint::series(change.colour);
        let bar = |style| Rectangle::new([(0.0, y - 0.25), (change.percent, y + 0.25)], style);
        chart.draw_series([bar(colour.filled()), bar(colour.stroke_width(1))])?;
        if let Some([from, to]) = change.ends.filter(|[from, to]| from != to) {
            let range = PathElement::new(vec![(from, y), (to, y)], paint::INK);
            chart.draw_series([range])?;
        }
        if let Some(limit) = change.limit.filter(|limit| *limit < high) {
            let stroke = vec![(limit, y - 0.4), (limit, y + 0.4)];
            chart.draw_series([PathElement::new(stroke, paint::INK)])?;
        }
    }
    Ok(())
}
