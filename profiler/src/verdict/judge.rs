//! The decision on one figure.

use super::{ChangeRecord, Verdict};

/// What one figure is held against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Terms {
    /// How much slower it may become, as a share of the baseline.
    pub(super) share: f64,
    /// Least change that counts, in nanoseconds, the bucket's width not included.
    pub(super) floor_ns: f64,
    /// Largest share of the calls that may be missing.
    pub(super) max_loss: f64,
    /// Chance of a false alarm over all comparisons.
    pub(super) alpha: f64,
}

/// What is said, whether it is faster, and why in one line.
pub(super) type Finding = (Verdict, bool, String);

/// Too few calls of a side, in one line; `None` if they are enough.
pub(super) fn insufficient(record: &ChangeRecord) -> Option<String> {
    let needed = record.statistic.calls_needed();
    let fewest = record.base_calls.fewest.min(record.candidate_calls.fewest);
    (fewest < needed).then(|| {
        let side = if record.base_calls.fewest == fewest { "baseline" } else { "candidate" };
        format!(
            "{} needs {needed} calls in every run, and a run of the {side} has {fewest}: raise the \
             load's operations, or turn {} off for this handler",
            record.statistic, record.statistic
        )
    })
}

/// Judges a change. `p` is the chance of its being slower by chance, adjusted for all comparisons.
///
/// It fails if that chance is below alpha, and the lower bound of the change is above the limit, and
/// that of the absolute change above the floor, and no more calls were lost than may be. It passes if an
/// upper bound shows that limit or floor is kept. Everything else is undecided.
pub(super) fn judge(record: &ChangeRecord, terms: &Terms, p: f64, p_faster: f64) -> Finding {
    let (Some(base), Some(candidate)) = (record.base, record.candidate) else {
        return (Verdict::Inconclusive, false, "one side has no value".to_owned());
    };
    let values = format!("{} to {}", ns(base), ns(candidate));
    if record.lost_share > terms.max_loss {
        let text = format!(
            "{} of the calls of a run were lost, and {} may be: {values} says nothing certain; lower the \
             load's workers",
            percent(record.lost_share),
            percent(terms.max_loss)
        );
        return (Verdict::Inconclusive, false, text);
    }
    let Some(difference) = record.difference() else {
        let text = format!("{values}: too few runs for bounds");
        return (Verdict::Inconclusive, false, text);
    };
    let floor = terms.floor_ns + record.resolution;
    let relative = record.relative();
    let change = record.percent.map_or_else(
        || signed_ns(candidate - base),
        |change| format!("{} ({values})", signed_percent(change / 100.0)),
    );
    let limit = if relative.is_none() || floor > terms.share * base {
        format!("limit {} (floor)", ns(floor))
    } else {
        format!("limit {}", percent(terms.share))
    };
    let (low, high) = match relative {
        Some(bounds) => (signed_percent(bounds.lower), signed_percent(bounds.upper)),
        None => (signed_ns(difference.lower), signed_ns(difference.upper)),
    };
    let above =
        relative.is_none_or(|bounds| bounds.lower > terms.share) && difference.lower > floor;
    let within =
        relative.is_some_and(|bounds| bounds.upper <= terms.share) || difference.upper <= floor;
    if above && p < terms.alpha {
        let text = format!("{change}, at least {low}, {limit}; p {} adjusted", chance(p));
        return (Verdict::Fail, false, text);
    }
    if above {
        let text = format!(
            "{change}, at least {low}, {limit}, and yet runs of both sides overlap (p {} adjusted): more runs",
            chance(p)
        );
        return (Verdict::Inconclusive, false, text);
    }
    if within {
        let faster = relative.is_none_or(|bounds| bounds.upper < -terms.share)
            && difference.upper < -floor
            && p_faster < terms.alpha;
        let text = if faster {
            format!("faster: {change}, at most {high}; p {} adjusted", chance(p_faster))
        } else {
            format!("{change}, at most {high}, {limit}")
        };
        return (Verdict::Pass, faster, text);
    }
    let text =
        format!("{change}, between {low} and {high}, {limit}: more runs, or a quieter machine");
    (Verdict::Inconclusive, false, text)
}

/// A duration in words: 6215.2 ns, 62.152 us.
pub(crate) fn ns(ns: f64) -> String {
    let size = ns.abs();
    if size < 1e4 {
        format!("{ns:.1} ns")
    } else if size < 1e7 {
        format!("{:.3} us", ns / 1e3)
    } else {
        format!("{:.3} ms", ns / 1e6)
    }
}

fn signed_ns(value: f64) -> String {
    format!("{}{}", if value < 0.0 { "" } else { "+" }, ns(value))
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let places = if percent != 0.0 && percent.abs() < 0.095 { 3 } else { 2 };
    let text = format!("{percent:.places$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} %")
}

fn signed_percent(share: f64) -> String {
    format!("{:+.2} %", share * 100.0)
}

fn chance(p: f64) -> String {
    if p < 0.0001 { "below 0.0001".to_owned() } else { format!("{p:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_in_words() {
        assert_eq!(
            [6215.23, 62_152.3, 62_152_345.0].map(ns),
            ["6215.2 ns", "62.152 us", "62.152 ms"]
        );
        assert_eq!(
            [0.005, 0.1, 0.0005, 0.0, 1.0].map(percent),
            ["0.5 %", "10 %", "0.05 %", "0 %", "100 %"]
        );
        assert_eq!(signed_percent(0.0203), "+2.03 %");
        assert_eq!((signed_ns(2.0), signed_ns(-2.0)), ("+2.0 ns".to_owned(), "-2.0 ns".to_owned()));
        assert_eq!(chance(0.000_01), "below 0.0001");
    }
}
