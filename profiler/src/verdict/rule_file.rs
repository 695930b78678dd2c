//! `gate.toml`: a rule in a file.

use std::path::Path;

use serde::Deserialize;

use super::rule::HandlerRule;
use super::{Amount, Budget, Limit, Limits, Rule, Statistic, parse_share};
use crate::toml_file::{self, BadToml, TomlFileError};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileRule {
    alpha: Option<Alpha>,
    max_loss: Option<Share>,
    floor: Option<FileAmount>,
    allow_vanished: Option<bool>,
    #[serde(default)]
    accept_new: Vec<Pattern>,
    #[serde(default)]
    require_reached: bool,
    max_regression: Option<FileLimits>,
    #[serde(default)]
    budgets: Vec<FileBudget>,
    #[serde(default)]
    handler: Vec<FileHandler>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileHandler {
    name: Pattern,
    max_regression: Option<FileLimits>,
    floor: Option<FileAmount>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLimits {
    avg: Option<FileLimit>,
    tp50: Option<FileLimit>,
    tp90: Option<FileLimit>,
    tp95: Option<FileLimit>,
    tp99: Option<FileLimit>,
    count: Option<FileLimit>,
    repeated: Option<FileLimit>,
    tail: Option<FileLimit>,
    elsewhere: Option<FileLimit>,
}

/// A value that the file gives as a string.
macro_rules! text_value {
    ($name:ident, $inner:ty, $parse:expr) => {
        #[derive(Debug, Deserialize)]
        #[serde(try_from = "String")]
        struct $name($inner);

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                let parse: fn(&str) -> Result<$inner, String> = $parse;
                parse(&text).map(Self)
            }
        }
    };
}

text_value!(Share, f64, |text| parse_share(text).map_err(|error| error.to_string()));
text_value!(FileAmount, Amount, |text| text
    .parse()
    .map_err(|error: super::QuantityError| error.to_string()));
text_value!(FileLimit, Limit, |text| text
    .parse()
    .map_err(|error: super::QuantityError| format!("{error}, or \"off\"")));
text_value!(FileBudget, Budget, |text| text
    .parse()
    .map_err(|error: super::BudgetError| error.to_string()));
text_value!(Pattern, glob::Pattern, |text| glob::Pattern::new(text)
    .map_err(|error| format!("invalid pattern `{text}`: {}", error.msg)));

#[derive(Debug, Deserialize)]
#[serde(try_from = "f64")]
struct Alpha(f64);

impl TryFrom<f64> for Alpha {
    type Error = String;

    fn try_from(alpha: f64) -> Result<Self, String> {
        if alpha > 0.0 && alpha <= 0.5 {
            Ok(Self(alpha))
        } else {
            Err(format!("alpha is {alpha}, but has to be above 0 and at most 0.5"))
        }
    }
}

impl From<FileLimits> for Limits {
    fn from(file: FileLimits) -> Self {
        let FileLimits { avg, tp50, tp90, tp95, tp99, count, repeated, tail, elsewhere } = file;
        let mut limits = Self::default();
        let given = [avg, tp50, tp90, tp95, tp99, count, repeated, tail, elsewhere];
        for (statistic, limit) in Statistic::LIMITED.into_iter().zip(given) {
            if let Some(FileLimit(limit)) = limit {
                limits.set(statistic, limit);
            }
        }
        limits
    }
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
        toml_file::parse(text, &path.display().to_string(), |file: FileRule| Ok(Self::from(file)))
    }
}

impl From<FileRule> for Rule {
    fn from(file: FileRule) -> Self {
        let default = Self::default();
        Self {
            alpha: file.alpha.map_or(default.alpha, |Alpha(alpha)| alpha),
            limits: file.max_regression.map(Limits::from),
            floor: file.floor.map(|FileAmount(floor)| floor),
            max_loss: file.max_loss.map_or(default.max_loss, |Share(share)| share),
            allow_vanished: file.allow_vanished.unwrap_or(default.allow_vanished),
            accept_new: file.accept_new.into_iter().map(|Pattern(pattern)| pattern).collect(),
            require_reached: file.require_reached,
            handlers: file
                .handler
                .into_iter()
                .map(|handler| HandlerRule {
                    pattern: handler.name.0,
                    limits: handler.max_regression.map(Limits::from).unwrap_or_default(),
                    floor: handler.floor.map(|FileAmount(floor)| floor),
                })
                .collect(),
            budgets: file.budgets.into_iter().map(|FileBudget(budget)| budget).collect(),
        }
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
