//! Output of a gate: files, standard output, the job summary of GitHub Actions, and the new baseline.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, exit};
use profiler_export::verdict::GateReport;
use profiler_export::{gate as export, html};
use profiler_recording::Series;
use profiler_recording::json::indented;
use profiler_verdict::{Outcome, Run};

use super::GateArgs;
use crate::cmd::compare::Format;
use crate::cmd::{data_to_stdout, stdout_width, to_stdout};

type Render = fn(&GateReport) -> Vec<u8>;

/// Where a report goes, opened before anything is judged, so that no decision is lost to an output that cannot be written.
pub(super) struct Outputs {
    reports: Vec<(OutputFile, Render)>,
    format: Format,
    annotations: bool,
    new_baseline: Option<OutputFile>,
}

impl Outputs {
    pub(super) fn open(args: &GateArgs) -> Result<Self, Failure> {
        let wanted: [(&Option<PathBuf>, Render); 4] = [
            (&args.json, |report| indented(report)),
            (&args.junit, export::junit),
            (&args.markdown, |report| export::document(report).markdown().into_bytes()),
            (&args.html, html::gate::page),
        ];
        let mut reports = Vec::new();
        for (path, render) in wanted {
            if let Some(path) = path {
                reports.push((OutputFile::open(path)?, render));
            }
        }
        let new_baseline = args.update_baseline.as_deref().map(OutputFile::open).transpose()?;
        let on_github = std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
        let annotations = on_github || args.annotations;
        Ok(Self { reports, format: args.format, annotations, new_baseline })
    }

    /// Writes the reports, and on a pass the new baseline; else fails with the outcome.
    pub(super) fn write(self, report: &GateReport, candidate: Vec<Run>) -> Result<(), Failure> {
        for (file, render) in self.reports {
            file.commit(&render(report))?;
        }
        match self.format {
            Format::Json => data_to_stdout(&indented(report))?,
            Format::Markdown => to_stdout(&export::document(report).markdown())?,
            Format::Text => {
                let mut text = export::text(report, stdout_width());
                text.extend(self.annotations.then(|| export::annotations(report)));
                to_stdout(&text)?;
            }
        }
        if let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|it| !it.is_empty()) {
            append(Path::new(&path), &export::document(report).markdown())?;
        }
        if report.outcome != Outcome::Pass {
            let mut text = export::conclusion(report.outcome, &report.sentence());
            if let Some(file) = &self.new_baseline {
                text += &format!("; {} is unchanged", file.path().display());
            }
            return Err(Failure::new(report.exit_code, text));
        }
        if let Some(file) = self.new_baseline {
            let runs = candidate.into_iter().map(|run| run.recording).collect();
            file.commit(&Series::new("baseline", runs).to_json())?;
        }
        Ok(())
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
