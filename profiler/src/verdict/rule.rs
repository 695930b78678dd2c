//! The rule of a gate: limits, floors and budgets.

use std::str::FromStr;

use super::statistic::UnknownStatistic;
use super::{Budget, QuantityError, Statistic, parse_share};
use crate::profile::Clock;

/// Limit of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// The figure is not judged.
    Off,
    /// It may become slower by this share of the baseline.
    Share(f64),
}

impl FromStr for Limit {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if text.trim() == "off" { Ok(Self::Off) } else { parse_share(text).map(Self::Share) }
    }
}

/// Limits of some of the figures.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits([Option<Limit>; Statistic::GATED.len()]);

impl Limits {
    /// The limit of a figure, if it has one.
    #[must_use]
    pub fn get(&self, statistic: Statistic) -> Option<Limit> {
        let place = Statistic::GATED.iter().position(|other| *other == statistic)?;
        self.0.get(place).copied().flatten()
    }

    /// Sets the limit of a figure.
    pub fn set(&mut self, statistic: Statistic, limit: Limit) {
        if let Some(place) = Statistic::GATED.iter().position(|other| *other == statistic)
            && let Some(slot) = self.0.get_mut(place)
        {
            *slot = Some(limit);
        }
    }
}

/// Text that is not a list of limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid limit `{given}`: {reason}; write it as 'tp99=10%,avg=5%'")]
pub struct LimitsError {
    given: String,
    reason: String,
}

impl FromStr for Limits {
    type Err = LimitsError;

    fn from_str(text: &str) -> Result<Self, LimitsError> {
        let mut limits = Self::default();
        for entry in text.split(',') {
            let bad = |reason: String| LimitsError { given: entry.trim().to_owned(), reason };
            let (name, limit) =
                entry.split_once('=').ok_or_else(|| bad("it has no `=`".to_owned()))?;
            let statistic: Statistic =
                name.trim().parse().map_err(|error: UnknownStatistic| bad(error.to_string()))?;
            let limit = limit.parse().map_err(|error: QuantityError| bad(error.to_string()))?;
            if limits.get(statistic).is_some() {
                return Err(bad(format!("{statistic} is given twice")));
            }
            limits.set(statistic, limit);
        }
        Ok(limits)
    }
}

/// The rule for some handlers.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerRule {
    /// The handlers.
    pub pattern: glob::Pattern,
    /// Limits of these figures; other figures keep the general ones.
    pub limits: Limits,
    /// The floor, in nanoseconds.
    pub floor_ns: Option<f64>,
}

/// The rule of a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Bound on the probability of a false alarm over all comparisons.
    pub alpha: f64,
    /// Limits for all handlers; figures without one are not judged. `None` takes the default for the
    /// clock: see [`Rule::limit`].
    pub limits: Option<Limits>,
    /// The floor in nanoseconds; `None` takes the default for the clock: see [`Rule::floor_ns`].
    pub floor_ns: Option<f64>,
    /// Largest share of a handler's calls that a run may have lost.
    pub max_loss: f64,
    /// Whether handlers may vanish.
    pub allow_vanished: bool,
    /// Rules for some handlers; the last one that matches and has a value counts.
    pub handlers: Vec<HandlerRule>,
    /// Absolute bounds.
    pub budgets: Vec<Budget>,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            alpha: 0.05,
            limits: None,
            floor_ns: None,
            // A tenth of the calls beyond the 99th percentile.
            max_loss: 0.001,
            allow_vanished: false,
            handlers: Vec::new(),
            budgets: Vec::new(),
        }
    }
}

impl Rule {
    /// The limit of a handler's figure: from the last rule for the handler that has one, else the
    /// general one, else the default for the clock:
    ///
    /// | clock | avg | tp90 | tp95 | tp99 |
    /// |---|---|---|---|---|
    /// | virtual | 0.5 % | 0.5 % | 0.5 % | 0.5 % |
    /// | wall, sides in turns | 10 % | 10 % | 15 % | 25 % |
    /// | wall, not in turns | 20 % | 20 % | 30 % | 50 % |
    ///
    /// Under virtual time, boots of one build differ by at most half a percent. On the wall clock, runs
    /// differ by 8 to 12 % on a busy machine, more in the tail, and a drift of the machine adds to that
    /// unless the sides take turns.
    #[must_use]
    pub fn limit(
        &self,
        handler: &str,
        statistic: Statistic,
        clock: Clock,
        in_turns: bool,
    ) -> Limit {
        let own = self.matching(handler).filter_map(|rule| rule.limits.get(statistic)).last();
        if let Some(limit) = own {
            return limit;
        }
        if let Some(limits) = &self.limits {
            return limits.get(statistic).unwrap_or(Limit::Off);
        }
        let wall = |in_turns_percent: f64| {
            Limit::Share(in_turns_percent / 100.0 * if in_turns { 1.0 } else { 2.0 })
        };
        match (clock, statistic) {
            (_, Statistic::Count) => Limit::Off,
            (Clock::Virtual, _) => Limit::Share(0.005),
            (Clock::Wall, Statistic::Avg | Statistic::Tp90) => wall(10.0),
            (Clock::Wall, Statistic::Tp95) => wall(15.0),
            (Clock::Wall, Statistic::Tp99) => wall(25.0),
        }
    }

