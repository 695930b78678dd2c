//! The recordings that `compare` and `gate` read, and the builds that `gate` and `lab` measure.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::slice;

use clap::Args;

use profiler_base::error::{Failure, bail};
use profiler_lab::{self as lab, subject};
use profiler_recording::Series;
use profiler_recording::unlike::What;
use profiler_run::args::by_name;
use profiler_verdict::Run;

/// The runs of both sides.
#[derive(Debug, Args)]
pub struct SidesArgs {
    /// Recordings of the baseline, by `profiler run --json` or `profiler lab`; with two files and no
    /// `--`, the second is the candidate.
    #[arg(value_name = "BASE")]
    pub base: Vec<PathBuf>,
    /// Recordings of the candidate.
    #[arg(last = true, value_name = "CANDIDATE")]
    pub candidate: Vec<PathBuf>,
    /// Compare although the runs differ in this: clock, backend, kernel, machine, mitigations, modules,
    /// module-build (among the runs of one side), parameters, load, tests, errors, precision, window or tool
    /// (repeatable, or several with commas).
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = by_name::<What>())]
    pub allow_different: Vec<What>,
    /// Treat runs as independent, whatever their boot. Without it, runs of a boot that the other side
    /// does not share count as one value, because a boot makes its runs alike.
    #[arg(long)]
    pub independent_runs: bool,
}

/// Files of the baseline and of the candidate.
pub(super) type Files<'a> = [&'a [PathBuf]; 2];

/// From the arguments `BASE... -- CANDIDATE...`, or two files.
///
/// # Errors
/// If a side has no file.
pub(super) fn files(args: &SidesArgs, base_needed: bool) -> Result<Files<'_>, Failure> {
    let mut files = args.base.iter().chain(&args.candidate);
    if let Some(option) = files.find(|file| file.to_string_lossy().starts_with("--")) {
        let option = option.display();
        bail!(USAGE, "what follows `--` are files of the candidate: write {option} before it");
    }
    match (args.base.as_slice(), args.candidate.as_slice()) {
        ([base, candidate], []) => Ok([slice::from_ref(base), slice::from_ref(candidate)]),
        (_, []) => bail!(
            USAGE,
            "no candidate: write the files of the baseline, then --, then those of the candidate; or measure two \
             builds of a driver with `profiler gate --baseline BASE.ko --candidate HEAD.ko`"
        ),
        ([], _) if base_needed => bail!(
            USAGE,
            "no baseline: write the files of the baseline, then --, then those of the candidate"
        ),
        (base, candidate) => Ok([base, candidate]),
    }
}

/// Whether they are builds to measure, drivers or commands: by content, or by name if there is no such file.
///
/// # Errors
/// If some are and others are not.
pub(super) fn are_builds(files: Files<'_>) -> Result<bool, Failure> {
    let (builds, others): (Vec<&PathBuf>, Vec<_>) =
        files.into_iter().flatten().partition(|path| is_build(path));
    match (builds.first(), others.first()) {
        (Some(build), Some(other)) => bail!(
            USAGE,
            "{} is a build and {} is none: name builds alone, or recordings alone",
            build.display(),
            other.display()
        ),
        (build, _) => Ok(build.is_some()),
    }
}

/// The runs of both sides.
///
/// # Errors
/// If a file is missing or not a valid recording.
pub(super) fn read_sides([base, candidate]: Files<'_>) -> Result<[Vec<Run>; 2], Failure> {
    if let Some(missing) = base.iter().find(|it| it.as_os_str() != "-" && !it.exists()) {
        let missing = missing.display();
        bail!(
            BAD_INPUT,
            "the baseline {missing} does not exist: measure the accepted driver with `profiler lab --json FILE` or \
             `profiler run --json FILE`, and keep that file"
        );
    }
    let base =
        read(base).map_err(|error| Failure::new(error.code, format!("bad baseline: {error}")))?;
    Ok([base, read(candidate)?])
}

/// Whether it is a build to measure: a driver's file, or `run: COMMAND`.
pub(super) fn is_build(path: &Path) -> bool {
    let mut magic = [0; 4];
    if subject::command(path).is_some() {
        return true;
    }
    // What is read of a pipe is gone.
    if !path.exists() {
        return path.extension().is_some_and(|extension| extension == "ko");
    }
    path.is_file()
        && File::open(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok())
        && magic == *b"\x7fELF"
}

/// The runs in `paths`.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<Run>, Failure> {
    let mut runs = Vec::new();
    for path in paths {
        let series = Series::read(path)?;
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

/// Refuses parameters that a build does not have: those of both builds, and its own.
pub(super) fn check_parameters(
    lab: &lab::Options,
    of_both: &str,
    own: [&String; 2],
) -> Result<(), Failure> {
    for (subjects, own) in lab.subjects.iter().zip(own) {
        let given = format!("{of_both} {own}");
        subjects.iter().try_for_each(|subject| subject.check_parameters(&given))?;
    }
    Ok(())
}
