//! The books of one handler, interval by interval.

use profiler_base::stats::Durations;
use profiler_probe::Drained;
use profiler_probe::account::{Doubt, Reading};
use profiler_recording::measure::Losses;

/// The books of one handler since its probes were attached.
#[derive(Debug)]
pub(super) struct Account {
    /// At the last drain, and when the interval began.
    pub(super) now: Reading,
    began: Reading,
    /// Durations left out as doubtful since the interval began.
    doubtful: u64,
    doubt: Doubt,
}

impl Account {
    /// Begins with the first drain, whose calls count as earlier ones.
    pub(super) fn begin(first: &Drained) -> Self {
        let mut now = Reading::default();
        now.take(first);
        Self { now, began: now, doubtful: 0, doubt: Doubt::since(&first.books) }
    }

    /// Adds the next drain, and drops doubtful durations from it. Each drain is final, so that sums of drains never shrink.
    pub(super) fn add_drain(&mut self, drained: &mut Drained) {
        self.now.take(drained);
        self.doubtful += drained.durations.withhold(self.doubt.at(&drained.books));
    }

    /// Forgets entries that were skipped before the previous call of this function.
    pub(super) fn age(&mut self) {
        self.doubt.age(&self.now.books);
    }

    /// The losses of the interval so far, which has these durations. If the last drain was after the probes were off
    /// (`is_over`), the counters themselves have to balance.
    pub(super) fn losses(&self, durations: &Durations, is_over: bool) -> Losses {
        let now = &self.now;
        let to = if is_over { now.as_read() } else { now.settled(0) };
        Losses {
            over_range: durations.over_range(),
            doubtful: self.doubtful,
            ..now.losses_since(&self.began, [self.began.settled(0), to])
        }
    }

    /// Ends the interval with the last drain, and begins the next there.
    pub(super) fn close(&mut self) {
        (self.began, self.doubtful) = (self.now, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use profiler_probe::Books;

    fn drained(calls: &[u64], books: Books) -> Drained {
        profiler_tests::drained(calls, books)
    }

    fn books(entered_before: u64, entries: u64, in_flight: u64) -> Books {
        Books { entries, entered_before: Some(entered_before), in_flight, ..Books::default() }
    }

    #[test]
    fn calls_under_way_pass_from_interval_to_interval() {
        // One call lasts over the beginning; 60 begin while the drain reads.
        let mut account = Account::begin(&drained(&[100; 10], books(11, 71, 0)));
        let mut next = drained(&[100; 101], books(113, 163, 4));
        account.add_drain(&mut next);
        let losses = account.losses(&next.durations, false);
        assert_eq!((losses.carried_in, losses.entries, losses.in_flight), (1, 102, 2));
        assert_eq!((losses.exits, losses.imbalance(101)), (101, 0));
        account.close();
        let mut last = drained(&[100; 52], books(163, 163, 0));
        account.add_drain(&mut last);
        let losses = account.losses(&last.durations, true);
        assert_eq!((losses.carried_in, losses.entries, losses.in_flight), (2, 50, 0));
        assert_eq!(losses.imbalance(52), 0);
    }

    #[test]
    fn an_entry_that_is_never_accounted_for_shows_at_the_end() {
        let mut account = Account::begin(&drained(&[], books(0, 0, 0)));
        let mut next = drained(&[100; 5], books(6, 6, 0));
        account.add_drain(&mut next);
        assert_eq!(account.losses(&next.durations, false).imbalance(5), 0, "it may be under way");
        assert_eq!(account.losses(&next.durations, true).imbalance(5), 1);
    }

    #[test]
    fn what_may_be_false_is_left_out_once_and_for_all() {
        let of =
            |doubtful, skipped_entries| Books { doubtful, skipped_entries, ..Books::default() };
        let long = [100, 200, 9_000_000];
        let mut account = Account::begin(&drained(&[], of(0, 0)));
        let mut figures = Vec::new();
        for (doubtful, skipped) in [(0, 0), (1, 1), (1, 1), (1, 1), (1, 5)] {
            let mut next = drained(&long, of(doubtful, skipped));
            account.add_drain(&mut next);
            account.age();
            figures.push((next.durations.len(), account.losses(&next.durations, false).doubtful));
        }
        assert_eq!(figures, [(3, 0), (2, 1), (2, 2), (3, 2), (2, 3)]);
    }

    proptest! {
        /// Whatever is read when: intervals balance, and their entries add up to those of all time.
        #[test]
        fn intervals_add_up(
            steps in prop::collection::vec((0_u64..50, 0_u64..50, 0_u64..20, 0_u64..5, any::<bool>()), 1..40)
        ) {
            let mut account = Account::begin(&drained(&[], books(0, 0, 0)));
            let (mut entered, mut gone, mut lost, mut open) = (0, 0, 0, Vec::new());
            let mut all = Losses::default();
            let mut calls = 0;
            let mut durations = drained(&[], Books::default()).durations;
            for (enter, leave, during, lose, closes) in steps {
                entered += enter;
                let left = leave.min(entered - gone);
                gone += left;
                let lose = lose.min(entered - gone);
                (lost, gone) = (lost + lose, gone + lose);
                let mut of = books(entered, entered + during, entered + during - gone);
                of.lost = lost;
                entered += during;
                let mut next = drained(&vec![7; left as usize], of);
                account.add_drain(&mut next);
                durations += &next.durations;
                let losses = account.losses(&durations, false);
                prop_assert_eq!(losses.imbalance(durations.len()), 0);
                if closes {
                    account.close();
                    calls += durations.len();
                    open.push(losses);
                    durations.reset();
                }
            }
            let last = account.losses(&durations, true);
            prop_assert_eq!(last.imbalance(durations.len()), 0);
            for losses in open.iter().chain([&last]) {
                all += *losses;
            }
            prop_assert_eq!(all.entries, entered);
            prop_assert_eq!(all.exits, calls + durations.len());
            // What one interval hands on, the next takes over.
            prop_assert_eq!(all.in_flight - all.carried_in, entered - gone);
        }
    }
}
