//! What is shown, whatever the medium: a view makes a [`Document`] of recordings or of a report, and a renderer prints it, or
//! writes it as Markdown or as a page.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Width, presets};
use serde::Serialize;

use super::cell::clean;

/// Minimum width of a column of names with figures beside it: in a narrower terminal lines overflow.
const NAME_COLUMNS: u16 = 20;

/// A view. Its texts may hold anything: a renderer replaces what would steer the reader's program.
#[derive(Debug, Default, Serialize)]
pub struct Document {
    /// Not printed as text.
    pub title: String,
    /// What was decided, by which a page is coloured; empty if nothing was.
    pub outcome: String,
    /// What comes first, in lines.
    pub lead: Vec<String>,
    /// What was measured.
    pub facts: Vec<Note>,
    /// Drawings, for pages.
    pub plots: Vec<Figure>,
    pub tables: Vec<Table>,
    /// What a reader has to know.
    pub notes: Vec<Note>,
    /// Parts with a title of their own.
    pub sections: Vec<Document>,
}

/// A fact or a remark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Its kind, such as `warning`; empty for a further line of the note before.
    pub what: String,
    /// The text.
    pub words: String,
    /// How much it matters.
    #[serde(skip)]
    pub level: Level,
}

/// How much a note matters, by the words of GitHub's annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Level {
    /// It failed, or became slower.
    Error,
    /// It is undecided.
    Warning,
    /// All else.
    Notice,
}

/// A drawing.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// The drawing.
    pub svg: String,
    /// What is below it, and read to those who do not see it.
    pub caption: String,
    /// Whether it takes the width of the page.
    pub wide: bool,
}

/// How cells are aligned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// The first column is a name, and all others are figures.
    #[default]
    Figures,
    /// As figures; a row stands below the one that it is part of, further to the right.
    Tree,
    /// All columns are text.
    Words,
}

#[derive(Debug, Default, Serialize)]
pub struct Table {
    /// Its title on a page; may be empty.
    pub title: String,
    pub layout: Layout,
    /// Heads of the columns.
    pub head: Vec<String>,
    pub rows: Vec<Row>,
    /// Further rows, which Markdown and pages fold.
    pub folded: Vec<Row>,
    /// What stands for the folded rows.
    pub summary: String,
    /// What is below it on a page; may be empty.
    pub note: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// How far to the right it is, in a tree.
    pub depth: usize,
    pub cells: Vec<String>,
}

impl Document {
    /// A section that is a table; none if the table is empty.
    pub fn of_table(title: &str, table: Table) -> Option<Self> {
        (!table.is_empty()).then(|| Self {
            title: title.to_owned(),
            tables: vec![table],
            ..Self::default()
        })
    }

    /// Lines without more.
    pub fn of_lines(lead: Vec<String>) -> Self {
        Self { lead, ..Self::default() }
    }

    /// As text; `width` is the terminal's in columns, and `None` never wraps.
    pub fn text(&self, width: Option<u16>) -> String {
        let mut blocks = Vec::new();
        self.blocks(width, &mut blocks);
        blocks.retain(|block| !block.is_empty());
        blocks.join("\n")
    }

    fn blocks(&self, width: Option<u16>, blocks: &mut Vec<String>) {
        blocks.push(lines(self.lead.iter().cloned()));
        let facts = self.facts.iter().map(|fact| format!("{:<10} {}", fact.what, fact.words));
        blocks.push(lines(facts.map(|fact| fact.trim_end().to_owned())));
        let tables = self.tables.iter().filter(|table| !table.is_empty());
        blocks.extend(tables.map(|table| table.text(width)));
        for section in &self.sections {
            section.blocks(width, blocks);
        }
        blocks.push(lines(self.notes.iter().map(Note::text)));
    }
}

/// A line of each, without what would steer a terminal.
fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| format!("{}\n", clean(&line))).collect()
}

impl Note {
    pub(super) fn new(what: impl Into<String>, words: impl Into<String>) -> Self {
        Self { what: what.into(), words: words.into(), level: Level::Notice }
    }

    pub(super) fn at(self, level: Level) -> Self {
        Self { level, ..self }
    }

    fn text(&self) -> String {
        match self.what.as_str() {
            "" => self.words.clone(),
            what => format!("{what}: {}", self.words),
        }
    }
}

impl Figure {
    /// None where nothing is drawn.
    pub(super) fn of(svg: Option<String>, caption: impl Into<String>) -> Option<Self> {
        svg.map(|svg| Self { svg, caption: caption.into(), wide: false })
    }
}

impl Table {
    /// A table of names and figures.
    pub fn figures<H: Into<String>>(
        head: impl IntoIterator<Item = H>,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        Self {
            head: head.into_iter().map(Into::into).collect(),
            rows: rows.into_iter().map(Row::of).collect(),
            ..Self::default()
        }
    }

    /// A table of text.
    pub fn words<H: Into<String>>(
        head: impl IntoIterator<Item = H>,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        Self { layout: Layout::Words, ..Self::figures(head, rows) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.folded.is_empty()
    }

    /// As text, all rows together, fitted to a terminal of that many columns; `None` never wraps.
    pub fn text(&self, width: Option<u16>) -> String {
        let mut grid = comfy_table::Table::new();
        // No borders, and a rule below the header.
        let rule = LineStyle::none().fill('-').junction(' ');
        grid.load_style(presets::NOTHING.header_separator(rule));
        grid.set_header(&self.head);
        grid.add_rows(self.rows.iter().chain(&self.folded).map(Row::indented));
        if let Some(width) = width {
            grid.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        let last = self.head.len().saturating_sub(1);
        for (number, column) in grid.column_iter_mut().enumerate() {
            let least = ColumnConstraint::LowerBoundary(Width::Fixed(NAME_COLUMNS));
            let (space, alignment, constraint) = match (self.layout, number) {
                // The last takes the rest of the terminal's width.
                (Layout::Words, number) if number == last => (2, CellAlignment::Left, None),
                (Layout::Words, _) => {
                    (2, CellAlignment::Left, Some(ColumnConstraint::ContentWidth))
                }
                (_, 0) => (1, CellAlignment::Left, Some(least)),
                _ => (1, CellAlignment::Right, Some(ColumnConstraint::ContentWidth)),
            };
            column.set_padding((0, space)).set_cell_alignment(alignment);
            if let Some(constraint) = constraint {
                column.set_constraint(constraint);
            }
        }
        grid.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

impl Row {
    pub(super) fn of(cells: Vec<String>) -> Self {
        Self { depth: 0, cells }
    }

    fn indented(&self) -> Vec<String> {
        let depths = [self.depth].into_iter().chain(std::iter::repeat(0));
        let cells = depths.zip(&self.cells);
        cells.map(|(depth, cell)| "  ".repeat(depth) + &clean(cell)).collect()
    }
}

/// The figure, or a dash where there is none.
pub fn or_dash(figure: Option<String>) -> String {
    figure.unwrap_or_else(|| "-".to_owned())
}
