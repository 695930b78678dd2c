//! `cargo xtask`: set-up, builds, VM runs and tests of the profiler.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "who develops reads it")]

mod bench;
mod book;
mod cargo;
#[cfg(test)]
mod ci_tests;
mod cli;
mod demo;
mod dist;
mod ebpf;
mod fuzz;
mod gate_power;
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

use anyhow::{Context as _, Result};
use clap::Parser as _;

use cli::{Cli, Task};

fn main() -> ExitCode {
    let arguments = Cli::parse();
    let done = stop::at_signals().context("cannot handle signals");
    let code = done.and_then(|()| dispatch(arguments.command)).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        1
    });
    let code = stop::signal().map_or(code, |signal| 128 + signal);
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The exit code of what runs in a VM, or 0.
fn dispatch(task: Task) -> Result<i32> {
    match task {
        Task::Setup => {
            setup::ensure(&setup::all())?;
            println!("set-up: all is there");
        }
        Task::Ebpf { check: true } => ebpf::check()?,
        Task::Ebpf { check: false } => ebpf::update()?,
        Task::Testbed(args) => testbed::run(args)?,
        Task::Guest => {
            setup::ensure(&[setup::ARM64])?;
            setup::arm64::keep_program(&cargo::build_for_arm64(1)?)?;
        }
        Task::Bench(args) => return bench::run(&args),
        Task::Book => book::run()?,
        Task::Dist { check } => dist::run(check)?,
        Task::Fuzz(args) => fuzz::run_each(&args)?,
        Task::Demo { kernel } => return demo::run(kernel),
        Task::GatePower(args) => gate_power::run(&args)?,
        Task::Lint => lint::run()?,
        Task::Test(args) => test::run(&args)?,
        Task::Vm(args) => return vm::run(&args, &mut Vec::new()),
    }
    Ok(0)
}
