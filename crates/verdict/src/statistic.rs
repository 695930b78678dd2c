//! Figures of a handler that are compared.

use schemars::JsonSchema;
use serde::Serialize;

use profiler_base::stats;
use profiler_recording::{Distribution, HandlerRecording, Meter};

/// One figure of a handler.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown)]
pub enum Statistic {
    /// Number of calls. Judged where they were counted, because the same operations of a load call a handler equally often.
    #[default]
    Count,
    /// Exact average.
    Avg,
    /// Median.
    Tp50,
    /// 90th percentile.
    Tp90,
    /// 95th percentile.
    Tp95,
    /// 99th percentile.
    Tp99,
    /// Iterations of instructions that repeat (`rep`) in a call or an operation, on average.
    Repeated,
    /// Of the percentiles of operations from the 90th to the 99th the one that changed most for the worse.
    Tail,
    /// Instructions of the driver outside of system calls, for an operation.
    Elsewhere,
}

/// Iterations of an instruction that repeats, of 8 bytes as kernels copy and clear, that weigh as much as one instruction. CPUs
/// with fast strings store 32 bytes a cycle and more to their first caches (Intel's optimization reference manual, "Fast-String
/// operation"), and kernels execute one to two instructions a cycle.
pub const ITERATIONS_AN_INSTRUCTION: f64 = 4.0;

/// A figure of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observed {
    /// Its value, in nanoseconds, instructions or calls.
    pub value: f64,
    /// Error bound from the histogram's bucket: the true value may be this much lower. 0 is exact.
    pub resolution: f64,
    /// Of a percentile the call before it and the call after it; else its value.
    pub beside: [f64; 2],
    /// Of an operation the instructions outside of the driver's functions, and by how many they may differ between builds that do the
    /// same there, if that is known.
    pub outside: Option<[f64; 2]>,
}

impl Observed {
    /// `value` at this quantile of `count` values.
    pub(super) fn percentile(
        histogram: &Distribution,
        count: u64,
        quantile: f64,
        value: u64,
    ) -> Option<Self> {
        let buckets = &histogram.buckets;
        let bucket = buckets.iter().find(|bucket| (bucket.from_ns..=bucket.to_ns).contains(&value));
        let lowest = bucket.map_or(value, |bucket| bucket.from_ns);
        let resolution = (value - lowest) as f64;
        let rank = stats::nearest_rank(count, quantile)?;
        let upper_ends = buckets.iter().map(|bucket| (bucket.to_ns, bucket.count));
        let beside = [rank.saturating_sub(1), rank.saturating_add(1)]
            .map(|rank| stats::at_rank(upper_ends.clone(), rank).unwrap_or(value) as f64);
        Some(Self { resolution, beside, ..Self::exact(value as f64) })
    }

    /// A value that is no percentile.
    pub(super) fn exact(value: f64) -> Self {
        Self { value, resolution: 0.0, beside: [value; 2], outside: None }
    }
}

impl Statistic {
    /// All figures of a handler, in display order.
    pub const ALL: [Self; 7] =
        [Self::Count, Self::Avg, Self::Tp50, Self::Tp90, Self::Tp95, Self::Tp99, Self::Repeated];
    /// What calls take, which a gate can judge.
    pub const GATED: [Self; 5] = [Self::Avg, Self::Tp50, Self::Tp90, Self::Tp95, Self::Tp99];

    /// Quantile, 0 to 1; `None` if the statistic is not a percentile.
    pub fn quantile(self) -> Option<f64> {
        match self {
            Self::Tp50 => Some(0.50),
            Self::Tp90 => Some(0.90),
            Self::Tp95 => Some(0.95),
            Self::Tp99 => Some(0.99),
            _ => None,
        }
    }

    /// Whether it is known where instructions are counted alone, or judged there alone.
    pub(super) fn is_of_counted(self) -> bool {
        matches!(self, Self::Count | Self::Repeated | Self::Tail | Self::Elsewhere)
    }

    /// Whether it is what a call or an operation takes, and not how often something happens.
    pub fn is_cost(self) -> bool {
        !matches!(self, Self::Count | Self::Repeated)
    }

    /// Whether a call tree has what changed it.
    pub fn is_of_tree(self) -> bool {
        self.is_cost() && self != Self::Elsewhere
    }

    /// `calls`, `iterations`, `ns` or `instructions`.
    pub fn unit(self, meter: Meter) -> &'static str {
        match (self, meter) {
            (Self::Count, _) => "calls",
            (Self::Repeated, _) => "iterations",
            (_, Meter::Probes) => "ns",
            (_, Meter::Exact) => "instructions",
        }
    }

    /// Calls that each run needs for it to be judged: see [`stats::for_a_gate`] and [`stats::for_an_exact_gate`].
    pub fn calls_needed(self, meter: Meter) -> u64 {
        let needed = match meter {
            Meter::Probes => stats::for_a_gate,
            Meter::Exact => stats::for_an_exact_gate,
        };
        self.quantile().map_or(1, needed)
    }

    /// The figure of one run; `None` without a call.
    pub fn of(self, handler: &HandlerRecording) -> Option<Observed> {
        match (self, self.quantile()) {
            (Self::Count, _) => Some(Observed::exact(handler.count as f64)),
            (Self::Repeated, _) => {
                stats::mean(handler.repeated?, handler.count).map(Observed::exact)
            }
            // They are an operation's.
            (Self::Tail | Self::Elsewhere, _) => None,
            (_, Some(quantile)) => {
                let value = handler.quantile_ns(quantile)?;
                Observed::percentile(&handler.histogram, handler.count, quantile, value)
            }
            (_, None) => handler.mean_ns().map(Observed::exact),
        }
    }
}

fn unknown(text: &str) -> String {
    format!(
        "unknown statistic `{text}`: expected one of avg, tp50, tp90, tp95, tp99; count, repeated, tail or elsewhere where \
         calls were counted"
    )
}

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::*;

    #[test]
    fn names_are_read_back() {
        for statistic in Statistic::VARIANTS {
            assert_eq!(statistic.to_string().parse(), Ok(*statistic));
        }
        let error = "p99".parse::<Statistic>().unwrap_err().to_string();
        assert!(
            error.starts_with("unknown statistic `p99`: expected one of avg, tp50,"),
            "{error}"
        );
    }

    #[test]
    fn calls_that_a_percentile_needs() {
        let needed = |meter| Statistic::ALL.map(|statistic| statistic.calls_needed(meter));
        assert_eq!(needed(Meter::Probes), [1, 1, 20, 100, 200, 1_000, 1]);
        assert_eq!(needed(Meter::Exact), [1, 1, 4, 20, 40, 200, 1]);
    }
}
