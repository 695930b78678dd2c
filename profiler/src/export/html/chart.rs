//! The frame of every plot, and the curves in it, as SVG.

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::paint;

const SIZE: (u32, u32) = (520, 320);
/// Edge of a plot, height of its lower axis with labels, and height of a row of handlers.
const MARGIN: u32 = 8;
const AXIS: u32 = 38;
const ROW: u32 = 26;
/// Width of a drawing with a row a handler, and of the names in it.
pub(super) const WIDTH: u32 = 1060;
pub(super) const NAMES: u32 = 330;
/// Height of a line of the legend, as a share of the plot's.
const LEGEND_LINE: f64 = 0.085;

/// The drawing area of a plot.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
/// Whether it was drawn.
pub(super) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
/// A plot with its axes.
pub(super) type Chart<'a, X, Y> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>;

/// A curve with its colour, and its name in the legend; without a name it is none of the legend's.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) colour: usize,
    pub(super) dashed: bool,
    pub(super) points: Vec<(f64, f64)>,
}

/// The lower axis.
pub(super) struct Axis {
    pub(super) range: std::ops::Range<f64>,
    pub(super) what: &'static str,
    pub(super) labels: usize,
    pub(super) format: fn(f64) -> String,
    /// The curves leave room for the legend at the upper left; otherwise it is placed above them.
    pub(super) free_corner: bool,
}

impl Axis {
    /// Runs by their numbers, from 1 to `last`.
    pub(super) fn runs(last: usize) -> Self {
        Self {
            range: 0.5..last as f64 + 0.5,
            what: "run",
            labels: last.min(12),
            format: |x| format!("{x:.0}"),
            free_corner: false,
        }
    }

    /// The window in seconds, as far as the curves reach; `None` if they have no length.
    pub(super) fn seconds(curves: &[Curve]) -> Option<Self> {
        let times = curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x);
        let end = times.fold(0.0, f64::max);
        (end > 0.0).then_some(Self {
            range: 0.0..end,
            what: "seconds of the window",
            labels: 6,
            format: |x| format!("{x:.0} s"),
            free_corner: false,
        })
    }
}

/// Start of the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Below the lowest point; logarithmic where the points, all above 0, span a decade.
    Fitted,
    /// At 0.
    FromZero,
}

/// Curves over an axis.
pub(super) fn curves(
    curves: &[Curve],
    axis: &Axis,
    scale: Scale,
    format: fn(f64) -> String,
) -> Option<String> {
    let values = || curves.iter().flat_map(|curve| &curve.points).map(|(_, y)| *y);
    let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    let room = match named(curves) {
        lines if lines < 2 || axis.free_corner => 1.0,
        lines => 1.0 / (1.0 - (LEGEND_LINE * lines as f64).min(0.6)),
    };
    drawn(|area| match scale {
        Scale::Fitted if low > 0.0 && high / low >= 10.0 => {
            let (low, high) = (low / 1.15, high * 1.15);
            let top = low * (high / low).powf(room);
            draw(area, curves, axis, (low..top).log_scale(), format)
        }
        Scale::Fitted => {
            let edge = ((high - low) * 0.08).max(high * 0.01);
            let low = (low - edge).max(0.0);
            draw(area, curves, axis, low..low + (high + edge - low) * room, format)
        }
        Scale::FromZero => draw(area, curves, axis, 0.0..(high * 1.05).max(1.0) * room, format),
    })
}

fn draw<Y>(area: &Area<'_>, curves: &[Curve], axis: &Axis, y: Y, format: fn(f64) -> String) -> Drawn
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = framed(area, axis, axis.range.clone(), y, Some(format))?;
    for curve in curves {
        let style = paint::series(curve.colour).stroke_width(2);
        let points = curve.points.iter().copied();
        let series = if curve.dashed {
            chart.draw_series(DashedLineSeries::new(points, 7, 4, style))?
        } else {
            chart.draw_series(LineSeries::new(points, style))?
        };
        if !curve.name.is_empty() {
            series.label(&curve.name).legend(key(style, curve.dashed));
        }
    }
    legend(&mut chart, named(curves), SeriesLabelPosition::UpperLeft)
}

/// Lines of the legend.
fn named(curves: &[Curve]) -> usize {
    curves.iter().filter(|curve| !curve.name.is_empty()).count()
}

/// The legend's sample of a line: a dashed one is half as long.
pub(super) fn key(
    style: ShapeStyle,
    dashed: bool,
) -> impl Fn((i32, i32)) -> PathElement<(i32, i32)> + 'static {
    let length = if dashed { 6 } else { 14 };
    move |(x, y)| PathElement::new([(x, y), (x + length, y)], style)
}

/// The frame: axes, labels and grid lines; without `format` no axis at the left.
pub(super) fn framed<'a, X, Y>(
    area: &Area<'a>,
    axis: &Axis,
    x: X,
    y: Y,
    format: Option<fn(f64) -> String>,
) -> Result<Chart<'a, X::CoordDescType, Y::CoordDescType>, DrawingAreaErrorKind<std::io::Error>>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(MARGIN)
        // Room for half of the lower axis' last label.
        .margin_right(20)
        .x_label_area_size(AXIS)
        .y_label_area_size(if format.is_some() { 64 } else { 0 })
        .build_cartesian_2d(x, y)?;
    let (lower, left) = (
        |x: &f64| (axis.format)(*x),
        |y: &f64| format.map_or_else(String::new, |format| format(*y)),
    );
    let mut mesh = chart.configure_mesh();
    if format.is_none() {
        mesh.disable_y_mesh().disable_y_axis();
    }
    mesh.x_desc(axis.what)
        .x_labels(axis.labels)
        .x_label_formatter(&lower)
        .y_labels(6)
        .y_label_formatter(&left)
        .light_line_style(TRANSPARENT)
        .bold_line_style(paint::GRID)
        .axis_style(paint::INK)
        .label_style(font())
        .axis_desc_style(font())
        .draw()?;
    Ok(chart)
}

/// The font of all texts.
pub(super) fn font() -> TextStyle<'static> {
    ("sans-serif", 13).into_font().color(&paint::INK)
}

/// Height of the drawing of so many rows.
pub(super) fn height(rows: usize) -> u32 {
    ROW * rows as u32 + 2 * MARGIN + AXIS
}

/// Where the text of a row begins, from the top.
pub(super) fn top_of(row: usize) -> i32 {
    (MARGIN + ROW * row as u32) as i32 + (ROW / 2) as i32 - 7
}

/// One curve needs no legend.
pub(super) fn legend<'a, X, Y>(
    chart: &mut Chart<'a, X, Y>,
    curves: usize,
    position: SeriesLabelPosition,
) -> Drawn
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    if curves < 2 {
        return Ok(());
    }
    chart.configure_series_labels().position(position).label_font(font()).margin(6).draw()
}

/// The SVG of a plot; see [`drawn_in`].
pub(super) fn drawn(draw: impl FnOnce(&Area<'_>) -> Drawn) -> Option<String> {
    drawn_in(SIZE, draw)
}

/// The SVG; a drawing that fails is left out, and panics in debug builds.
pub(super) fn drawn_in(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Option<String> {
    let mut text = String::new();
    let done = {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&area).and_then(|()| area.present())
    };
    debug_assert!(done.is_ok(), "{done:?}");
    done.ok()?;
    Some(text)
}
