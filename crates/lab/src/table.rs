//! The table of what the driver costs an operation.

use profiler_base::stats::median;
use profiler_export::document::{Table, or_dash};
use profiler_recording::{DriverCost, Recording};

/// What the driver costs an operation, if that was measured: medians over the runs. A driver cannot make an operation cheaper: if a
/// run took no longer with it, the differences of the other runs are noise, too.
pub fn costs(runs: &[Recording], width: Option<u16>) -> Option<String> {
    let costs = runs.iter().map(|run| run.driver_costs.first());
    let costs: &[&DriverCost] = &costs.collect::<Option<Vec<_>>>()?;
    let load = costs.first()?.load.to_string();
    let mut notes = String::new();
    for (values, what) in [
        (known(costs, |cost| cost.repeated), "iterations of instructions that repeat"),
        (known(costs, |cost| cost.elsewhere), "instructions of the driver outside of system calls"),
    ] {
        if let Some(value) = median(&values).filter(|value| *value > 0.0) {
            notes.push_str(&format!("{load}: {value:.1} {what}\n"));
        }
    }
    let mut cells = vec![load.clone()];
    let no_longer = costs.iter().filter(|cost| cost.added_ns() <= 0.0).count();
    if no_longer == 0 {
        let without = median(&known(costs, |cost| Some(cost.without_ns)))?;
        let with = median(&known(costs, |cost| Some(cost.with_ns)))?;
        let within = known(costs, |cost| cost.within);
        let within = median(&within).filter(|_| within.len() == costs.len());
        let around = within.map(|within| with - without - within);
        let figures = [Some(without), Some(with), Some(with - without), within, around];
        cells.extend(figures.map(|it| or_dash(it.map(|value| format!("{value:.1}")))));
    } else {
        cells.extend(["-"; 5].map(str::to_owned));
        notes.push_str(&format!(
            "{load}: in {no_longer} of {} runs it took no longer with the driver: the cost cannot be distinguished from zero\n",
            costs.len()
        ));
    }
    let header =
        ["an operation of", "without driver", "with it", "added", "in the handlers", "around them"];
    let table = Table::figures(header, [cells]).text(width);
    Some(format!(
        "what the driver costs an operation of the load, in instructions, one load after another, \
         probes off\n{table}{notes}"
    ))
}

/// The values of those costs that have one.
fn known(costs: &[&DriverCost], of: fn(&DriverCost) -> Option<f64>) -> Vec<f64> {
    costs.iter().filter_map(|cost| of(cost)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_recording::CallTree;
    use profiler_tests::recording::runs;

    #[test]
    fn a_driver_that_seems_to_save_time_has_no_cost() {
        let table = |figures: &[[f64; 2]]| {
            let cost = |[without, with]: &[f64; 2]| -> DriverCost {
                let cost = serde_json::json!({
                    "load": "connect", "operations": 9, "without_instructions": without,
                    "with_instructions": with,
                });
                serde_json::from_value(cost).unwrap()
            };
            let mut runs = runs(&vec![CallTree::default(); figures.len()]);
            for (run, figures) in runs.iter_mut().zip(figures) {
                run.driver_costs = vec![cost(figures)];
            }
            costs(&runs, None).unwrap()
        };
        let lines = |text: &str| -> Vec<String> {
            let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            words.map(|words| words.join(" ")).collect()
        };
        let cost = table(&[[2_000.0, 5_000.0], [2_010.0, 5_040.0], [2_002.0, 5_010.0]]);
        assert_eq!(lines(&cost).last().unwrap(), "connect 2002.0 5010.0 3008.0 - -");
        let none = lines(&table(&[[1_266_546_908.9, 961_791_735.4], [3_700.0, 3_900.0]]));
        assert!(none.contains(&"connect - - - - -".to_owned()), "{none:?}");
        let note = none.last().unwrap();
        assert!(note.contains("in 1 of 2 runs it took no longer with the driver"), "{note}");
    }
}
