//! `profiler serve`, the daemon; `profiler release` and `profiler status`, which ask it.

use std::path::Path;

use super::{show, to_stdout};
use crate::cli::serve::{ReleaseArgs, ServeArgs, StatusArgs};
use crate::error::{Failure, exit};
use crate::kernel::privileges;
use crate::serve;
use crate::serve::config::Config;
use crate::serve::control::{self, Answer, Released, Request};
use crate::serve::logs::init_logs;
use crate::text::{listed, plural};

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
    match ask(&Request::Status)? {
        Answer::Status(status) => show(args.json, &status, |_| status.text() + "\n"),
        answer => Err(unexpected(&answer)),
    }
}

/// Has the daemon let a module go: see the [command line](ReleaseArgs).
///
/// # Errors
/// If no daemon runs, or it is not for this module.
pub fn release(args: &ReleaseArgs) -> Result<(), Failure> {
    let module = args.module.clone();
    let request = if args.resume { Request::Resume(module) } else { Request::Release(module) };
    let text = match ask(&request)? {
        Answer::Released(released) => of_release(&args.module, &released),
        Answer::Resumed(handlers) => {
            format!("{} is measured again: {}", args.module, listed(&handlers))
        }
        answer => return Err(unexpected(&answer)),
    };
    if args.quiet { Ok(()) } else { to_stdout(&(text + "\n")) }
}

/// Asks the daemon.
fn ask(request: &Request) -> Result<Answer, Failure> {
    control::ask(Path::new(control::FOLDER), request)
}

/// The daemon answers what was not asked.
fn unexpected(answer: &Answer) -> Failure {
    Failure::new(exit::INTERNAL, format!("the daemon gave another answer: {answer:?}"))
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
