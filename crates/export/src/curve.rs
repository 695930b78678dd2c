//! Curve of latency by percentile.

use profiler_recording::{HandlerRecording, Meter};

/// Most points of a curve: more would share its pixels.
const MAX_POINTS: usize = 600;

/// Points of the curve: the share of the calls that took no longer, as its number of nines, and the
/// duration in nanoseconds, at least 1. Empty without a call.
pub(super) fn percentile_points(handler: &HandlerRecording) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut below = 0_u64;
    for bucket in &handler.histogram.buckets {
        let rank = below as f64 / handler.count as f64;
        below += bucket.count;
        let value = bucket.to_ns.min(handler.max_ns.unwrap_or(bucket.to_ns)).max(1) as f64;
        points.push((nines(rank), value));
        // 100 % has no finite number of nines: half a call less.
        let upper = (below as f64).min(handler.count as f64 - 0.5);
        points.push((nines(upper / handler.count as f64), value));
    }
    let every = points.len().div_ceil(MAX_POINTS);
    let last = points.len().saturating_sub(1);
    // The tail matters most and has few points.
    let kept = points
        .into_iter()
        .enumerate()
        .filter(|(at, (nines, _))| at.is_multiple_of(every) || *nines > 2.0 || *at == last);
    kept.map(|(_, point)| point).collect()
}

fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

/// The percentile of a number of nines, with as many decimals as it needs.
pub(super) fn percentile(nines: f64) -> String {
    let share = (1.0 - 10_f64.powf(-nines)) * 100.0;
    let decimals = ((nines - 1e-6).ceil() as usize).saturating_sub(2);
    format!("{share:.decimals$} %")
}

/// How the figures of this meter are read best; instructions have their unit on the axis.
pub(super) fn label(meter: Meter) -> fn(f64) -> String {
    match meter {
        Meter::Probes => duration,
        Meter::Exact => |instructions| format!("{instructions:.0}"),
    }
}

/// What these figures are.
pub(super) const fn what(meter: Meter) -> &'static str {
    match meter {
        Meter::Probes => "duration",
        Meter::Exact => "instructions",
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
