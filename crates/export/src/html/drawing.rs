//! Plots as SVG, in the colours of the page's style sheet.

use std::fmt::Write as _;

use itertools::Itertools as _;
use minijinja::HtmlEscape;

/// Axes and text.
pub(super) const INK: &str = "var(--ink)";
/// The data, one colour a series.
const SERIES: [&str; 3] = ["var(--series-1)", "var(--series-2)", "var(--series-3)"];

/// The colour of a curve.
pub(super) fn series(number: usize) -> &'static str {
    SERIES[number % SERIES.len()]
}

/// Width and height of a plot.
const SIZE: [f64; 2] = [520.0, 320.0];
/// Width of the labels at its left.
const LABELS: f64 = 80.0;
/// Edge of a drawing, height of its lower axis with labels, of a row of handlers, and of a line of the legend.
const MARGIN: f64 = 8.0;
const AXIS: f64 = 38.0;
const ROW: f64 = 26.0;
const LINE: f64 = 20.0;
/// Width of a drawing with a row a handler, and of the names in it.
const WIDTH: f64 = 1060.0;
const NAMES: f64 = 338.0;

pub(super) struct Axis {
    /// Of a logarithmic axis above 0.
    pub(super) range: [f64; 2],
    pub(super) is_logarithmic: bool,
    /// What is below it; may be empty.
    pub(super) what: &'static str,
    /// Most labels.
    pub(super) labels: usize,
    pub(super) format: fn(f64) -> String,
}

impl Axis {
    /// A linear one with nothing below it.
    pub(super) fn linear(range: [f64; 2], labels: usize, format: fn(f64) -> String) -> Self {
        Self { range, is_logarithmic: false, what: "", labels, format }
    }

    /// Where `value` is, from 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        let [from, to] = self.range;
        if self.is_logarithmic {
            (value / from).ln() / (to / from).ln()
        } else {
            (value - from) / (to - from)
        }
    }

    /// The value at a share of it.
    pub(super) fn value(&self, share: f64) -> f64 {
        let [from, to] = self.range;
        if self.is_logarithmic {
            from * (to / from).powf(share)
        } else {
            from + (to - from) * share
        }
    }

    /// Round values within it.
    fn ticks(&self) -> Vec<f64> {
        let [from, to] = self.range;
        let most = self.labels as f64;
        let ticks: Vec<f64> = if self.is_logarithmic {
            let (from, to) = (from.log10(), to.log10());
            let step = ((to - from) / most).ceil().max(1.0) as usize;
            let within: &[f64] = if to - from < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let powers = (from.floor() as i32..=to.ceil() as i32).step_by(step);
            powers.flat_map(|power| within.iter().map(move |of| of * 10_f64.powi(power))).collect()
        } else {
            let ten = 10_f64.powf(((to - from) / most).log10().floor());
            let mut steps = [1.0, 2.0, 5.0].map(|of| of * ten).into_iter();
            let step =
                steps.find(|step| step * most * 1.000_001 >= to - from).unwrap_or(10.0 * ten);
            ((from / step).ceil() as i64..=(to / step).floor() as i64)
                .map(|number| number as f64 * step)
                .collect()
        };
        ticks.into_iter().filter(|tick| (from..=to).contains(tick)).collect()
    }
}

/// A plot: its frame with axes, labels and grid lines, and what is drawn in it.
pub(super) struct Plot {
    svg: String,
    left: f64,
    width: f64,
    height: f64,
    x: Axis,
    y: Axis,
}

impl Plot {
    /// The usual one.
    pub(super) fn new(x: Axis, y: Axis) -> Self {
        // Room for half of the lower axis' last label.
        Self::framed(SIZE, [LABELS, 20.0], x, y)
    }

    /// A plot with a name at the left of each of so many rows, and room at their right; the middle of the first row is at 0.5.
    pub(super) fn of_rows(rows: usize, right: f64, x: Axis) -> Self {
        let size = [WIDTH, ROW * rows as f64 + 2.0 * MARGIN + AXIS];
        let y = Axis::linear([rows as f64, 0.0], 0, |_| String::new());
        Self::framed(size, [NAMES, right], x, y)
    }

