//! Notes on a live trace: its own cost, and what is missing from it.

use profiler_base::text::plural;
use profiler_recording::Recording;

/// What a reader of a live tree has to know.
pub fn notes(recording: &Recording) -> Vec<String> {
    let mut notes = vec![
        "durations contain the tracer's own cost, some hundred ns for each traced call: a function that makes many \
         short calls seems longer than it is"
            .to_owned(),
    ];
    for handler in &recording.handlers {
        let (name, losses) = (&handler.name, &handler.losses);
        let left_out = [
            (losses.lost, "cut off, or events were dropped meanwhile"),
            (losses.unpaired_exits, "the start was not seen"),
            (losses.in_flight, "not ended when the load had"),
        ];
        for (count, why) in left_out.into_iter().filter(|(count, _)| *count > 0) {
            notes.push(format!("{count} call{} of {name} left out: {why}", plural(count)));
        }
        if losses.overrun > 0 {
            notes.push(format!(
                "the trace buffer had no room for {} event{}, and calls may be missing: enlarge it with \
                 --trace-buffer KIB",
                losses.overrun,
                plural(losses.overrun)
            ));
        }
    }
    // The others are of handlers' figures, which are in the notes above.
    let others = recording.warnings.iter().filter(|warning| !warning.is_derived());
    notes.extend(others.map(|warning| warning.text.clone()));
    notes
}
