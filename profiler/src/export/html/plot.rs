//! The plots of one handler, as SVG.
//!
//! Each function returns `None` where there is nothing to draw.

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::Side;
use super::paint;
use crate::export::curve::{duration, percentile, percentile_points};
use crate::profile::{Bucket, HandlerProfile};

const SIZE: (u32, u32) = (520, 320);
/// Bars of a histogram at most.
const MAX_BARS: usize = 60;

type Of<'a> = (Side<'a>, &'a HandlerProfile);
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// A curve with its name and the number of its colour.
struct Curve {
    name: String,
    colour: usize,
    points: Vec<(f64, f64)>,
}

/// Latency by percentile: the axis of percentiles is the logarithm of the share that took longer.
pub(super) fn percentiles(handlers: &[Of<'_>]) -> Option<String> {
    let mut curves = Vec::new();
    for (side, handler) in handlers {
        let points = percentile_points(handler);
        if !points.is_empty() {
            curves.push(Curve { name: side.mark.to_owned(), colour: side.number, points });
        }
    }
    let nines = curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x).fold(1.0, f64::max);
    let axis = Axis {
        range: 0.0..nines,
        what: "percentile",
        labels: nines.ceil() as usize + 1,
        format: percentile,
    };
    plot(&curves, &axis, duration)
}

