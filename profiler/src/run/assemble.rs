//! From a measured window to the recording that is kept.

use super::window::Window;
use super::{Error, internal, nanoseconds};
use crate::kernel::host::HostFacts;
use crate::kernel::module::ModuleFacts;
use crate::kernel::target::LeftOut;
use crate::probe::Precision;
use crate::recording::warning::WarningRecord;
use crate::recording::{
    Clock, HandlerRecording, HistogramLayout, LoadProfileUsed, Meter, Recording,
};

/// What is known of a run beside its window.
pub(super) struct Facts {
    pub(super) clock: Clock,
    pub(super) precision: Precision,
    pub(super) kernel_memory_bytes: u64,
    pub(super) direct: Option<bool>,
    pub(super) host: HostFacts,
    pub(super) modules: Vec<ModuleFacts>,
    pub(super) load_profile: Option<LoadProfileUsed>,
    pub(super) left_out: Vec<LeftOut>,
    /// Whether a signal or an error ended it.
    pub(super) interrupted: bool,
    /// Those that do not follow from the measurements.
    pub(super) warnings: Vec<WarningRecord>,
}

/// The recording of one window.
///
/// # Errors
/// If a histogram has more calls in one bucket than its format can hold (2^63).
pub(super) fn recording(facts: Facts, window: Window) -> Result<Recording, Error> {
    let length = window.length();
    let mut handlers = Vec::new();
    for measure in window.recorder.finish() {
        let handler = HandlerRecording::from_measure(&measure)
            .map_err(|error| internal(&error.to_string()))?;
        handlers.push(handler);
    }
    let mut intervals = window.intervals;
    for interval in &mut intervals {
        for (of_interval, handler) in interval.handlers.iter_mut().zip(&handlers) {
            of_interval.keep_within(handler);
        }
    }
    let histogram = HistogramLayout {
        kernel_memory_bytes: facts.kernel_memory_bytes,
        direct: facts.direct,
        ..HistogramLayout::of_digits(facts.precision.digits())
    };
    let mut recording = Recording {
        load_profile: facts.load_profile,
        window_ns: nanoseconds(length),
        warmup_ns: nanoseconds(window.warmup),
        interrupted: facts.interrupted,
        host: facts.host,
        modules: facts.modules,
        loads: window.loads,
        handlers,
        left_out: facts.left_out,
        costs: window.costs,
        intervals,
        warnings: facts.warnings,
        ..Recording::new(window.started, facts.clock, Meter::default(), histogram)
    };
    recording.warn();
    Ok(recording)
}
