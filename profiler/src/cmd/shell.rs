//! `profiler completions` and `profiler man`, generated from the command line's definition.

use profiler_base::error::{Failure, exit};

use super::data_to_stdout;
use crate::cli::shell::{
    CompletionsArgs, ManArgs, completions as script, man_page, write_man_pages,
};

/// Prints the completions for a shell.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    data_to_stdout(&script(args.shell))
}

/// Prints the program's man page, or writes all of them to a folder.
///
/// # Errors
/// If the output cannot be written.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    match &args.dir {
        Some(dir) => write_man_pages(dir).map_err(Failure::cannot_write(dir)),
        None => {
            let page = man_page().map_err(|why| Failure::new(exit::INTERNAL, why.to_string()))?;
            data_to_stdout(&page)
        }
    }
}
