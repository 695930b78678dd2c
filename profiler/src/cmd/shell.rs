//! `profiler completions` and `profiler man`, generated from the command line's definition.

use std::path::Path;

use super::data_to_stdout;
use crate::cli::shell::{CompletionsArgs, ManArgs, completions as script, man_pages};
use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, bail, exit};

/// Prints the completions for a shell.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    data_to_stdout(&script(args.shell))
}

/// Prints a man page, or writes all of them to a folder.
///
/// # Errors
/// If there is no such subcommand, or the output cannot be written.
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
    let wanted = match &args.command {
        Some(command) => format!("profiler-{command}"),
        None => "profiler".to_owned(),
    };
    match pages.iter().find(|(name, _)| *name == wanted) {
        Some((_, page)) => data_to_stdout(page),
        None => {
            let known: Vec<&str> =
                pages.iter().filter_map(|(name, _)| name.strip_prefix("profiler-")).collect();
            bail!(USAGE, "`{wanted}` has no man page: choose one of {}", known.join(", "))
        }
    }
}
