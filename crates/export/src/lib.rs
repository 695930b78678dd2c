//! What is shown of recordings and reports, in all formats: views make a `Document`, which is printed or written as Markdown or a
//! page; exporters write what programs read. None does I/O.

pub mod cell;
pub mod compare;
mod csv;
pub mod document;
pub mod explain;
mod facts;
pub mod gate;
mod handlers;
mod hgrm;
mod hlog;
pub mod html;
mod junit;
pub mod list;
pub mod load_profiles;
mod loads;
mod markdown;
mod series;
pub mod slope;
mod style;
pub mod tax;
mod unseen;
pub mod verdict;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use profiler_recording::{Recording, Series};

pub use cell::Unit;

/// Formats.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    strum::VariantArray,
    strum::VariantNames,
    strum::Display,
    strum::EnumString,
)]
#[strum(serialize_all = "lowercase")]
pub enum Format {
    /// Text tables.
    #[strum(serialize = "txt", to_string = "table")]
    Table,
    /// Markdown for a comment on a change.
    #[strum(serialize = "md", to_string = "markdown")]
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
    #[strum(serialize = "htm", to_string = "html")]
    Html,
}

impl Format {
    /// All formats.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The format of the extension of `path`.
    pub fn of_file(path: &Path) -> Option<Self> {
        of_extension(path)
    }

    /// The runs of `series`, kept apart, in this format; the unit and the terminal's width are for tables. Equal runs give equal bytes.
    pub fn render(self, series: &Series, unit: Unit, width: Option<u16>) -> Vec<u8> {
        let runs = &series.runs[..];
        match self {
            Self::Table => table(runs, unit, width).into_bytes(),
            Self::Markdown => series::document(runs, unit, true).markdown().into_bytes(),
            Self::Csv => csv::csv(runs),
            Self::Json => match runs {
                [run] => run.to_json(),
                _ => series.to_json(),
            },
            Self::Hlog => hlog::hlog(runs),
            Self::Hgrm => hgrm::hgrm(runs, unit),
            Self::Html => html::page(runs),
        }
    }

    /// All names, for messages.
    pub fn names() -> String {
        <Self as strum::VariantNames>::VARIANTS.join(", ")
    }
}

/// The format that has the extension of `path`, in capitals or not, as one of its names.
fn of_extension<F: FromStr>(path: &Path) -> Option<F> {
    path.extension()?.to_str()?.to_ascii_lowercase().parse().ok()
}

/// The table of these runs; `width` is the terminal's in columns, and `None` never wraps. A run and a later report on its file print
/// the same bytes.
pub fn table(runs: &[Recording], unit: Unit, width: Option<u16>) -> String {
    series::document(runs, unit, false).text(width)
}

/// An export: `FORMAT=FILE`, or a file whose extension names the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
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
        assert_eq!(parse("hgrm=-"), Ok((Format::Hgrm, "-".into())));
        assert_eq!(parse("x.md"), Ok((Format::Markdown, "x.md".into())));
        let message = |text: &str| parse(text).expect_err("refused").to_string();
        assert!(message("result").contains("write FORMAT=FILE, with one of table, markdown"));
    }

    #[test]
    fn names_and_extensions_are_of_one_format_each() {
        for &format in Format::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
            let path = format!("x.{format}");
            assert_eq!(Format::of_file(Path::new(&path)), Some(format));
        }
        let short = ["x.txt", "x.md", "x.HTM"].map(|path| Format::of_file(Path::new(path)));
        assert_eq!(short, [Format::Table, Format::Markdown, Format::Html].map(Some));
    }
}
