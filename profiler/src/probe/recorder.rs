//! Adds up what is drained from a session over one measured window.

use hdrhistogram::Histogram;

use super::{Books, Drained, Precision, Session, doubtful::Durations};
use crate::measure::{HandlerMeasure, Losses, SelfTime};
use crate::profile::Backend;
use crate::target::Target;

/// The sum of all drains of a window, a handler at a time.
pub struct Recorder {
    handlers: Vec<Handler>,
}

struct Handler {
    target: Target,
    backend: Backend,
    histogram: Histogram<u64>,
    sum_ns: u64,
    min_ns: Option<u64>,
    max_ns: Option<u64>,
    over_range: u64,
    self_time: Option<SelfTime>,
    /// Calls paired since the probes were attached, before the window.
    paired_before: u64,
    /// Books when the window began.
    before: Books,
    /// Books at the last drain.
    now: Books,
    /// Books when the window ended.
    at_end: Option<Books>,
    /// Calls paired after that.
    paired_after: u64,
}

impl Recorder {
    /// A recorder for the handlers of `session`, whose window has not begun.
    ///
    /// # Errors
    /// Never for the bounds used; the histogram library's own check is passed on.
    pub fn new(
        session: &dyn Session,
        precision: Precision,
    ) -> Result<Self, hdrhistogram::CreationError> {
        let handlers =
            session.targets().into_iter().zip(session.backends()).map(|(target, backend)| {
                Ok(Handler {
                    target: target.clone(),
                    backend,
                    histogram: precision.histogram()?,
                    sum_ns: 0,
                    min_ns: None,
                    max_ns: None,
                    over_range: 0,
                    self_time: None,
                    paired_before: 0,
                    before: Books::default(),
                    now: Books::default(),
                    at_end: None,
                    paired_after: 0,
                })
            });
        Ok(Self { handlers: handlers.collect::<Result<_, _>>()? })
    }

    /// Begins the window: what was counted until `drained` is not of it.
    pub fn begin(&mut self, drained: &[Drained]) {
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            handler.paired_before += handler.histogram.len() + drained.histogram.len();
            handler.histogram.reset();
            handler.sum_ns = 0;
            handler.min_ns = None;
            handler.max_ns = None;
            handler.over_range = 0;
            handler.self_time = None;
            handler.before = drained.books;
            handler.now = drained.books;
        }
    }

    /// Adds what was measured since the drain before.
    ///
    /// # Errors
    /// Never for histograms of one precision; the library's own check is passed on.
    pub fn add(&mut self, drained: &[Drained]) -> Result<(), hdrhistogram::AdditionError> {
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            handler.histogram.add(&drained.histogram)?;
            handler.sum_ns += drained.sum_ns;
            handler.min_ns = [handler.min_ns, drained.min_ns].into_iter().flatten().min();
            handler.max_ns = handler.max_ns.max(drained.max_ns);
            handler.over_range += drained.over_range;
            match (&mut handler.self_time, &drained.self_time) {
                (Some(sum), Some(more)) => sum.add(more)?,
                (sum, more) => *sum = sum.take().or_else(|| more.clone()),
            }
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
            handler.paired_after += drained.histogram.len();
            handler.now = drained.books;
        }
    }

    /// Whether the books of all handlers balance. A call that entered after a drain and left before
    /// its books were read shows as an entry too many, until the next drain.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.handlers.iter().all(Handler::is_balanced)
    }

    /// The window's measurements.
    #[must_use]
    pub fn finish(self) -> Vec<HandlerMeasure> {
        self.handlers.into_iter().map(Handler::finish).collect()
    }
}

impl Handler {
    fn is_balanced(&self) -> bool {
        self.losses_by(&self.now).imbalance(self.histogram.len() + self.paired_after) == 0
    }

    /// Those of the window. Entries are read a moment after the records of the last drain were closed: where
    /// the books balance in the end, calls that entered in between are among those under way.
    fn losses(&self) -> Losses {
        let mut losses = self.losses_by(self.at_end.as_ref().unwrap_or(&self.now));
        if self.at_end.is_some() && self.is_balanced() {
            let entered = losses.carried_in + losses.entries;
            let ended = self.histogram.len() + losses.lost + losses.backwards;
            losses.in_flight = entered.saturating_sub(ended);
        }
        losses
    }

    fn losses_by(&self, now: &Books) -> Losses {
        let before = &self.before;
        let unpaired_exits = now.unpaired_exits.saturating_sub(before.unpaired_exits);
        let backwards = now.backwards.saturating_sub(before.backwards);
        Losses {
            // What had entered by then and was neither paired nor lost was under way.
            carried_in: before
                .entries
                .saturating_sub(self.paired_before + before.lost + before.backwards),
            entries: now.entries.saturating_sub(before.entries),
            exits: self.histogram.len() + unpaired_exits + backwards,
            in_flight: now.in_flight,
            lost: now.lost.saturating_sub(before.lost),
            unpaired_exits,
            missed: now.missed.saturating_sub(before.missed),
            missed_unknown: now.missed_unknown,
            overrun: now.overrun.saturating_sub(before.overrun),
            over_range: self.over_range,
            doubtful: 0,
            backwards,
        }
    }

    /// Without what is doubtful: that there is of it since the probes were attached, because the start of
    /// such a duration may be older than the window.
    fn finish(mut self) -> HandlerMeasure {
        let mut losses = self.losses();
        let doubtful = self.at_end.as_ref().unwrap_or(&self.now).doubtful;
        let (histogram, sum_ns) = (&mut self.histogram, &mut self.sum_ns);
        losses.doubtful =
            Durations { histogram, sum_ns, max_ns: &mut self.max_ns }.withhold(doubtful);
        if losses.doubtful > 0 {
            losses.over_range = losses.over_range.saturating_sub(losses.doubtful);
            self.min_ns = self.max_ns.and(self.min_ns);
            if let Some(own) = &mut self.self_time {
                own.withhold(doubtful, self.sum_ns);
            }
        }
        HandlerMeasure {
            losses,
            backend: self.backend,
            target: self.target,
            histogram: self.histogram,
            sum_ns: self.sum_ns,
            min_ns: self.min_ns,
            max_ns: self.max_ns,
            self_time: self.self_time,
        }
    }
}
