//! The `profiler` program.

use std::process::ExitCode;

use clap::Parser as _;
use profiler::cli::{Cli, Command};
use profiler::cmd::{self, import::ImportSource};
use profiler_base::error::Failure;
use profiler_base::terminal;

fn main() -> ExitCode {
    profiler_load::run_subprocess_if_asked();
    profiler_probe::keeper::become_keeper_if_asked();
    match run(parsed()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::say(&format!("error: {failure}"));
            ExitCode::from(failure.code)
        }
    }
}

/// The command line. A shell's glob may put a file's name into it, which errors quote beside colours of their own.
fn parsed() -> Command {
    let parsed = Cli::try_parse().unwrap_or_else(|error| {
        let mut arguments = std::env::args_os().map(|it| it.to_string_lossy().into_owned());
        if !error.use_stderr() || !arguments.any(|text| text != terminal::clean_lines(&text)) {
            error.exit();
        }
        terminal::say(error.render().to_string().trim_end());
        std::process::exit(error.exit_code())
    });
    parsed.command
}

/// An arm for each subcommand.
fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => cmd::run::run(&args),
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Release(args) => cmd::serve::release(&args),
        Command::Status(args) => cmd::serve::status(&args),
        Command::Restore => cmd::restore::run(),
        Command::Compare(args) => cmd::compare::run(&args),
        Command::Explain(args) => cmd::explain::run(&args),
        Command::Bisect(args) => cmd::bisect::run(&args),
        Command::Gate(args) => cmd::gate::run(&args),
        Command::Cost(args) => cmd::cost::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::List(args) => cmd::list::run(&args),
        Command::Prepare(args) => cmd::prepare::run(&args),
        Command::Profiles(args) => cmd::profiles::run(&args),
        Command::Kernels(action) => cmd::kernels::run(&action),
        Command::Lab(args) => cmd::lab::run(&args),
        Command::Tax(args) => cmd::tax::run(&args),
        Command::Slope(args) => cmd::slope::run(&args),
        Command::LabGuest => cmd::lab::guest(),
        Command::Import(ImportSource::TraceCmd(args)) => cmd::import::trace_cmd(&args),
        Command::Completions(args) => cmd::shell::completions(&args),
        Command::Man(args) => cmd::shell::man(&args),
        Command::Merge(args) => cmd::merge::run(&args),
        Command::Report(args) => {
            cmd::report::run(&args, cmd::stdout_width(), &mut std::io::stdout().lock())
        }
    }
}
