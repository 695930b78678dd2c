//! Words that many messages have in common.

/// The `s` of a plural: none for one.
#[must_use]
pub fn plural<T: PartialEq + From<u8>>(count: T) -> &'static str {
    if count == T::from(1) { "" } else { "s" }
}

/// Names for a line: the first of them, and how many more there are.
#[must_use]
pub fn listed<S: AsRef<str>>(names: &[S]) -> String {
    const MOST: usize = 12;
    let first: Vec<&str> = names.iter().take(MOST).map(AsRef::as_ref).collect();
    match names.len().checked_sub(MOST) {
        None | Some(0) => first.join(", "),
        Some(more) => format!("{} and {more} more", first.join(", ")),
    }
}
