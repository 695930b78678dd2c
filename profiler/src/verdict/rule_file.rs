//! `gate.toml`: a rule in a file.

use std::fmt::Display;
use std::path::Path;

use glob::Pattern;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::{Amount, Budget, Limit, Limits, Rule, Statistic, parse_share};
use crate::toml_file::{self, BadToml, TomlFileError};

/// Limits by the names of their figures.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileLimits {
    avg: Option<Limit>,
    tp50: Option<Limit>,
    tp90: Option<Limit>,
    tp95: Option<Limit>,
    tp99: Option<Limit>,
    count: Option<Limit>,
    repeated: Option<Limit>,
    tail: Option<Limit>,
    elsewhere: Option<Limit>,
}

impl From<FileLimits> for Limits {
    fn from(file: FileLimits) -> Self {
        let FileLimits { avg, tp50, tp90, tp95, tp99, count, repeated, tail, elsewhere } = file;
        let mut limits = Self::default();
        let given = [avg, tp50, tp90, tp95, tp99, count, repeated, tail, elsewhere];
        for (statistic, limit) in Statistic::LIMITED.into_iter().zip(given) {
            limit.into_iter().for_each(|limit| limits.set(statistic, limit));
        }
        limits
    }
}

/// A value that the file has as text.
fn parsed<'de, D: Deserializer<'de>, T, E: Display>(
    of: D,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    parse(&String::deserialize(of)?).map_err(D::Error::custom)
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(of: D) -> Result<Self, D::Error> {
        let or_off = |error: String| format!("{error}, or \"off\"");
        parsed(of, |text| text.parse().map_err(or_off))
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(of: D) -> Result<Self, D::Error> {
        parsed(of, str::parse)
    }
}

impl<'de> Deserialize<'de> for Budget {
    fn deserialize<D: Deserializer<'de>>(of: D) -> Result<Self, D::Error> {
        parsed(of, str::parse)
    }
}

pub(super) fn share<'de, D: Deserializer<'de>>(of: D) -> Result<f64, D::Error> {
    parsed(of, parse_share)
}

pub(super) fn pattern<'de, D: Deserializer<'de>>(of: D) -> Result<Pattern, D::Error> {
    parsed(of, a_pattern)
}

pub(super) fn patterns<'de, D: Deserializer<'de>>(of: D) -> Result<Vec<Pattern>, D::Error> {
    let all = Vec::<String>::deserialize(of)?;
    all.iter().map(|text| a_pattern(text)).collect::<Result<_, _>>().map_err(D::Error::custom)
}

fn a_pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| format!("invalid pattern `{text}`: {}", error.msg))
}

pub(super) fn alpha<'de, D: Deserializer<'de>>(of: D) -> Result<f64, D::Error> {
    let alpha = f64::deserialize(of)?;
    if alpha > 0.0 && alpha <= 0.5 {
        return Ok(alpha);
    }
    Err(D::Error::custom(format!("alpha is {alpha}, but has to be above 0 and at most 0.5")))
}

impl Rule {
    /// Reads a rule from a file; keys that it lacks are as in [`Rule::default`].
    ///
    /// # Errors
    /// If it cannot be read or has a mistake, such as an unknown key; the error has line and column.
    pub fn read(path: &Path) -> Result<Self, TomlFileError> {
        Ok(Self::parse(&toml_file::read(path)?, path)?)
    }

    /// Reads a rule from the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Rule::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, BadToml> {
        toml_file::parse(text, &path.display().to_string(), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("[max-regression]\np99 = \"1%\"\n", "gate.toml:2:1: unknown field `p99`"),
            ("[max-regression]\ntp99 = \"1\"\n", "gate.toml:2:8: invalid share `1`"),
            ("[max-regression]\ntp99 = 1\n", "gate.toml:2:8: invalid type"),
            ("alpha = 0.9\n", "gate.toml:1:9: alpha is 0.9"),
            ("floor = \"5\"\n", "gate.toml:1:9: invalid amount `5`"),
            (
                "[[handler]]\nname = \"a\"\n\n[[handler]]\nnam = \"b\"\n",
                "gate.toml:5:1: unknown field `nam`",
            ),
            ("[[handler]]\nname = \"a[\"\n", "gate.toml:2:8: invalid pattern `a[`"),
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
