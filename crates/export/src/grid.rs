//! The layout of all tables: no borders, a rule below the header.

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Row, Table, Width, presets,
};

/// Minimum width of a column of names: in a narrower terminal lines overflow.
const NAME_COLUMNS: u16 = 20;

/// A table without borders, fitted to a terminal of that many columns; `None` never wraps.
fn plain<R: Into<Row>>(
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
    width: Option<u16>,
) -> Table {
    let mut grid = Table::new();
    grid.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('-').junction(' ')));
    grid.set_header(header).add_rows(rows);
    if let Some(width) = width {
        grid.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    grid
}

fn lines(grid: &Table) -> Vec<String> {
    grid.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// A table of names with figures: names aligned left, figures right.
pub fn figures<R: Into<Row>>(
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
    width: Option<u16>,
) -> String {
    let mut grid = plain(header, rows, width);
    for (number, column) in grid.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if number == 0 {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(NAME_COLUMNS)));
        } else {
            column.set_cell_alignment(CellAlignment::Right);
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    lines(&grid).join("\n")
}

/// A table of text; the last column takes the rest of the terminal's width.
pub fn words(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    width: Option<u16>,
) -> String {
    let mut grid = plain(header, rows, width);
    let last = header.len().saturating_sub(1);
    for (number, column) in grid.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if number < last {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    lines(&grid).join("\n") + "\n"
}
