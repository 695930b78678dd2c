//! `cargo xtask`: set-up, builds, VM runs and tests of the profiler.

mod cli;
mod paths;
mod process;
mod series;
mod setup;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use cli::{Cli, Task};
use paths::Paths;

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(task: Task) -> Result<ExitCode> {
    let paths = Paths::find()?;
    match task {
        Task::Setup => {
            setup::ensure(&paths, &setup::Part::all())?;
            println!("set-up: all is there");
        }
        Task::Vm(args) => {
            let outcome = vm::run(&paths, &args.spec())?;
            println!(
                "vm: exit code {} after {:.1} s; log: {}",
                outcome.code,
                outcome.elapsed.as_secs_f64(),
                outcome.log.display()
            );
            return Ok(exit_code(outcome.code));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The command's exit code as our own.
fn exit_code(code: i32) -> ExitCode {
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
