//! Arguments of `profiler completions` and `profiler man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

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
