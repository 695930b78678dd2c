//! The `profiler` program.

use std::process::ExitCode;

use clap::Parser as _;
use profiler::{
    cli::{Cli, Command},
    cmd,
    error::Failure,
};

fn main() -> ExitCode {
    profiler::load::become_helper_if_asked();
    let result = match Cli::parse().command {
        Command::Run(args) => cmd::run::run(&args),
        Command::Cost(args) => cmd::cost::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::List(args) => cmd::list::run(&args),
        Command::Prepare(args) => cmd::prepare::run(&args),
        Command::Report(args) => cmd::report::report(
            &args.file,
            args.unit,
            cmd::report::stdout_width(),
            &mut std::io::stdout().lock(),
        )
        .map_err(Failure::from),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
