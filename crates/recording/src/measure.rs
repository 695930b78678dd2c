//! What a probe session hands over: one histogram and one account of losses a handler.

use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::stats::Durations;
use profiler_kernel::target::Target;

use crate::merge::plus;
use crate::{Backend, is_zero};

/// What happened to every call of one handler that the probes saw, in the measured window.
///
/// The books balance: `carried_in + entries = paired + in_flight + lost + doubtful + backwards`, where
/// `paired` is the histogram's count. A difference is an error of the profiler and is reported as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Losses {
    /// Calls that had entered before the window began and had not left by then.
    pub carried_in: u64,
    /// Calls whose entry was seen.
    pub entries: u64,
    /// Calls whose exit was seen (paired and unpaired).
    pub exits: u64,
    /// Calls that had entered and not left when the window ended.
    pub in_flight: u64,
    /// Entries that can never be paired: their start was overwritten or found no room.
    pub lost: u64,
    /// Exits for which no start was known. Not part of the balance: their entry was never seen.
    pub unpaired_exits: u64,
    /// Entry or exit programs that the kernel did not run (`recursion_misses` of a program, `missed` of a
    /// link, `kprobe_profile`).
    pub missed: u64,
    /// Whether the kernel does not report how many programs it did not run: `missed` is then what it
    /// does report.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missed_unknown: bool,
    /// Calls that a full trace buffer had no room for (function-graph): neither entry nor exit was seen.
    /// Of all handlers of that backend together, because it is not known which were whose: an upper
    /// bound for each.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overrun: u64,
    /// Durations beyond the histogram's range, recorded in its last bucket; `max_ns` and the sum stay exact.
    pub over_range: u64,
    /// Durations that are not in the histogram, though their entry and exit were seen, because so many of
    /// the longest may be from the start of one call to the end of another: the kernel skipped the exit of
    /// the one and the entry of the other.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub doubtful: u64,
    /// Calls whose exit was seen at an earlier time than their entry, by a clock that stepped back: their
    /// duration is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub backwards: u64,
}

/// A loss by its name.
type Loss = (&'static str, fn(&Losses) -> u64);

impl Losses {
    /// What is left over when `carried_in + entries = paired + in_flight + lost + doubtful + backwards` is
    /// worked out: zero when the books balance.
    pub fn imbalance(&self, paired: u64) -> i128 {
        let seen = i128::from(self.carried_in) + i128::from(self.entries);
        let [in_flight, lost, doubtful, backwards] =
            [self.in_flight, self.lost, self.doubtful, self.backwards].map(i128::from);
        seen - i128::from(paired) - in_flight - lost - doubtful - backwards
    }

    /// Upper bound on the calls that ran in the window, ended in it and are not in the histogram.
    ///
    /// A missed entry program shows again as an unpaired exit, so the larger of the two counts;
    /// a missed exit program can show again in `lost`, which errs on the safe side.
    pub fn unmeasured(&self) -> u64 {
        let skipped = self.missed.max(self.unpaired_exits);
        [self.lost, self.overrun, self.doubtful, self.backwards]
            .into_iter()
            .fold(skipped, u64::saturating_add)
    }

    /// Whether nothing was seen of the handler: no call, and none that was lost.
    pub fn is_idle(&self) -> bool {
        let Self { carried_in, entries, exits, missed, overrun, .. } = *self;
        [carried_in, entries, exits, missed, overrun] == [0; 5]
    }

    /// Losses that most runs have none of, by name: a table has columns for those that there are.
    pub const RARE: [Loss; 2] =
        [("doubtful", |losses| losses.doubtful), ("backwards", |losses| losses.backwards)];

    /// [`unmeasured`](Self::unmeasured) as a share of all calls, of which `paired` were measured; 0
    /// without a call.
    pub fn share(&self, paired: u64) -> f64 {
        let unmeasured = self.unmeasured() as f64;
        if unmeasured == 0.0 { 0.0 } else { unmeasured / (unmeasured + paired as f64) }
    }
}

impl AddAssign for Losses {
    fn add_assign(&mut self, more: Self) {
        for (sum, more) in [
            (&mut self.carried_in, more.carried_in),
            (&mut self.entries, more.entries),
            (&mut self.exits, more.exits),
            (&mut self.in_flight, more.in_flight),
            (&mut self.lost, more.lost),
            (&mut self.unpaired_exits, more.unpaired_exits),
            (&mut self.missed, more.missed),
            (&mut self.overrun, more.overrun),
            (&mut self.over_range, more.over_range),
            (&mut self.doubtful, more.doubtful),
            (&mut self.backwards, more.backwards),
        ] {
            plus(sum, more);
        }
        self.missed_unknown = self.missed_unknown || more.missed_unknown;
    }
}

/// One handler's measurements over one window. All times in nanoseconds of the kernel's monotonic clock.
#[derive(Debug, Clone)]
pub struct HandlerMeasure {
    /// The function measured.
    pub target: Target,
    /// How it was probed; `None` where the emulator counted.
    pub backend: Option<Backend>,
    /// Durations of all paired calls.
    pub durations: Durations,
    /// What was not measured, and why.
    pub losses: Losses,
}

impl HandlerMeasure {
    /// Nothing was measured; `durations` has the layout.
    #[must_use]
    pub fn empty(target: Target, backend: Option<Backend>, durations: Durations) -> Self {
        Self { target, backend, durations, losses: Losses::default() }
    }
}
