//! Arguments of `profiler profiles`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
A profile is a TOML file: its handlers, the tests of LTP and the built-in load that call them, and how
many hits a run should have. Those of the program can be replaced, and others added, in a folder: name
it with --profiles-dir or in PROFILER_PROFILES, or use ~/.local/share/profiler/ltp-profiles or
/usr/share/profiler/ltp-profiles. The first profile of a name is taken, in that order.

Examples:
  profiler profiles                                # all of them, checked
  profiler profiles bind execve                    # two of them in full, with their notes
  profiler profiles --profiles-dir ./my-profiles   # your own too";

/// Arguments of `profiler profiles`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProfilesArgs {
    /// Profiles to show in full, by name or file.
    #[arg(value_name = "NAME|FILE")]
    pub names: Vec<String>,
    /// Folder of profiles that comes before all others (repeatable).
    #[arg(long = "profiles-dir", visible_alias = "dir", value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
