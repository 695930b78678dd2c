//! The budget: what probes may cost, and which handlers are shed while they cost more.
//!
//! The overhead of a handler is `hits per second x cost of a hit`, the CPU time that its probes add to its callers, plus an
//! equal part of the CPU time that the daemon itself takes. It is a share of one CPU, and the limit is one for each handler.
//! Nothing here reads a clock or attaches a probe: the same rates at the same times give the same decisions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a handler stays shed before it is tried again; each failed trial doubles it.
pub(super) const FIRST_WAIT: Duration = Duration::from_secs(60);

/// The longest that it doubles to.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Share of the limit that a handler may be expected to take when it is taken up again: one at the limit itself would be shed
/// and taken up in turns.
const ROOM: f64 = 0.8;

/// A share of one CPU in words: `0.1%`.
pub(super) fn percent(share: f64) -> String {
    // Rates are not known to four digits; rounding hides that 0.1 is no binary fraction.
    let percent = format!("{:.4}", share * 100.0);
    format!("{}%", percent.trim_end_matches('0').trim_end_matches('.'))
}

/// NaN and negative values count as 0.
fn positive(number: f64) -> f64 {
    if number > 0.0 { number.min(f64::MAX) } else { 0.0 }
}

/// A change of what is measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// Take its probes off: its overhead, as a share of one CPU.
    Shed(String, f64),
    /// Put them back.
    TakeUp(String),
}

/// Decides which handlers are measured.
#[derive(Debug)]
pub(super) struct Budget {
    cost_s: f64,
    /// Handlers that were shed at some time.
    known: BTreeMap<String, Known>,
    overhead: f64,
}

/// A handler that was shed at some time.
#[derive(Debug, Clone, Copy)]
struct Known {
    is_shed: bool,
    /// When it was shed or taken up.
    since: Instant,
    /// How long it stays shed.
    wait: Duration,
    /// Hits per second when it was shed; later ones are not seen.
    rate: f64,
}

impl Budget {
    /// A budget where a hit costs `cost_ns` nanoseconds of CPU time.
    pub(super) fn new(cost_ns: f64) -> Self {
        Self { cost_s: positive(cost_ns) / 1e9, known: BTreeMap::new(), overhead: 0.0 }
    }

    /// Cost of all probes by the rates of the last decision, as a share of one CPU.
    pub(super) const fn overhead(&self) -> f64 {
        self.overhead
    }

    /// Handlers that are shed now, by name.
    pub(super) fn shed(&self) -> impl Iterator<Item = &str> {
        self.known.iter().filter(|(_, known)| known.is_shed).map(|(name, _)| name.as_str())
    }

    /// When the first of the shed handlers is tried again at the latest; `None` if none is shed.
    pub(super) fn next_trial(&self) -> Option<Instant> {
        let shed = self.known.values().filter(|known| known.is_shed);
        shed.map(|known| known.since + known.wait).min()
    }

