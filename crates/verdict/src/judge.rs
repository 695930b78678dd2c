//! The verdict on one figure.

use profiler_base::stats;
use profiler_recording::{Clock, Meter};

use super::change::alone;
use super::words::{
    FEWER, but_for, by_placement, changed, figure, grouped, numbers, p_value, percent, signed,
    values,
};
use super::{
    Amount, Budget, ChangeRecord, ITERATIONS_AN_INSTRUCTION, Line, Side, Statistic, Verdict,
};

/// The limits of one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Terms {
    /// The limit, as a share of the baseline; `None` if the floor is the limit.
    pub(super) share: Option<f64>,
    /// The floor in the figure's unit, without the bucket's width.
    pub(super) floor: f64,
    /// Largest share of the calls that may be lost.
    pub(super) max_loss: f64,
    /// Bound on the probability of a false alarm over all comparisons.
    pub(super) alpha: f64,
    /// The clock of the load.
    pub(super) clock: Clock,
}

/// A figure that is judged.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) record: ChangeRecord,
    pub(super) terms: Terms,
}

impl Figure {
    /// The floor, with the bucket's width.
    fn floor(&self) -> f64 {
        self.terms.floor + self.record.resolution
    }

    /// What the limit is of the baseline, where it is a share.
    fn share_of_base(&self) -> f64 {
        self.terms.share.unwrap_or(0.0) * self.record.base.unwrap_or(0.0)
    }

    /// The largest change that passes where calls were counted.
    pub(super) fn most(&self) -> f64 {
        self.floor().max(self.share_of_base())
    }

    /// The limit, in words; of share and floor the wider one.
    fn limit(&self) -> String {
        let (floor, record) = (self.floor(), &self.record);
        match self.terms.share {
            Some(share) if record.percent_bounds.is_some() && floor <= self.share_of_base() => {
                percent(share)
            }
            _ if record.statistic == Statistic::Repeated => {
                format!("+{}: {ITERATIONS_AN_INSTRUCTION} weigh as an instruction", grouped(floor))
            }
            _ if record.statistic == Statistic::Count => format!("+{}", grouped(floor)),
            Some(_) => format!("{} (floor)", figure(floor, record.meter())),
            None => signed(floor, record.meter()),
        }
    }

    /// Judges it by its adjusted p-values of being slower and faster.
    pub(super) fn judged(self, slower: f64, faster: f64) -> Line {
        let found = self.found(slower, faster);
        self.line(found)
    }

    /// What was found of it, with its limits.
    pub(super) fn line(self, found: Line) -> Line {
        let floor = Some(self.floor());
        let (floor_ns, floor_instructions) = match self.record.meter() {
            Meter::Probes => (floor, None),
            Meter::Exact => (None, floor.filter(|_| self.record.statistic.is_cost())),
        };
        let limit_percent = self.terms.share.map(|share| share * 100.0);
        Line { limit_percent, floor_ns, floor_instructions, ..line(self.record, found) }
    }

    fn found(&self, slower: f64, faster: f64) -> Line {
        let record = &self.record;
        if let Some(lost) = lost(record.lost_share, self.terms.max_loss, &values(record)) {
            return lost;
        }
        match (record.change_bounds, record.change, record.placements) {
            (None, ..) => {
                let words = format!("{}: too few runs for bounds", values(record));
                Line::new(Verdict::Inconclusive, words)
            }
            (Some(ends), Some(change), Some(placements)) => self.counted(change, ends, placements),
            (Some(bounds), ..) => self.sampled(bounds, [slower, faster]),
        }
    }

