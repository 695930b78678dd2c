//! Output of a run: its files, opened before anything is measured, and its table.

use profiler_base::atomic_file::{OutputFile, rescue};
use profiler_base::error::{Failure, bail};
use profiler_base::terminal::say;
use profiler_export::{Export, Format, table};
use profiler_recording::Series;
use profiler_run::args::RunArgs;

use crate::cmd::{data_to_stdout, stdout_width};

/// Open files, not yet written.
pub(super) struct Outputs {
    json: Option<OutputFile>,
    exports: Vec<(Format, OutputFile)>,
}

impl Outputs {
    /// Opens all files of `args`.
    ///
    /// # Errors
    /// If one cannot be written, or two go to standard output.
    pub(super) fn open(args: &RunArgs) -> Result<Self, Failure> {
        let json = args.json.as_deref().map(OutputFile::open).transpose()?;
        let mut exports = Vec::new();
        for Export { format, path } in &args.export {
            exports.push((*format, OutputFile::open(path)?));
        }
        let outputs = Self { json, exports };
        if outputs.on_stdout() > 1 {
            bail!(USAGE, "two outputs cannot both go to standard output: write one to a file");
        }
        Ok(outputs)
    }

    /// How many of the files are standard output.
    fn on_stdout(&self) -> usize {
        let files = self.exports.iter().map(|(_, file)| file).chain(&self.json);
        files.filter(|file| file.is_stdout()).count()
    }

    /// Prints the table and writes the files, even if one fails. `is_several` if more than one run was asked for:
    /// `--json` is then a series, however many there are.
    ///
    /// # Errors
    /// The first failure.
    pub(super) fn deliver(
        self,
        args: &RunArgs,
        result: &Series,
        is_several: bool,
    ) -> Result<(), Failure> {
        let is_stdout_taken = self.on_stdout() > 0;
        let document = match result.runs.as_slice() {
            [recording] if !is_several => recording.to_json(),
            _ => result.to_json(),
        };
        let saved = self.json.map(|file| file.commit(&document));
        let is_saved = matches!(saved, Some(Ok(())));
        let mut written = saved.unwrap_or(Ok(()));
        for (format, file) in self.exports {
            let bytes = format.render(result, args.unit, None);
            written = written.and(file.commit(&bytes));
        }
        if !is_saved {
            written = written.map_err(|failure| rescued(failure, &document));
        }
        let width = if is_stdout_taken { None } else { stdout_width() };
        let text = table(&result.runs, args.unit, width);
        let printed = if is_stdout_taken {
            // A file goes to standard output, so the table goes to standard error.
            say(text.trim_end());
            Ok(())
        } else {
            data_to_stdout(text.as_bytes())
        };
        written.and(printed)
    }
}

/// Saves the recording elsewhere if its file cannot be written, because a run cannot be repeated.
fn rescued(failure: Failure, document: &[u8]) -> Failure {
    let where_to = match rescue(document) {
        Ok(path) => format!("the recording is in {} instead", path.display()),
        Err(error) => format!("and it could not be saved elsewhere: {error}"),
    };
    Failure::new(failure.code, format!("{}; {where_to}", failure.message))
}
