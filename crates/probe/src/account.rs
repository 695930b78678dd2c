//! The books of one handler: from counters since its probes were attached to the losses of a window or an interval.

use profiler_recording::measure::Losses;

use super::{Books, Drained};

/// Calls and counters of a handler at a drain, since its probes were attached.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    /// Calls paired so far.
    paired: u64,
    /// What the programs have counted.
    pub books: Books,
}

/// One end of a window.
#[derive(Debug, Clone, Copy)]
pub struct Edge {
    /// Calls under way when the drain took the durations, and those entered by then.
    under_way: u64,
    entered: u64,
}

impl Reading {
    /// Goes on to the next drain.
    pub fn take(&mut self, drained: &Drained) {
        self.paired += drained.durations.len();
        self.books = drained.books;
    }

    fn gone(&self) -> u64 {
        self.paired + self.books.lost + self.books.backwards
    }

    /// Whether the calls that were not paired are those that wait for their exit. A call that entered after a drain and
    /// left before its books were read shows as an entry too many, until the next drain.
    pub(crate) fn is_balanced(&self) -> bool {
        self.books.entries == self.gone() + self.books.in_flight
    }

    /// Entries that the drain counted, if it had all these calls: none was under way, and none left between the drain
    /// and the reading of its counters, which is in the next drain.
    pub fn settled_entries(&self) -> Option<u64> {
        (self.books.entries == self.gone()).then_some(self.books.entries)
    }

    /// The end of a window after which more may come. The drain reads its counters a little later than its durations:
    /// what had entered by a reading just before it and was not gone was under way.
    ///
    /// Calls that entered and left between that reading and the drain are in the drain alone: each would take a call
    /// that lasts off the books. So there are no fewer under way than starts that waited both when the drain read its
    /// books and when the next one did, which is `waiting_next`. Where that is not known (0), these are too few in this
    /// window and by as many too many in the next one: over all windows the sum is exact.
    pub fn settled(&self, waiting_next: u64) -> Edge {
        let Books { entries, entered_before, in_flight, .. } = self.books;
        let at_most = entries.saturating_sub(self.gone());
        let before = entered_before.unwrap_or(entries).saturating_sub(self.gone());
        let under_way = before.max(in_flight.min(waiting_next)).min(at_most);
        Edge { under_way, entered: self.gone() + under_way }
    }

    /// The beginning of a window whose end is [as it was read](Self::as_read): what had entered and was not gone was under way.
    pub(crate) fn not_gone(&self) -> Edge {
        let under_way = self.books.entries.saturating_sub(self.gone());
        Edge { under_way, entered: self.gone() + under_way }
    }

    /// The end after which nothing comes: the counters themselves have to balance.
    pub fn as_read(&self) -> Edge {
        Edge { under_way: self.books.in_flight, entered: self.books.entries }
    }

    /// What was not measured since `began`; what is doubtful or beyond the range is left to the caller, which knows the
    /// durations.
    pub fn losses_since(&self, began: &Self, [from, to]: [Edge; 2]) -> Losses {
        let (now, before) = (&self.books, &began.books);
        let unpaired_exits = now.unpaired_exits.saturating_sub(before.unpaired_exits);
        let backwards = now.backwards.saturating_sub(before.backwards);
        Losses {
            carried_in: from.under_way,
            entries: to.entered.saturating_sub(from.entered),
            exits: self.paired - began.paired + unpaired_exits + backwards,
            in_flight: to.under_way,
            lost: now.lost.saturating_sub(before.lost),
            unpaired_exits,
            missed: now.missed.saturating_sub(before.missed),
            missed_unknown: now.missed_unknown,
            overrun: now.overrun.saturating_sub(before.overrun),
            backwards,
            ..Losses::default()
        }
    }
}

/// How many calls may be mispaired. A false duration ends with a call whose entry was skipped: since the last time that
/// [`Doubt::age`] was called, or since the time before if it was under way in between. The start that it took may be of
/// any time.
#[derive(Debug, Clone, Copy)]
pub struct Doubt {
    /// Entries that the kernel had skipped at these two times.
    skipped_by: [u64; 2],
}

impl Doubt {
    /// What was skipped before counts as the time before.
    pub fn since(books: &Books) -> Self {
        Self { skipped_by: [0, books.skipped_entries] }
    }

    /// So many of the longest durations may be false.
    pub fn at(&self, now: &Books) -> u64 {
        now.doubtful.min(now.skipped_entries.saturating_sub(self.skipped_by[0]))
    }

    /// Forgets entries that were skipped before the last call of this.
    pub fn age(&mut self, now: &Books) {
        self.skipped_by = [self.skipped_by[1], now.skipped_entries];
    }
}