    /// Counted calls have no p-value and no bounds: the change itself is above the limit or is not, or passes
    /// only if further placements say so.
    fn counted(&self, change: f64, ends: [f64; 2], placements: usize) -> Line {
        let (record, most, limit) = (&self.record, self.most(), self.limit());
        let is_open = record.is_open(most);
        let is_less = !is_open && change < -most;
        let is_fewer = is_less && record.statistic == Statistic::Count;
        let verdict = match change > most {
            true => Verdict::Fail,
            false if is_open => Verdict::Inconclusive,
            false => Verdict::Pass,
        };
        let ends = ends.map(|end| format!("{end:+.1}"));
        let evidence = if record.statistic.is_cost() {
            let faster = if is_less { "faster: " } else { "" };
            let alike = format!(", {}", ends[0]);
            let (change, places) = (changed(record), by_placement(&alike, ends, placements));
            let more = match verdict {
                Verdict::Inconclusive => {
                    ": what lies outside of the handlers takes more placements to tell"
                }
                _ => "",
            };
            format!("{faster}{change}{}{places}, limit {limit}{more}", but_for(record))
        } else {
            let fewer = if is_fewer { FEWER } else { "" };
            let places = by_placement("", ends, placements);
            format!("{fewer}{}{places}, limit {limit}", numbers(record))
        };
        Line { improved: is_less && !is_fewer, ..Line::new(verdict, evidence) }
    }

    /// It fails if `slower` is below alpha, the lower bound of the change is above the limit, and that of the absolute
    /// change is above the floor. It passes if an upper bound shows that
    /// the limit or the floor is kept. Everything else is undecided.
    fn sampled(&self, bounds: [f64; 2], [slower, faster]: [f64; 2]) -> Line {
        let (record, terms, floor) = (&self.record, &self.terms, self.floor());
        let [lowest, highest] = bounds;
        let relative = terms.share.zip(record.percent_bounds);
        let relative = relative.map(|(share, ends)| (share, ends.map(|percent| percent / 100.0)));
        let above = relative.is_none_or(|(share, [lower, _])| lower > share) && lowest > floor;
        let within = relative.is_some_and(|(share, [_, upper])| upper <= share) || highest <= floor;
        let below = relative.is_none_or(|(share, [_, upper])| upper < -share) && highest < -floor;
        let improved = !above && within && below && faster < terms.alpha;

        let (change, limit) = (changed(record), self.limit());
        let [low, high] = match record.percent_bounds.filter(|_| terms.share.is_some()) {
            Some(bounds) => bounds.map(|bound| format!("{bound:+.2} %")),
            None => bounds.map(|bound| signed(bound, record.meter())),
        };
        let [is_slower, is_faster] = [slower, faster].map(|p| format!("p {} adjusted", p_value(p)));
        let (verdict, evidence) = if above && slower < terms.alpha {
            (Verdict::Fail, format!("{change}, at least {low}, limit {limit}; {is_slower}"))
        } else if above {
            let words = format!(
                "{change}, at least {low}, limit {limit}, but runs of both sides overlap ({is_slower}): measure more runs"
            );
            (Verdict::Inconclusive, words)
        } else if improved {
            (Verdict::Pass, format!("faster: {change}, at most {high}; {is_faster}"))
        } else if within {
            (Verdict::Pass, format!("{change}, at most {high}, limit {limit}"))
        } else {
            let quieter = match terms.clock {
                Clock::Wall => ", or on a quieter machine",
                Clock::Virtual => "",
            };
            let words = format!(
                "{change}, between {low} and {high}, limit {limit}: measure more runs{quieter}"
            );
            (Verdict::Inconclusive, words)
        };
        Line { improved, ..Line::new(verdict, evidence) }
    }
}

/// What was found of a change.
pub(super) fn line(record: ChangeRecord, found: Line) -> Line {
    Line {
        part: record.part.clone(),
        handler: record.handler.clone(),
        statistic: Some(record.statistic),
        meter: record.meter(),
        change: Some(record),
        ..found
    }
}

