//! HdrHistogram's interval log, for its viewers and other implementations.

use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use profiler_recording::{HandlerRecording, Recording};

use super::cell::{clean, full_name};

/// The log's field for the maximum is in microseconds; the histograms are in nanoseconds.
const MAX_VALUE_DIVISOR: f64 = 1e3;

/// One line per run and handler, tagged with the handler; times count from the first run's window.
pub(super) fn hlog(runs: &[Recording]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let result = write(runs, &mut bytes);
    // Writing to memory cannot fail, and these histograms have been encoded before.
    debug_assert!(result.is_ok(), "{result:?}");
    bytes
}

fn write(runs: &[Recording], bytes: &mut Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment("[Histogram log format version 1.3]");
    builder.with_max_value_divisor(MAX_VALUE_DIVISOR);
    // Runs of a series are in order of time; those of a merge may not be.
    let mut ordered: Vec<&Recording> = runs.iter().collect();
    ordered.sort_by_key(|run| run.started);
    let Some(first) = ordered.first().map(|run| SystemTime::from(run.started)) else {
        return Ok(());
    };
    for run in &ordered {
        let window = Duration::from_nanos(run.window_ns);
        builder.add_comment(&format!(
            "run from {} for {:.3} s, clock {}, values in {}",
            run.started,
            window.as_secs_f64(),
            run.clock,
            run.meter.unit()
        ));
    }
    builder.with_start_time(first).with_base_time(first);
    let mut log = builder.begin_log_with(bytes, &mut serializer)?;
    for run in ordered {
        let start = SystemTime::from(run.started).duration_since(first)?;
        let window = Duration::from_nanos(run.window_ns);
        for handler in &run.handlers {
            let name = tag(&full_name(runs, handler));
            if let Some(losses) = losses(handler) {
                log.write_comment(&format!("{name}: {losses}"))?;
            }
            match handler.histogram.decode(&run.histogram) {
                Ok(histogram) => log.write_histogram(&histogram, start, window, Tag::new(&name))?,
                Err(error) => log.write_comment(&format!("{name}: {}", clean(&error)))?,
            }
        }
    }
    Ok(())
}

/// The losses, and the calls over range.
fn losses(handler: &HandlerRecording) -> Option<String> {
    let losses = &handler.losses;
    let (unmeasured, over, flight) = (losses.unmeasured(), losses.over_range, losses.in_flight);
    (unmeasured > 0 || over > 0 || flight > 0).then(|| {
        format!(
            "calls not measured: {unmeasured}, still running at the end: {flight}, longer than the \
             histogram reaches: {over}"
        )
    })
}

/// A name without the characters that end a tag.
fn tag(name: &str) -> String {
    clean(name).replace([',', ' ', '\r', '\n'], "_")
}
