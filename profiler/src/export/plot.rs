//! Text plots of latency by percentile for a terminal, in braille dots.

use textplots::{Chart, LabelBuilder as _, LabelFormat, Plot as _, Shape};

use super::cell::clean;
use super::curve::{label, percentile, percentile_points};
use crate::recording::{HandlerRecording, Meter, Recording};

/// Dots of a plot: two to a column and four to a line.
const WIDTH: u32 = 120;
const HEIGHT: u32 = 40;

/// The plots of all handlers with a hit, each below an empty line and its name.
pub fn plots(recording: &Recording) -> String {
    let called = recording.handlers.iter().filter(|handler| handler.count > 0);
    called.map(|handler| one(handler, recording.meter)).collect()
}

/// A line with a value, and so many without one.
const LINES_A_VALUE: usize = 2;

/// Columns of the values.
const VALUE_WIDTH: usize = 10;

/// The axis of percentiles is that of the number of nines, that of durations logarithmic where
/// they span a decade.
fn one(handler: &HandlerRecording, meter: Meter) -> String {
    let label = label(meter);
    let curve = percentile_points(handler);
    let low = curve.iter().map(|(_, ns)| *ns).fold(f64::MAX, f64::min);
    let high = curve.iter().map(|(_, ns)| *ns).fold(0.0, f64::max);
    let name = clean(&handler.name);
    let what = match meter {
        Meter::Probes => "latency",
        Meter::Exact => "instructions",
    };
    if low >= high {
        // A curve has nothing to show.
        return format!("\n{name}: {what} of every call: {}\n", label(high));
    }
    let logarithmic = high / low >= 10.0;
    let points: Vec<(f32, f32)> = curve
        .iter()
        .map(|(nines, ns)| (*nines as f32, if logarithmic { ns.log10() } else { *ns } as f32))
        .collect();
    let nines = points.last().map_or(1.0, |(nines, _)| *nines).max(0.1);
    let (bottom, top) = if logarithmic { (low.log10(), high.log10()) } else { (low, high) };
    let room = ((top - bottom) * 0.02).max(top.abs() * 0.001).max(0.01);
    let (bottom, top) = (bottom - room, top + room);
    let value = |y: f64| {
        let ns = if logarithmic { 10_f64.powf(y) } else { y };
        label(ns.clamp(low, high))
    };
    let shape = Shape::Lines(&points);
    let mut chart = Chart::new_with_y_range(WIDTH, HEIGHT, 0.0, nines, bottom as f32, top as f32);
    let chart = chart
        .x_label_format(LabelFormat::Custom(Box::new(|x| percentile(f64::from(x)))))
        .y_label_format(LabelFormat::None)
        .lineplot(&shape);
    chart.axis();
    chart.figures();
    let drawn = chart.to_string();
    let scale = if logarithmic { ", logarithmic" } else { "" };
    let mut text = format!("\n{name}: {what} by percentile{scale}\n");
    for (number, line) in drawn.lines().enumerate() {
        // Of the line's upper dots; below the last is the axis of percentiles.
        let down = number as f64 * 4.0 / f64::from(HEIGHT);
        let has_value = number <= HEIGHT as usize / 4 && number.is_multiple_of(LINES_A_VALUE);
        let value = if has_value { value(top - down * (top - bottom)) } else { String::new() };
        let line = format!("{value:>VALUE_WIDTH$} {line}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
