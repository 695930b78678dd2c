//! Probes on handlers: from resolved functions to histograms.

pub mod account;
mod bpf;
mod calibrate;
mod composite;
mod counters;
mod errno;
pub mod feature;
pub mod ftrace;
pub mod hit_cost;
pub mod keeper;
mod kprobe_event;
mod life;
mod loaded;
mod memory;
mod missed;
mod object;
mod programs;
pub mod recorder;
pub mod select;
mod sys;

use std::time::Instant;

use profiler_common::bucket::{HIGHEST_NS, LOWEST_NS, MAGNITUDE_2, MAGNITUDE_3, counters, index};

pub use composite::{FellBack, Probes};
pub use loaded::{Programs, RunStats, facts, resolve_programs};
use profiler_base::error::{Failure, exit};
use profiler_base::stats::Durations;
use profiler_kernel::target::{LeftOut, Target};
use profiler_recording::{Backend, CallTree};
pub use sys::{JitedLine, LoadedProgram, btf_bytes, loaded_programs};

/// Resolution of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::EnumString, strum::VariantNames)]
pub enum Precision {
    /// 2 significant digits: 15 KiB a histogram.
    #[strum(serialize = "2")]
    Two,
    /// 3 significant digits: 108 KiB a histogram.
    #[default]
    #[strum(serialize = "3")]
    Three,
}

impl Precision {
    /// Significant decimal digits.
    pub const fn digits(self) -> u8 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }

    /// Exponent of the number of values that have a counter each.
    pub const fn magnitude(self) -> u32 {
        match self {
            Self::Two => MAGNITUDE_2,
            Self::Three => MAGNITUDE_3,
        }
    }

    /// Counters of one histogram.
    pub const fn counters(self) -> usize {
        counters(self.magnitude())
    }

    /// Words of a record's counters that durations of up to `longest_ns` are counted in; short ones are told from the
    /// counters alone, so theirs are always among them.
    fn words_up_to(self, longest_ns: u64) -> usize {
        let longest = longest_ns.min(HIGHEST_NS);
        let counter = match self {
            Self::Two => index::<MAGNITUDE_2>(longest),
            Self::Three => index::<MAGNITUDE_3>(longest),
        };
        (counter + 1).max(1 << self.magnitude()).div_ceil(2)
    }

    /// No durations, in a histogram of this precision from 1 ns to 60 s.
    pub fn durations(self) -> Durations {
        Durations::of_digits(self.digits(), HIGHEST_NS)
    }

    /// The same in a histogram that grows as far as its durations need. Empty ones of sixty handlers take 1 MiB and not 13,
    /// which a drain would have to clear.
    pub fn growing_durations(self) -> Durations {
        Durations::of_digits(self.digits(), 2 * LOWEST_NS).growing()
    }
}

/// What the programs of a handler do; only [`Pair::Measuring`] counts anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pair {
    /// They measure its calls.
    #[default]
    Measuring,
    /// Nothing: the floor, below which no pair of probes can cost.
    Empty,
    /// They read the clock at entry and exit: the limit, below which no pair that measures can cost.
    Clock,
}

/// How to probe.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Resolution of the histograms.
    pub precision: Precision,
    /// Attach also where another tracing program is attached already.
    pub allow_shared: bool,
    /// Handlers for whose histograms memory must suffice, if these are more than are attached to now: later
    /// sessions with the same options have as many.
    pub room_for: usize,
    /// Which programs to attach.
    pub pair: Pair,
    /// The only backend to use; without it the best for each handler.
    pub backend: Option<Backend>,
    /// Use it even where it is known to count nothing.
    pub force: bool,
    /// Size of each CPU's buffer of the function-graph backend in KiB; `None` is chosen by the machine's
    /// memory.
    pub trace_buffer_kib: Option<u64>,
    /// Trace all that the one handler calls, by the function-graph backend.
    pub call_tree: bool,
    /// Before tracefs is changed, start a process that puts it back if this one is killed. For programs
    /// whose `main` calls [`become_keeper_if_asked`](keeper::become_keeper_if_asked); what another one
    /// leaves when it is killed is put back by the next start.
    pub keeper: bool,
}

/// Why probes could not be attached or read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It cannot be done for one handler.
    #[error("{text}")]
    Handler {
        /// What was tried for it, and what the system said.
        text: String,
        /// The same in short, without the handler.
        reason: String,
    },
    /// Their maps would take more memory than there is to spare.
    #[error("{text}")]
    Memory {
        /// How much, and what to do.
        text: String,
        /// Whether the same with 2 digits would fit.
        fits_with_two_digits: bool,
    },
    /// They must not be measured like this, and another backend would not mend it.
    #[error("{0}")]
    NotAllowed(String),
    /// The preemption model was changed while probes were attached that take tasks not to be preempted.
    #[error(
        "the kernel was changed to preempt tasks (/sys/kernel/debug/sched/preempt) after the probes were \
         attached: durations since the last drain may be of two calls, and are left out; measure again"
    )]
    PreemptionChanged,
    /// No probe can be placed on a function that was named.
    #[error("{0}")]
    NotTraceable(Failure),
    /// The module was unloaded, or its BTF is gone, since the handlers were resolved.
    #[error("the BTF of module {module} is gone: was the module unloaded meanwhile?")]
    ModuleGone { module: String },
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        let code = match error {
            ProbeError::NotTraceable(failure) => return failure,
            ProbeError::ModuleGone { .. } => exit::NO_TARGET,
            _ => exit::CANNOT_MEASURE,
        };
        Self::new(code, error.to_string())
    }
}

