//! `profiler completions` and `profiler man`, generated from the command line's definition.

use clap::CommandFactory as _;
use clap_mangen::Man;

use profiler_base::error::{Failure, exit};

use super::data_to_stdout;
use crate::cli::Cli;
use crate::cli::shell::{CompletionsArgs, ManArgs};

/// Prints the completions for a shell.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "profiler", &mut script);
    data_to_stdout(&script)
}

/// Prints the program's man page, or writes all of them to a folder.
///
/// # Errors
/// If the output cannot be written.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    if let Some(dir) = &args.dir {
        return clap_mangen::generate_to(Cli::command(), dir).map_err(Failure::cannot_write(dir));
    }
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    let rendered = Man::new(command).render(&mut page);
    rendered.map_err(|why| Failure::new(exit::INTERNAL, why.to_string()))?;
    data_to_stdout(&page)
}
