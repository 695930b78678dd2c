//! Arguments of `profiler completions` and `profiler man`, and what these print.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use super::Cli;

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

/// The completions for a shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "profiler", &mut bytes);
    bytes
}

/// The program's man page.
///
/// # Errors
/// If it cannot be made.
pub fn man_page() -> io::Result<Vec<u8>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}

/// Writes all man pages to a folder.
///
/// # Errors
/// If one cannot be written.
pub fn write_man_pages(folder: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Cli::command(), folder)
}
