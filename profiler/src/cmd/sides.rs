//! The recordings that `compare` and `gate` read.

use std::io;
use std::path::{Path, PathBuf};

use crate::cli::compare::SidesArgs;
use crate::error::{Failure, exit};
use crate::recording::{ReadError, Series};
use crate::verdict::Run;

/// Files of the baseline and of the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Files {
    /// Files of the baseline.
    pub(super) base: Vec<PathBuf>,
    /// Files of the candidate.
    pub(super) candidate: Vec<PathBuf>,
}

impl Files {
    /// From the arguments `BASE... -- CANDIDATE...`, or two files.
    ///
    /// # Errors
    /// If a side has no file.
    pub(super) fn of(args: &SidesArgs, base_needed: bool) -> Result<Self, Failure> {
        let usage = |text: &str| Failure::new(exit::USAGE, text);
        let is_option = |file: &&PathBuf| file.to_string_lossy().starts_with("--");
        if let Some(option) = args.base.iter().chain(&args.candidate).find(is_option) {
            return Err(usage(&format!(
                "what follows `--` are files of the candidate: write {} before it",
                option.display()
            )));
        }
        match (args.base.as_slice(), args.candidate.as_slice()) {
            ([base, candidate], []) => {
                Ok(Self { base: vec![base.clone()], candidate: vec![candidate.clone()] })
            }
            (_, []) => Err(usage(
                "no candidate: write the files of the baseline, then --, then those of the candidate",
            )),
            ([], _) if base_needed => Err(usage(
                "no baseline: write the files of the baseline, then --, then those of the candidate",
            )),
            (base, candidate) => Ok(Self { base: base.to_vec(), candidate: candidate.to_vec() }),
        }
    }

    /// The runs of both sides.
    ///
    /// # Errors
    /// If a file is missing or not a valid recording.
    pub(super) fn read(&self) -> Result<(Vec<Run>, Vec<Run>), Failure> {
        let missing = |path: &Path, error: ReadError| match error {
            ReadError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Failure::new(
                    exit::BAD_INPUT,
                    format!(
                        "the baseline {} does not exist: measure the accepted driver with `profiler lab` or `profiler \
                     run --json {}`, and keep that file",
                        path.display(),
                        path.display()
                    ),
                )
            }
            ReadError::Io { .. } => error.into(),
            _ => Failure::new(exit::BAD_INPUT, format!("bad baseline: {error}")),
        };
        Ok((read(&self.base, missing)?, read(&self.candidate, |_, error| error.into())?))
    }
}

/// The runs in `paths`.
pub(super) fn read(
    paths: &[PathBuf],
    failure: impl Fn(&Path, ReadError) -> Failure,
) -> Result<Vec<Run>, Failure> {
    let mut runs = Vec::new();
    for path in paths {
        let series = Series::read(path).map_err(|error| failure(path, error))?;
        let several = series.runs.len() > 1;
        for (number, recording) in series.runs.into_iter().enumerate() {
            let name = if several {
                format!("{} run {}", path.display(), number + 1)
            } else {
                path.display().to_string()
            };
            runs.push(Run { name, recording });
        }
    }
    Ok(runs)
}
