//! Output of a lab: files and tables.

use std::fs;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, bail};
use profiler_export::{self as export, Unit};
use profiler_lab::subject::Build;
use profiler_lab::{KernelBuilds, Measured};
use profiler_recording::{Recording, Series};

use super::LabArgs;
use crate::cmd::{stdout_width, to_stdout};

/// The requested files of each kernel and side, opened before anything is measured.
pub(super) struct Outputs(Vec<[Option<OutputFile>; 2]>);

impl Outputs {
    pub(super) fn open(args: &LabArgs, benches: &[KernelBuilds]) -> Result<Self, Failure> {
        if args.json.is_some() && benches.len() > 1 {
            bail!(USAGE, "--json takes one kernel: for several, give a folder with --out");
        }
        let mut files = Vec::new();
        for KernelBuilds { kernel, .. } in benches {
            let mut paths = [args.json.clone(), None];
            if let Some(out) = &args.out {
                let is_only = benches.len() == 1;
                let folder = if is_only { out.clone() } else { out.join(&kernel.release) };
                fs::create_dir_all(&folder).map_err(Failure::cannot_write(&folder))?;
                if args.candidate.is_empty() {
                    paths[0].get_or_insert(folder.join("series.json"));
                } else {
                    paths = ["baseline.json", "candidate.json"].map(|name| Some(folder.join(name)));
                }
            }
            let [baseline, candidate] =
                paths.map(|path| path.as_deref().map(OutputFile::open).transpose());
            files.push([baseline?, candidate?]);
        }
        Ok(Self(files))
    }

    /// Writes and prints the results of one kernel; returns why it ended early, if it did.
    pub(super) fn deliver(
        &mut self,
        number: usize,
        bench: &KernelBuilds,
        mut measured: Measured,
    ) -> Result<Option<Failure>, Failure> {
        let (is_only, failure) = (bench.builds.len() == 1, measured.take_failure());
        let mut written = Ok(());
        let mut text = String::new();
        let labels = if is_only { ["", ""] } else { ["baseline", "candidate"] };
        let sides = labels.into_iter().zip(measured.runs).zip(&bench.builds);
        for (side, ((label, runs), build)) in sides.enumerate() {
            if runs.is_empty() {
                continue;
            }
            let series = Series::new(label, runs);
            if let Some(file) = self.0.get_mut(number).and_then(|files| files[side].take()) {
                let bytes = match series.runs.as_slice() {
                    // A single run is not part of a series, so it has no place in one.
                    [run] if is_only => Recording { place: None, ..run.clone() }.to_json(),
                    _ => series.to_json(),
                };
                written = written.and(file.commit(&bytes));
            }
            text.push_str(&printed(&series, build));
        }
        let shown = to_stdout(&text);
        written.and(shown).map(|()| failure)
    }
}

/// The tables of a build's runs.
fn printed(series: &Series, build: &Build) -> String {
    let mut text = format!("{} {}", build.given, build.params).trim_end().to_owned();
    if !series.label.is_empty() {
        text = format!("{}: {text}", series.label);
    }
    text.push('\n');
    text + &export::table(&series.runs, Unit::Auto, stdout_width()) + "\n"
}
