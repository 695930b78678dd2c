//! Adds up what is drained from a session over one measured window.

use super::{Books, Drained, Precision, Session};
use crate::kernel::target::Target;
use crate::recording::Backend;
use crate::recording::measure::{HandlerMeasure, Losses};
use crate::stats::Durations;

/// The sum of all drains of a window, a handler at a time.
#[derive(Debug, Clone)]
pub struct Recorder {
    handlers: Vec<HandlerStats>,
}

/// What was measured of a handler since its window began.
#[derive(Debug, Clone)]
pub(crate) struct HandlerStats {
    pub(crate) target: Target,
    backend: Backend,
    /// With those that are doubtful.
    pub(crate) durations: Durations,
    /// Calls paired since the probes were attached, before the window.
    paired_before: u64,
    /// Books when the window began.
    pub(crate) before: Books,
    /// Books at the last drain.
    pub(crate) now: Books,
    /// Books when the window ended.
    at_end: Option<Books>,
    /// Calls paired after that.
    paired_after: u64,
    /// Starts that waited at the first drain after the window began.
    waiting_next: Option<u64>,
}

impl Recorder {
    /// A recorder for the handlers of `session`, before its window starts.
    ///
    /// # Errors
    /// Never for the bounds used; the histogram library's own check is passed on.
    pub fn new(
        session: &dyn Session,
        precision: Precision,
    ) -> Result<Self, hdrhistogram::CreationError> {
        let handlers = session.targets().into_iter().zip(session.backends());
        let new = |(target, backend)| HandlerStats::new(target, backend, precision);
        Ok(Self { handlers: handlers.map(new).collect::<Result<_, _>>()? })
    }

    /// The handlers, in the order of the session.
    pub(crate) fn handlers(&self) -> &[HandlerStats] {
        &self.handlers
    }

    /// Begins the window, after everything up to `drained`.
    pub fn begin(&mut self, drained: &[Drained]) {
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            handler.paired_before += handler.durations.len() + drained.durations.len();
            handler.durations.reset();
            handler.before = drained.books;
            handler.now = drained.books;
            handler.waiting_next = None;
        }
    }

    /// Adds what was measured since the drain before.
    ///
    /// # Errors
    /// Never for histograms of one precision; the library's own check is passed on.
    pub fn add(&mut self, drained: &[Drained]) -> Result<(), hdrhistogram::AdditionError> {
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            handler.durations.add(&drained.durations)?;
            handler.waiting_next.get_or_insert(drained.books.in_flight);
            handler.now = drained.books;
        }
        Ok(())
    }

    /// Ends the window with the last drain: what comes later is for the books alone.
    pub fn end(&mut self) {
        for handler in &mut self.handlers {
            handler.at_end = Some(handler.now);
        }
    }

    /// Takes a drain after the window's end, so that the books may balance.
    pub fn settle(&mut self, drained: &[Drained]) {
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            handler.paired_after += drained.durations.len();
            handler.now = drained.books;
        }
    }

    /// Whether the books of all handlers balance. A call that entered after a drain and left before
    /// its books were read shows as an entry too many, until the next drain.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.handlers.iter().all(HandlerStats::is_balanced)
    }

    /// The window's measurements.
    #[must_use]
    pub fn finish(self) -> Vec<HandlerMeasure> {
        self.handlers.into_iter().map(HandlerStats::finish).collect()
    }
}

impl HandlerStats {
    fn new(
        target: &Target,
        backend: Backend,
        precision: Precision,
    ) -> Result<Self, hdrhistogram::CreationError> {
        Ok(Self {
            target: target.clone(),
            backend,
            durations: precision.durations()?,
            paired_before: 0,
            before: Books::default(),
            now: Books::default(),
            at_end: None,
            paired_after: 0,
            waiting_next: None,
        })
    }

    fn is_balanced(&self) -> bool {
        self.losses_by(&self.now).imbalance(self.durations.len() + self.paired_after) == 0
    }

    /// What was not measured so far. What is doubtful counts since the probes were attached, because the start of such a duration
    /// may be older than the window.
    pub(crate) fn losses_so_far(&self) -> Losses {
        Losses { doubtful: self.now.doubtful, ..self.losses_by(&self.now) }
    }

    /// Those of the window. Where the books balance in the end, calls under way at its ends are those that had
    /// entered before the drain there and were not in it.
    ///
    /// Calls that entered and left between that reading and the drain are in the drain alone: each would take
    /// a call that lasts off the books. So there are no fewer under way than starts that waited both when
    /// the drain read its books and when the next one did.
    fn losses(&self) -> Losses {
        let at_end = self.at_end.as_ref().unwrap_or(&self.now);
        let mut losses = self.losses_by(at_end);
        if self.at_end.is_some() && self.is_balanced() {
            let counted = self.durations.len() + losses.backwards;
            let gone = self.paired_before + self.before.lost + self.before.backwards;
            let under_way = |books: &Books, gone: u64, waiting_next: u64| {
                let at_most = books.entries.saturating_sub(gone);
                let entered = books.entered_before.unwrap_or(books.entries);
                let at_least = books.in_flight.min(waiting_next);
                entered.saturating_sub(gone).max(at_least).min(at_most)
            };
            losses.carried_in = under_way(&self.before, gone, self.waiting_next.unwrap_or(0));
            let gone = gone + counted + losses.lost;
            losses.in_flight = under_way(at_end, gone, self.now.in_flight);
            losses.entries =
                (counted + losses.lost + losses.in_flight).saturating_sub(losses.carried_in);
        }
        losses
    }

