//! The layout of all tables: no borders, a rule below the header.

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Row, Table, Width, presets,
};

/// Minimum width of a column of names: in a narrower terminal lines overflow.
const NAME_COLUMNS: u16 = 20;

/// An empty table of that layout.
pub(crate) fn plain(header: &[&str]) -> Table {
    let mut grid = Table::new();
    grid.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('-').junction(' ')));
    grid.set_header(header);
    grid
}

/// Fits the table to a terminal of that many columns; `None` never wraps.
pub(crate) fn fit(grid: &mut Table, width: Option<u16>) {
    match width {
        Some(width) => {
            grid.set_content_arrangement(ContentArrangement::Dynamic);
            grid.set_width(width);
        }
        None => {
            grid.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
}

/// A table of names with figures: names aligned left, figures right.
pub(crate) fn figures(
    header: &[&str],
    rows: impl Iterator<Item = Row>,
    width: Option<u16>,
) -> String {
    let mut grid = plain(header);
    grid.add_rows(rows);
    for column in grid.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    grid.set_constraints([ColumnConstraint::LowerBoundary(Width::Fixed(NAME_COLUMNS))]);
    for column in grid.column_iter_mut() {
        column.set_padding((0, 1));
    }
    fit(&mut grid, width);
    let lines: Vec<String> = grid.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// A table of text; the last column takes the rest of the terminal's width.
pub(crate) fn words(header: &[&str], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
    let mut grid = plain(header);
    grid.add_rows(rows);
    let last = header.len().saturating_sub(1);
    for (number, column) in grid.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if number < last {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    fit(&mut grid, width);
    let mut text = String::new();
    for line in grid.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
