//! What is drawn of handlers, as SVG.
//!
//! Each function returns `None` where there is nothing to draw.

use profiler_base::stats::median;
use profiler_recording::{HandlerRecording, Meter};

use super::drawing::{self, Axis, Curve, Plot, series};
use crate::handlers::Subject;

/// Most bars of a histogram.
const MAX_BARS: u64 = 60;
/// Most points of a curve: more would share its pixels.
const MAX_POINTS: usize = 600;

/// How the figures of this meter are read best; instructions have their unit on the axis.
pub(super) fn label(meter: Meter) -> fn(f64) -> String {
    match meter {
        Meter::Probes => duration,
        Meter::Exact => |instructions| format!("{instructions:.0}"),
    }
}

/// A duration in the unit that suits it.
fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ..1e3 => (ns, "ns"),
        ..1e6 => (ns / 1e3, "us"),
        ..1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 && value.fract() > 0.04 { 1 } else { 0 };
    format!("{value:.digits$} {unit}")
}

/// What these figures are.
pub(super) const fn what(meter: Meter) -> &'static str {
    match meter {
        Meter::Probes => "duration",
        Meter::Exact => "instructions",
    }
}

/// Latency by percentile, a curve for each of these; the lower axis is logarithmic in the share of the calls that took longer.
pub(super) fn percentiles(handlers: &[&HandlerRecording], meter: Meter) -> Option<String> {
    let points = handlers.iter().map(|handler| percentile_points(handler));
    let curves: Vec<Curve> = points.map(|points| Curve { name: "", colour: 0, points }).collect();
    let most = curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x).fold(1.0, f64::max);
    let axis = Axis {
        what: match meter {
            Meter::Probes => "percentile",
            Meter::Exact => "percentile of the instructions of a call",
        },
        ..Axis::linear([0.0, most], most.ceil() as usize, percentile)
    };
    drawing::curves(&curves, axis, label(meter))
}

/// The share of the calls that took no longer, as its number of nines, and the duration in nanoseconds, at least 1. Empty without a
/// call.
fn percentile_points(handler: &HandlerRecording) -> Vec<(f64, f64)> {
    let nines = |calls: f64| -(1.0 - calls / handler.count as f64).log10();
    let mut points = Vec::new();
    let mut below = 0_u64;
    for bucket in &handler.histogram.buckets {
        let value = bucket.to_ns.min(handler.max_ns.unwrap_or(bucket.to_ns)).max(1) as f64;
        points.push((nines(below as f64), value));
        below += bucket.count;
        // 100 % has no finite number of nines: half a call less.
        points.push((nines((below as f64).min(handler.count as f64 - 0.5)), value));
    }
    let (every, last) = (points.len().div_ceil(MAX_POINTS), points.len().saturating_sub(1));
    // The tail matters most and has few points.
    let is_kept = |at: usize, nines: f64| at.is_multiple_of(every) || nines > 2.0 || at == last;
    let kept = points.into_iter().enumerate().filter(|(at, (nines, _))| is_kept(*at, *nines));
    kept.map(|(_, point)| point).collect()
}

/// The percentile of a number of nines, with as many decimals as it needs.
fn percentile(nines: f64) -> String {
    let share = (1.0 - 10_f64.powf(-nines)) * 100.0;
    let decimals = ((nines - 1e-6).ceil() as usize).saturating_sub(2);
    format!("{share:.decimals$} %")
}

/// Share of the calls by duration; the axis is logarithmic where the durations span a decade.
pub(super) fn histogram(handler: &HandlerRecording, meter: Meter) -> Option<String> {
    let (x, bars) = bars(handler.min_ns?.max(1), handler.max_ns?.max(1), meter);
    let mut shares = vec![0.0; bars];
    for bucket in &handler.histogram.buckets {
        // A bucket counts where its middle lies.
        let to = bucket.to_ns.min(handler.max_ns?);
        let from = bucket.from_ns.max(handler.min_ns?).min(to);
        let middle = ((from as f64 + to as f64) / 2.0).max(1.0);
        let bar = (x.share(middle).max(0.0) * bars as f64) as usize;
        shares[bar.min(bars - 1)] += bucket.count as f64 / handler.count as f64 * 100.0;
    }
    let top = shares.iter().copied().fold(0.0, f64::max) * 1.05;
    let edges: Vec<f64> = (0..=bars).map(|bar| x.value(bar as f64 / bars as f64)).collect();
    let mut plot = Plot::new(x, Axis::linear([0.0, top], 6, |y| format!("{y:.1} %")));
    for (edges, share) in edges.windows(2).zip(shares).filter(|(_, share)| *share > 0.0) {
        plot.bar((edges[0], 0.0), (edges[1], share), series(0), 0.5);
    }
    Some(plot.svg())
}

