//! HdrHistogram's percentile distribution as text, for its plotters.

use profiler_recording::{HandlerRecording, Meter, Recording};

use super::cell::{Unit, clean, full_name};

/// Steps in each half of the distance to 100 %, the default of other implementations.
const STEPS: u32 = 5;

/// A distribution per run and handler, each below a comment with its name; in microseconds unless a unit is named. Most plotters
/// take one per file: see `profiler report --run` and `--handler`.
pub(super) fn hgrm(runs: &[Recording], unit: Unit) -> Vec<u8> {
    let mut text = String::new();
    for (number, recording) in (1..).zip(runs) {
        let run = if runs.len() > 1 { format!("Run = {number}, ") } else { String::new() };
        let unit = match (recording.meter, unit) {
            (Meter::Exact, _) => Unit::Instructions,
            (Meter::Probes, Unit::Auto) => Unit::Us,
            (Meter::Probes, unit) => unit,
        };
        for handler in &recording.handlers {
            if !text.is_empty() {
                text.push('\n');
            }
            text += &section(&run, recording, handler, &full_name(runs, handler), unit);
        }
    }
    text.into_bytes()
}

fn section(
    run: &str,
    recording: &Recording,
    handler: &HandlerRecording,
    name: &str,
    unit: Unit,
) -> String {
    let losses = &handler.losses;
    let mut text = format!(
        "#[{run}Handler = {}, Unit = {unit}, Clock = {}]\n#[Calls not measured = {}, In flight = {}, Over range = {}]\n",
        clean(name),
        recording.clock,
        losses.unmeasured(),
        losses.in_flight,
        losses.over_range
    );
    let histogram = match handler.histogram.decode(&recording.histogram) {
        Ok(histogram) => histogram,
        Err(error) => return format!("{text}#[{}]\n", clean(&error)),
    };
    // The format has three decimals in any unit.
    let scale = 10_f64.powi(unit.places() as i32);
    text += "       Value     Percentile TotalCount 1/(1-Percentile)\n\n";
    let mut seen = 0_u64;
    for step in histogram.iter_quantiles(STEPS) {
        seen = seen.saturating_add(step.count_since_last_iteration());
        let value = step.value_iterated_to();
        // The last bucket may reach beyond the longest call.
        let value = handler.max_ns.map_or(value, |max| value.min(max)) as f64 / scale;
        let quantile = step.quantile_iterated_to();
        text += &format!("{value:>12.3} {quantile:>14.12} {seen:>10}");
        if quantile < 1.0 {
            text += &format!(" {:>14.2}", 1.0 / (1.0 - quantile));
        }
        text.push('\n');
    }
    let sub_buckets =
        (2 * 10_u64.pow(u32::from(recording.histogram.precision_digits))).next_power_of_two();
    let buckets = (histogram.distinct_values() as u64 / (sub_buckets / 2)).saturating_sub(1);
    let deviation = if handler.count == 0 { 0.0 } else { histogram.stdev() };
    let [mean, deviation, max] =
        [handler.mean_ns().unwrap_or(0.0), deviation, handler.max_ns.unwrap_or(0) as f64]
            .map(|ns| ns / scale);
    let count = handler.count;
    text + &format!(
        "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]\n\
         #[Max     = {max:>12.3}, Total count    = {count:>12}]\n\
         #[Buckets = {buckets:>12}, SubBuckets     = {sub_buckets:>12}]\n"
    )
}