    /// The floor of a handler, in nanoseconds: by default 1 (one instruction) under virtual time, and 20
    /// on the wall clock, about the variation of the probes' cost. For percentiles the width of the
    /// histogram's bucket is added.
    #[must_use]
    pub fn floor_ns(&self, handler: &str, clock: Clock) -> f64 {
        let own = self.matching(handler).filter_map(|rule| rule.floor_ns).last();
        own.or(self.floor_ns).unwrap_or(match clock {
            Clock::Virtual => 1.0,
            Clock::Wall => 20.0,
        })
    }

    fn matching<'a>(&'a self, handler: &'a str) -> impl Iterator<Item = &'a HandlerRule> {
        self.handlers.iter().filter(move |rule| rule.pattern.matches(handler))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(percent: f64) -> Limit {
        Limit::Share(percent / 100.0)
    }

    #[test]
    fn limits_are_read() {
        let limits: Limits = "tp99=10%, avg=5%,tp90=off".parse().unwrap();
        assert_eq!(limits.get(Statistic::Tp99), Some(share(10.0)));
        assert_eq!(limits.get(Statistic::Avg), Some(share(5.0)));
        assert_eq!(limits.get(Statistic::Tp90), Some(Limit::Off));
        assert_eq!(limits.get(Statistic::Tp95), None);
        for (text, part) in [
            ("tp99", "invalid limit `tp99`: it has no `=`"),
            ("tp99=10", "invalid share `10`"),
            ("max=10%", "unknown statistic `max`"),
            ("avg=1%,avg=2%", "avg is given twice"),
            ("", "it has no `=`"),
        ] {
            let error = text.parse::<Limits>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_last_word_on_a_handler_holds() {
        let handler = |pattern: &str, limits: &str, floor_ns| HandlerRule {
            pattern: glob::Pattern::new(pattern).unwrap(),
            limits: limits.parse().unwrap(),
            floor_ns,
        };
        let rule = Rule {
            limits: Some("tp99=10%,avg=5%".parse().unwrap()),
            floor_ns: Some(7.0),
            handlers: vec![
                handler("connect_*", "tp99=20%,tp95=3%", Some(50.0)),
                handler("connect_syscall_handler", "tp99=off", None),
            ],
            ..Rule::default()
        };
        let limit = |name, statistic| rule.limit(name, statistic, Clock::Wall, true);
        assert_eq!(limit("bind_handler", Statistic::Tp99), share(10.0));
        assert_eq!(limit("bind_handler", Statistic::Tp95), Limit::Off);
        assert_eq!(limit("connect_entry", Statistic::Tp99), share(20.0));
        assert_eq!(limit("connect_entry", Statistic::Tp95), share(3.0));
        assert_eq!(limit("connect_entry", Statistic::Avg), share(5.0));
        assert_eq!(limit("connect_syscall_handler", Statistic::Tp99), Limit::Off);
        assert_eq!(rule.floor_ns("bind_handler", Clock::Wall), 7.0);
        assert_eq!(rule.floor_ns("connect_syscall_handler", Clock::Wall), 50.0);
    }

    #[test]
    fn without_a_word_the_clock_decides() {
        let rule = Rule::default();
        assert_eq!(rule.limit("x", Statistic::Tp99, Clock::Virtual, false), share(0.5));
        assert_eq!(rule.limit("x", Statistic::Tp99, Clock::Wall, true), share(25.0));
        assert_eq!(rule.limit("x", Statistic::Avg, Clock::Wall, false), share(20.0));
        assert_eq!(rule.floor_ns("x", Clock::Virtual), 1.0);
        assert_eq!(rule.floor_ns("x", Clock::Wall), 20.0);
    }
}
