//! Adds up what is drained from a session over one measured window.

use profiler_kernel::target::Target;
use profiler_recording::Backend;
use profiler_recording::measure::{HandlerMeasure, Losses};

use super::account::Reading;
use super::{Drained, Precision};

/// The sum of all drains of a window, a handler at a time.
#[derive(Debug, Clone)]
pub struct Recorder {
    handlers: Vec<HandlerStats>,
}

/// What was measured of a handler since its window began.
#[derive(Debug, Clone)]
pub struct HandlerStats {
    /// Its durations are with those that are doubtful.
    pub measure: HandlerMeasure,
    pub(crate) began: Reading,
    /// At the last drain.
    pub(crate) now: Reading,
    at_end: Option<Reading>,
    /// Starts that waited at the first drain after the window began.
    waiting_next: Option<u64>,
}

impl Recorder {
    /// A recorder for the [handlers of a session](super::Session::handlers), before its window starts.
    pub fn new(handlers: Vec<(&Target, Backend)>, precision: Precision) -> Self {
        let handlers = handlers.into_iter();
        let handlers = handlers.map(|(target, by)| HandlerStats::new(target, by, precision));
        Self { handlers: handlers.collect() }
    }

    /// The handlers, in the order of the session.
    pub fn handlers(&self) -> &[HandlerStats] {
        &self.handlers
    }

    /// Begins the window, after everything up to `drained`.
    pub fn begin(&mut self, drained: &[Drained]) {
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            handler.now.take(drained);
            handler.began = handler.now;
            handler.measure.durations.reset();
            handler.waiting_next = None;
        }
    }

    /// Adds what was measured since the drain before.
    pub fn add(&mut self, drained: &[Drained]) {
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            handler.now.take(drained);
            handler.measure.durations += &drained.durations;
            handler.waiting_next.get_or_insert(drained.books.in_flight);
        }
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
            handler.now.take(drained);
        }
    }

    /// Whether the books of all handlers balance.
    pub fn is_balanced(&self) -> bool {
        self.handlers.iter().all(|handler| handler.now.is_balanced())
    }

    /// The window's measurements.
    pub fn finish(self) -> Vec<HandlerMeasure> {
        self.handlers.into_iter().map(HandlerStats::finish).collect()
    }
}

impl HandlerStats {
    fn new(target: &Target, backend: Backend, precision: Precision) -> Self {
        Self {
            measure: HandlerMeasure::empty(target.clone(), Some(backend), precision.durations()),
            began: Reading::default(),
            now: Reading::default(),
            at_end: None,
            waiting_next: None,
        }
    }

    /// What was not measured so far. What is doubtful counts since the probes were attached, because the start of such a
    /// duration may be older than the window.
    ///
    /// Books that do not balance in the end are shown as they were read.
    pub fn losses(&self) -> Losses {
        let now = self.at_end.as_ref().unwrap_or(&self.now);
        let edges = match self.at_end.is_some() && self.now.is_balanced() {
            true => [
                self.began.settled(self.waiting_next.unwrap_or(0)),
                now.settled(self.now.books.in_flight),
            ],
            false => [self.began.not_gone(), now.as_read()],
        };
        let over_range = self.measure.durations.over_range();
        let losses = now.losses_since(&self.began, edges);
        Losses { doubtful: now.books.doubtful, over_range, ..losses }
    }

    /// Without what is doubtful.
    fn finish(mut self) -> HandlerMeasure {
        let losses = self.losses();
        let durations = &mut self.measure.durations;
        let doubtful = durations.withhold(losses.doubtful);
        self.measure.losses = Losses { doubtful, over_range: durations.over_range(), ..losses };
        self.measure
    }
}

#[cfg(test)]
mod tests {
    use super::super::Books;
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
        let mut durations = Precision::Three.durations();
        (0..calls).for_each(|_| durations.record(100));
        [Drained { durations, books }]
    }

    fn recorder() -> Recorder {
        Recorder::new(vec![(&Target::default(), Backend::Fentry)], Precision::Three)
    }

    #[test]
    fn calls_of_the_time_that_a_drain_takes_are_not_under_way() {
        let mut recorder = recorder();
        // One call lasts over the beginning; 60 begin while the drain reads.
        recorder.begin(&drained_after(Some(11), 10, 71, 0));
        // Those 60, the one, and 40 more; two last over the end, and 50 begin while the drain reads.
        recorder.add(&drained_after(Some(113), 101, 163, 0));
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
        recorder.add(&drained_after(Some(22), 13, 27, 1));
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
        recorder.add(&drained_after(Some(30), 20, 34, 0));
        recorder.add(&drained_after(Some(34), 4, 39, 2));
        recorder.end();
        assert!(!recorder.is_balanced());
        recorder.settle(&drained(5, 39));
        assert!(recorder.is_balanced());
        let measure = recorder.finish().remove(0);
        let losses = measure.losses;
        assert_eq!((losses.carried_in, losses.entries, losses.in_flight), (0, 24, 0));
        assert_eq!(losses.imbalance(measure.durations.len()), 0);
    }

    /// It entered between the first reading of entries and the drain.
    #[test]
    fn a_call_that_waited_at_the_beginning_is_carried_in_while_the_window_lasts() {
        let mut recorder = recorder();
        recorder.begin(&drained_after(Some(0), 0, 1, 1));
        recorder.add(&drained_after(Some(1), 1, 1, 0));
        let losses = recorder.handlers()[0].losses();
        assert_eq!((losses.carried_in, losses.entries, losses.exits), (1, 0, 1));
        assert_eq!(losses.imbalance(1), 0);
    }

    #[test]
    fn books_that_do_not_balance_are_shown_as_they_were_read() {
        let mut recorder = recorder();
        recorder.begin(&drained_after(Some(0), 0, 0, 0));
        recorder.add(&drained_after(Some(10), 8, 12, 0));
        recorder.end();
        recorder.settle(&drained(1, 12));
        let losses = recorder.finish().remove(0).losses;
        assert_eq!((losses.carried_in, losses.entries, losses.in_flight), (0, 12, 0));
        assert_eq!(losses.imbalance(8), 4);
    }
}
