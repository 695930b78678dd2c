//! What changed, a bar for each handler and operation: the axis is the change in percent, and the figures stand beside it.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Figure;
use super::chart::{self, Drawn};
use super::paint;

/// Width of the drawing, of the names in it and of the figures.
const WIDTH: u32 = 1060;
const NAMES: u32 = 330;
const FIGURES: u32 = 300;

/// Height of a row, and of all else.
const ROW: u32 = 26;
const REST: u32 = 62;

/// Edge of the chart.
const MARGIN: u32 = 8;
const AXIS: u32 = 38;

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
    let height = REST + ROW * changes.len() as u32;
    let svg = chart::drawn_in((WIDTH, height), |area| draw(area, changes));
    let caption = "Change from baseline to candidate: orange is beyond its limit, green is faster, blue is within. The thin line is \
                   the range over placements or the bounds, the upright stroke the limit";
    Figure::of(svg, "change of each handler and operation in percent".to_owned(), caption)
}

fn draw(area: &chart::Area<'_>, changes: &[Change]) -> Drawn {
    let values = || changes.iter().flat_map(|it| it.ends.into_iter().flatten().chain([it.percent]));
    let (low, high) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
    let edge = ((high - low) * 0.04).max(0.01);
    let (low, high) = (if low < 0.0 { low - edge } else { low }, high + edge);
    let (names, rest) = area.split_horizontally(NAMES);
    let (plot, figures) = rest.split_horizontally(WIDTH - NAMES - FIGURES);
    let count = changes.len() as f64;
    let mut chart = ChartBuilder::on(&plot)
        .margin(MARGIN)
        .x_label_area_size(AXIS)
        .build_cartesian_2d(low..high, 0.0..count)?;
    let text = ("sans-serif", 13).into_font().color(&paint::INK);
    chart
        .configure_mesh()
        .x_desc("change in percent")
        .x_labels(6)
        .x_label_formatter(&|x| format!("{:+} %", (x * 1e6).round() / 1e6))
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(paint::GRID)
        .axis_style(paint::INK)
        .label_style(text.clone())
        .axis_desc_style(text.clone())
        .draw()?;
    let of_zero = [PathElement::new(vec![(0.0, 0.0), (0.0, count)], paint::INK)];
    chart.draw_series(of_zero)?;
    let rows_height = f64::from(ROW) * count + f64::from(REST - 2 * MARGIN - AXIS);
    let right = text.clone().pos(Pos::new(HPos::Right, VPos::Top));
    for (number, change) in changes.iter().enumerate() {
        let from_top = (number as f64 + 0.5) / count * rows_height;
        let top = (f64::from(MARGIN) + from_top - 7.0) as i32;
        names.draw(&Text::new(change.name.clone(), (NAMES as i32 - 6, top), right.clone()))?;
        figures.draw(&Text::new(change.words.clone(), (4, top), text.clone()))?;
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