    fn framed([width, height]: [f64; 2], [left, right]: [f64; 2], x: Axis, y: Axis) -> Self {
        let svg = format!(
            r#"<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">"#
        );
        let (inner, height) = (width - left - right, height - 2.0 * MARGIN - AXIS);
        let mut plot = Self { svg, left, width: inner, height, x, y };
        let (bottom, right) = (MARGIN + height, left + inner);
        for tick in plot.x.ticks() {
            let (at, label) = (plot.left + inner * plot.x.share(tick), (plot.x.format)(tick));
            plot.path(&[(at, bottom), (at, MARGIN)], "var(--line)", 1);
            plot.text("middle", (at, bottom + 16.0), &label);
        }
        let ticks = if plot.y.labels > 0 { plot.y.ticks() } else { Vec::new() };
        for tick in ticks {
            let (at, label) = (bottom - height * plot.y.share(tick), (plot.y.format)(tick));
            plot.path(&[(left, at), (right, at)], "var(--line)", 1);
            plot.text("end", (left - 6.0, at + 4.0), &label);
        }
        let corner = if plot.y.labels > 0 { MARGIN } else { bottom };
        plot.path(&[(left, corner), (left, bottom), (right, bottom)], INK, 1);
        plot.text("middle", (left + inner / 2.0, bottom + 34.0), plot.x.what);
        plot
    }

    /// Where a point is in the drawing.
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (x, y) = (self.x.share(x), self.y.share(y));
        (self.left + self.width * x, MARGIN + self.height * (1.0 - y))
    }

    fn path(&mut self, points: &[(f64, f64)], colour: &str, width: u8) {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).format(" ");
        self.push(format_args!(
            r#"<polyline fill="none" stroke="{colour}" stroke-width="{width}" points="{points}"/>"#
        ));
    }

    fn text(&mut self, anchor: &str, (x, y): (f64, f64), text: &str) {
        let text = HtmlEscape(text);
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="13" fill="{INK}">{text}</text>"#
        ));
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // A `String` takes all.
        let _ = self.svg.write_fmt(element);
    }

    /// A line through `points`.
    pub(super) fn line(&mut self, points: &[(f64, f64)], colour: &str, width: u8) {
        let points: Vec<_> = points.iter().map(|point| self.at(*point)).collect();
        self.path(&points, colour, width);
    }

    /// A filled rectangle between two corners.
    pub(super) fn bar(&mut self, one: (f64, f64), other: (f64, f64), colour: &str, opacity: f64) {
        let ((x, y), (to_x, to_y)) = (self.at(one), self.at(other));
        let (width, height) = ((to_x - x).abs(), (to_y - y).abs());
        let (x, y) = (x.min(to_x), y.min(to_y));
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}" fill-opacity="{opacity}" stroke="{colour}"/>"#
        ));
    }

    pub(super) fn dot(&mut self, at: (f64, f64), colour: &str) {
        let (x, y) = self.at(at);
        self.push(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" fill="{colour}"/>"#));
    }

    /// The texts at the left and at the right of a row.
    pub(super) fn row(&mut self, number: usize, name: &str, figures: &str) {
        let y = MARGIN + ROW * (number as f64 + 0.5) + 5.0;
        self.text("end", (self.left - 6.0, y), name);
        self.text("start", (self.left + self.width + 6.0, y), figures);
    }

    /// A line of the legend, from 0.
    fn key(&mut self, line: usize, name: &str, colour: &str) {
        let (x, y) = (self.left + 8.0, MARGIN + 4.0 + LINE * (line as f64 + 0.5));
        self.path(&[(x, y), (x + 18.0, y)], colour, 2);
        self.text("start", (x + 24.0, y + 4.0), name);
    }

    pub(super) fn svg(self) -> String {
        self.svg + "</svg>"
    }
}

/// A curve with its colour, and its name in the legend, if it has one.
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) colour: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// Curves over an axis. The vertical axis starts below the lowest point, and is logarithmic where the points, all above 0, span a
/// decade; the legend of several names is above the curves.
pub(super) fn curves(curves: &[Curve], x: Axis, format: fn(f64) -> String) -> Option<String> {
    let values = curves.iter().flat_map(|curve| &curve.points).map(|(_, y)| *y);
    let (low, high) = (values.clone().reduce(f64::min)?, values.reduce(f64::max)?);
    let mut named: Vec<&Curve> = curves.iter().filter(|curve| !curve.name.is_empty()).collect();
    if named.len() == 1 {
        named.clear();
    }
    let legend = LINE * named.len() as f64 / (SIZE[1] - 2.0 * MARGIN - AXIS);
    let room = 1.0 / (1.0 - legend.min(0.6));
    let is_logarithmic = low > 0.0 && high / low >= 10.0;
    let range = if is_logarithmic {
        let (low, high) = (low / 1.15, high * 1.15);
        [low, low * (high / low).powf(room)]
    } else {
        let edge = ((high - low) * 0.08).max(high * 0.01);
        let low = (low - edge).max(0.0);
        [low, low + (high + edge - low) * room]
    };
    let mut plot = Plot::new(x, Axis { is_logarithmic, ..Axis::linear(range, 6, format) });
    for curve in curves {
        plot.line(&curve.points, series(curve.colour), 2);
    }
    for (line, curve) in named.into_iter().enumerate() {
        plot.key(line, curve.name, series(curve.colour));
    }
    Some(plot.svg())
}
