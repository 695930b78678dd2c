//! `profiler completions` and `profiler man`, generated from the command line's definition.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use profiler_base::error::{Failure, exit};

use super::data_to_stdout;
use crate::cli::Cli;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  # for this shell; in its start-up file, for every shell
  source <(profiler completions bash)
  # where zsh and fish look for them
  profiler completions zsh > /usr/local/share/zsh/site-functions/_profiler
  profiler completions fish > ~/.config/fish/completions/profiler.fish";

/// Arguments of `profiler completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

const MAN_EXAMPLES: &str = "\
Examples:
  # one file per subcommand, where man looks for them
  profiler man --dir /usr/local/share/man/man1";

/// Arguments of `profiler man`.
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// Write all pages to this folder [default: print the program's].
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

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
