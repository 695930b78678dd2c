//! Parses durations and shares.

/// Text that is not a duration or a share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a duration.
    #[error("invalid duration `{0}`: write it with its unit, such as 250ns, 2us or 1.5ms")]
    Duration(String),
    /// Not a share.
    #[error("invalid share `{0}`: write it in percent, such as 5% or 0.5%")]
    Share(String),
}

/// Parses a duration of up to a day, such as `2us`, into nanoseconds.
///
/// # Errors
/// If there is no number, no unit (`ns`, `us`, `ms`, `s`), or the number is negative.
pub fn parse_ns(text: &str) -> Result<f64, QuantityError> {
    const DAY_NS: f64 = 86_400e9;
    let bad = || QuantityError::Duration(text.to_owned());
    let trimmed = text.trim();
    let unit_at = trimmed.find(|c: char| c.is_alphabetic()).ok_or_else(bad)?;
    let (number, unit) = trimmed.split_at(unit_at);
    let scale = match unit {
        "ns" => 1.0,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(bad()),
    };
    let ns = number.trim().parse::<f64>().map_err(|_| bad())? * scale;
    if (0.0..=DAY_NS).contains(&ns) { Ok(ns) } else { Err(bad()) }
}

/// Parses a number of instructions, such as `3000 instructions`; `None` if it has another unit or none.
pub(super) fn parse_instructions(text: &str) -> Option<f64> {
    let number = text.trim().strip_suffix("instructions")?.trim().parse::<f64>().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// Parses a percentage up to 10,000 % into a share: `5%` is 0.05.
///
/// # Errors
/// If there is no number, no `%`, or the number is negative.
pub fn parse_share(text: &str) -> Result<f64, QuantityError> {
    let bad = || QuantityError::Share(text.to_owned());
    let number = text.trim().strip_suffix('%').ok_or_else(bad)?;
    let percent: f64 = number.trim().parse().map_err(|_| bad())?;
    if (0.0..=10_000.0).contains(&percent) { Ok(percent / 100.0) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ns) in [
            ("2us", 2e3),
            ("250 ns", 250.0),
            ("1.5ms", 1.5e6),
            ("0ns", 0.0),
            ("1s", 1e9),
            ("3\u{b5}s", 3e3),
        ] {
            assert_eq!(parse_ns(text), Ok(ns), "{text}");
        }
        for text in ["", "2", "us", "-1us", "2 min", "nanns", "infs", "1e30s", "2us2"] {
            assert!(parse_ns(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!(parse_share("5%"), Ok(0.05));
        assert_eq!(parse_share(" 0.5 % "), Ok(0.005));
        for text in ["", "5", "%", "-1%", "nan%", "inf%", "0.05", "20000%"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }
}