/// Share of the calls by duration; the axis is logarithmic where the durations span a decade.
pub(super) fn histogram(handlers: &[Of<'_>]) -> Option<String> {
    let shortest = handlers.iter().filter_map(|(_, handler)| handler.min_ns).min()?.max(1);
    let longest = handlers.iter().filter_map(|(_, handler)| handler.max_ns).max()?.max(1);
    let bars = Bars::over(shortest, longest);
    let shares: Vec<Vec<f64>> = handlers.iter().map(|(_, handler)| bars.shares(handler)).collect();
    let top = shares.iter().flatten().copied().fold(0.0, f64::max) * 1.05;
    if top <= 0.0 {
        return None;
    }
    let (low, high) = (bars.edge(0), bars.edge(bars.number));
    drawn(|area| {
        if bars.logarithmic {
            draw_bars(area, (low..high).log_scale(), top, &bars, &shares, handlers)
        } else {
            draw_bars(area, low..high, top, &bars, &shares, handlers)
        }
    })
}

/// How a stretch of durations is cut into bars.
struct Bars {
    low: f64,
    /// Width of a bar in nanoseconds, or the factor from one edge to the next.
    step: f64,
    logarithmic: bool,
    number: usize,
}

impl Bars {
    /// No bar is narrower than a nanosecond: between two whole ones there is no call.
    fn over(shortest: u64, longest: u64) -> Self {
        if longest / shortest < 10 {
            let width = (longest - shortest + 1).div_ceil(MAX_BARS as u64).max(1);
            let number = (longest - shortest + 1).div_ceil(width) as usize;
            let low = shortest as f64 - 0.5;
            return Self { low, step: width as f64, logarithmic: false, number };
        }
        let low = (shortest as f64 - 0.5).max(0.5);
        let decades = (longest as f64 + 0.5) / low;
        let narrowest = ((low + 1.0) / low).ln();
        let number = ((decades.ln() / narrowest) as usize).clamp(1, MAX_BARS);
        Self { low, step: decades.powf(1.0 / number as f64), logarithmic: true, number }
    }

    fn edge(&self, bar: usize) -> f64 {
        if self.logarithmic {
            self.low * self.step.powi(bar as i32)
        } else {
            self.low + self.step * bar as f64
        }
    }

    /// Percent of the handler's calls in each bar; a bucket counts where its middle lies.
    fn shares(&self, handler: &HandlerProfile) -> Vec<f64> {
        let mut shares = vec![0.0; self.number];
        for bucket in &handler.histogram.buckets {
            let middle = middle(bucket, handler);
            let bar = if self.logarithmic {
                (middle / self.low).ln() / self.step.ln()
            } else {
                (middle - self.low) / self.step
            };
            let bar = (bar.max(0.0) as usize).min(self.number - 1);
            shares[bar] += bucket.count as f64 / handler.count as f64 * 100.0;
        }
        shares
    }

    /// The upper outline of the bars.
    fn outline(&self, shares: &[f64]) -> Vec<(f64, f64)> {
        let mut points = vec![(self.edge(0), 0.0)];
        for (bar, share) in shares.iter().enumerate() {
            points.push((self.edge(bar), *share));
            points.push((self.edge(bar + 1), *share));
        }
        points.push((self.edge(self.number), 0.0));
        points
    }
}

/// The first profile's bars are filled and the second's are an outline, so that both are seen.
fn draw_bars<X>(
    area: &Area<'_>,
    x: X,
    top: f64,
    bars: &Bars,
    shares: &[Vec<f64>],
    handlers: &[Of<'_>],
) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(x, 0.0..top)?;
    mesh(
        chart
            .configure_mesh()
            .x_desc("duration")
            .x_labels(6)
            .x_label_formatter(&|x| duration(*x))
            .y_label_formatter(&|y| format!("{y:.1} %")),
    )?;
    for (number, (shares, (side, _))) in shares.iter().zip(handlers).enumerate() {
        let colour = paint::series(side.number);
        let outline = LineSeries::new(bars.outline(shares), colour.stroke_width(2));
        if number == 0 {
            let filled = shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
            chart.draw_series(filled.map(|(bar, share)| {
                let corners = [(bars.edge(bar), 0.0), (bars.edge(bar + 1), *share)];
                Rectangle::new(corners, colour.mix(0.5).filled())
            }))?;
        }
        chart
            .draw_series(outline)?
            .label(side.mark)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    legend(&mut chart, shares.len(), SeriesLabelPosition::UpperRight)
}

/// Median, 99th percentile and maximum of each interval over the window.
pub(super) fn intervals(handlers: &[Of<'_>]) -> Option<String> {
    let mut curves = Vec::new();
    for (side, handler) in handlers {
        let profile = side.profile;
        let at = profile.handlers.iter().position(|other| std::ptr::eq(other, *handler))?;
        let curve =
            |which: usize, name: &str, of: fn(&crate::profile::IntervalStats) -> Option<u64>| {
                let points: Vec<(f64, f64)> = profile
                    .intervals
                    .iter()
                    .filter_map(|interval| {
                        let middle = interval.start_ns + interval.duration_ns / 2;
                        let value = of(interval.handlers.get(at)?)?;
                        Some((middle as f64 / 1e9, value.max(1) as f64))
                    })
                    .collect();
                // Two profiles keep their colours apart: each has every second one.
                let colour = side.number + which * handlers.len();
                Curve { name: format!("{} {name}", side.mark).trim().to_owned(), colour, points }
            };
        curves.push(curve(0, "TP50", |stats| stats.p50_ns));
        curves.push(curve(1, "TP99", |stats| stats.p99_ns));
        if handlers.len() == 1 {
            curves.push(curve(2, "max", |stats| stats.max_ns));
        }
    }
    curves.retain(|curve| curve.points.len() > 1);
    plot(&curves, &seconds(&curves), duration)
}

/// The lower axis.
struct Axis {
    range: std::ops::Range<f64>,
    what: &'static str,
    labels: usize,
    format: fn(f64) -> String,
}

/// The seconds of the window, as far as the curves reach.
fn seconds(curves: &[Curve]) -> Axis {
    let end = curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x).fold(0.0, f64::max);
    Axis {
        range: 0.0..end,
        what: "seconds of the window",
        labels: 6,
        format: |x| format!("{x:.0} s"),
    }
}

/// Curves over an axis; their own is logarithmic where they span a decade.
fn plot(curves: &[Curve], axis: &Axis, format: fn(f64) -> String) -> Option<String> {
    let values = || curves.iter().flat_map(|curve| &curve.points).map(|(_, y)| *y);
    let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    drawn(|area| {
        if high / low >= 10.0 {
            draw_curves(area, curves, axis, (low / 1.15..high * 1.15).log_scale(), format)
        } else {
            let room = ((high - low) * 0.08).max(high * 0.01);
            draw_curves(area, curves, axis, (low - room).max(0.0)..high + room, format)
        }
    })
}

fn draw_curves<Y>(
    area: &Area<'_>,
    curves: &[Curve],
    axis: &Axis,
    y: Y,
    format: fn(f64) -> String,
) -> Drawn
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(axis.range.clone(), y)?;
    mesh(
        chart
            .configure_mesh()
            .x_desc(axis.what)
            .x_labels(axis.labels)
            .x_label_formatter(&|x| (axis.format)(*x))
            .y_labels(6)
            .y_label_formatter(&|y| format(*y)),
    )?;
    for curve in curves {
        let colour = paint::series(curve.colour);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    legend(&mut chart, curves.len(), SeriesLabelPosition::UpperLeft)
}

fn mesh<X, Y>(style: &mut plotters::chart::MeshStyle<'_, '_, X, Y, SVGBackend<'_>>) -> Drawn
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let text = ("sans-serif", 13).into_font().color(&paint::INK);
    style
        .light_line_style(TRANSPARENT)
        .bold_line_style(paint::GRID)
        .axis_style(paint::INK)
        .label_style(text.clone())
        .axis_desc_style(text)
        .draw()
}

/// One curve needs no legend.
fn legend<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
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
    chart
        .configure_series_labels()
        .position(position)
        .label_font(("sans-serif", 13).into_font().color(&paint::INK))
        .margin(6)
        .draw()
}

/// The text of the SVG; a drawing that fails is left out, and debug builds say why.
fn drawn(draw: impl FnOnce(&Area<'_>) -> Drawn) -> Option<String> {
    let mut text = String::new();
    let done = {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area).and_then(|()| area.present())
    };
    debug_assert!(done.is_ok(), "{done:?}");
    done.ok()?;
    Some(text)
}

fn middle(bucket: &Bucket, handler: &HandlerProfile) -> f64 {
    let to = bucket.to_ns.min(handler.max_ns.unwrap_or(bucket.to_ns));
    let from = bucket.from_ns.max(handler.min_ns.unwrap_or(bucket.from_ns)).min(to);
    ((from as f64 + to as f64) / 2.0).max(1.0)
}
