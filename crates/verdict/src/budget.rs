//! Absolute budgets: upper bounds of a handler's duration.

use std::str::FromStr;

use profiler_recording::Meter;
use profiler_recording::loads::BuiltinKind;

use super::{Amount, ChangeRecord, Statistic, load_of, operation_of};

/// A bound on one figure of the handlers that a pattern matches, such as `connect_*:tp99<2us` or
/// `connect_*:tp99<3000 instructions`, or on what the driver costs an operation of a load, `connect:<3000`.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// The handlers, or the operation.
    pub pattern: glob::Pattern,
    /// The figure.
    pub statistic: Statistic,
    /// Upper bound.
    pub below: Amount,
    /// The budget as written.
    pub text: String,
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).map_err(|reason| {
            format!(
                "invalid budget `{text}`: {reason}; write it as 'connect_*:tp99<2us', or 'connect:<3000' for a load"
            )
        })
    }
}

impl Budget {
    /// Whether it is on this figure, of a handler of the candidate or of an operation whose cost is known.
    pub(super) fn is_on(&self, record: &ChangeRecord) -> bool {
        record.statistic == self.statistic
            && self.pattern.matches(&record.handler)
            && match load_of(&record.handler) {
                Some(_) => record.candidate.is_some(),
                // The figure of a load, which is no handler's, has a name of several words.
                None => record.candidate_calls.known && !record.handler.contains(' '),
            }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (pattern, rest) = text.split_once(':').ok_or("it has no `:` after the handler")?;
        let (statistic, bound) = rest.split_once('<').ok_or("it has no `<` before the bound")?;
        if statistic.trim().is_empty() {
            return Self::of_operation(pattern.trim(), bound.trim(), text);
        }
        let pattern = glob::Pattern::new(pattern.trim())
            .map_err(|error| format!("invalid pattern: {}", error.msg))?;
        if pattern.as_str().is_empty() {
            return Err("it names no handler".to_owned());
        }
        let statistic: Statistic = statistic.trim().parse()?;
        if !Statistic::GATED.contains(&statistic) {
            return Err(format!("{statistic} can have a limit, and no budget"));
        }
        Ok(Self { pattern, statistic, below: bound.parse()?, text: text.to_owned() })
    }

    /// A bound on what the driver costs an operation, in instructions: nothing else is judged of it.
    fn of_operation(load: &str, bound: &str, text: &str) -> Result<Self, String> {
        let kind: BuiltinKind = load.parse().map_err(|error| {
            format!("without a figure it is for operations of a load, and {error}")
        })?;
        let below = Amount::with_unit(bound)?;
        if below.meter != Meter::Exact {
            return Err("operations of loads are counted in instructions".to_owned());
        }
        let pattern = glob::Pattern::new(&glob::Pattern::escape(&operation_of(kind)))
            .map_err(|error| error.to_string())?;
        Ok(Self { pattern, statistic: Statistic::Avg, below, text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read() {
        let budget: Budget = "connect_*:tp99<2us".parse().unwrap();
        assert_eq!((budget.statistic, budget.below), (Statistic::Tp99, Amount::ns(2e3)));
        assert!(budget.pattern.matches("connect_syscall_handler"));
        assert!(!budget.pattern.matches("bind_handler"));
        assert_eq!(budget.text, "connect_*:tp99<2us");
        let exact = "x:avg<3000 instructions".parse::<Budget>().unwrap();
        assert_eq!(exact.below, Amount::instructions(3000.0));
        let operation: Budget = "connect:<3000".parse().unwrap();
        assert_eq!(operation.below, Amount::instructions(3000.0));
        assert!(operation.pattern.matches("operation of connect"));
        assert!(!operation.pattern.matches("connect_syscall_handler"));
        assert_eq!("connect:<3000 instructions".parse::<Budget>().unwrap().below, operation.below);
        assert_eq!("x : avg < 1.5 ms".parse::<Budget>().unwrap().below, Amount::ns(1.5e6));
    }

    #[test]
    fn errors_have_their_reason() {
        for (text, reason) in [
            ("connect_*", "no `:`"),
            ("connect_*:tp99", "no `<`"),
            ("connect_*:count<2us", "count can have a limit, and no budget"),
            ("connect_*:p99<2us", "unknown statistic `p99`"),
            ("connect_*:tp99<2", "invalid amount `2`"),
            ("a[:tp99<2us", "invalid pattern"),
            (":tp99<2us", "it names no handler"),
            ("bind_handler:<3000", "for operations of a load, and no built-in load `bind_handler`"),
            ("connect:<2us", "operations of loads are counted in instructions"),
            ("connect:<", "invalid amount"),
        ] {
            let error = text.parse::<Budget>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid budget `{text}`: ")), "{error}");
            assert!(error.contains(reason), "{error}");
        }
    }
}
