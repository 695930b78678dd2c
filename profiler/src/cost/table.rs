//! The costs as text.

use super::{Cost, Spread};
use crate::recording::Clock;

const FLOOR: &str = "added per hit, empty pair";
const LIMIT: &str = "added per hit, clock alone";
const ADDED: &str = "added per hit, measuring pair";

/// The table for people, and a warning for each figure that may be zero.
#[must_use]
pub fn text(cost: &Cost) -> String {
    let Cost { handler, backend, load, operations, rounds, hits_per_operation, .. } = cost;
    let mut text = format!(
        "{handler} by {backend} under {load}: {operations} operations, {rounds} rounds, medians, \
         {hits_per_operation} hits an operation\n{:<30} {:>10} {:>10} {:>10}\n",
        "", "median", "smallest", "largest"
    );
    let [bare, empty, clock_read, measured] = &cost.operation_spread;
    let [floor, limit, added] = &cost.added_spread;
    for (name, spread) in [
        ("one operation without probes", bare),
        ("  with an empty pair", empty),
        ("  with the clock read alone", clock_read),
        ("  with the measuring pair", measured),
        (FLOOR, floor),
        (LIMIT, limit),
        (ADDED, added),
    ] {
        let Spread { median_ns, min_ns, max_ns, .. } = spread;
        text.push_str(&format!("{name:<30} {median_ns:>10.1} {min_ns:>10.1} {max_ns:>10.1}\n"));
    }
    let unit = match cost.clock {
        Clock::Wall => "ns",
        Clock::Virtual => "instructions (ns of the virtual clock)",
    };
    let name = "average that it measures";
    text.push_str(&format!("{name:<30} {:>10.1}\nin {unit}\n", cost.average_ns));
    if let Some(ratio) = cost.ratio_to_limit {
        text.push_str(&format!(
            "floor (empty pair) {:.1}, limit (clock alone) {:.1}, measuring pair {:.1}: {ratio:.3} times the limit\n",
            floor.median_ns, limit.median_ns, added.median_ns
        ));
    }
    for (name, spread) in [(FLOOR, floor), (LIMIT, limit), (ADDED, added)] {
        if let Some(doubt) = spread.doubt() {
            text.push_str(&format!(
                "warning: {name}: cannot be distinguished from zero: {doubt}; use more --rounds or \
                 --operations, and keep the machine otherwise idle\n"
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Backend;

    #[test]
    fn the_table_says_when_a_figure_may_be_zero() {
        let spread = |rounds: &[f64]| Spread::of(rounds).unwrap();
        let mut cost = Cost {
            handler: "connect_syscall_handler".to_owned(),
            backend: Backend::Fentry,
            load: "connect".to_owned(),
            clock: Clock::Wall,
            operations: 20_000,
            rounds: 3,
            hits_per_operation: 1.0,
            average_ns: 800.0,
            bare_ns: 9_000.0,
            empty_ns: 9_352.4,
            clock_ns: 9_444.6,
            measured_ns: 6_298.4,
            floor_per_hit_ns: 352.4,
            limit_per_hit_ns: 444.6,
            added_per_hit_ns: -2_701.6,
            ratio_to_limit: None,
            operation_spread: [9_000.0, 9_352.4, 9_444.6, 6_298.4].map(|ns| spread(&[ns; 3])),
            added_spread: [
                spread(&[352.0, 352.4, 353.0]),
                spread(&[444.5, 444.6, 444.7]),
                spread(&[-2_701.6, 900.0, -4_000.0]),
            ],
        };
        insta::assert_snapshot!(text(&cost));

        cost.added_spread[2] = spread(&[511.0, 511.29, 512.0]);
        cost.ratio_to_limit = Some(1.15);
        let text = text(&cost);
        let line = "floor (empty pair) 352.4, limit (clock alone) 444.6, measuring pair 511.3: 1.150 times the limit\n";
        assert!(text.contains(line) && !text.contains("warning"), "{text}");
    }
}
