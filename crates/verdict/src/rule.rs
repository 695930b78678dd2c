//! The rule of a gate: limits, floors and budgets, from the command line or `gate.toml`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use glob::Pattern;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use profiler_base::error::Failure;
use profiler_base::toml_file;
use profiler_recording::{Clock, Meter};

use super::{Amount, Budget, Statistic, parse_share};

/// Limit of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// The figure is not judged.
    Off,
    /// It may become slower by this share of the baseline.
    Share(f64),
    /// It may become slower by this much: it replaces the floor, too.
    By(Amount),
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text.trim(), text.trim().strip_prefix('+')) {
            ("off", _) => Ok(Self::Off),
            (_, Some(amount)) => Amount::with_unit(amount).map(Self::By),
            (share, None) => parse_share(share).map(Self::Share),
        }
    }
}

/// Limits of some of the figures.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Limits(pub BTreeMap<Statistic, Limit>);

impl Limits {
    /// The limit of a figure, if it has one.
    pub fn get(&self, statistic: Statistic) -> Option<Limit> {
        self.0.get(&statistic).copied()
    }

    /// Adds the limit of one figure, such as `avg=5%`.
    fn add(&mut self, entry: &str) -> Result<(), String> {
        let (name, limit) = entry.split_once('=').ok_or("it has no `=`")?;
        let statistic: Statistic = name.trim().parse()?;
        match self.0.insert(statistic, limit.parse()?) {
            Some(_) => Err(format!("{statistic} is given twice")),
            None => Ok(()),
        }
    }
}

impl FromStr for Limits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for entry in text.split(',') {
            limits.add(entry).map_err(|reason| {
                format!(
                    "invalid limit `{}`: {reason}; write it as 'tp99=10%,avg=5%' or 'tp50=+5 instructions'",
                    entry.trim()
                )
            })?;
        }
        Ok(limits)
    }
}

/// The rule for some handlers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HandlerRule {
    /// The handlers.
    #[serde(rename = "name", deserialize_with = "pattern")]
    pub pattern: glob::Pattern,
    /// Limits of these figures; other figures keep the general ones.
    #[serde(rename = "max-regression", default)]
    pub limits: Limits,
    pub floor: Option<Amount>,
}

/// What the defaults of a figure depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// How it was measured.
    pub meter: Meter,
    /// The clock of the load.
    pub clock: Clock,
    /// Whether the sides took turns.
    pub in_turns: bool,
}

/// The rule of a gate, as a file has it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// Bound on the probability of a false alarm over all comparisons.
    #[serde(deserialize_with = "alpha")]
    pub alpha: f64,
    /// Limits for all handlers; figures without one are not judged. `None` takes the defaults: see [`Rule::limit`].
    #[serde(rename = "max-regression")]
    pub limits: Option<Limits>,
    /// The floor; `None`, or one in another unit, takes the default: see [`Rule::floor`].
    pub floor: Option<Amount>,
    /// Largest share of a handler's calls that a run may have lost.
    #[serde(deserialize_with = "share")]
    pub max_loss: f64,
    /// Whether handlers may vanish.
    pub allow_vanished: bool,
    /// Hooks that the candidate may register in addition although no figure judges them, by handler or place.
    #[serde(deserialize_with = "patterns")]
    pub accept_new: Vec<glob::Pattern>,
    /// Whether a hook that no load reached is a failure.
    pub require_reached: bool,
    /// Rules for some handlers; the last one that matches and has a value counts.
    #[serde(rename = "handler")]
    pub handlers: Vec<HandlerRule>,
    /// Absolute bounds.
    pub budgets: Vec<Budget>,
    /// The limit of each figure beside the last release; the command line's alone.
    #[serde(skip)]
    pub release_limit: f64,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            alpha: 0.05,
            limits: None,
            floor: None,
            // A tenth of the calls beyond the 99th percentile.
            max_loss: 0.001,
            allow_vanished: false,
            accept_new: Vec::new(),
            require_reached: false,
            handlers: Vec::new(),
            budgets: Vec::new(),
            release_limit: 0.02,
        }
    }
}

