//! Texts of table cells: durations in a unit, names, sizes.

pub use profiler_base::terminal::clean;
use profiler_recording::{HandlerRecording, Meter, Recording};

/// Unit of the durations in a table.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumString,
)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown_unit)]
pub enum Unit {
    /// The first of the three in which the largest average is below 1000.
    #[default]
    Auto,
    /// Nanoseconds.
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Instructions, of recordings that counted them. Not one to choose.
    #[strum(to_string = "instructions", serialize = "")]
    Instructions,
}

fn unknown_unit(text: &str) -> String {
    format!("unknown unit `{text}`: expected auto, ns, us or ms")
}

impl Unit {
    /// The unit of all handlers of these runs, which have one meter.
    pub(super) fn for_handlers(self, runs: &[Recording]) -> Self {
        if runs.iter().any(|run| run.meter == Meter::Exact) {
            return Self::Instructions;
        }
        let handlers = runs.iter().flat_map(|run| &run.handlers);
        self.for_means(handlers.filter_map(HandlerRecording::mean_ns))
    }

    /// This unit, or the one that suits the operations of the loads, which are timed in any case.
    pub(super) fn for_operations(self, runs: &[Recording]) -> Self {
        let wish = if self == Self::Instructions { Self::Auto } else { self };
        let latencies =
            runs.iter().flat_map(|run| &run.loads).filter_map(|load| load.outcome.latency.as_ref());
        wish.for_means(latencies.filter_map(|latency| latency.service.mean_ns()))
    }

    /// This unit, or for `Auto` the one that suits the largest of these averages, in nanoseconds.
    pub(crate) fn for_means(self, means: impl Iterator<Item = f64>) -> Self {
        match (self, means.fold(0.0, f64::max)) {
            (Self::Auto, ..1e3) => Self::Ns,
            (Self::Auto, ..1e6) => Self::Us,
            (Self::Auto, _) => Self::Ms,
            (unit, _) => unit,
        }
    }

    /// Decimal places of this unit that resolve one nanosecond.
    pub(super) fn places(self) -> usize {
        match self {
            Self::Auto | Self::Ns | Self::Instructions => 0,
            Self::Us => 3,
            Self::Ms => 6,
        }
    }

    /// A whole number of nanoseconds, exactly.
    pub fn exact(self, ns: u64) -> String {
        let places = self.places();
        if places == 0 {
            return ns.to_string();
        }
        let scale = 10_u64.pow(places as u32);
        format!("{}.{:0places$}", ns / scale, ns % scale)
    }

    /// An average, to a tenth of a nanosecond.
    pub fn average(self, ns: f64) -> String {
        let places = self.places();
        format!("{:.*}", places + 1, ns / 10_f64.powi(places as i32))
    }
}

/// The handler's name, with its module where these runs are of several: the name alone would be ambiguous.
pub fn full_name(runs: &[Recording], handler: &HandlerRecording) -> String {
    let mut others = runs.iter().flat_map(|run| &run.handlers);
    let one_module = others.all(|other| other.module == handler.module);
    match &handler.module {
        Some(module) if !one_module => format!("{} [{module}]", handler.name),
        _ => handler.name.clone(),
    }
}

/// An amount of memory, in the unit that suits it.
pub fn bytes(bytes: u64) -> String {
    let kib = bytes as f64 / 1024.0;
    match bytes.checked_ilog2() {
        None | Some(..10) => format!("{bytes} bytes"),
        Some(..20) => format!("{kib:.1} KiB"),
        Some(..30) => format!("{:.1} MiB", kib / 1024.0),
        Some(_) => format!("{:.1} GiB", kib / 1024.0 / 1024.0),
    }
}