/// The axis of a histogram, and the number of its bars. No bar is narrower than a nanosecond, because durations are whole nanoseconds.
fn bars(shortest: u64, longest: u64, meter: Meter) -> (Axis, usize) {
    let from = (shortest as f64 - 0.5).max(0.5);
    let all = longest - shortest + 1;
    let width = all.div_ceil(MAX_BARS);
    let is_logarithmic = longest / shortest >= 10;
    let (to, bars) = if is_logarithmic {
        let to = longest as f64 + 0.5;
        let narrowest = ((from + 1.0) / from).ln();
        (to, (((to / from).ln() / narrowest) as u64).clamp(1, MAX_BARS))
    } else {
        let bars = all.div_ceil(width);
        (from + (bars * width) as f64, bars)
    };
    let axis =
        Axis { is_logarithmic, what: what(meter), ..Axis::linear([from, to], 6, label(meter)) };
    (axis, bars as usize)
}

/// Figures of each run of a handler, where several have them.
pub(super) fn by_run(runs: &[(usize, &HandlerRecording)], meter: Meter) -> Option<String> {
    type Figure = fn(&HandlerRecording) -> Option<f64>;
    let figures: [(_, Figure); 3] = [
        ("TP50", |of| Some(of.quantile_ns(0.5)? as f64)),
        ("TP99", |of| Some(of.quantile_ns(0.99)? as f64)),
        ("average", HandlerRecording::mean_ns),
    ];
    let curves = figures.map(|(name, of)| {
        (name, runs.iter().filter_map(|(run, handler)| Some((*run, of(handler)?))).collect())
    });
    runs_of(curves, meter)
}

/// A named curve of figures by run, from 0.
pub(super) type ByRun = (&'static str, Vec<(usize, f64)>);

/// Curves by run; nothing where no curve has two figures.
pub(super) fn runs_of<const N: usize>(figures: [ByRun; N], meter: Meter) -> Option<String> {
    let last = figures.iter().flat_map(|(_, runs)| runs).map(|(run, _)| run + 1).max()?;
    figures.iter().find(|(_, runs)| runs.len() > 1)?;
    let curves = figures.into_iter().enumerate().map(|(colour, (name, runs))| {
        let points = runs.into_iter().map(|(run, figure)| ((run + 1) as f64, figure.max(1.0)));
        Curve { name, colour, points: points.collect() }
    });
    let range = [0.5, last as f64 + 0.5];
    let axis = Axis { what: "run", ..Axis::linear(range, last.min(12), |x| x.to_string()) };
    drawing::curves(&Vec::from_iter(curves), axis, label(meter))
}

/// From TP50 to TP99 of each handler, with its average; of several runs their medians. Nothing if there are fewer than two.
pub(super) fn overview(subjects: &[Subject<'_>], meter: Meter) -> Option<String> {
    let all = subjects.iter().filter_map(|subject| Some((&*subject.name, extent(subject)?)));
    let all: Vec<(&str, [f64; 5])> = all.collect();
    if all.len() < 2 {
        return None;
    }
    let values = all.iter().flat_map(|(_, extent)| *extent);
    let range = [values.clone().fold(f64::MAX, f64::min) / 1.2, values.fold(1.0, f64::max) * 1.2];
    let axis =
        Axis { is_logarithmic: true, what: what(meter), ..Axis::linear(range, 8, label(meter)) };
    let mut plot = Plot::of_rows(all.len(), 20.0, axis);
    for (number, (name, [average, percentiles @ ..])) in all.into_iter().enumerate() {
        plot.row(number, name, "");
        let (y, colour) = (number as f64 + 0.5, series(0));
        plot.line(&[(percentiles[0], y), (percentiles[3], y)], colour, 2);
        for tick in percentiles {
            plot.line(&[(tick, y - 0.13), (tick, y + 0.13)], colour, 2);
        }
        plot.dot((average, y), colour);
    }
    Some(plot.svg())
}

/// The average, TP50, TP90, TP95 and TP99. The axis is logarithmic: nothing is below 1.
fn extent(subject: &Subject<'_>) -> Option<[f64; 5]> {
    let (mut means, mut quantiles) =
        (Vec::new(), [0.5, 0.9, 0.95, 0.99].map(|of| (of, Vec::new())));
    for (_, handler) in subject.called() {
        means.extend(handler.mean_ns());
        for (quantile, values) in &mut quantiles {
            values.extend(handler.quantile_ns(*quantile).map(|value| value as f64));
        }
    }
    let [tp50, tp90, tp95, tp99] = quantiles.map(|(_, values)| median(&values));
    Some([median(&means)?, tp50?, tp90?, tp95?, tp99?].map(|figure| figure.max(1.0)))
}
