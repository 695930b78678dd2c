//! Arguments of `profiler profiles`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
A load profile is a TOML file: handlers, the tests of LTP and the built-in load that call them, and
how many hits a run should have. Your own ones replace or extend the built-in ones: put them in a folder
that --profiles-dir or PROFILER_PROFILES names. The first of a name wins, in that order.

Examples:
  profiler profiles                                # all of them, checked
  profiler profiles bind execve                    # the files of two of them
  profiler profiles --profiles-dir ./my-profiles   # your own too";

/// Arguments of `profiler profiles`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProfilesArgs {
    /// Load profiles whose files to print, by name or file.
    #[arg(value_name = "NAME|FILE")]
    pub names: Vec<String>,
    /// Folder of load profiles that is searched before all others (repeatable).
    #[arg(long = "profiles-dir", visible_alias = "dir", value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