    /// Decides what to change now. `rates` are the hits per second of all measured handlers since the last decision; `part` is
    /// what each handler, measured or shed, bears of the daemon's own time for measuring, and `limit` what it may cost, both as
    /// shares of one CPU.
    ///
    /// Sheds all handlers whose probes alone cost more than the limit, the costliest first; else at most one that exceeds it
    /// by its part of the daemon's own time, as the next decision shows what that saves. A shed handler is tried again after
    /// its wait, the cheapest first and one a decision; one that fits by its rate when it was shed waits [`FIRST_WAIT`] at most.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        rates: &[(&str, f64)],
        part: f64,
        limit: f64,
    ) -> Vec<Action> {
        let part = positive(part);
        let cost_s = self.cost_s;
        let mut measured: Vec<(&str, f64)> =
            rates.iter().map(|&(name, rate)| (name, positive(rate))).collect();
        measured.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
        for (name, _) in &measured {
            // It was attached again meanwhile.
            if let Some(known) = self.known.get_mut(*name).filter(|known| known.is_shed) {
                (known.is_shed, known.since) = (false, now);
            }
        }
        let mut actions = Vec::new();
        self.overhead = 0.0;
        for (name, rate) in measured {
            let probes = rate * cost_s;
            let by_own_time = probes <= limit;
            if probes + part > limit && (actions.is_empty() || !by_own_time) {
                self.note_shed(now, name, rate);
                actions.push(Action::Shed(name.to_owned(), positive(probes + part)));
            } else {
                self.overhead += probes;
            }
        }
        if actions.is_empty() && part <= ROOM * limit {
            actions = self.take_up(now, part, limit);
        }
        actions
    }

    fn note_shed(&mut self, now: Instant, name: &str, rate: f64) {
        // After being measured for as long as it had been shed, it starts over.
        let failed = self.known.get(name).filter(|known| now - known.since < known.wait);
        let wait = failed.map_or(FIRST_WAIT, |known| (known.wait * 2).min(LONGEST_WAIT));
        self.known.insert(name.to_owned(), Known { is_shed: true, since: now, wait, rate });
    }

    fn take_up(&mut self, now: Instant, part: f64, limit: f64) -> Vec<Action> {
        let cost_s = self.cost_s;
        let mut shed: Vec<_> = self.known.iter_mut().filter(|(_, known)| known.is_shed).collect();
        shed.sort_by(|a, b| a.1.rate.total_cmp(&b.1.rate));
        let mut actions = Vec::new();
        let mut is_tried = false;
        for (name, known) in shed {
            let fits = known.rate * cost_s + part <= ROOM * limit;
            let wait = if fits { FIRST_WAIT } else { known.wait };
            if now - known.since >= wait && (fits || !is_tried) {
                is_tried |= !fits;
                (known.is_shed, known.since) = (false, now);
                actions.push(Action::TakeUp(name.clone()));
            }
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: f64 = 0.001;

    /// 100 ns a hit: by the limit of 0.1 % it allows 10,000 hits a second, of which 8,000 leave room.
    fn budget() -> (Budget, Instant) {
        (Budget::new(100.0), Instant::now())
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn taken_up(name: &str) -> Action {
        Action::TakeUp(name.to_owned())
    }

    /// Actions with shares as text: a decimal fraction is none in binary.
    fn words(actions: &[Action]) -> Vec<String> {
        let word = |action: &Action| match action {
            Action::Shed(name, share) => format!("shed {name} {}", percent(*share)),
            Action::TakeUp(name) => format!("take up {name}"),
        };
        actions.iter().map(word).collect()
    }

    #[test]
    fn a_share_is_shown_as_a_percentage() {
        let shown = [0.001, 0.25, 0.0, 1.0, 0.00123456].map(percent);
        assert_eq!(shown, ["0.1%", "25%", "0%", "100%", "0.1235%"]);
    }

    #[test]
    fn handlers_above_the_limit_are_shed_the_costliest_first() {
        let (mut budget, start) = budget();
        let rates = [("a", 10_000.0), ("b", 10_001.0), ("c", 2_000_000.0), ("d", 0.0)];
        let actions = budget.decide(start, &rates, 0.0, LIMIT);
        assert_eq!(words(&actions), ["shed c 20%", "shed b 0.1%"]);
        assert_eq!(budget.shed().collect::<Vec<_>>(), ["b", "c"]);
        // What stays: 10,000 hits of 100 ns.
        assert_eq!(percent(budget.overhead()), "0.1%");
    }

    #[test]
    fn equal_rates_go_by_name() {
        let (mut budget, start) = budget();
        let actions = budget.decide(start, &[("y", 3e4), ("x", 3e4), ("z", 3e4)], 0.0, LIMIT);
        assert_eq!(words(&actions), ["shed x 0.3%", "shed y 0.3%", "shed z 0.3%"]);
    }

    #[test]
    fn the_daemons_own_time_counts_and_sheds_one_at_a_time() {
        let (mut budget, start) = budget();
        let rates = [("a", 9_000.0), ("b", 9_500.0), ("c", 100.0)];
        // 0.02 % each: `a` and `b` are above the limit.
        assert_eq!(words(&budget.decide(start, &rates, 0.0006 / 3.0, LIMIT)), ["shed b 0.115%"]);
        assert_eq!(percent(budget.overhead()), "0.091%");
        let next =
            budget.decide(at(start, 10), &[("a", 9_000.0), ("c", 100.0)], 0.0004 / 3.0, LIMIT);
        assert_eq!(words(&next), ["shed a 0.1033%"]);
        // Where probes alone are too much, those are shed and nothing else.
        let (mut other, _) = super::tests::budget();
        let rates = [("a", 9_000.0), ("b", 20_000.0)];
        assert_eq!(words(&other.decide(start, &rates, 0.0002, LIMIT)), ["shed b 0.22%"]);
    }

    #[test]
    fn a_handler_that_dominates_is_tried_ever_more_rarely() {
        let (mut budget, start) = budget();
        let (hot, cold) = (("hot", 1e6), ("cold", 10.0));
        let mut trials = Vec::new();
        let mut is_measured = true;
        // A decision every ten seconds of four hours.
        for second in (0..14_400).step_by(10) {
            let both = [hot, cold];
            let rates = if is_measured { &both[..] } else { &both[1..] };
            for action in budget.decide(at(start, second), rates, 0.0, LIMIT) {
                is_measured = action == taken_up("hot");
                let word = words(&[action]).remove(0);
                assert!(is_measured || word == "shed hot 10%", "{word}");
                trials.extend(is_measured.then_some(second));
            }
        }
        // Each trial lasts for one decision, and waits 60, 120, ... 3,600 s.
        assert_eq!(trials, [60, 190, 440, 930, 1_900, 3_830, 7_440, 11_050]);
    }

    #[test]
    fn load_that_comes_and_goes_does_not_flap() {
        let (mut budget, start) = budget();
        let mut is_measured = true;
        let mut changes = Vec::new();
        // Five minutes of load, five without, for two hours.
        for second in (0..7_200).step_by(10) {
            let rate = if second % 600 < 300 { 50_000.0 } else { 50.0 };
            let rates: &[(&str, f64)] = if is_measured { &[("f", rate)] } else { &[] };
            for action in budget.decide(at(start, second), rates, 0.0, LIMIT) {
                is_measured = action == taken_up("f");
                changes.push((second, is_measured));
            }
        }
        let expected = [
            (0, false),
            (60, true),
            (70, false),
            (190, true),
            (200, false),
            (440, true),
            // No load for the rest of its wait of 240 s does not make up for a trial that failed.
            (600, false),
            (1_080, true),
            (1_200, false),
            (2_160, true),
            (2_400, false),
            (4_320, true),
            (4_330, false),
        ];
        assert_eq!(changes, expected);
    }

    #[test]
    fn one_that_was_measured_as_long_as_it_was_shed_begins_anew() {
        let (mut budget, start) = budget();
        let burst = [("f", 50_000.0)];
        assert_eq!(words(&budget.decide(start, &burst, 0.0, LIMIT)), ["shed f 0.5%"]);
        assert_eq!(budget.decide(at(start, 59), &[], 0.0, LIMIT), []);
        assert_eq!(budget.decide(at(start, 60), &[], 0.0, LIMIT), [taken_up("f")]);
        assert_eq!(words(&budget.decide(at(start, 70), &burst, 0.0, LIMIT)), ["shed f 0.5%"]);
        assert_eq!(budget.decide(at(start, 189), &[], 0.0, LIMIT), []);
        assert_eq!(budget.decide(at(start, 190), &[], 0.0, LIMIT), [taken_up("f")]);
        assert_eq!(budget.decide(at(start, 200), &[("f", 1.0)], 0.0, LIMIT), []);
        // 120 s later: the wait is 60 s again.
        assert_eq!(words(&budget.decide(at(start, 310), &burst, 0.0, LIMIT)), ["shed f 0.5%"]);
        assert_eq!(budget.decide(at(start, 370), &[], 0.0, LIMIT), [taken_up("f")]);
    }

    #[test]
    fn what_fits_by_its_last_rate_does_not_wait_longer_than_the_first_time() {
        let (mut budget, start) = budget();
        // Shed twice, once more than a minute's wait.
        budget.decide(start, &[("f", 20_000.0)], 0.0, LIMIT);
        budget.decide(at(start, 60), &[], 0.0, LIMIT);
        budget.decide(at(start, 70), &[("f", 20_000.0)], 0.0, LIMIT);
        assert_eq!(budget.decide(at(start, 130), &[], 0.0, LIMIT), [], "0.2 % is above the limit");
        // 0.2 % of 0.25 % is 80 %.
        assert_eq!(budget.decide(at(start, 131), &[], 0.0, 0.0025), [taken_up("f")]);
        assert_eq!(budget.decide(at(start, 140), &[("f", 20_000.0)], 0.0, 0.0025), []);
    }

    #[test]
    fn nothing_is_taken_up_while_the_daemon_itself_takes_the_room() {
        let (mut budget, start) = budget();
        assert_eq!(words(&budget.decide(start, &[("f", 10.0)], 0.002, LIMIT)), ["shed f 0.2001%"]);
        assert_eq!(budget.decide(at(start, 60), &[], 0.000_801, LIMIT), []);
        assert_eq!(budget.decide(at(start, 70), &[], 0.000_79, LIMIT), [taken_up("f")]);
    }

    #[test]
    fn with_all_shed_the_daemons_own_time_is_still_a_part_of_each() {
        let (mut budget, start) = budget();
        let rates = [("f", 10.0), ("g", 20.0)];
        assert_eq!(words(&budget.decide(start, &rates, 0.0015, LIMIT)), ["shed g 0.1502%"]);
        assert_eq!(
            words(&budget.decide(at(start, 10), &rates[..1], 0.0015, LIMIT)),
            ["shed f 0.1501%"]
        );
        // 0.1 % each is more than 80 % of the limit.
        assert_eq!(budget.decide(at(start, 600), &[], 0.001, LIMIT), []);
        assert_eq!(budget.decide(at(start, 610), &[], 0.000_75, LIMIT).len(), 2);
    }

    #[test]
    fn trials_come_one_at_a_time_and_the_cheapest_first() {
        let (mut budget, start) = budget();
        budget.decide(start, &[("x", 90_000.0), ("y", 50_000.0)], 0.0, LIMIT);
        assert_eq!(budget.decide(at(start, 60), &[], 0.0, LIMIT), [taken_up("y")]);
        assert_eq!(budget.decide(at(start, 70), &[("y", 10.0)], 0.0, LIMIT), [taken_up("x")]);
    }

    #[test]
    fn a_limit_of_zero_allows_only_what_is_never_called() {
        let mut budget = Budget::new(100.0);
        let start = Instant::now();
        let actions = budget.decide(start, &[("never", 0.0), ("once", 0.1)], 0.0, 0.0);
        assert_eq!(words(&actions), ["shed once 0%"]);
        assert_eq!(
            words(&budget.decide(start, &[("never", 0.0)], 0.00005, 0.0)),
            ["shed never 0.005%"]
        );
        assert_eq!(budget.decide(at(start, 9_999), &[], 0.0001, 0.0), []);
    }

    #[test]
    fn nan_and_negative_values_count_as_0() {
        let (mut budget, start) = budget();
        let rates = [("nan", f64::NAN), ("negative", -5e9), ("endless", f64::INFINITY)];
        let actions = budget.decide(start, &rates, f64::NAN, LIMIT);
        let [Action::Shed(name, share)] = &actions[..] else { panic!("{actions:?}") };
        assert!(name == "endless" && share.is_finite(), "{share:?}");
        assert_eq!(budget.overhead(), 0.0);
        for cost in [f64::NAN, -1.0] {
            let mut free = Budget::new(cost);
            assert_eq!(free.decide(start, &[("f", 1e9)], 0.0, LIMIT), [], "{cost}");
        }
    }

    #[test]
    fn a_handler_that_was_taken_up_by_attaching_anew_counts_as_measured() {
        let (mut budget, start) = budget();
        budget.decide(start, &[("f", 5e4)], 0.0, LIMIT);
        assert_eq!(budget.shed().collect::<Vec<_>>(), ["f"]);
        assert_eq!(budget.decide(at(start, 10), &[("f", 1.0)], 0.0, LIMIT), []);
        assert_eq!(budget.shed().count(), 0);
        assert_eq!(budget.decide(at(start, 70), &[], 0.0, LIMIT), []);
    }
}
