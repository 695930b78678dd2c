//! Runs of one load with more and more to walk over.

use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_load::Points;

use super::plan::Job;
use super::{Measured, Options, builds, private_folder, run_with_progress};

/// Measures the builds at each point, whose name is the part of its recordings.
///
/// # Errors
/// If a build or the kernel cannot be read.
pub fn measure(
    options: &Options,
    points: &Points,
    progress: &mut Progress,
) -> Result<Measured, Failure> {
    options.check()?;
    let folder = private_folder("profiler-slope-")?;
    let bench = builds::of_kernels(options, folder.path())?.swap_remove(0);
    let mut jobs = Vec::new();
    // A guest has as many ancestors as its first run asks for.
    for (guest, number) in (0..).zip(&points.numbers) {
        let mut job = Job { guest, part: Some(points.part(*number)), ..options.job() };
        job.run.dimensions =
            points.dimensions(*number).map_err(|why| Failure::new(exit::USAGE, why))?;
        jobs.push(job);
    }
    Ok(run_with_progress(&bench, options, &jobs, progress))
}