/// The verdict by a limit or budget in the unit that recordings of this meter do not have; what to write where instructions are
/// counted, and where calls have durations.
pub(super) fn other_unit(measured: Meter, [counted, timed]: [&str; 2]) -> Line {
    let words = match measured {
        Meter::Exact => format!("its recordings count instructions: write the {counted}"),
        Meter::Probes => format!("its recordings have durations: write the {timed}"),
    };
    Line::new(Verdict::Insufficient, words)
}

/// The verdict on a handler that not both sides called.
pub(super) fn absent(record: &ChangeRecord) -> Line {
    let [base, candidate] = [record.base_calls, record.candidate_calls];
    if base.total == 0 && candidate.total == 0 {
        let words = "no call on either side: the load does not reach it";
        return Line::new(Verdict::Insufficient, words);
    }
    if base.total == 0 {
        let words = format!("{} calls in the candidate, and none in the baseline", candidate.total);
        return Line::new(Verdict::New, words);
    }
    let candidates = match candidate.known {
        true => "none in the candidate",
        false => "the candidate has no such handler: renamed, inlined or no longer measured",
    };
    let words = format!("{} calls in the baseline, and {candidates}", base.total);
    Line::new(Verdict::Vanished, words)
}

/// The verdict if a side has too few calls, or no value.
pub(super) fn insufficient(record: &ChangeRecord) -> Option<Line> {
    let ChangeRecord { statistic, base_calls, candidate_calls, .. } = record;
    let needed = statistic.calls_needed(record.meter());
    let fewest = base_calls.fewest.min(candidate_calls.fewest);
    if fewest < needed {
        let side = if base_calls.fewest == fewest { Side::Baseline } else { Side::Candidate };
        let words = format!(
            "{statistic} needs {needed} calls in every run, and a run of the {side} has {fewest}: raise the load's \
             operations, or turn {statistic} off for this handler"
        );
        return Some(Line::new(Verdict::Insufficient, words));
    }
    record.base.and(record.candidate).is_none().then(Line::without_value)
}

/// The verdict if a run has lost more calls than it may of what is `uncertain` then.
pub(super) fn lost(share: f64, max_loss: f64, uncertain: &str) -> Option<Line> {
    (share > max_loss).then(|| {
        let words = format!(
            "{} of a run's calls were lost, and the limit is {}: {uncertain} is not certain; lower the load's workers",
            percent(share),
            percent(max_loss)
        );
        Line::new(Verdict::Inconclusive, words)
    })
}

/// The verdict if a budget cannot be judged by what the candidate took.
pub(super) fn not_spent(budget: &Budget, record: &ChangeRecord, max_loss: f64) -> Option<Line> {
    let Budget { statistic, below, .. } = budget;
    let (needed, fewest) = (statistic.calls_needed(below.meter), record.candidate_calls.fewest);
    if record.meter() != below.meter {
        let budgets =
            ["budget as 'HANDLER:tp99<3000 instructions'", "budget as 'HANDLER:tp99<2us'"];
        return Some(other_unit(record.meter(), budgets));
    }
    if fewest < needed {
        let words =
            format!("{statistic} needs {needed} calls in every run, and a run has {fewest}");
        return Some(Line::new(Verdict::Insufficient, words));
    }
    lost(record.candidate_lost_share, max_loss, "the figure")
}

