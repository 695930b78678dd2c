//! `cargo xtask`: set-up, builds, VM runs and tests of the profiler.

mod bench;
mod book;
mod cargo;
#[cfg(test)]
mod ci_tests;
mod cli;
mod demo;
mod digest;
mod dist;
mod ebpf;
mod fuzz;
mod gate_power;
mod gate_speed;
mod kbuild;
mod lint;
mod paths;
mod process;
mod series;
mod setup;
mod speed;
mod stop;
mod test;
mod testbed;
mod vm;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use cli::{BenchArgs, Cli, EbpfArgs, Task};
use paths::Paths;
use setup::Part;

fn main() -> ExitCode {
    let arguments = Cli::parse();
    let done = stop::at_signals().context("cannot handle signals");
    let code = done.and_then(|()| dispatch(arguments.command)).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    });
    stop::code().map_or(code, ExitCode::from)
}

fn dispatch(task: Task) -> Result<ExitCode> {
    let paths = Paths::find()?;
    match task {
        Task::Setup => {
            setup::ensure(&paths, &Part::all())?;
            println!("set-up: all is there");
        }
        Task::Ebpf(EbpfArgs { check: false, .. }) => ebpf::update(&paths)?,
        Task::Ebpf(EbpfArgs { check: true, rebuild }) => {
            ebpf::check(&paths)?;
            if rebuild {
                ebpf::rebuild(&paths)?;
            }
        }
        Task::Testbed(args) => testbed::run(&paths, args)?,
        Task::Guest => guest(&paths)?,
        Task::Bench(BenchArgs { import: Some(megabytes), .. }) => speed::run(&paths, megabytes)?,
        Task::Bench(BenchArgs { gate: Some(builds), kernel, .. }) => {
            gate_speed::run(&paths, &builds, kernel)?;
        }
        Task::Book => book::run(&paths)?,
        Task::Dist(args) => dist::run(&paths, args.check)?,
        Task::Bench(args) => return bench::run(&paths, args.kernel).map(exit_code),
        Task::Fuzz(args) => fuzz::run_each(&paths, &args)?,
        Task::Demo(args) => return demo::run(&paths, args.kernel).map(exit_code),
        Task::GatePower(args) => return gate_power::run(&paths, &args).map(all_well),
        Task::Lint => lint::run(&paths)?,
        Task::Test(args) => return test::run(&paths, &args).map(all_well),
        Task::Vm(args) => {
            let begun = Instant::now();
            let outcome = vm::run(&paths, &args.spec())?;
            println!(
                "vm: exit code {} after {:.1} s; log: {}",
                outcome.code,
                begun.elapsed().as_secs_f64(),
                outcome.log.display()
            );
            return Ok(exit_code(outcome.code));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the program of arm64's guests.
pub(crate) fn guest(paths: &Paths) -> Result<()> {
    setup::ensure(paths, &[Part::Arm64])?;
    let program = cargo::build_for_arm64(paths)?;
    for kept in setup::arm64::keep_program(paths, &program)? {
        println!("guest: {}", kept.display());
    }
    Ok(())
}

fn all_well(well: bool) -> ExitCode {
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A command's exit code as that of this program.
fn exit_code(code: i32) -> ExitCode {
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
