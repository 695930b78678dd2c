//! What a bisection has found, as text.

use super::Found;
use crate::export::cell::clean;
use crate::text::plural;

/// The first slower commit or those that it is one of, and what was left out.
#[must_use]
pub fn text(found: &Found) -> String {
    let mut text = match found.first.as_slice() {
        [first] => format!("bisect: {first} is the first slower commit\n{}\n", found.words),
        several => {
            let lines: Vec<String> = several.iter().map(|commit| format!("  {commit}\n")).collect();
            format!("bisect: one of these is the first slower commit:\n{}", lines.concat())
        }
    };
    let count = found.skipped.len();
    text.push_str(&format!("bisect: {} build{}", found.builds, plural(found.builds)));
    if count > 0 {
        text.push_str(&format!(", {count} commit{} left out:", plural(count)));
    }
    text.push('\n');
    for (commit, why) in &found.skipped {
        text.push_str(&format!("  {commit}: {}\n", why.lines().next().unwrap_or_default()));
    }
    let lines: Vec<_> = text.lines().map(clean).collect();
    lines.join("\n") + "\n"
}
