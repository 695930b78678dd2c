//! The plots of one handler, as SVG.
//!
//! Each function returns `None` where there is nothing to draw.

use super::drawing::{self, Axis, Curve, Plot, series};
use crate::curve::{self, percentile, percentile_points};
use profiler_recording::{Bucket, HandlerRecording, Meter};

/// Most bars of a histogram.
const MAX_BARS: usize = 60;

/// Latency by percentile, a curve for each of these; the lower axis is logarithmic in the share of the calls that took longer.
pub(super) fn percentiles(handlers: &[&HandlerRecording], meter: Meter) -> Option<String> {
    let points = handlers.iter().map(|handler| percentile_points(handler));
    let curves: Vec<Curve> = points.map(|points| Curve { name: "", colour: 0, points }).collect();
    let nines = curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x).fold(1.0, f64::max);
    let axis = Axis {
        range: [0.0, nines],
        is_logarithmic: false,
        what: match meter {
            Meter::Probes => "percentile",
            Meter::Exact => "percentile of the instructions of a call",
        },
        labels: nines.ceil() as usize,
        format: percentile,
    };
    drawing::curves(&curves, axis, curve::label(meter))
}

/// Share of the calls by duration; the axis is logarithmic where the durations span a decade.
pub(super) fn histogram(handler: &HandlerRecording, meter: Meter) -> Option<String> {
    let bars = Bars::over(handler.min_ns?.max(1), handler.max_ns?.max(1));
    let shares = bars.shares(handler);
    let top = shares.iter().copied().fold(0.0, f64::max) * 1.05;
    let x = Axis {
        range: [bars.edge(0), bars.edge(bars.number)],
        is_logarithmic: bars.logarithmic,
        what: curve::what(meter),
        labels: 6,
        format: curve::label(meter),
    };
    let mut plot = Plot::new(x, Axis::unnamed([0.0, top], 6, |y| format!("{y:.1} %")));
    for (bar, share) in shares.iter().enumerate().filter(|(_, share)| **share > 0.0) {
        plot.bar((bars.edge(bar), 0.0), (bars.edge(bar + 1), *share), series(0), 0.5);
    }
    Some(plot.svg())
}

/// The bars of a histogram.
struct Bars {
    low: f64,
    /// Width of a bar in nanoseconds, or the factor from one edge to the next.
    step: f64,
    logarithmic: bool,
    number: usize,
}

impl Bars {
    /// No bar is narrower than a nanosecond, because durations are whole nanoseconds.
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

    /// Percentage of the handler's calls in each bar; a bucket counts where its middle lies.
    fn shares(&self, handler: &HandlerRecording) -> Vec<f64> {
        let mut shares = vec![0.0; self.number];
        for bucket in &handler.histogram.buckets {
            let middle = middle(bucket, handler);
            let bar = match self.logarithmic {
                true => (middle / self.low).ln() / self.step.ln(),
                false => (middle - self.low) / self.step,
            };
            let bar = (bar.max(0.0) as usize).min(self.number - 1);
            shares[bar] += bucket.count as f64 / handler.count as f64 * 100.0;
        }
        shares
    }
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
    drawing::curves(&Vec::from_iter(curves), Axis::runs(last), curve::label(meter))
}

fn middle(bucket: &Bucket, handler: &HandlerRecording) -> f64 {
    let to = bucket.to_ns.min(handler.max_ns.unwrap_or(bucket.to_ns));
    let from = bucket.from_ns.max(handler.min_ns.unwrap_or(bucket.from_ns)).min(to);
    ((from as f64 + to as f64) / 2.0).max(1.0)
}
