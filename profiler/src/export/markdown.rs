//! Markdown for GitHub and GitLab.

use super::cell::{Unit, clean};
use super::table::{HEADER, cells, heading};
use super::{Exporter, own, unseen};
use crate::recording::Recording;

/// The table, its warnings, and a folded section on how it was measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct Markdown {
    /// Unit of the durations.
    pub unit: Unit,
}

impl Exporter for Markdown {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        let unit = self.unit.resolve(recording);
        let mut text = String::new();
        let columns = HEADER.map(|name| match name {
            "average" | "TP90" | "TP95" | "TP99" | "max" => format!("{name}, {unit}"),
            _ => name.to_owned(),
        });
        header(&mut text, &columns);
        for handler in recording.shown() {
            let [name, figures @ ..] = cells(recording, handler, unit);
            let figures = figures.iter().map(|cell| escape(cell));
            line(&mut text, std::iter::once(code(&name)).chain(figures));
        }
        text.push('\n');
        let own: Vec<_> = own::rows(recording, unit).collect();
        if !own.is_empty() {
            let names = own::header(recording).iter().map(|name| match *name {
                "handler" | "repeated" => (*name).to_owned(),
                _ => format!("{name}, {unit}"),
            });
            header(&mut text, &names.collect::<Vec<_>>());
            for row in &own {
                let [name, figures @ ..] = row.as_slice() else { continue };
                let figures = figures.iter().map(|cell| escape(cell));
                line(&mut text, std::iter::once(code(name)).chain(figures));
            }
            text.push('\n');
        }
        let unseen = unseen::lines(recording);
        for line in &unseen {
            text.push_str(&format!("- {}\n", escape(&clean(line))));
        }
        for warning in &recording.warnings {
            text.push_str(&format!("- **warning:** {}\n", escape(&clean(&warning.text))));
        }
        if !recording.warnings.is_empty() || !unseen.is_empty() {
            text.push('\n');
        }
        text.push_str("<details><summary>How it was measured</summary>\n\n");
        for (label, value) in heading(recording, unit) {
            text.push_str(&format!("- {label}: {}\n", escape(&clean(&value))));
        }
        text.push_str("\n</details>\n");
        text.into_bytes()
    }

    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for (at, run) in runs.iter().enumerate() {
            let gap = if at == 0 { "" } else { "\n" };
            bytes.extend(format!("{gap}### Run {} of {}\n\n", at + 1, runs.len()).into_bytes());
            bytes.extend(self.serialize(run));
        }
        Some(bytes)
    }
}

/// Header of a table whose first column is text.
fn header(text: &mut String, names: &[String]) {
    line(text, names.iter().cloned());
    let rules = (0..names.len()).map(|at| if at == 0 { ":--" } else { "--:" }.to_owned());
    line(text, rules);
}

fn line(text: &mut String, cells: impl Iterator<Item = String>) {
    text.push('|');
    for cell in cells {
        text.push_str(&format!(" {cell} |"));
    }
    text.push('\n');
}

/// A name as code if it looks like a function's; a file may contain anything.
fn code(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.$[] -".contains(c);
    if name.chars().all(plain) { format!("`{name}`") } else { escape(name) }
}

/// Escapes markup, tags and column borders. An underscore within a word is not markup.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let within = before.is_alphanumeric() && rest.peek().is_some_and(|c| c.is_alphanumeric());
        match c {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '_' if within => escaped.push('_'),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '@' | '!' => {
                escaped.push('\\');
                escaped.push(c);
            }
            _ => escaped.push(c),
        }
        before = c;
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_not_markup() {
        assert_eq!(
            escape("a_b *c* |d| <e> &f; `g` _h_"),
            "a_b \\*c\\* \\|d\\| &lt;e> &amp;f; \\`g\\` \\_h\\_"
        );
        assert_eq!(code("bind_handler [m]"), "`bind_handler [m]`");
        assert_eq!(code("a`|b"), "a\\`\\|b");
    }
}
