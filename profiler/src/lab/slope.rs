//! Runs of one load with more and more to walk over.

use std::path::PathBuf;

use super::agent::Agent;
use super::plan::RunSpec;
use super::subject::Subject;
use super::{Measured, Options, Settings, builds, private_folder, run_with_progress, usual_length};
use crate::error::{Failure, exit};
use crate::load::{BuiltinKind, Points};
use crate::progress::Progress;
use crate::recording::Meter;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Kernel to boot; `None`: the one that the module was built for.
    pub kernel: Option<String>,
    /// A build, or a baseline and a candidate.
    pub builds: Vec<Subject>,
    /// Parameters of modules.
    pub params: String,
    /// What runs beside drivers.
    pub agent: Option<Agent>,
    /// Handlers, by name or glob.
    pub handlers: Vec<String>,
    /// The load.
    pub load: BuiltinKind,
    /// The points.
    pub points: Points,
    /// Where the guests' messages are kept.
    pub logs: Option<PathBuf>,
}

/// Measures the builds at each point, whose name is the part of its recordings.
///
/// # Errors
/// If a build or the kernel cannot be read.
pub fn measure(asked: &Asked, progress: &mut Progress) -> Result<Measured, Failure> {
    let (baseline, candidate) = asked.builds.split_at(1.min(asked.builds.len()));
    let options = Options {
        kernels: asked.kernel.iter().cloned().collect(),
        baseline: baseline.to_vec(),
        baseline_params: asked.params.clone(),
        candidate: candidate.to_vec(),
        candidate_params: asked.params.clone(),
        agent: asked.agent.clone(),
        run: RunSpec {
            handlers: asked.handlers.clone(),
            length: usual_length(Meter::Exact, &[asked.load]),
            ..RunSpec::counted(vec![asked.load], 1)
        },
        cost: true,
        logs: asked.logs.clone(),
        ..Options::counted()
    };
    options.check()?;
    let folder = private_folder("profiler-slope-")?;
    let bench = builds::of_kernels(&options, false, folder.path())?.swap_remove(0);
    let mut settings: Settings = options.settings(folder.path());
    let one = settings.work.swap_remove(0);
    // A guest has as many ancestors as its first run asks for.
    for (guest, number) in (0..).zip(&asked.points.numbers) {
        let mut job = one.clone();
        (job.guest, job.part) = (guest, Some(asked.points.part(*number)));
        job.run.dimensions =
            asked.points.dimensions(*number).map_err(|why| Failure::new(exit::USAGE, why))?;
        settings.work.push(job);
    }
    Ok(run_with_progress(&bench, &settings, progress))
}