    fn losses_by(&self, now: &Books) -> Losses {
        let before = &self.before;
        let since = now.losses_since(before);
        Losses {
            // What had entered by then and was neither paired nor lost was under way.
            carried_in: before
                .entries
                .saturating_sub(self.paired_before + before.lost + before.backwards),
            entries: now.entries.saturating_sub(before.entries),
            exits: self.durations.len() + since.unpaired_exits + since.backwards,
            in_flight: now.in_flight,
            over_range: self.durations.over_range(),
            ..since
        }
    }

    /// Without what is doubtful.
    fn finish(mut self) -> HandlerMeasure {
        let mut losses = self.losses();
        let doubtful = self.at_end.as_ref().unwrap_or(&self.now).doubtful;
        losses.doubtful = self.durations.withhold(doubtful);
        losses.over_range = self.durations.over_range();
        let Self { target, backend, durations, .. } = self;
        HandlerMeasure { target, backend: Some(backend), durations, losses }
    }
}

#[cfg(test)]
impl Recorder {
    /// One of handlers of these names, whose window began with `at_begin`.
    pub(crate) fn of(names: &[&str], at_begin: &[Drained]) -> Self {
        let new = |name: &&str| {
            let target = Target { name: (*name).to_owned(), ..Target::default() };
            HandlerStats::new(&target, Backend::Fentry, Precision::Three).unwrap()
        };
        let mut recorder = Self { handlers: names.iter().map(new).collect() };
        recorder.begin(at_begin);
        recorder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drain of `calls` that ended, of `entries` that had begun when the books were read.
    fn drained(calls: u64, entries: u64) -> [Drained; 1] {
        drained_after(None, calls, entries, 0)
    }

    /// The same where `entered_before` calls had begun just before it, and `in_flight` starts waited when
    /// the books were read.
    fn drained_after(
        entered_before: Option<u64>,
        calls: u64,
        entries: u64,
        in_flight: u64,
    ) -> [Drained; 1] {
        let books = Books { entries, entered_before, in_flight, ..Books::default() };
        [Drained::of(&vec![100; calls as usize], books)]
    }

    fn recorder() -> Recorder {
        let handler =
            HandlerStats::new(&Target::default(), Backend::Fentry, Precision::Three).unwrap();
        Recorder { handlers: vec![handler] }
    }

    #[test]
    fn calls_of_the_time_that_a_drain_takes_are_not_under_way() {
        let mut recorder = recorder();
        // One call lasts over the beginning; 60 begin while the drain reads.
        recorder.begin(&drained_after(Some(11), 10, 71, 0));
        // Those 60, the one, and 40 more; two last over the end, and 50 begin while the drain reads.
        recorder.add(&drained_after(Some(113), 101, 163, 0)).unwrap();
        recorder.end();
        assert!(!recorder.is_balanced());
        recorder.settle(&drained(52, 163));
        assert!(recorder.is_balanced());
        let measure = recorder.finish().remove(0);
        let losses = measure.losses;
        assert_eq!((losses.carried_in, losses.entries, losses.in_flight), (1, 102, 2));
        assert_eq!((losses.exits, losses.imbalance(measure.durations.len())), (101, 0));
    }

    /// One call lasts over the whole window. Two enter and leave between the first reading of entries and
    /// the drain, and three while the drain reads, both when the window begins and when it ends.
    #[test]
    fn short_calls_before_a_drain_do_not_stand_for_one_that_lasts() {
        let mut recorder = recorder();
        recorder.begin(&drained_after(Some(9), 10, 14, 1));
        // Those three, 8 more, and the two.
        recorder.add(&drained_after(Some(22), 13, 27, 1)).unwrap();
        recorder.end();
        assert!(!recorder.is_balanced());
        recorder.settle(&drained_after(Some(27), 3, 27, 1));
        assert!(recorder.is_balanced());
        let measure = recorder.finish().remove(0);
        let losses = measure.losses;
        assert_eq!((losses.carried_in, losses.entries, losses.in_flight), (1, 13, 1));
        assert_eq!((losses.exits, losses.imbalance(measure.durations.len())), (13, 0));
    }

    #[test]
    fn a_start_that_waits_at_one_reading_alone_is_of_a_short_call() {
        let mut recorder = recorder();
        recorder.begin(&drained_after(Some(10), 10, 15, 2));
        recorder.add(&drained_after(Some(30), 20, 34, 0)).unwrap();
        recorder.add(&drained_after(Some(34), 4, 39, 2)).unwrap();
        recorder.end();
        assert!(!recorder.is_balanced());
        recorder.settle(&drained(5, 39));
        assert!(recorder.is_balanced());
        let measure = recorder.finish().remove(0);
        let losses = measure.losses;
        assert_eq!((losses.carried_in, losses.entries, losses.in_flight), (0, 24, 0));
        assert_eq!(losses.imbalance(measure.durations.len()), 0);
    }

    #[test]
    fn books_that_do_not_balance_are_shown_as_they_were_read() {
        let mut recorder = recorder();
        recorder.begin(&drained_after(Some(0), 0, 0, 0));
        recorder.add(&drained_after(Some(10), 8, 12, 0)).unwrap();
        recorder.end();
        recorder.settle(&drained(1, 12));
        let losses = recorder.finish().remove(0).losses;
        assert_eq!((losses.carried_in, losses.entries, losses.in_flight), (0, 12, 0));
        assert_eq!(losses.imbalance(8), 4);
    }
}
