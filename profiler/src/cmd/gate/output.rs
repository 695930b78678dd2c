//! Output of a gate: files, standard output, and the job summary of GitHub Actions.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::atomic_file::OutputFile;
use crate::cli::compare::Format;
use crate::cli::gate::GateArgs;
use crate::cmd::{data_to_stdout, stdout_width, to_stdout};
use crate::error::{Failure, exit};
use crate::export::verdict::GateReport;
use crate::export::{gate as export, html, json::indented};

type Render = fn(&GateReport) -> Vec<u8>;

/// The requested files.
pub(super) struct Outputs(Vec<(OutputFile, Render)>);

impl Outputs {
    pub(super) fn open(args: &GateArgs) -> Result<Self, Failure> {
        let wanted: [(&Option<PathBuf>, Render); 4] = [
            (&args.json, |report| indented(report)),
            (&args.junit, export::junit),
            (&args.markdown, |report| export::document(report).markdown().into_bytes()),
            (&args.html, html::gate::page),
        ];
        let mut files = Vec::new();
        for (path, render) in wanted {
            if let Some(path) = path {
                files.push((OutputFile::open(path)?, render));
            }
        }
        Ok(Self(files))
    }

    /// Writes the files, standard output and the job summary.
    pub(super) fn write(self, args: &GateArgs, report: &GateReport) -> Result<(), Failure> {
        for (file, render) in self.0 {
            file.commit(&render(report))?;
        }
        show(args, report)?;
        match std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) {
            Some(path) => append(Path::new(&path), &export::document(report).markdown()),
            None => Ok(()),
        }
    }
}

fn show(args: &GateArgs, report: &GateReport) -> Result<(), Failure> {
    let on_github = std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
    match args.format {
        Format::Json => data_to_stdout(&indented(report)),
        Format::Markdown => to_stdout(&export::document(report).markdown()),
        Format::Text => {
            let mut text = export::text(report, stdout_width());
            if on_github || args.annotations {
                text.push_str(&export::annotations(report));
            }
            to_stdout(&text)
        }
    }
}

/// All steps of a job append to one summary file.
fn append(path: &Path, text: &str) -> Result<(), Failure> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| {
            let text = format!(
                "cannot append to {}, which GITHUB_STEP_SUMMARY names: {error}: unset it or make it writable",
                path.display()
            );
            Failure::new(exit::BAD_OUTPUT, text)
        })
}
