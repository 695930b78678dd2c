//! One module a subcommand.

use std::io::{self, Write as _};

use comfy_table::ColumnConstraint;

use crate::error::{Failure, exit};
use crate::export::grid;

mod exports;

pub mod cost;
pub mod doctor;
pub mod import;
pub mod list;
pub mod merge;
pub mod prepare;
pub mod profiles;
pub mod report;
pub mod run;

/// Writes to standard output; a reader that has seen enough and closes the pipe is no error.
fn to_stdout(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::BAD_OUTPUT, format!("cannot write the output: {error}")))
        }
        _ => Ok(()),
    }
}

/// JSON for machines, with a line end.
fn json<T: serde::Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))
}

/// A plain grid with a rule below its head; the last column takes what the terminal has left.
fn grid(header: &[&str], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
    let mut grid = grid::plain(header);
    grid.add_rows(rows);
    let last = header.len().saturating_sub(1);
    for (number, column) in grid.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if number < last {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    grid::fit(&mut grid, width);
    let mut text = String::new();
    for line in grid.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
