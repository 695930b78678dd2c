//! Words that many messages have in common, and values that are given as text.

use std::time::Duration;

use strsim::jaro_winkler;

/// The `s` of a plural: none for one.
pub fn plural<T: PartialEq + From<u8>>(count: T) -> &'static str {
    if count == T::from(1) { "" } else { "s" }
}

/// Names for a line: the first of them, and how many more there are.
pub fn listed<S: AsRef<str>>(names: &[S]) -> String {
    joined(names, ", ")
}

/// As [`listed`], of phrases that may have commas.
pub fn phrases<S: AsRef<str>>(phrases: &[S]) -> String {
    joined(phrases, "; ")
}

fn joined<S: AsRef<str>>(names: &[S], by: &str) -> String {
    const MOST: usize = 12;
    let first: Vec<&str> = names.iter().take(MOST).map(AsRef::as_ref).collect();
    match names.len().checked_sub(MOST) {
        None | Some(0) => first.join(by),
        Some(more) => format!("{} and {more} more", first.join(by)),
    }
}

/// The name that is most like `wanted`.
pub fn nearest(wanted: &str, names: impl Iterator<Item = String>) -> Option<String> {
    names.max_by(|a, b| jaro_winkler(a, wanted).total_cmp(&jaro_winkler(b, wanted)))
}

/// The name that is most like `wanted`, if one is like it.
pub fn alike(wanted: &str, names: impl Iterator<Item = String>) -> Option<String> {
    nearest(wanted, names).filter(|near| jaro_winkler(near, wanted) > 0.8)
}

/// The last lines of a text.
pub fn last_lines(text: &str, most: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(most)..].join("\n")
}

/// Longest duration accepted, a year, so that sums with "now" cannot overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A duration with its unit, such as 30s, 500ms or 5m.
///
/// # Errors
/// What is wrong with it.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().ok();
    let duration = parsed.and_then(|parsed| Duration::try_from(parsed).ok());
    duration.filter(|duration| *duration <= LONGEST).ok_or_else(|| {
        format!(
            "invalid duration `{text}`: give a number with its unit, up to a year, such as 30s, 500ms or 5m"
        )
    })
}

/// The numbers in one of the kernel's lists, such as `0-3,8`. A malformed list yields none.
pub fn numbers(list: &str) -> Vec<u32> {
    let ranges = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(numbers("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(numbers("0"), [0]);
        assert_eq!(numbers(""), [0_u32; 0]);
    }
}
