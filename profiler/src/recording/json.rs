//! Recordings as JSON: indented, with each bucket on one line.

use std::io;
use std::path::Path;

use serde_json::ser::Formatter;

use super::Recording;
use crate::atomic_file::{OutputError, OutputFile};

impl Recording {
    /// This recording as JSON, with a line end.
    pub fn to_json(&self) -> Vec<u8> {
        indented(self)
    }

    /// Writes it to the file `path`; an older file is replaced in one step.
    ///
    /// # Errors
    /// As [`OutputFile::open`] and [`OutputFile::commit`].
    pub fn write(&self, path: &Path) -> Result<(), OutputError> {
        OutputFile::open(path)?.commit(&self.to_json())
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
    /// For each open container, whether it is an array.
    open: Vec<bool>,
    /// How many of them are rows or inside one.
    rows: usize,
    /// Whether the innermost one has a value.
    has_value: bool,
}

impl RowFormatter {
    fn begin(&mut self, out: &mut (impl ?Sized + io::Write), bracket: &[u8]) -> io::Result<()> {
        let is_array = bracket == b"[";
        let is_row = self.rows > 0 || (is_array && self.open.last() == Some(&true));
        self.rows += usize::from(is_row);
        self.open.push(is_array);
        self.has_value = false;
        out.write_all(bracket)
    }

    fn end(&mut self, out: &mut (impl ?Sized + io::Write), bracket: &[u8]) -> io::Result<()> {
        self.open.pop();
        if self.rows == 0 && self.has_value {
            self.line(out)?;
        }
        self.rows = self.rows.saturating_sub(1);
        out.write_all(bracket)
    }

    /// What stands before a value of an array or a key of an object.
    fn before(&mut self, out: &mut (impl ?Sized + io::Write), first: bool) -> io::Result<()> {
        if !first {
            let comma: &[u8] = if self.rows > 0 { b", " } else { b"," };
            out.write_all(comma)?;
        }
        if self.rows > 0 { Ok(()) } else { self.line(out) }
    }

    fn line(&self, out: &mut (impl ?Sized + io::Write)) -> io::Result<()> {
        out.write_all(b"\n")?;
        self.open.iter().try_for_each(|_| out.write_all(b"  "))
    }
}

impl Formatter for RowFormatter {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.before(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.before(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
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
