//! What is shown of recordings and reports, in all formats: views make a `Document`, which is printed or written as Markdown or a
//! page; exporters write what programs read. None does I/O.

mod bmf;
mod books;
pub(crate) mod cell;
pub mod compare;
mod csv;
mod curve;
pub mod document;
pub mod explain;
mod facts;
pub mod gate;
pub(crate) mod grid;
mod hgrm;
mod hlog;
pub mod html;
pub mod json;
mod junit;
pub mod list;
pub mod load_profiles;
mod loads;
mod markdown;
mod recording;
mod repeats;
pub mod series;
pub mod slope;
mod style;
pub mod tax;
mod unseen;
pub mod verdict;

use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use cell::Unit;

use crate::recording::Recording;

/// Formats.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    strum::VariantArray,
    strum::IntoStaticStr,
    strum::Display,
    strum::EnumString,
)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown_format)]
pub enum Format {
    /// Text tables.
    Table,
    /// Markdown for a comment on a change.
    Markdown,
    /// One row per handler.
    Csv,
    /// The recording itself.
    Json,
    /// HdrHistogram's interval log.
    Hlog,
    /// HdrHistogram's percentile distribution.
    Hgrm,
    /// One page with plots.
    Html,
    /// Bencher's metrics.
    Bmf,
}

/// How a format is written, where it leaves a choice.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Unit of durations, in formats for people.
    pub unit: Unit,
    /// Columns of the terminal, for the table; `None` never wraps.
    pub width: Option<u16>,
}

impl Format {
    /// All formats.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// File name extensions of this format, the usual one first.
    pub fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Table => &["txt"],
            Self::Markdown => &["md", "markdown"],
            Self::Csv => &["csv"],
            Self::Json => &["json"],
            Self::Hlog => &["hlog"],
            Self::Hgrm => &["hgrm"],
            Self::Html => &["html", "htm"],
            Self::Bmf => &["bmf"],
        }
    }

    /// The format of the extension of `path`.
    pub fn of_file(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Self::ALL.iter().copied().find(|format| format.extensions().contains(&extension.as_str()))
    }

    /// Runs in this format, kept apart; `None` if there are several and the format holds one. Equal runs give equal bytes.
    pub fn render(self, runs: &[Recording], look: &Look) -> Option<Vec<u8>> {
        let Look { unit, width } = *look;
        match (self, runs) {
            (Self::Table, _) => Some(series::document(runs, unit, false).text(width).into_bytes()),
            (Self::Markdown, _) => Some(series::document(runs, unit, true).markdown().into_bytes()),
            (Self::Csv, _) => Some(csv::csv(runs)),
            (Self::Json, [run]) => Some(run.to_json()),
            (Self::Hlog, _) => Some(hlog::hlog(runs)),
            (Self::Hgrm, [run]) => Some(hgrm::hgrm(run, unit)),
            (Self::Json | Self::Hgrm, _) => None,
            (Self::Html, _) => Some(html::page(runs)),
            (Self::Bmf, _) => Some(bmf::bmf(runs)),
        }
    }

    fn names() -> String {
        Self::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
    }
}

fn unknown_format(name: &str) -> String {
    format!("unknown format `{name}`: expected one of {}", Format::names())
}

/// An export: `FORMAT=FILE`, or a file whose extension names the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The format.
    pub format: Format,
    /// The file; `-` is standard output.
    pub path: PathBuf,
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, path)) = text.split_once('=')
            && let Ok(format) = name.parse()
        {
            return Ok(Self { format, path: path.into() });
        }
        match Format::of_file(Path::new(text)) {
            Some(format) => Ok(Self { format, path: text.into() }),
            None => Err(format!(
                "the extension of `{text}` is not that of a format: write FORMAT=FILE, with one of {}",
                Format::names()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_named_or_the_extension() {
        let parse = |text: &str| text.parse::<Export>().map(|export| (export.format, export.path));
        assert_eq!(parse("hlog=a.txt"), Ok((Format::Hlog, "a.txt".into())));
        assert_eq!(parse("out/a=b.CSV"), Ok((Format::Csv, "out/a=b.CSV".into())));
        assert_eq!(parse("bmf=-"), Ok((Format::Bmf, "-".into())));
        assert_eq!(parse("x.md"), Ok((Format::Markdown, "x.md".into())));
        let message = |text: &str| parse(text).expect_err("refused").to_string();
        assert!(message("result").contains("write FORMAT=FILE, with one of table, markdown"));
        assert!(
            "nonsense".parse::<Format>().expect_err("refused").to_string().contains("`nonsense`")
        );
    }

    #[test]
    fn names_and_extensions_are_of_one_format_each() {
        for &format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
            for extension in format.extensions() {
                assert_eq!(Format::of_file(Path::new(&format!("x.{extension}"))), Some(format));
            }
        }
    }
}
