//! Files that a run exports besides its JSON, opened before anything is measured.

use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::export::{Export, Format, Look, Unit, series};
use crate::recording::Series;

/// Open files, not yet written.
#[derive(Debug, Default)]
pub(super) struct Exports(Vec<(Format, OutputFile)>);

impl Exports {
    /// Opens all of `wanted`; `json` is the file of `--json`, which is open already.
    ///
    /// # Errors
    /// If one cannot be written, or two go to standard output.
    pub(super) fn open(wanted: &[Export], json: Option<&OutputFile>) -> Result<Self, Failure> {
        let mut files = Vec::new();
        for Export { format, path } in wanted {
            files.push((*format, OutputFile::open(path)?));
        }
        let on_stdout = files.iter().map(|(_, file)| file).chain(json);
        if on_stdout.filter(|file| file.is_stdout()).count() > 1 {
            let message = "two outputs cannot both go to standard output: write one to a file";
            return Err(Failure::new(exit::USAGE, message));
        }
        Ok(Self(files))
    }

    /// Whether one of them is standard output.
    pub(super) fn use_stdout(&self) -> bool {
        self.0.iter().any(|(_, file)| file.is_stdout())
    }

    /// Writes the runs of `series` to all of them, even if one fails.
    ///
    /// # Errors
    /// The first failure; or if the format holds one run and there are several, which [`series::holds`] tells before.
    pub(super) fn commit(self, series: &Series, unit: Unit) -> Result<(), Failure> {
        let mut first = Ok(());
        let look = Look { unit, ..Look::default() };
        for (format, file) in self.0 {
            let written = match series::render(series, format, &look) {
                Some(bytes) => file.commit(&bytes).map_err(Failure::from),
                None => {
                    let text =
                        format!("{format} holds one run, and these are {}", series.runs.len());
                    Err(Failure::new(exit::USAGE, text))
                }
            };
            first = first.and(written);
        }
        first
    }
}
