//! `profiler serve`, the daemon; `profiler release` and `profiler status`, which ask it.

use std::path::{Path, PathBuf};

use clap::Args;

use profiler_base::error::{Failure, exit};
use profiler_base::text::{listed, plural};
use profiler_kernel::privileges;

use super::{show, to_stdout};
use crate::serve;
use crate::serve::config::Config;
use crate::serve::control::{self, Answer, Released, Request};
use crate::serve::logs::init_logs;

const SERVE_EXAMPLES: &str = "\
Examples:
  profiler serve --config /etc/profiler/serve.toml
  # is the configuration right? nothing is measured
  profiler serve --config /etc/profiler/serve.toml --check";

/// Arguments of `profiler serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub struct ServeArgs {
    /// The configuration; SIGHUP reads it again. Its keys are in docs/serve.md.
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Only check the configuration, and report mistakes.
    #[arg(long)]
    pub check: bool,
}

const RELEASE_EXAMPLES: &str = "\
Examples:
  # a new build of the driver: the daemon measures it as soon as it is loaded
  profiler release hids_driver && rmmod hids_driver && insmod hids_driver.btf.ko
  # the old one stays after all
  profiler release --resume hids_driver";

/// Arguments of `profiler release`.
#[derive(Debug, Args)]
#[command(after_help = RELEASE_EXAMPLES)]
pub struct ReleaseArgs {
    /// The module.
    #[arg(value_name = "MODULE")]
    pub module: String,
    /// Measure it again although it was not unloaded.
    #[arg(long)]
    pub resume: bool,
    /// Print nothing but errors.
    #[arg(long, short)]
    pub quiet: bool,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  profiler status
  # for a script
  profiler status --json";

/// Arguments of `profiler status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// See the [command line](ServeArgs).
///
/// # Errors
/// If the configuration is wrong, this machine cannot measure, or another daemon runs.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = Config::read(&args.config)?;
    if args.check {
        let count = config.modules.len();
        let text = format!("the configuration is right: {count} module{}\n", plural(count));
        return to_stdout(&text);
    }
    privileges::check()?;
    super::restore_tracefs();
    init_logs().map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    serve::run(config, args.config.clone())
}

/// Prints what a running daemon does: see the [command line](StatusArgs).
///
/// # Errors
/// If no daemon runs.
pub fn status(args: &StatusArgs) -> Result<(), Failure> {
    let Answer::Status(status) = ask(&Request::Status)? else { return Err(other_answer()) };
    show(args.json, &status, |_| status.text() + "\n")
}

/// Has the daemon let a module go: see the [command line](ReleaseArgs).
///
/// # Errors
/// If no daemon runs, or it is not for this module.
pub fn release(args: &ReleaseArgs) -> Result<(), Failure> {
    let request = if args.resume { Request::Resume } else { Request::Release };
    let text = match ask(&request(args.module.clone()))? {
        Answer::Resumed(handlers) => {
            format!("{} is measured again: {}", args.module, listed(&handlers))
        }
        Answer::Released(released) => of_release(&args.module, &released),
        Answer::Status(_) => return Err(other_answer()),
    };
    if args.quiet { Ok(()) } else { to_stdout(&(text + "\n")) }
}

/// Asks the daemon.
fn ask(request: &Request) -> Result<Answer, Failure> {
    control::ask(Path::new(control::FOLDER), request)
}

fn other_answer() -> Failure {
    let text = "the daemon gave the answer to another request: is it another version?";
    Failure::new(exit::INTERNAL, text)
}

fn of_release(module: &str, released: &Released) -> String {
    let Released { handlers, calls, references } = released;
    if handlers.is_empty() && *references == 0 {
        return format!("{module} was not measured: nothing holds it");
    }
    let mut text = match handlers.is_empty() {
        true => format!("{module} was not measured, and this load of it will not be"),
        false => format!(
            "{module} is released: {calls} call{} since the last interval, of {}",
            plural(*calls),
            listed(handlers)
        ),
    };
    if *references > 0 {
        let others = format!(
            "; others still hold it ({references} reference{}): see lsmod and /sys/module/{module}/holders",
            plural(*references)
        );
        text.push_str(&others);
    }
    text
}
