//! What a subject registers, found by installing it in a guest.

use profiler_base::error::Failure;
use profiler_base::progress::Progress;
use profiler_kernel::hooks::Hooks;

use super::agent::Agent;
use super::runs::Lab;
use super::subject::Subject;
use super::{Options, builds, private_folder};

/// What `subject` registers on each of these kernels, by release; none is the one that a module was built for.
///
/// # Errors
/// If a kernel is missing or does not boot, or refuses the module, or the command fails.
pub fn of_subject(
    subject: Subject,
    kernels: &[String],
    params: &str,
    agent: Option<Agent>,
    progress: &mut Progress,
) -> Result<Vec<(String, Hooks)>, Failure> {
    let options = Options {
        kernels: kernels.to_vec(),
        subjects: [vec![subject], Vec::new()],
        params: [params.to_owned(), String::new()],
        agent,
        ..Options::counted()
    };
    let folder = private_folder("profiler-list-")?;
    let benches = builds::of_kernels(&options, folder.path())?;
    let found = benches.iter().map(|bench| {
        let lab = Lab::open(bench, &options, &|line| progress.say(line))?;
        Ok((bench.kernel.release.clone(), lab.registered()?))
    });
    found.collect()
}
