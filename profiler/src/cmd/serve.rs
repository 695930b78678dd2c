//! `profiler serve`, `profiler release` and `profiler status`.

use std::io::{IsTerminal as _, stdout};
use std::path::Path;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use super::{json, to_stdout};
use crate::cli::{Listen, ReleaseArgs, ServeArgs, StatusArgs};
use crate::error::{Failure, exit};
use crate::kernel::privileges;
use crate::progress::Progress;
use crate::run::{self, Signals};
use crate::serve::config::{Config, Module};
use crate::serve::control::{self, Answer, AskError, Released, Request};
use crate::serve::logs::init_logs;
use crate::serve::status::Status;
use crate::serve::{self, Source};
use crate::text::{listed, plural};

/// How often a terminal is drawn anew.
const EVERY: Duration = Duration::from_secs(1);

/// See the [command line](ServeArgs).
///
/// # Errors
/// If the configuration is wrong, this machine cannot measure, or another daemon runs.
pub fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let (config, source) = configuration(args)?;
    if args.check {
        let count = config.modules.len();
        return to_stdout(&format!(
            "the configuration is right: {count} module{}\n",
            plural(count)
        ));
    }
    privileges::check()?;
    super::restore_tracefs();
    let logs = init_logs(LevelFilter::INFO);
    let logs = logs.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    Ok(serve::run(config, source, logs)?)
}

fn configuration(args: &ServeArgs) -> Result<(Config, Source), Failure> {
    if let Some(file) = &args.config {
        let config = Config::read(file).map_err(serve::Error::from)?;
        return Ok((config, Source::File(file.clone())));
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
    Ok((config, Source::Options))
}

fn ask(request: &Request) -> Result<Answer, Failure> {
    control::ask(Path::new(control::FOLDER), request).map_err(Failure::from)
}

/// See the [command line](ReleaseArgs).
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

/// See the [command line](StatusArgs).
///
/// # Errors
/// If no daemon runs.
pub fn status(args: &StatusArgs) -> Result<(), Failure> {
    let status = state()?;
    if args.json {
        return to_stdout(&json(&status)?);
    }
    let mut progress = Progress::new(false);
    if !stdout().is_terminal() || !progress.is_drawn() {
        return to_stdout(&(status.text(usize::MAX) + "\n"));
    }
    live(status, &mut progress)
}

fn state() -> Result<Status, Failure> {
    match ask(&Request::Status)? {
        Answer::Status(status) => Ok(status),
        answer => Err(unexpected(&answer)),
    }
}

/// Draws what the daemon does each second, until Ctrl-C.
fn live(mut status: Status, progress: &mut Progress) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(exit::INTERNAL, error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(failed)?.block_on(async {
        let mut signals = Signals::new().map_err(run::Error::from)?;
        progress.begin("profiler serve (Ctrl-C ends this view, not the daemon)", None);
        loop {
            progress.table(|lines| status.text(lines));
            tokio::select! {
                _ = signals.next() => return Ok(()),
                () = tokio::time::sleep(EVERY) => {}
            }
            status = state()?;
        }
    })
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::new(exit::INTERNAL, format!("the daemon gave another answer: {answer:?}"))
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        let code = match error {
            AskError::NoDaemon => exit::NO_TARGET,
            AskError::NotRoot => exit::CANNOT_MEASURE,
            AskError::Refused { code, .. } => code,
            AskError::NoAnswer(_) => exit::INTERNAL,
        };
        Self::new(code, error.to_string())
    }
}
