//! Arguments of the commands that tell a shell and `man` about the program.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  # for this shell; in a start-up file for all
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
  # read one at once
  profiler man run | man -l -
  # one file a subcommand, where man looks for them
  profiler man --dir /usr/local/share/man/man1";

/// Arguments of `profiler man`.
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// The page of this subcommand; without it that of the program.
    #[arg(conflicts_with = "dir")]
    pub command: Option<String>,
    /// Write all pages to this folder.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}
