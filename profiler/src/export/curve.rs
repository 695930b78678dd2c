//! The curve that the plots of this program draw: latency by percentile.

use crate::profile::HandlerProfile;

/// Points of a curve: more than its pixels would be drawn over each other.
const MAX_POINTS: usize = 600;

/// The curve of latency by percentile. The first coordinate is the share of the calls that took no
/// longer, as its number of nines; the second is the duration in nanoseconds, 1 at least. Empty
/// without a call.
pub(super) fn percentile_points(handler: &HandlerProfile) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut below = 0_u64;
    for bucket in &handler.histogram.buckets {
        let rank = below as f64 / handler.count as f64;
        below += bucket.count;
        let value = bucket.to_ns.min(handler.max_ns.unwrap_or(bucket.to_ns)).max(1) as f64;
        points.push((nines(rank), value));
        if below < handler.count {
            points.push((nines(below as f64 / handler.count as f64), value));
        } else {
            // The longest call has no finite number of nines: half a call beyond it.
            points.push((nines(1.0 - 0.5 / handler.count as f64), value));
        }
    }
    let every = points.len().div_ceil(MAX_POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let mut kept = Vec::with_capacity(points.len() / every + 1);
    for (at, point) in points.into_iter().enumerate() {
        // The tail is what is looked at, and it has few points.
        if at.is_multiple_of(every) || point.0 > 2.0 || at == last {
            kept.push(point);
        }
    }
    kept
}

fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

/// The share that a number of nines stands for, with as many decimals as it needs.
pub(super) fn percentile(nines: f64) -> String {
    let share = (1.0 - 10_f64.powf(-nines)) * 100.0;
    let decimals = ((nines - 1e-6).ceil() as usize).saturating_sub(2);
    format!("{share:.decimals$} %")
}

/// Nanoseconds in the unit in which they are read best.
pub(super) fn duration(ns: f64) -> String {
    let (value, unit) = if ns < 1e3 {
        (ns, "ns")
    } else if ns < 1e6 {
        (ns / 1e3, "us")
    } else if ns < 1e9 {
        (ns / 1e6, "ms")
    } else {
        (ns / 1e9, "s")
    };
    let digits = if value < 10.0 && value.fract() > 0.04 { 1 } else { 0 };
    format!("{value:.digits$} {unit}")
}
