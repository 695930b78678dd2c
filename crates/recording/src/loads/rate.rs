//! Rates of an open loop, and when each of its operations is due.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Operations per second, over all workers of one load. Finite and above zero.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[schemars(with = "f64")]
#[serde(try_from = "f64", into = "f64")]
pub struct Rate(f64);

/// One operation a nanosecond: beyond it the schedule has no resolution left.
const MAX_PER_S: f64 = 1e9;
/// About one operation in eleven days: below it the schedule would leave the range of `Duration`
/// after a few operations.
const MIN_PER_S: f64 = 1e-6;

impl Rate {
    /// Operations per second.
    pub fn get(self) -> f64 {
        self.0
    }

    /// When operation `index` is due, counted from the start of the load; the first is due at 0.
    ///
    /// Each time comes from the index and not from the time before it, so that rounding never adds up.
    pub fn due(self, index: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "exact to the nanosecond for 100 days")]
        let seconds = index as f64 / self.0;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

fn bad(given: &str) -> String {
    format!(
        "`{given}` is not a rate: write operations a second as `200/s`, or `30/min`; above 0 and up to {MAX_PER_S}/s"
    )
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let (number, seconds) = match given.trim().split_once('/') {
            None => (given, 1.0),
            Some((number, "s" | "sec")) => (number, 1.0),
            Some((number, "m" | "min")) => (number, 60.0),
            Some((number, "h")) => (number, 3600.0),
            Some(_) => return Err(bad(given)),
        };
        let number: f64 = number.trim().parse().map_err(|_| bad(given))?;
        Self::try_from(number / seconds).map_err(|_| bad(given))
    }
}

impl TryFrom<f64> for Rate {
    type Error = String;

    /// Operations a second, from one in a million seconds to one a nanosecond.
    fn try_from(per_second: f64) -> Result<Self, String> {
        let is_rate = (MIN_PER_S..=MAX_PER_S).contains(&per_second);
        is_rate.then_some(Self(per_second)).ok_or_else(|| bad(&per_second.to_string()))
    }
}

impl From<Rate> for f64 {
    fn from(rate: Rate) -> Self {
        rate.0
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_their_unit() {
        for (text, per_second) in
            [("200/s", 200.0), ("200", 200.0), ("0.5/s", 0.5), ("30/min", 0.5), ("7200/h", 2.0)]
        {
            assert_eq!(text.parse::<Rate>().unwrap().get(), per_second, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_rate_is_refused_by_name() {
        for text in ["", "0", "-1/s", "nan", "inf/s", "fast", "200/", "200/day", "1e10/s", "1e-9"] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not a rate")), "{error}");
        }
        assert!(serde_json::from_str::<Rate>("-3.0").is_err());
    }

    #[test]
    fn the_schedule_does_not_drift() {
        let rate = Rate::try_from(3.0).unwrap();
        assert_eq!(rate.due(0), Duration::ZERO);
        assert_eq!(rate.due(3), Duration::from_secs(1));
        assert_eq!(rate.due(3_000_000), Duration::from_secs(1_000_000));
        let far = rate.due(1_000_000);
        assert!(far.abs_diff(Duration::from_nanos(333_333_333_333_333)) < Duration::from_nanos(2));
        assert_eq!(Rate::try_from(MIN_PER_S).unwrap().due(u64::MAX), Duration::MAX);
    }
}
