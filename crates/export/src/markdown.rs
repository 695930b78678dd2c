//! Markdown for GitHub and GitLab.

use itertools::Itertools as _;

use super::cell::clean;
use super::document::{Document, Layout, Note, Row, Table};

impl Document {
    /// As Markdown: what matters first, and what is long folded.
    pub fn markdown(&self) -> String {
        let (folded, sections): (Vec<_>, Vec<_>) =
            self.sections.iter().partition(|section| section.lead.is_empty());
        let mut blocks = vec![self.head()];
        blocks.extend(self.tables.iter().map(|table| table_of(table, &table.rows)));
        blocks.extend(sections.into_iter().map(Self::markdown));
        let notes = self.notes.iter().map(|Note { what, words, .. }| match what.as_str() {
            "" => format!("  {}\n", plain(words)),
            _ => format!("- **{what}**: {}\n", plain(words)),
        });
        blocks.push(notes.collect());
        let tables = self.tables.iter();
        blocks.extend(tables.map(|table| fold(&table.summary, &table_of(table, &table.folded))));
        blocks.extend(folded.into_iter().map(|of| {
            fold(&of.title, &of.tables.iter().map(|it| table_of(it, &it.rows)).collect::<String>())
        }));
        let facts = self.facts.iter();
        let facts = facts.map(|Note { what, words, .. }| format!("- {what}: {}\n", plain(words)));
        blocks.push(fold("How it was measured", &facts.collect::<String>()));
        blocks.retain(|block| !block.is_empty());
        blocks.join("\n")
    }

    fn head(&self) -> String {
        let title = match self.title.as_str() {
            "" => String::new(),
            title => format!("### {}\n", plain(title)),
        };
        let lead: String = self.lead.iter().map(|line| format!("{}  \n", plain(line))).collect();
        if lead.is_empty() { title } else { format!("{title}\n{lead}") }
    }
}

/// A folded block; nothing if it is empty.
fn fold(summary: &str, block: &str) -> String {
    if block.is_empty() {
        return String::new();
    }
    format!("<details><summary>{}</summary>\n\n{block}\n</details>\n", plain(summary))
}

/// These rows of a table; nothing without a row.
fn table_of(table: &Table, rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let rule = match table.layout {
        Layout::Words => "---|",
        Layout::Figures | Layout::Tree => "--:|",
    };
    let rules = format!("|:--|{}\n", rule.repeat(table.head.len().saturating_sub(1)));
    let rows = rows.iter().map(|row| line(&"&emsp;".repeat(row.depth), &row.cells));
    line("", &table.head) + &rules + &rows.collect::<String>()
}

fn line(indent: &str, cells: &[String]) -> String {
    format!("| {indent}{} |\n", cells.iter().map(|cell| plain(cell)).format(" | "))
}

/// Text in which nothing steers a terminal or is markup.
fn plain(text: &str) -> String {
    escape(&clean(text))
}

/// Escapes markup, tags and column borders. An underscore within a word is not markup. A mention (`@team`) and a reference (`#12`)
/// are found after Markdown was rendered, when a backslash is gone: a zero-width space parts what would be one.
fn escape(text: &str) -> String {
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
                escaped.extend(['\\', c]);
                if "#@!~".contains(c) && rest.peek().is_some_and(is_name) {
                    escaped.push_str("&#8203;");
                }
            }
            _ => escaped.push(c),
        }
        before = c;
    }
    escaped
}

/// Whether the name of a team or the number of an issue may begin like this.
fn is_name(c: &char) -> bool {
    c.is_alphanumeric() || *c == '_' || *c == '"'
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
    }

    #[test]
    fn a_name_mentions_nobody_and_refers_to_nothing() {
        assert_eq!(escape("@team #12 a@b"), "\\@&#8203;team \\#&#8203;12 a\\@&#8203;b");
        assert_eq!(escape("!3 ~bug # @"), "\\!&#8203;3 \\~&#8203;bug \\# \\@");
    }
}