impl ProbeError {
    /// What is said of a handler that was left out because of this.
    fn without_handler(self) -> String {
        match self {
            Self::Handler { reason, .. } => reason,
            _ => self.to_string(),
        }
    }

    /// The error where all handlers were left out, if any were.
    pub fn all_left_out(left_out: &[LeftOut]) -> Option<Self> {
        let first = left_out.first()?;
        Some(Self::Other(format!(
            "none of the {} functions that match can be measured; the first because of {}",
            left_out.len(),
            first.reason
        )))
    }
}

/// A target that the kernel refused: its place among those given, and why.
type Refused = (usize, ProbeError);

/// A session of one backend, `None` if it could be attached to none of its targets; and the refused targets.
type Attached = (Option<Box<dyn Session>>, Vec<Refused>);

/// What one handler's probes found since they were drained before, and their books so far.
#[derive(Debug, Clone)]
pub struct Drained {
    /// Durations of the calls that left since the last drain.
    pub durations: Durations,
    /// Counters since the probes were attached.
    pub books: Books,
}

/// What a handler called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// The tree, in nanoseconds.
    pub tree: CallTree,
    /// Calls that lay too deep for the tracer, by tasks that called the handler: their time is their callers'.
    pub too_deep: u64,
}

/// Files that a run has open besides those of its probes, and some to spare.
const OTHER_FILES: usize = 128;

/// Counters of one handler since its probes were attached; all but `in_flight` only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Books {
    /// Calls entered.
    pub entries: u64,
    /// The same just before the drain. The drain reads `entries` after it has closed the records, with many
    /// handlers a tenth of a second later: calls entered in that time are not long calls under way. `None`
    /// where both are read at once.
    pub entered_before: Option<u64>,
    /// Calls whose start can never be paired.
    pub lost: u64,
    /// Exits without a start.
    pub unpaired_exits: u64,
    /// Programs that the kernel did not run.
    pub missed: u64,
    /// Whether the kernel does not report all of those.
    pub missed_unknown: bool,
    /// Calls that a full buffer had no room for, of all handlers of the session together: which were
    /// whose is not known.
    pub overrun: u64,
    /// Starts that are waiting for their exit now.
    pub in_flight: u64,
    /// Starts that had to leave their CPU's slot (nesting, sleep, interrupts).
    pub displaced: u64,
    /// Exits on another CPU than the entry's.
    pub migrated: u64,
    /// Upper bound on durations from the start of one call to the end of another.
    pub doubtful: u64,
    /// Entry programs that the kernel did not run, where there may be such durations: each takes one.
    pub skipped_entries: u64,
    /// Calls that left before they had entered, by the clock: they have no duration.
    pub backwards: u64,
}

impl Drained {
    /// Adds what the next drain gave to what is `pending` of those before.
    fn append(pending: &mut Option<Self>, newer: Self) {
        match pending {
            Some(sum) => {
                sum.durations += &newer.durations;
                sum.books = newer.books;
            }
            None => *pending = Some(newer),
        }
    }
}

impl Books {
    /// Counts starts whose exit the kernel skipped, and which therefore wait for ever, as lost and no
    /// longer as under way. `lost_before` is the number reported as lost so far.
    ///
    /// Where the kernel skipped the entry as well, no start waits; where it skipped the entry alone, the
    /// exit was unpaired.
    fn settle(&mut self, skipped_entries: u64, skipped_exits: u64, lost_before: u64) {
        let skipped_both = skipped_entries.saturating_sub(self.unpaired_exits);
        let orphans = skipped_exits.saturating_sub(skipped_both);
        let lost = orphans.max(lost_before).clamp(self.lost, self.lost + self.in_flight);
        self.in_flight -= lost - self.lost;
        self.lost = lost;
    }
}

/// Probes on a set of handlers. They are gone when it is dropped.
pub trait Session {
    /// The handlers, each with how it is measured, in the order of everything that [`drain`](Self::drain) returns.
    fn handlers(&self) -> Vec<(&Target, Backend)>;

    /// The same without how.
    fn targets(&self) -> Vec<&Target> {
        self.handlers().into_iter().map(|(target, _)| target).collect()
    }

    /// A tracing program on one of the handlers that is not ours: the handler and the program's
    /// id. `None` also where a backend cannot find out.
    ///
    /// # Errors
    /// When the kernel's links cannot be listed.
    fn foreign_program(&self) -> Result<Option<(String, u32)>, ProbeError> {
        Ok(None)
    }

