//! `profiler list`: the functions of a module or of the kernel image, and whether each can be traced.

use super::{data_to_stdout, json, report::stdout_width, to_stdout};
use crate::cli::ListArgs;
use crate::error::Failure;
use crate::export::list::table;
use crate::kernel::target::KernelFiles;

/// Prints the functions that match.
///
/// # Errors
/// If the module is not loaded, a pattern matches nothing, or the output cannot be written.
pub fn run(args: &ListArgs) -> Result<(), Failure> {
    super::restore_tracefs();
    let functions = KernelFiles::default().functions(args.module.as_deref(), &args.patterns)?;
    if args.json {
        return data_to_stdout(json(&functions)?.as_bytes());
    }
    to_stdout(&table(&functions, stdout_width()))
}
