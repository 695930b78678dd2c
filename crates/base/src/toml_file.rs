//! Files of settings, in TOML: an error has its line and column.

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::{Failure, bail, exit};
use crate::terminal::clean;

/// Largest size of a file of settings.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// An error and its place in the text, in bytes.
pub type Mistake = (Range<usize>, String);

/// The text of a file.
///
/// # Errors
/// If it cannot be read, is no UTF-8, or has more than 1 MiB.
pub fn read(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|it| it.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(Failure::cannot_read(path))?;
    match String::from_utf8(bytes) {
        Ok(text) if text.len() as u64 <= MAX_FILE_BYTES => Ok(text),
        _ => bail!(BAD_INPUT, "cannot use {shown}: it is no UTF-8 text of at most 1 MiB"),
    }
}

/// What `check` makes of the values in `text`; `origin` is the file, or what else has the text.
///
/// # Errors
/// The first mistake, with its line and column: of syntax, an unknown or missing key, or what `check` finds.
pub fn parse<T: DeserializeOwned, U>(
    text: &str,
    origin: &str,
    check: impl FnOnce(T) -> Result<U, Mistake>,
) -> Result<U, Failure> {
    let values = toml::from_str(text)
        .map_err(|error| (error.span().unwrap_or_default(), error.message().replace('\n', ", ")));
    values.and_then(check).map_err(|(span, message)| {
        let (line, column) = place(text, span.start);
        // It may quote an unknown key.
        let text = format!("{origin}:{line}:{column}: {}", clean(&message));
        Failure::new(exit::BAD_INPUT, text)
    })
}

/// Line and column of a byte of `text`, both from 1; the column counts characters.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    (line, before.rsplit('\n').next().unwrap_or_default().chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_has_its_line_and_its_column_in_characters() {
        let of = |text: &str| {
            let check = |table: toml::Table| match table.contains_key("ü") {
                true => Err((text.find("= 2").unwrap()..0, "it is 2".to_owned())),
                false => Ok(table.len()),
            };
            parse(text, "a.toml", check).map_err(|bad| bad.to_string())
        };
        assert_eq!(of("a = 1\nb = 2"), Ok(2));
        assert_eq!(of("a = 1\n\"ü\" = 2"), Err("a.toml:2:5: it is 2".to_owned()));
        let syntax = of("a = 1\nb = = 1").unwrap_err();
        assert!(syntax.starts_with("a.toml:2:5: ") && !syntax.contains('\n'), "{syntax}");
    }

    /// The end of a file that is cut off may be a whole table.
    #[test]
    fn a_file_that_is_no_text_or_too_long_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).unwrap();
            read(file.path()).map(|text| text.len()).map_err(|error| error.to_string())
        };
        assert_eq!(of(&vec![b'\n'; 1 << 20]), Ok(1 << 20));
        for bad in [&vec![b'\n'; (1 << 20) + 1][..], b"a = \"\xe9\""] {
            assert!(of(bad).unwrap_err().ends_with("it is no UTF-8 text of at most 1 MiB"));
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = read(Path::new("/no/such.toml")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /no/such.toml: ") && error.ends_with("permissions"));
    }
}