    /// Takes what was measured since the last time.
    ///
    /// # Errors
    /// When the kernel's maps cannot be read; nothing that was counted is lost by it.
    fn drain(&mut self) -> Result<Vec<Drained>, ProbeError>;

    /// Until when the last drain has all calls; those that ended later are in the next one. `None` is
    /// until the drain returned.
    fn drained_until(&self) -> Option<Instant> {
        None
    }

    /// What drains that failed had already taken, in the order of [`drain`](Self::drain): for the end of a
    /// run, because the next drain that succeeds has it, too. Empty if there is nothing.
    fn undelivered(&mut self) -> Vec<Drained> {
        Vec::new()
    }

    /// Calls of each handler entered since the probes were attached; `None` where only a drain can
    /// count them.
    ///
    /// # Errors
    /// When the kernel's maps cannot be read.
    fn entries(&mut self) -> Result<Vec<Option<u64>>, ProbeError> {
        Ok(vec![None; self.handlers().len()])
    }

    /// The call tree so far, where [`Options::call_tree`] asked for it.
    ///
    /// # Errors
    /// When the functions in it cannot be named.
    fn call_tree(&mut self) -> Result<Option<Traced>, ProbeError> {
        Ok(None)
    }

    /// Takes the probes off the handlers; what they counted can still be drained.
    fn detach(&mut self);

    /// Takes the probes off one handler, by its index among [`targets`](Self::targets); programs and histograms stay, and what
    /// they counted can still be drained. Calls of it that are under way are lost, and counted so. `false` if the backend
    /// cannot: then it has to be attached anew without the handler.
    ///
    /// # Errors
    /// When the kernel's maps cannot be read. The probes are off.
    fn pause(&mut self, _place: usize) -> Result<bool, ProbeError> {
        Ok(false)
    }

    /// Puts them back; everything goes on counting. `false` if the backend, or this kernel, cannot: then it has to be attached
    /// anew.
    ///
    /// # Errors
    /// When the kernel refuses. The handler stays without probes.
    fn resume(&mut self, _place: usize) -> Result<bool, ProbeError> {
        Ok(false)
    }

    /// Bytes of kernel memory that the histograms take.
    fn memory_bytes(&self) -> u64;

    /// Whether programs address the histograms of the CPUs that were online at the start directly, or look them up;
    /// `None` where no programs count.
    fn is_direct(&self) -> Option<bool> {
        None
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::bucket::{COUNTERS_2, COUNTERS_3};

    use super::*;

    /// `(in_flight, lost)` of books that had `waiting` starts, `overwritten` ones and `unpaired` exits.
    fn settled(
        [waiting, overwritten, unpaired]: [u64; 3],
        [skipped_entries, skipped_exits]: [u64; 2],
        lost_before: u64,
    ) -> (u64, u64) {
        let mut books = Books {
            in_flight: waiting,
            lost: overwritten,
            unpaired_exits: unpaired,
            ..Books::default()
        };
        books.settle(skipped_entries, skipped_exits, lost_before);
        (books.in_flight, books.lost)
    }

    #[test]
    fn the_words_up_to_the_longest_are_those_of_all_that_are_shorter() {
        for (precision, last) in [(Precision::Two, COUNTERS_2), (Precision::Three, COUNTERS_3)] {
            let short = 1 << precision.magnitude();
            assert_eq!(precision.words_up_to(0), short / 2);
            assert_eq!(precision.words_up_to(short as u64 - 1), short / 2);
            assert_eq!(precision.words_up_to(short as u64), short / 2 + 1);
            assert_eq!(precision.words_up_to(2 * short as u64 - 1), short / 4 * 3);
            assert!(2 * precision.words_up_to(u64::MAX) <= last + 1);
        }
    }

    #[test]
    fn a_start_whose_exit_was_skipped_is_lost() {
        assert_eq!(settled([3, 0, 0], [0, 0], 0), (3, 0), "all under way");
        assert_eq!(settled([28, 0, 0], [0, 28], 0), (0, 28), "a deep recursion");
        assert_eq!(settled([29, 4, 0], [0, 32], 0), (1, 32), "some overwritten by the next");
        assert_eq!(settled([1, 0, 2], [2, 0], 0), (1, 0), "entries alone");
        assert_eq!(settled([1, 0, 0], [2, 2], 0), (1, 0), "calls without either");
        assert_eq!(settled([1, 0, 1], [3, 3], 0), (0, 1), "two without either, one without each");
    }

    #[test]
    fn what_was_told_to_be_lost_stays_so() {
        // The entry of a call under way was skipped, and its exit is not seen yet.
        assert_eq!(settled([1, 0, 0], [1, 1], 1), (0, 1));
        assert_eq!(settled([0, 5, 0], [0, 3], 0), (0, 5), "lost for want of room");
    }
}