impl Rule {
    /// Reads a rule from a file; keys that it lacks are as in [`Rule::default`].
    ///
    /// # Errors
    /// If it cannot be read or has a mistake, such as an unknown key; the error has line and column.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::parse(&toml_file::read(path)?, path)
    }

    /// Reads a rule from the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Rule::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        toml_file::parse(text, &path.display().to_string(), Ok)
    }

    /// The limit of a handler's figure: from the last rule for the handler that has one, else the
    /// general one, else the default:
    ///
    /// | measured by | avg | tp50 | tp90 | tp95 | tp99 |
    /// |---|---|---|---|---|---|
    /// | counted instructions | 0.5 % | 0.5 % | 0.5 % | 0.5 % | 0.5 % |
    /// | virtual time | 0.5 % | off | 0.5 % | 0.5 % | 0.5 % |
    /// | wall clock, sides in turns | 10 % | off | 10 % | 15 % | 25 % |
    /// | wall clock, not in turns | 20 % | off | 20 % | 30 % | 50 % |
    ///
    /// Where instructions were counted, calls may become more by 1 %, unless a rule has another limit for `count`; `repeated`,
    /// `tail` and `elsewhere` have the limit of `avg`.
    ///
    /// Under virtual time, boots of one build differ by at most half a percent. On the wall clock, runs
    /// differ by 8 to 12 % on a busy machine, more in the tail, and a drift of the machine adds to that
    /// unless the sides take turns.
    pub fn limit(&self, handler: &str, statistic: Statistic, measured: Measured) -> Limit {
        if statistic.is_of_counted() && measured.meter == Meter::Probes {
            return Limit::Off;
        }
        let own = self.matching(handler).filter_map(|rule| rule.limits.get(statistic)).last();
        let general = self.limits.as_ref();
        match own.or(general.and_then(|limits| limits.get(statistic))) {
            Some(limit) => limit,
            None if statistic == Statistic::Count => Limit::Share(0.01),
            None if statistic.is_of_counted() => self.limit(handler, Statistic::Avg, measured),
            None if general.is_some() => Limit::Off,
            None => usual_limit(statistic, measured),
        }
    }

    /// The floor of a handler, in the unit of its figures. By default 20 ns on the wall clock, about the variation of
    /// the probes' cost, and 1 ns (one instruction) under virtual time; 4 instructions where these are counted, since
    /// a call takes up to that many more or less by where objects lie in memory: the kernel compares addresses one
    /// after the other (`check_stack_object` in mm/usercopy.c by 2 instructions). For percentiles the width of
    /// the histogram's bucket is added.
    pub fn floor(&self, handler: &str, measured: Measured) -> f64 {
        let own = self.matching(handler).filter_map(|rule| rule.floor);
        let given = self.floor.into_iter().chain(own).filter(|floor| floor.meter == measured.meter);
        given.map(|floor| floor.value).last().unwrap_or(match (measured.meter, measured.clock) {
            (Meter::Exact, _) => 4.0,
            (_, Clock::Virtual) => 1.0,
            (_, Clock::Wall) => 20.0,
        })
    }

    /// The rule beside a release: its limit is that of each figure that is judged at all. Budgets were judged already, and
    /// what has gone since then was found when it went.
    pub fn beside_release(&self) -> Self {
        let limits =
            Limits(Statistic::GATED.map(|it| (it, Limit::Share(self.release_limit))).into());
        let handlers = self.handlers.iter().cloned().map(|mut rule| {
            rule.limits.0.retain(|it, limit| Statistic::GATED.contains(it) && *limit == Limit::Off);
            rule
        });
        Self {
            limits: Some(limits),
            handlers: handlers.collect(),
            budgets: Vec::new(),
            allow_vanished: true,
            ..self.clone()
        }
    }

    fn matching<'a>(&'a self, handler: &'a str) -> impl Iterator<Item = &'a HandlerRule> {
        self.handlers.iter().filter(move |rule| rule.pattern.matches(handler))
    }
}

/// That of what calls take where no limits are given: see [`Rule::limit`].
fn usual_limit(statistic: Statistic, measured: Measured) -> Limit {
    let percent = match (measured.meter, measured.clock, statistic) {
        (Meter::Probes, _, Statistic::Tp50) => return Limit::Off,
        (Meter::Exact, ..) | (_, Clock::Virtual, _) => return Limit::Share(0.005),
        (_, Clock::Wall, Statistic::Tp95) => 15.0,
        (_, Clock::Wall, Statistic::Tp99) => 25.0,
        (_, Clock::Wall, _) => 10.0,
    };
    Limit::Share(percent / 100.0 * if measured.in_turns { 1.0 } else { 2.0 })
}

/// A value that the file has as text.
fn text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(of: D) -> Result<T, D::Error> {
    String::deserialize(of)?.parse().map_err(D::Error::custom)
}

