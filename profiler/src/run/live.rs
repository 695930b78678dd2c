//! The table that a terminal shows while a run goes on.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use comfy_table::Row;

use super::{Error, internal};
use crate::export::cell::clean;
use crate::export::grid;
use crate::kernel::target::Target;
use crate::probe::{Books, Drained, Precision};
use crate::recording::measure::Losses;
use crate::stats::Durations;

/// How often it is drawn anew; each time the records are drained.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// Rates that a sparkline shows.
const HISTORY: usize = 20;

/// What the terminal shows of each handler, since the window began.
pub(super) struct Live {
    handlers: Vec<Handler>,
    last: Instant,
}

struct Handler {
    name: String,
    durations: Durations,
    /// When the window began.
    before: Books,
    /// Since then; `doubtful` is how many of the longest are not shown.
    losses: Losses,
    /// Calls per second between drawings, oldest first.
    rates: VecDeque<f64>,
}

impl Live {
    /// A table without calls, for a window that begins now, as `at_begin` was drained.
    pub(super) fn new(
        targets: &[&Target],
        at_begin: &[Drained],
        precision: Precision,
        now: Instant,
    ) -> Result<Self, Error> {
        let handlers = targets.iter().zip(at_begin).map(|(target, drained)| {
            Ok(Handler {
                name: target.label(),
                durations: precision.durations().map_err(|error| internal(&error.to_string()))?,
                before: drained.books,
                losses: Losses::default(),
                rates: VecDeque::new(),
            })
        });
        Ok(Self { handlers: handlers.collect::<Result<_, Error>>()?, last: now })
    }

    /// Adds what was measured since the last time.
    pub(super) fn add(&mut self, drained: &[Drained], now: Instant) -> Result<(), Error> {
        let seconds = (now - self.last).as_secs_f64().max(1e-3);
        self.last = now;
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            let added = handler.durations.add(&drained.durations);
            added.map_err(|error| internal(&error.to_string()))?;
            let losses = drained.books.losses_since(&handler.before);
            handler.losses = Losses { doubtful: drained.books.doubtful, ..losses };
            if handler.rates.len() == HISTORY {
                handler.rates.pop_front();
            }
            handler.rates.push_back(drained.durations.len() as f64 / seconds);
        }
        Ok(())
    }

    /// The table, in `lines` lines at most: handlers that have no room are counted in the last one.
    pub(super) fn text(&self, lines: usize) -> String {
        let header =
            ["handler", "calls/s", "", "calls", "TP50 [us]", "TP99 [us]", "max [us]", "lost"];
        // Its head, the rule below it, and the line that counts the rest.
        let room = lines.saturating_sub(3).max(1);
        let rows = self.handlers.iter().take(room).map(Handler::row);
        let mut text = grid::figures(&header, rows, None);
        if self.handlers.len() > room {
            text.push_str(&format!("\nand {} more handlers", self.handlers.len() - room));
        }
        text
    }
}

impl Handler {
    fn row(&self) -> Row {
        let micros = |ns: Option<u64>| {
            ns.map_or("-".to_owned(), |ns| format!("{}.{:03}", ns / 1000, ns % 1000))
        };
        let mut durations = Cow::Borrowed(&self.durations);
        if self.losses.doubtful > 0 {
            durations.to_mut().withhold(self.losses.doubtful);
        }
        Row::from([
            clean(&self.name).into_owned(),
            format!("{:.0}", self.rates.back().copied().unwrap_or(0.0)),
            sparkline(&self.rates),
            durations.len().to_string(),
            micros(durations.quantile_ns(0.5)),
            micros(durations.quantile_ns(0.99)),
            micros(durations.max_ns()),
            self.losses.unmeasured().to_string(),
        ])
    }
}

/// One block a value, as high as its share of the largest; no call at all is a space.
fn sparkline(values: &VecDeque<f64>) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let top = values.iter().copied().fold(0.0, f64::max);
    let block = |value: &f64| {
        if *value <= 0.0 {
            return ' ';
        }
        let level = (value / top * 8.0).ceil() as usize;
        BLOCKS[level.clamp(1, 8) - 1]
    };
    values.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Target {
        Target { name: name.to_owned(), module: None, address: 0, ..Target::default() }
    }

    fn drained(durations: &[u64], lost: u64) -> Drained {
        Drained::of(durations, Books { lost, ..Books::default() })
    }

    fn none() -> Drained {
        drained(&[], 0)
    }

    #[test]
    fn the_table_adds_up_and_its_rates_do_not() {
        let (busy, idle) = (target("busy"), target("idle"));
        let start = Instant::now();
        let mut live =
            Live::new(&[&busy, &idle], &[none(), none()], Precision::Three, start).unwrap();
        let second = Duration::from_secs(1);
        live.add(&[drained(&[1500; 40], 0), drained(&[], 0)], start + second).unwrap();
        live.add(&[drained(&[2500; 10], 3), drained(&[], 0)], start + 2 * second).unwrap();
        let text = live.text(10);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["busy", "10", "█▂", "50", "1.500", "2.500", "2.500", "3"]);
        assert_eq!(rows[1], ["idle", "0", "0", "-", "-", "-", "0"]);
    }

    #[test]
    fn what_is_lost_is_what_a_recording_calls_so_since_the_window_began() {
        let books = |lost, overrun| Books { lost, overrun, backwards: 1, ..Books::default() };
        let drained = |lost, overrun| Drained::of(&[], books(lost, overrun));
        let (one, other, start) = (target("one"), target("other"), Instant::now());
        let at_begin = [drained(2, 10), drained(0, 10)];
        let mut live = Live::new(&[&one, &other], &at_begin, Precision::Three, start).unwrap();
        live.add(&[drained(3, 17), drained(0, 17)], start + Duration::from_secs(1)).unwrap();
        let text = live.text(10);
        let lost: Vec<_> =
            text.lines().skip(2).filter_map(|row| row.split_whitespace().next_back()).collect();
        assert_eq!(lost, ["8", "7"], "each may have lost all 7 of the session");
    }

    #[test]
    fn a_low_terminal_shows_the_first_handlers() {
        let targets: Vec<Target> = (0..60).map(|n| target(&format!("h{n}"))).collect();
        let none: Vec<Drained> = targets.iter().map(|_| none()).collect();
        let targets: Vec<&Target> = targets.iter().collect();
        let live = Live::new(&targets, &none, Precision::Two, Instant::now()).unwrap();
        let text = live.text(12);
        assert_eq!(text.lines().count(), 12);
        assert!(text.ends_with("and 51 more handlers"), "{text}");
        assert!(text.contains("h8") && !text.contains("h9"), "{text}");
    }

    #[test]
    fn sparklines_are_as_long_as_their_history() {
        let live = target("x");
        let start = Instant::now();
        let mut table = Live::new(&[&live], &[none()], Precision::Two, start).unwrap();
        for n in 1..=(HISTORY as u32 + 9) {
            table.add(&[drained(&[5; 3], 0)], start + Duration::from_secs(1) * n).unwrap();
        }
        assert_eq!(sparkline(&table.handlers[0].rates).chars().count(), HISTORY);
    }
}
