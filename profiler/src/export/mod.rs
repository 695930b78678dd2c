//! What is shown of recordings and reports, in all formats: views make a `Document`, which is printed or written as Markdown or a
//! page; exporters write what programs read. None does I/O.

pub mod bmf;
mod books;
pub(crate) mod cell;
pub mod compare;
pub mod csv;
mod curve;
pub mod document;
pub mod explain;
mod exporter;
mod facts;
pub mod gate;
pub(crate) mod grid;
pub mod hgrm;
pub mod hlog;
pub mod html;
pub mod json;
pub mod junit;
pub mod list;
pub mod load_profiles;
mod loads;
pub mod markdown;
pub mod openmetrics;
pub mod plot;
mod recording;
mod repeats;
pub mod series;
mod side;
mod unseen;
pub mod verdict;

use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use bmf::Bmf;
pub use cell::Unit;
pub use csv::Csv;
pub use exporter::Exporter;
pub use hgrm::Hgrm;
pub use hlog::Hlog;
pub use html::Html;
pub use json::Json;
pub use markdown::Markdown;
pub use openmetrics::Metrics;
pub use series::Table;

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
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownFormat, parse_err_fn = unknown_format)]
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
    /// Prometheus' text.
    Prometheus,
    /// OpenMetrics text, with times.
    OpenMetrics,
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

/// An unknown format or file name extension.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFormat {
    /// The name of a format.
    #[error("unknown format `{0}`: expected one of {names}", names = Format::names())]
    Name(String),
    /// A file's name.
    #[error(
        "the extension of `{0}` is not that of a format: write FORMAT=FILE, with one of {names}",
        names = Format::names()
    )]
    File(String),
}

impl Format {
    /// All formats.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// File name extensions of this format, the usual one first.
    #[must_use]
    pub fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Table => &["txt"],
            Self::Markdown => &["md", "markdown"],
            Self::Csv => &["csv"],
            Self::Json => &["json"],
            Self::Hlog => &["hlog"],
            Self::Hgrm => &["hgrm"],
            Self::Prometheus => &["prom"],
            Self::OpenMetrics => &["om", "openmetrics"],
            Self::Html => &["html", "htm"],
            Self::Bmf => &["bmf"],
        }
    }

    /// The format of the extension of `path`.
    #[must_use]
    pub fn of_file(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Self::ALL.iter().copied().find(|format| format.extensions().contains(&extension.as_str()))
    }

    /// The exporter.
    #[must_use]
    pub fn exporter(self, look: &Look) -> Box<dyn Exporter> {
        let Look { unit, width, .. } = *look;
        match self {
            Self::Table => Box::new(Table { unit, width }),
            Self::Markdown => Box::new(Markdown { unit }),
            Self::Csv => Box::new(Csv),
            Self::Json => Box::new(Json),
            Self::Hlog => Box::new(Hlog),
            Self::Hgrm => Box::new(Hgrm { unit }),
            Self::Prometheus => Box::new(Metrics::Prometheus),
            Self::OpenMetrics => Box::new(Metrics::OpenMetrics),
            Self::Html => Box::new(Html),
            Self::Bmf => Box::new(Bmf),
        }
    }

    fn names() -> String {
        Self::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
    }
}

fn unknown_format(name: &str) -> UnknownFormat {
    UnknownFormat::Name(name.to_owned())
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
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        if let Some((name, path)) = text.split_once('=')
            && let Ok(format) = name.parse()
        {
            return Ok(Self { format, path: path.into() });
        }
        match Format::of_file(Path::new(text)) {
            Some(format) => Ok(Self { format, path: text.into() }),
            None => Err(UnknownFormat::File(text.to_owned())),
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
        assert_eq!(parse("openmetrics=-"), Ok((Format::OpenMetrics, "-".into())));
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