macro_rules! from_text {
    ($($value:ty),*) => {
        $(impl<'de> Deserialize<'de> for $value {
            fn deserialize<D: Deserializer<'de>>(of: D) -> Result<Self, D::Error> {
                text(of)
            }
        })*
    };
}

from_text!(Limit, Statistic, Amount, Budget);

fn share<'de, D: Deserializer<'de>>(of: D) -> Result<f64, D::Error> {
    parse_share(&String::deserialize(of)?).map_err(D::Error::custom)
}

fn pattern<'de, D: Deserializer<'de>>(of: D) -> Result<Pattern, D::Error> {
    a_pattern(&String::deserialize(of)?)
}

fn patterns<'de, D: Deserializer<'de>>(of: D) -> Result<Vec<Pattern>, D::Error> {
    Vec::<String>::deserialize(of)?.iter().map(|text| a_pattern(text)).collect()
}

fn a_pattern<E: serde::de::Error>(text: &str) -> Result<Pattern, E> {
    Pattern::new(text)
        .map_err(|error| E::custom(format_args!("invalid pattern `{text}`: {}", error.msg)))
}

fn alpha<'de, D: Deserializer<'de>>(of: D) -> Result<f64, D::Error> {
    let alpha = f64::deserialize(of)?;
    if alpha > 0.0 && alpha <= 0.5 {
        return Ok(alpha);
    }
    Err(D::Error::custom(format!("alpha is {alpha}, but has to be above 0 and at most 0.5")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Measured = Measured { meter: Meter::Probes, clock: Clock::Wall, in_turns: true };
    const VIRTUAL: Measured = Measured { clock: Clock::Virtual, ..WALL };
    const EXACT: Measured = Measured { meter: Meter::Exact, ..VIRTUAL };

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
        let absolute: Limits = "tp50=+5,avg=+0 instructions,tp99=+20ns".parse().unwrap();
        assert_eq!(absolute.get(Statistic::Tp50), Some(Limit::By(Amount::instructions(5.0))));
        assert_eq!(absolute.get(Statistic::Avg), Some(Limit::By(Amount::instructions(0.0))));
        assert_eq!(absolute.get(Statistic::Tp99), Some(Limit::By(Amount::ns(20.0))));
        for (text, part) in [
            ("tp50=+", "invalid amount"),
            ("tp50=+-1", "invalid amount"),
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
        let handler = |pattern: &str, limits: &str, floor: Option<&str>| HandlerRule {
            pattern: glob::Pattern::new(pattern).unwrap(),
            limits: limits.parse().unwrap(),
            floor: floor.map(|floor| floor.parse().unwrap()),
        };
        let rule = Rule {
            limits: Some("tp99=10%,avg=5%".parse().unwrap()),
            floor: Some(Amount::ns(7.0)),
            handlers: vec![
                handler("connect_*", "tp99=20%,tp95=3%", Some("50ns")),
                handler("connect_syscall_handler", "tp99=off,tp50=+3", None),
                handler("bind_handler", "avg=5%", Some("9 instructions")),
            ],
            ..Rule::default()
        };
        let limit = |name, statistic| rule.limit(name, statistic, WALL);
        assert_eq!(limit("bind_handler", Statistic::Tp99), share(10.0));
        assert_eq!(limit("bind_handler", Statistic::Tp95), Limit::Off);
        assert_eq!(limit("connect_entry", Statistic::Tp99), share(20.0));
        assert_eq!(limit("connect_entry", Statistic::Tp95), share(3.0));
        assert_eq!(limit("connect_entry", Statistic::Avg), share(5.0));
        assert_eq!(limit("connect_syscall_handler", Statistic::Tp99), Limit::Off);
        let three = Limit::By(Amount::instructions(3.0));
        assert_eq!(limit("connect_syscall_handler", Statistic::Tp50), three);
        assert_eq!(rule.floor("bind_handler", WALL), 7.0);
        assert_eq!(rule.floor("connect_syscall_handler", WALL), 50.0);
        // A floor in another unit is none.
        assert_eq!(rule.floor("bind_handler", EXACT), 9.0);
        assert_eq!(rule.floor("connect_syscall_handler", EXACT), 4.0);
    }

    #[test]
    fn beside_a_release_one_limit_holds_for_what_is_judged_at_all() {
        let off = HandlerRule {
            pattern: glob::Pattern::new("bind_*").unwrap(),
            limits: "tp99=off,avg=9%".parse().unwrap(),
            floor: Some(Amount::instructions(7.0)),
        };
        let rule = Rule {
            limits: Some("avg=0.1%".parse().unwrap()),
            handlers: vec![off],
            budgets: vec!["x:tp99<3 instructions".parse().unwrap()],
            ..Rule::default()
        };
        let beside = rule.beside_release();
        let limits =
            [Statistic::Avg, Statistic::Tp99].map(|it| beside.limit("bind_handler", it, EXACT));
        assert_eq!(limits, [share(2.0), Limit::Off]);
        assert_eq!(beside.limit("x", Statistic::Tp99, EXACT), share(2.0));
        assert_eq!((beside.floor("bind_handler", EXACT), beside.budgets.len()), (7.0, 0));
    }

    #[test]
    fn without_a_word_the_meter_and_the_clock_decide() {
        let rule = Rule::default();
        let apart = Measured { in_turns: false, ..WALL };
        assert_eq!(rule.limit("x", Statistic::Tp99, VIRTUAL), share(0.5));
        assert_eq!(rule.limit("x", Statistic::Tp99, WALL), share(25.0));
        assert_eq!(rule.limit("x", Statistic::Avg, apart), share(20.0));
        let of_median = [EXACT, VIRTUAL, WALL].map(|how| rule.limit("x", Statistic::Tp50, how));
        assert_eq!(of_median, [share(0.5), Limit::Off, Limit::Off]);
        assert_eq!([EXACT, VIRTUAL, WALL].map(|how| rule.floor("x", how)), [4.0, 1.0, 20.0]);
    }

    fn parse(text: &str) -> Result<Rule, String> {
        Rule::parse(text, Path::new("gate.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_changes_nothing() {
        assert_eq!(parse(""), Ok(Rule::default()));
    }

    #[test]
    fn everything_can_be_said() {
        let rule = parse(
            r#"
            alpha = 0.01
            max-loss = "1%"
            floor = "15ns"
            allow-vanished = true
            budgets = ["connect_*:tp99<2us"]

            [max-regression]
            avg = "5%"
            tp99 = "10%"

            [[handler]]
            name = "execve_*"
            max-regression = { avg = "2%", tp99 = "off" }
            floor = "6 instructions"
            "#,
        )
        .unwrap();
        assert_eq!((rule.alpha, rule.max_loss), (0.01, 0.01));
        assert_eq!(rule.floor, Some(Amount::ns(15.0)));
        assert!(rule.allow_vanished);
        assert_eq!(rule.limits, Some("avg=5%,tp99=10%".parse().unwrap()));
        assert_eq!(rule.budgets, ["connect_*:tp99<2us".parse().unwrap()]);
        assert_eq!(rule.handlers[0].limits, "avg=2%,tp99=off".parse().unwrap());
        assert_eq!(rule.handlers[0].floor, Some(Amount::instructions(6.0)));
        assert!(rule.handlers[0].pattern.matches("execve_handler"));
    }

    #[test]
    fn errors_have_line_and_column() {
        for (text, start) in [
            ("alpha = 0.05\nmax-los = \"1%\"\n", "gate.toml:2:1: unknown field `max-los`"),
            (
                "[max-regression]\np99 = \"1%\"\n",
                "gate.toml:2:1: unknown statistic `p99`: expected one of avg",
            ),
            ("[max-regression]\ntp99 = \"1\"\n", "gate.toml:2:8: invalid share `1`"),
            ("[max-regression]\ntp99 = 1\n", "gate.toml:2:8: invalid type"),
            ("alpha = 0.9\n", "gate.toml:1:9: alpha is 0.9"),
            ("floor = \"5\"\n", "gate.toml:1:9: invalid amount `5`"),
            (
                "[[handler]]\nname = \"a\"\n\n[[handler]]\nnam = \"b\"\n",
                "gate.toml:5:1: unknown field `nam`",
            ),
            (
                "[[handler]]\nname = \"a[\"\n",
                "gate.toml:2:8: invalid pattern `a[`: invalid range pattern",
            ),
            ("budgets = [\n  \"connect_*\",\n]\n", "gate.toml:1:11: invalid budget `connect_*`"),
            ("alpha = \n", "gate.toml:1:9: "),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(start), "{error}\n  and not {start}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Rule::read(Path::new("/nowhere/gate.toml")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /nowhere/gate.toml: "), "{error}");
    }
}
