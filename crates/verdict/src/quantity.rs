//! Amounts and shares, as text has them.

use std::fmt;
use std::str::FromStr;

use profiler_recording::Meter;

/// What calls may take, or take more: a duration, or instructions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount {
    /// Nanoseconds or instructions.
    pub value: f64,
    /// Which of the two: where instructions are counted, or where probes measure.
    pub meter: Meter,
}

impl Amount {
    /// Nanoseconds.
    pub fn ns(value: f64) -> Self {
        Self { value, meter: Meter::Probes }
    }

    pub fn instructions(value: f64) -> Self {
        Self { value, meter: Meter::Exact }
    }

    /// Reads an amount that is in instructions where it has no unit.
    pub(super) fn with_unit(text: &str) -> Result<Self, String> {
        let unit = if text.contains(char::is_alphabetic) { "" } else { " instructions" };
        format!("{text}{unit}").parse()
    }

    fn read(text: &str) -> Option<Self> {
        const DAY_NS: f64 = 86_400e9;
        let (number, unit) = text.split_at(text.find(char::is_alphabetic)?);
        let number: f64 = number.trim().parse().ok()?;
        let amount = match unit {
            "instructions" => Self::instructions(number),
            "ns" => Self::ns(number),
            "us" | "\u{b5}s" | "\u{3bc}s" => Self::ns(number * 1e3),
            "ms" => Self::ns(number * 1e6),
            "s" => Self::ns(number * 1e9),
            _ => return None,
        };
        let most = if amount.meter == Meter::Exact { f64::MAX } else { DAY_NS };
        (0.0..=most).contains(&amount.value).then_some(amount)
    }
}

impl FromStr for Amount {
    type Err = String;

    /// Reads a duration of up to a day, such as `2us`, or `3000 instructions`.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        Self::read(text).ok_or_else(|| {
            format!(
                "invalid amount `{text}`: write it with its unit, such as 250ns, 2us or 5 instructions"
            )
        })
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meter {
            Meter::Probes => write!(f, "{}ns", self.value),
            Meter::Exact => write!(f, "{} instructions", self.value),
        }
    }
}

/// Parses a percentage up to 10,000 % into a share: `5%` is 0.05.
///
/// # Errors
/// If there is no number, no `%`, or the number is negative.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    match number {
        Some(percent) if (0.0..=10_000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("invalid share `{text}`: write it in percent, such as 5% or 0.5%")),
    }
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
            assert_eq!(text.parse(), Ok(Amount::ns(ns)), "{text}");
        }
        for text in ["", "2", "us", "-1us", "2 min", "nanns", "infs", "1e30s", "2us2"] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
    }

    #[test]
    fn amounts() {
        assert_eq!("2us".parse(), Ok(Amount::ns(2e3)));
        assert_eq!(" 3000 instructions".parse(), Ok(Amount::instructions(3e3)));
        for text in ["5", "-1 instructions", "nan instructions", "instructions", "5 calls"] {
            let error = text.parse::<Amount>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid amount `{text}`")), "{error}");
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
