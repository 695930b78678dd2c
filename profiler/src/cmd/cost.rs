//! `profiler cost`: what the probes add to each call of a handler on this machine.

use super::{save, to_stdout};
use crate::cli::CostArgs;
use crate::cost::measure;
use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, bail};
use profiler_kernel::privileges;
use profiler_kernel::target::KernelFiles;

/// Measures the cost and prints it.
///
/// # Errors
/// As [`measure`]; and when the output cannot be written.
pub fn run(args: &CostArgs) -> Result<(), Failure> {
    privileges::check()?;
    super::restore_tracefs();
    let handlers = [args.handler.clone()];
    let targets = KernelFiles::default().resolve(args.module.as_deref(), &handlers)?.targets;
    let [target] = targets.as_slice() else {
        bail!(USAGE, "`{}` matches several handlers: name one", args.handler);
    };
    let file = args.json.as_deref().map(OutputFile::open).transpose()?;
    let (operations, clock) = (args.operations, args.clock);
    let cost = measure(target, args.backend, args.builtin, operations, args.rounds, clock)?;
    save(file, &cost)?;
    to_stdout(&cost.text())
}
