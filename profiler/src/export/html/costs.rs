//! CPU time and memory of the watched programs, as a table and over the window.

use serde::Serialize;

use super::chart::{self, Axis, Curve, Scale};
use super::rows::{Cell, Grid};
use super::{Figure, Side};
use crate::export::cell::{bytes, clean};
use crate::watch::{CostRow, Sample, Usage, Watched};

const MEBIBYTE: f64 = 1_048_576.0;

/// The page's section on costs.
#[derive(Serialize)]
pub(super) struct Costs {
    table: Grid,
    cpu: Option<Figure>,
    memory: Option<Figure>,
}

/// The costs of all recordings; `None` if none have any.
pub(super) fn of(sides: &[Side<'_>]) -> Option<Costs> {
    let things = things(sides);
    (!things.is_empty()).then(|| Costs {
        table: table(sides, &things),
        cpu: Figure::of(
            plot(sides, &things, cpu, Scale::FromZero, |share| format!("{share:.1} %")),
            "CPU time of watched programs over time".to_owned(),
            "CPU time over the window, percent of one CPU",
        ),
        memory: Figure::of(
            plot(sides, &things, memory, Scale::Fitted, mebibytes),
            "memory of watched programs over time".to_owned(),
            "Memory over the window",
        ),
    })
}

/// The watched programs, each once, in the order of the recordings.
fn things<'a>(sides: &[Side<'a>]) -> Vec<&'a Watched> {
    let mut things: Vec<&Watched> = Vec::new();
    for row in sides.iter().flat_map(|side| &side.recording.costs).flat_map(|costs| &costs.rows) {
        if !things.contains(&&row.of) {
            things.push(&row.of);
        }
    }
    things
}

fn find<'a>(side: &Side<'a>, of: &Watched) -> Option<&'a CostRow> {
    side.recording.costs.as_ref()?.rows.iter().find(|row| row.of == *of)
}

/// One row per watched program and recording.
fn table(sides: &[Side<'_>], things: &[&Watched]) -> Grid {
    let both = sides.len() > 1;
    let mut headers = vec!["costs of"];
    if both {
        headers.push("recording");
    }
    headers.extend([
        "processes",
        "user [s]",
        "system [s]",
        "of one CPU",
        "most memory",
        "switches",
    ]);
    let mut rows = Vec::new();
    for of in things {
        for side in sides {
            let (Some(row), Some(costs)) = (find(side, of), &side.recording.costs) else {
                continue;
            };
            let total = row.total();
            let mut cells = vec![Cell::text(clean(&of.label()))];
            if both {
                cells.push(Cell::text(side.mark));
            }
            let share = cpu_ns(&total) / costs.window_ns.max(1) as f64 * 100.0;
            let seconds = |ns: u64| {
                let seconds = ns as f64 / 1e9;
                Cell::figure(format!("{seconds:.2}"), seconds)
            };
            let switches = total
                .voluntary_switches
                .map(|voluntary| voluntary + total.involuntary_switches.unwrap_or(0));
            cells.extend([
                if **of == Watched::Machine { Cell::none() } else { Cell::count(row.seen.into()) },
                seconds(total.user_ns),
                seconds(total.system_ns),
                Cell::figure(format!("{share:.1} %"), share),
                row.memory_max_bytes()
                    .map_or_else(Cell::none, |held| Cell::figure(bytes(held), held as f64)),
                switches.map_or_else(Cell::none, Cell::count),
            ]);
            rows.push(cells);
        }
    }
    Grid::new(headers, rows)
}

/// One colour per watched program; the second recording's curves are dashed.
fn plot(
    sides: &[Side<'_>],
    things: &[&Watched],
    points: fn(&[Sample]) -> Vec<(f64, f64)>,
    scale: Scale,
    format: fn(f64) -> String,
) -> Option<String> {
    let mut curves = Vec::new();
    for (colour, of) in things.iter().enumerate() {
        for side in sides {
            let Some(row) = find(side, of) else { continue };
            let name = format!("{} {}", side.mark, clean(&of.label())).trim().to_owned();
            let points = points(&row.samples);
            curves.push(Curve { name, colour, dashed: side.number > 0, points });
        }
    }
    curves.retain(|curve| curve.points.len() > 1);
    chart::curves(&curves, &Axis::seconds(&curves)?, scale, format)
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

/// A label of the axis, whose logarithmic ticks are powers of ten.
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
