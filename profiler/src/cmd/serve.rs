//! `profiler serve`: the daemon.

use super::to_stdout;
use crate::cli::ServeArgs;
use crate::error::{Failure, exit};
use crate::kernel::privileges;
use crate::serve;
use crate::serve::config::Config;
use crate::serve::logs::init_logs;
use crate::text::plural;

/// See the [command line](ServeArgs).
///
/// # Errors
/// If the configuration is wrong, this machine cannot measure, or another daemon runs.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = Config::read(&args.config)?;
    if args.check {
        let count = config.modules.len();
        return to_stdout(&format!(
            "the configuration is right: {count} module{}\n",
            plural(count)
        ));
    }
    privileges::check()?;
    super::restore_tracefs();
    init_logs().map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    serve::run(config, args.config.clone())
}
