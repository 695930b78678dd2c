//! CPU time and memory of the watched programs over the window.

use super::drawing::{self, Axis, Curve, Scale};
use crate::export::cell::clean;
use crate::export::document::Figure;
use crate::export::side::Side;
use crate::watch::{Sample, Usage, Watched};

const MEBIBYTE: f64 = 1_048_576.0;

/// The drawings, where there are any.
pub(super) fn plots(sides: &[Side<'_>]) -> Vec<Figure> {
    let cpu = plot(sides, cpu, Scale::FromZero, |share| format!("{share:.1} %"));
    let memory = plot(sides, memory, Scale::Fitted, mebibytes);
    let drawn = [
        Figure::of(
            cpu,
            "CPU time of watched programs over time".to_owned(),
            "CPU time over the window, percent of one CPU",
        ),
        Figure::of(
            memory,
            "memory of watched programs over time".to_owned(),
            "Memory over the window",
        ),
    ];
    drawn.into_iter().flatten().collect()
}

/// One colour per watched program; the second recording's curves are dashed.
fn plot(
    sides: &[Side<'_>],
    points: fn(&[Sample]) -> Vec<(f64, f64)>,
    scale: Scale,
    format: fn(f64) -> String,
) -> Option<String> {
    let mut programs: Vec<&Watched> = Vec::new();
    let mut curves = Vec::new();
    for side in sides {
        for row in side.recording.costs.iter().flat_map(|costs| &costs.rows) {
            let colour = programs.iter().position(|of| **of == row.of).unwrap_or(programs.len());
            if colour == programs.len() {
                programs.push(&row.of);
            }
            let name = format!("{} {}", side.mark, clean(&row.of.label())).trim().to_owned();
            let points = points(&row.samples);
            curves.push(Curve { name, colour, dashed: side.number > 0, points });
        }
    }
    curves.retain(|curve| curve.points.len() > 1);
    drawing::curves(&curves, Axis::seconds(&curves)?, scale, format)
}

/// Percent of one CPU between each sample and the next.
fn cpu(samples: &[Sample]) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for pair in samples.windows(2) {
        let [before, after] = [&pair[0], &pair[1]];
        let Some(length) = after.at_ns.checked_sub(before.at_ns).filter(|ns| *ns > 0) else {
            continue;
        };
        let used = (cpu_ns(&after.usage) - cpu_ns(&before.usage)).max(0.0);
        let share = used / length as f64 * 100.0;
        points.extend([(seconds(before), share), (seconds(after), share)]);
    }
    points
}

/// Memory in MiB at each sample; samples without a process are left out.
fn memory(samples: &[Sample]) -> Vec<(f64, f64)> {
    let held = samples.iter().filter_map(|sample| Some((sample, sample.usage.memory_bytes?)));
    held.filter(|(_, bytes)| *bytes > 0)
        .map(|(at, bytes)| (seconds(at), bytes as f64 / MEBIBYTE))
        .collect()
}

fn mebibytes(held: f64) -> String {
    let decimals = if held < 10.0 { 1 } else { 0 };
    format!("{held:.decimals$} MiB")
}

fn cpu_ns(usage: &Usage) -> f64 {
    usage.user_ns as f64 + usage.system_ns as f64
}

fn seconds(sample: &Sample) -> f64 {
    sample.at_ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: u64, user_ms: u64, memory_bytes: Option<u64>) -> Sample {
        let usage = Usage { user_ns: user_ms * 1_000_000, memory_bytes, ..Usage::default() };
        Sample { at_ns: at_ms * 1_000_000, usage }
    }

    #[test]
    fn cpu_time_is_a_share_of_each_stretch() {
        let samples = [
            sample(0, 0, None),
            sample(1000, 250, None),
            sample(1000, 250, None),
            sample(3000, 3250, None),
            // A counter that went back, as of a process that was gone.
            sample(4000, 3000, None),
        ];
        let expected =
            [(0.0, 25.0), (1.0, 25.0), (1.0, 150.0), (3.0, 150.0), (3.0, 0.0), (4.0, 0.0)];
        assert_eq!(cpu(&samples), expected);
        assert_eq!(cpu(&samples[..1]), []);
    }

    #[test]
    fn memory_that_is_not_known_has_no_point() {
        let samples = [
            sample(0, 0, Some(1 << 20)),
            sample(500, 0, None),
            sample(1000, 0, Some(0)),
            sample(2000, 0, Some(8 << 20)),
        ];
        assert_eq!(memory(&samples), [(0.0, 1.0), (2.0, 8.0)]);
    }
}