/// Judges the values of runs by a budget.
pub(super) fn within(below: Amount, values: &[f64]) -> Line {
    let counted = below.meter == Meter::Exact;
    let Some((value, [lower, upper])) = alone(below.meter, values) else {
        return Line::without_value();
    };
    let verdict = match below.value {
        most if upper < most => Verdict::Pass,
        most if lower >= most => Verdict::Fail,
        _ => Verdict::Inconclusive,
    };
    let [value, lower, upper, most] =
        [value, lower, upper, below.value].map(|value| figure(value, below.meter));
    let runs = match values.len() {
        1 => "one run".to_owned(),
        more => format!("{more} runs"),
    };
    let ends = stats::ends(values).unwrap_or_default().map(|end| format!("{end:.1}"));
    let places = by_placement("", ends, values.len());
    let evidence = match verdict {
        Verdict::Fail if counted => format!("{value}{places}, not below {most}"),
        _ if counted => format!("{value}{places}, below {most}"),
        Verdict::Pass => format!("{value}, at most {upper}, below {most}; {runs}"),
        Verdict::Fail => format!("{value}, at least {lower}, not below {most}; {runs}"),
        _ => format!("{value}, between {lower} and {upper}, budget {most}; {runs}"),
    };
    Line::new(verdict, evidence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Calls;

    const TERMS: Terms =
        Terms { share: Some(0.01), floor: 5.0, max_loss: 0.001, alpha: 0.05, clock: Clock::Wall };

    /// A handler that took `base` and whose change has these bounds.
    fn record(base: f64, change: f64, bounds: [f64; 2]) -> ChangeRecord {
        let calls = Calls { total: 800, fewest: 100, known: true };
        ChangeRecord {
            handler: "h".to_owned(),
            statistic: Statistic::Tp90,
            unit: "ns".to_owned(),
            base: Some(base),
            candidate: Some(base + change),
            change: Some(change),
            change_bounds: Some(bounds),
            percent: Some(change / base * 100.0),
            percent_bounds: Some(bounds.map(|bound| bound / base * 100.0)),
            base_calls: calls,
            candidate_calls: calls,
            ..ChangeRecord::default()
        }
    }

    fn judge(record: &ChangeRecord, terms: &Terms, slower: f64, faster: f64) -> Line {
        Figure { record: record.clone(), terms: *terms }.judged(slower, faster)
    }

    /// Every condition of a failure holds in the first case, and one after the other does not.
    #[test]
    fn each_condition_of_a_failure_is_needed() {
        let slow = record(1000.0, 30.0, [20.0, 40.0]);
        let found = |record: &ChangeRecord, terms: &Terms, p: f64| {
            let line = judge(record, terms, p, 1.0);
            (line.verdict, line.evidence)
        };
        let (verdict, words) = found(&slow, &TERMS, 0.049);
        assert_eq!(verdict, Verdict::Fail);
        let by = "+3.00 % (1000.0 ns to 1030.0 ns)";
        assert_eq!(words, format!("{by}, at least +2.00 %, limit 1 %; p 0.0490 adjusted"));
        let not_fail = |record: &ChangeRecord, terms: &Terms, p: f64, expected: &str| {
            let (verdict, words) = found(record, terms, p);
            assert_eq!((verdict, &*words), (Verdict::Inconclusive, expected));
        };
        let overlap = format!(
            "{by}, at least +2.00 %, limit 1 %, but runs of both sides overlap (p 0.0500 adjusted): measure more runs"
        );
        not_fail(&slow, &TERMS, 0.05, &overlap);
        let near = record(1000.0, 30.0, [9.0, 51.0]);
        let undecided = format!("{by}, between +0.90 % and +5.10 %, limit 1 %: measure more runs");
        not_fail(&near, &TERMS, 0.001, &format!("{undecided}, or on a quieter machine"));
        not_fail(&near, &Terms { clock: Clock::Virtual, ..TERMS }, 0.001, &undecided);
        let by_floor = |floor: &str| {
            format!(
                "{by}, between +2.00 % and +4.00 %, limit {floor} ns (floor): measure more runs, or on a quieter machine"
            )
        };
        not_fail(&slow, &Terms { floor: 20.0, ..TERMS }, 0.001, &by_floor("20.0"));
        let coarse = ChangeRecord { resolution: 16.0, ..slow.clone() };
        not_fail(&coarse, &TERMS, 0.001, &by_floor("21.0"));
        let lossy = ChangeRecord { lost_share: 0.0011, ..slow.clone() };
        let lost = "0.11 % of a run's calls were lost, and the limit is 0.1 %: 1000.0 ns to 1030.0 ns is not certain; \
                    lower the load's workers";
        not_fail(&lossy, &TERMS, 0.001, lost);
        let bare = ChangeRecord { change_bounds: None, percent_bounds: None, ..slow };
        not_fail(&bare, &TERMS, 0.001, "1000.0 ns to 1030.0 ns: too few runs for bounds");
    }

    #[test]
    fn a_pass_takes_an_upper_bound() {
        let verdict = |record: &ChangeRecord, p_faster| {
            let line = judge(record, &TERMS, 1.0, p_faster);
            (line.verdict, line.improved)
        };
        assert_eq!(verdict(&record(1000.0, 3.0, [-4.0, 10.0]), 1.0), (Verdict::Pass, false));
        assert_eq!(verdict(&record(1000.0, 3.0, [-4.0, 11.0]), 1.0).0, Verdict::Inconclusive);
        // Twice its limit, and less than anybody can feel.
        assert_eq!(verdict(&record(200.0, 4.0, [3.0, 5.0]), 1.0).0, Verdict::Pass);
        assert_eq!(verdict(&record(1000.0, -30.0, [-40.0, -20.0]), 0.01), (Verdict::Pass, true));
        assert_eq!(verdict(&record(1000.0, -30.0, [-40.0, -20.0]), 0.06), (Verdict::Pass, false));
        assert_eq!(verdict(&record(1000.0, -30.0, [-60.0, -9.0]), 0.01), (Verdict::Pass, false));
    }

    #[test]
    fn counted_calls_are_never_undecided() {
        let counted = |base: f64, change: f64, ends: [f64; 2]| ChangeRecord {
            unit: "instructions".to_owned(),
            placements: Some(3),
            ..record(base, change, ends)
        };
        let shown = |record: ChangeRecord, terms: &Terms| {
            let line = judge(&record, terms, 1.0, 1.0);
            (line.verdict, line.improved)
        };
        let (slower, faster) = ((Verdict::Fail, false), (Verdict::Pass, true));
        let within = (Verdict::Pass, false);
        // 1 % of 1,000 and the floor of 5 are both limits: the wider one counts.
        assert_eq!(shown(counted(1000.0, 10.0, [10.0; 2]), &TERMS), within);
        assert_eq!(shown(counted(1000.0, 11.0, [-30.0, 12.0]), &TERMS), slower);
        assert_eq!(shown(counted(1000.0, -11.0, [-30.0, 12.0]), &TERMS), faster);
        assert_eq!(shown(counted(200.0, 5.0, [0.0, 90.0]), &TERMS), within);
        assert_eq!(shown(counted(0.0, 6.0, [6.0; 2]), &TERMS), slower);
        let none = Terms { share: None, floor: 0.0, ..TERMS };
        assert_eq!(shown(counted(1000.0, 1.0, [-1.0, 1.0]), &none), slower);
        assert_eq!(shown(counted(1000.0, 0.0, [0.0, 2.0]), &none), within);
    }

    #[test]
    fn a_handler_that_took_no_time_is_judged_by_the_floor() {
        let none = |bounds| ChangeRecord {
            percent: None,
            percent_bounds: None,
            ..record(0.0, 8.0, bounds)
        };
        let verdict = |bounds| judge(&none(bounds), &TERMS, 0.001, 1.0).verdict;
        assert_eq!(verdict([6.0, 9.0]), Verdict::Fail);
        assert_eq!(verdict([1.0, 4.0]), Verdict::Pass);
    }

    #[test]
    fn every_run_needs_its_calls() {
        let mut few = record(1000.0, 0.0, [0.0, 0.0]);
        assert_eq!(insufficient(&few), None);
        few.candidate_calls.fewest = 99;
        let expected = "tp90 needs 100 calls in every run, and a run of the candidate has 99: raise the load's \
                        operations, or turn tp90 off for this handler";
        let found = insufficient(&few).unwrap();
        assert_eq!((found.verdict, &*found.evidence), (Verdict::Insufficient, expected));
    }
}
