//! What a driver registers, found by loading it in a guest.

use std::path::Path;

use super::agent::Agent;
use super::runs::Lab;
use super::{Options, builds, private_folder};
use crate::error::Failure;
use crate::kernel::hooks::Hooks;
use crate::progress::Progress;

/// What the module in `file` registers on each of these kernels, by release; none is the one that it was built for.
///
/// # Errors
/// If a kernel is missing or does not boot, or refuses the module.
pub fn of_file(
    file: &Path,
    kernels: &[String],
    params: &str,
    agent: Option<Agent>,
    progress: &mut Progress,
) -> Result<Vec<(String, Hooks)>, Failure> {
    let options = Options {
        kernels: kernels.to_vec(),
        baseline: vec![file.to_owned()],
        baseline_params: params.to_owned(),
        agent,
        ..Options::counted()
    };
    let folder = private_folder("profiler-list-")?;
    let benches = builds::of_kernels(&options, false, folder.path())?;
    let of_kernel = |(number, bench): (usize, &super::KernelBuilds)| {
        let settings = options.settings(&folder.path().join(format!("kernel-{number}")));
        let lab = Lab::open(bench, &settings, &|line| progress.say(line))?;
        Ok((bench.kernel.release.clone(), lab.registered()?))
    };
    benches.iter().enumerate().map(of_kernel).collect()
}
