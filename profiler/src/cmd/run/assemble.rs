//! From a measured window to the profile that is kept.

use profiler_common::bucket::{HIGHEST_NS, LOWEST_NS};

use super::window::Window;
use super::{internal, nanoseconds};
use crate::error::Failure;
use crate::kernel::host::HostFacts;
use crate::kernel::module::ModuleFacts;
use crate::probe::Precision;
use crate::profile::{Clock, HandlerProfile, HistogramLayout, Profile, SCHEMA, Tool, VERSION};

/// What all windows of a run share.
pub(super) struct Common {
    pub(super) clock: Clock,
    pub(super) precision: Precision,
    pub(super) kernel_memory_bytes: u64,
    pub(super) host: HostFacts,
    pub(super) modules: Vec<ModuleFacts>,
}

/// The profile of one window, without warnings.
///
/// # Errors
/// If a histogram has more calls in one bucket than its format can hold (2^63).
pub(super) fn profile(common: &Common, window: Window) -> Result<Profile, Failure> {
    let length = window.length();
    let mut handlers = Vec::new();
    for measure in window.recorder.finish() {
        let handler =
            HandlerProfile::from_measure(&measure).map_err(|error| internal(&error.to_string()))?;
        handlers.push(handler);
    }
    let mut intervals = window.intervals;
    for interval in &mut intervals {
        for (of_interval, handler) in interval.handlers.iter_mut().zip(&handlers) {
            of_interval.keep_within(handler);
        }
    }
    Ok(Profile {
        schema: SCHEMA.to_owned(),
        version: VERSION,
        tool: Tool::this(),
        started: window.started,
        place: None,
        load_profile: None,
        clock: common.clock,
        window_ns: nanoseconds(length),
        warmup_ns: nanoseconds(window.warmup),
        interrupted: window.signal.is_some() || window.trouble.is_some(),
        histogram: HistogramLayout {
            precision_digits: common.precision.digits(),
            lowest_ns: LOWEST_NS,
            highest_ns: HIGHEST_NS,
            kernel_memory_bytes: common.kernel_memory_bytes,
        },
        host: common.host.clone(),
        modules: common.modules.clone(),
        loads: window.loads,
        handlers,
        left_out: Vec::new(),
        driver_costs: Vec::new(),
        costs: window.costs,
        intervals,
        sources: Vec::new(),
        warnings: Vec::new(),
    })
}
