//! Profiles as JSON: indented, with each bucket on one line.

use std::io;
use std::path::Path;

use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter};

use super::{Meter, Recording};
use crate::atomic_file::{OutputError, OutputFile};

impl Recording {
    /// This recording as JSON, with a line end.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        to_json(self, self.meter)
    }

    /// Writes it to the file `path`; an older file is replaced in one step.
    ///
    /// # Errors
    /// As [`OutputFile::open`] and [`OutputFile::commit`].
    pub fn write(&self, path: &Path) -> Result<(), OutputError> {
        OutputFile::open(path)?.commit(&self.to_json())
    }
}

/// Fields of handlers, of the histograms' layout and of the driver's costs whose unit is the meter's.
pub(crate) const OF_METER: [&str; 7] =
    ["sum", "min", "max", "lowest", "highest", "without", "with"];

/// A recording, or a series of some, as JSON: figures of an exact one end in `_instructions` in place of `_ns`.
pub(super) fn to_json(recording: &impl serde::Serialize, meter: Meter) -> Vec<u8> {
    if meter == Meter::Exact
        && let Ok(mut value) = serde_json::to_value(recording)
    {
        in_instructions(&mut value);
        return indented(&value);
    }
    indented(recording)
}

fn in_instructions(value: &mut Value) {
    for recording in value.get_mut("runs").and_then(Value::as_array_mut).into_iter().flatten() {
        in_instructions(recording);
    }
    rename(value.get_mut("histogram"));
    let costs = value.get_mut("driver_costs").and_then(Value::as_array_mut);
    costs
        .into_iter()
        .flatten()
        .filter(|cost| cost.get("meter").is_some())
        .for_each(|cost| rename(Some(cost)));
    for handler in value.get_mut("handlers").and_then(Value::as_array_mut).into_iter().flatten() {
        rename(Some(handler));
    }
}

fn rename(object: Option<&mut Value>) {
    let Some(fields) = object.and_then(Value::as_object_mut) else { return };
    for name in OF_METER {
        if let Some(value) = fields.remove(&format!("{name}_ns")) {
            fields.insert(format!("{name}_instructions"), value);
        }
    }
}

/// `value` as indented JSON with each row on one line, and an end of line at its end. It must have
/// string keys and finite numbers alone.
pub(crate) fn indented(value: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut bytes, RowFormatter::default());
    let result = value.serialize(&mut serializer);
    // Memory takes every byte.
    debug_assert!(result.is_ok(), "always representable: {result:?}");
    bytes.push(b'\n');
    bytes
}

/// Indents as usual, but for an array inside an array: that is a row, and stays on its line.
#[derive(Default)]
struct RowFormatter {
    pretty: PrettyFormatter<'static>,
    /// For each open container, whether it is an array.
    open: Vec<bool>,
    /// How many of them are rows or inside one.
    rows: usize,
}

impl RowFormatter {
    fn in_row(&self) -> bool {
        self.rows > 0
    }

    fn enter(&mut self, array: bool) {
        let row = self.in_row() || (array && self.open.last() == Some(&true));
        self.rows += usize::from(row);
        self.open.push(array);
    }

    fn leave(&mut self) {
        self.open.pop();
        self.rows = self.rows.saturating_sub(1);
    }
}

/// Each call goes to the indenting formatter unless it is inside a row.
impl Formatter for RowFormatter {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.enter(true);
        if self.in_row() { out.write_all(b"[") } else { self.pretty.begin_array(out) }
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        let row = self.in_row();
        self.leave();
        if row { out.write_all(b"]") } else { self.pretty.end_array(out) }
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match (self.in_row(), first) {
            (true, true) => Ok(()),
            (true, false) => out.write_all(b", "),
            (false, _) => self.pretty.begin_array_value(out, first),
        }
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.in_row() { Ok(()) } else { self.pretty.end_array_value(out) }
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.enter(false);
        if self.in_row() { out.write_all(b"{") } else { self.pretty.begin_object(out) }
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        let row = self.in_row();
        self.leave();
        if row { out.write_all(b"}") } else { self.pretty.end_object(out) }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match (self.in_row(), first) {
            (true, true) => Ok(()),
            (true, false) => out.write_all(b", "),
            (false, _) => self.pretty.begin_object_key(out, first),
        }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.pretty.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.in_row() { Ok(()) } else { self.pretty.end_object_value(out) }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize as _;

    use super::*;

    #[test]
    fn rows_stay_on_one_line() {
        let value = serde_json::json!({"a": [[1, 2, 3], [4, 5, 6]], "b": [{"c": []}], "d": {}});
        let mut bytes = Vec::new();
        value
            .serialize(&mut serde_json::Serializer::with_formatter(
                &mut bytes,
                RowFormatter::default(),
            ))
            .expect("serialises");
        let text = String::from_utf8(bytes).expect("text");
        assert_eq!(
            text,
            "{\n  \"a\": [\n    [1, 2, 3],\n    [4, 5, 6]\n  ],\n  \"b\": [\n    {\n      \"c\": []\n    }\n  ],\n  \"d\": {}\n}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("parses"), value);
    }
}
