//! `profiler completions` and `profiler man`, generated from the command line's definition.

use std::path::Path;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, exit};

use super::data_to_stdout;
use crate::cli::shell::{CompletionsArgs, ManArgs, completions as script, man_pages};

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
    let pages =
        man_pages().map_err(|error| Failure::new(exit::INTERNAL, format!("the pages: {error}")))?;
    if let Some(dir) = &args.dir {
        for (name, page) in &pages {
            let path = dir.join(Path::new(name).with_extension("1"));
            OutputFile::open(&path)?.commit(page)?;
        }
        return Ok(());
    }
    pages.first().map_or(Ok(()), |(_, page)| data_to_stdout(page))
}
