//! `profiler serve`: the daemon.

use tracing::level_filters::LevelFilter;

use super::to_stdout;
use crate::cli::{Listen, ServeArgs};
use crate::error::{Failure, exit};
use crate::kernel::privileges;
use crate::serve;
use crate::serve::config::{Config, Module};
use crate::serve::logs::init_logs;
use crate::text::plural;

/// See the [command line](ServeArgs).
///
/// # Errors
/// If the configuration is wrong, this machine cannot measure, or another daemon runs.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = configuration(args)?;
    if args.check {
        let count = config.modules.len();
        return to_stdout(&format!(
            "the configuration is right: {count} module{}\n",
            plural(count)
        ));
    }
    privileges::check()?;
    super::restore_tracefs();
    init_logs(LevelFilter::INFO)
        .map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    serve::run(config, args.config.clone())
}

fn configuration(args: &ServeArgs) -> Result<Config, Failure> {
    if let Some(file) = &args.config {
        return Config::read(file);
    }
    let mut config = Config { precision: args.precision, ..Config::default() };
    config.modules.extend(args.module.clone().map(|name| Module {
        name,
        handlers: args.handlers.clone(),
        backend: args.backend,
    }));
    if let Some(Listen(address)) = args.listen {
        config.listen = address;
    }
    if let Some(folder) = &args.store {
        config.store.folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
    }
    config.interval = args.interval.unwrap_or(config.interval);
    config.store.max_bytes = args.max_bytes.unwrap_or(config.store.max_bytes);
    Ok(config)
}
