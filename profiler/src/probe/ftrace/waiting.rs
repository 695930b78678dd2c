//! Events in the order in which all CPUs wrote them.
//!
//! An event waits until everything that the other CPUs wrote before it has been read.

/// Something that happened at a time of the buffers' clock.
pub(super) trait Timed {
    /// That time.
    fn time(&self) -> u64;
}

/// Events that wait for those of other CPUs.
pub(super) struct Waiting<T> {
    events: Vec<T>,
    /// Latest event that was read before this round.
    read_before: u64,
    /// Latest event that was read.
    read_until: u64,
}

impl<T: Timed> Waiting<T> {
    pub(super) fn new() -> Self {
        Self { events: Vec::new(), read_before: 0, read_until: 0 }
    }

    /// Notes that an event of this time was read, whether it has to wait or not.
    #[inline]
    pub(super) fn read(&mut self, time: u64) {
        self.read_until = self.read_until.max(time);
    }

    /// Adds an event that was read; the caller keeps the order of each CPU's events.
    #[inline]
    pub(super) fn push(&mut self, event: T) {
        self.events.push(event);
    }

    /// Ends a round in which all CPUs were read, each at least to the time `read_to`: what was read in the rounds
    /// before, in order, because whatever happened before that has been read by now.
    pub(super) fn end_round(&mut self, read_to: u64) -> Vec<T> {
        let until = self.read_before.min(read_to);
        self.read_before = self.read_until;
        self.until(until)
    }

    /// All of them, in order: nothing more will come.
    pub(super) fn finish(&mut self) -> Vec<T> {
        self.until(u64::MAX)
    }

    fn until(&mut self, until: u64) -> Vec<T> {
        // Of events with one time, those of a CPU stay in order.
        self.events.sort_by_key(T::time);
        let later = self.events.partition_point(|event| event.time() <= until);
        let later = self.events.split_off(later);
        std::mem::replace(&mut self.events, later)
    }
}
