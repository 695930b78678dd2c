//! All handlers on one axis.

use plotters::prelude::*;

use super::chart::{self, Drawn};
use super::{Figure, Side, paint, rows};
use crate::export::curve;
use crate::recording::{HandlerRecording, Meter};
use crate::stats::median;

/// Width of the drawing, and of the names in it.
const WIDTH: u32 = 1060;
const NAMES: u32 = 330;

/// Height of a handler's row, and of all else.
const ROW: u32 = 26;
const REST: u32 = 62;

/// Edge of the chart.
const MARGIN: u32 = 8;
const AXIS: u32 = 38;

/// A handler's figures in one recording.
pub(super) struct Figures {
    /// The recording's.
    colour: usize,
    average: f64,
    /// TP50, TP90, TP95, TP99.
    percentiles: [f64; 4],
}

impl Figures {
    /// Medians over the runs that `handlers` are of.
    pub(super) fn of(colour: usize, handlers: &[&HandlerRecording]) -> Option<Self> {
        let over = |figure: &dyn Fn(&HandlerRecording) -> Option<f64>| {
            let each = handlers.iter().filter_map(|handler| figure(handler));
            median(&Vec::from_iter(each))
        };
        let at = |quantile: f64| over(&|of| of.quantile_ns(quantile).map(|value| value as f64));
        let average = over(&HandlerRecording::mean_ns)?;
        Some(Self::at(colour, average, [at(0.5)?, at(0.9)?, at(0.95)?, at(0.99)?]))
    }

    /// These. The axis is logarithmic: nothing is below 1.
    pub(super) fn at(colour: usize, average: f64, percentiles: [f64; 4]) -> Self {
        let percentiles = percentiles.map(|value| value.max(1.0));
        Self { colour, average: average.max(1.0), percentiles }
    }
}

/// The overview of one recording or two; `which` tells them apart. `None` as [`drawn`], or if their units are unlike.
pub(super) fn overview(sides: &[Side<'_>], which: &str) -> Option<Figure> {
    let meter = sides.first()?.recording.meter;
    if sides.iter().any(|side| side.recording.meter != meter) {
        return None;
    }
    let mut all: Vec<(String, Vec<Figures>)> = Vec::new();
    for name in rows::names(sides) {
        let handlers = rows::find(sides, &name);
        let called = handlers.iter().filter(|(_, handler)| handler.count > 0);
        let figures: Vec<Figures> =
            called.filter_map(|(side, handler)| Figures::of(side.number, &[*handler])).collect();
        if !figures.is_empty() {
            all.push((name.shown, figures));
        }
    }
    drawn(&all, meter, which)
}

/// From TP50 to TP99 of each handler, with its average; `None` if there are fewer than two.
pub(super) fn drawn(all: &[(String, Vec<Figures>)], meter: Meter, which: &str) -> Option<Figure> {
    if all.len() < 2 {
        return None;
    }
    let height = REST + ROW * all.len() as u32;
    let svg = chart::drawn_in((WIDTH, height), |area| draw(area, all, meter));
    let caption =
        "From TP50 to TP99 of each handler, with ticks at TP90 and TP95; the dot is the average";
    let label = "TP50 to TP99 and average of all handlers".to_owned();
    Figure::of(svg, label, format!("{caption}{which}"))
}

fn draw(area: &chart::Area<'_>, all: &[(String, Vec<Figures>)], meter: Meter) -> Drawn {
    let values = || {
        let figures = all.iter().flat_map(|(_, figures)| figures);
        figures.flat_map(|of| of.percentiles.into_iter().chain([of.average]))
    };
    let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(1.0, f64::max));
    let (names, plot) = area.split_horizontally(NAMES);
    let count = all.len() as f64;
    let mut chart = ChartBuilder::on(&plot)
        .margin(MARGIN)
        .margin_right(20)
        .x_label_area_size(AXIS)
        .build_cartesian_2d((low / 1.2..high * 1.2).log_scale(), 0.0..count)?;
    let text = ("sans-serif", 13).into_font().color(&paint::INK);
    let label = curve::label(meter);
    let what = match meter {
        Meter::Probes => "duration",
        Meter::Exact => "instructions",
    };
    chart
        .configure_mesh()
        .x_desc(what)
        .x_labels(8)
        .x_label_formatter(&|x| label(*x))
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(paint::GRID)
        .axis_style(paint::INK)
        .label_style(text.clone())
        .axis_desc_style(text.clone())
        .draw()?;
    let rows_height = f64::from(ROW) * count + f64::from(REST - 2 * MARGIN - AXIS);
    for (number, (name, figures)) in all.iter().enumerate() {
        let from_top = (number as f64 + 0.5) / count * rows_height;
        let at = (4, (f64::from(MARGIN) + from_top - 7.0) as i32);
        names.draw(&Text::new(name.clone(), at, text.clone()))?;
        for (side, of) in figures.iter().enumerate() {
            let beside = if figures.len() > 1 { 0.18 - 0.36 * side as f64 } else { 0.0 };
            let y = count - number as f64 - 0.5 + beside;
            let style = paint::series(of.colour).stroke_width(2);
            let [tp50, tp90, tp95, tp99] = of.percentiles;
            let tick = |x: f64| PathElement::new(vec![(x, y - 0.13), (x, y + 0.13)], style);
            let line = PathElement::new(vec![(tp50, y), (tp99, y)], style);
            chart.draw_series([line, tick(tp50), tick(tp90), tick(tp95), tick(tp99)])?;
            let dot = Circle::new((of.average, y), 4, paint::series(of.colour).filled());
            chart.draw_series([dot])?;
        }
    }
    Ok(())
}
