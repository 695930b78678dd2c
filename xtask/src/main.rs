//! `cargo xtask`: set-up, builds, VM runs and tests of the profiler.

mod bench;
mod cargo;
#[cfg(test)]
mod ci;
mod cli;
mod demo;
mod digest;
mod ebpf;
mod fuzz;
mod gate_power;
mod kbuild;
mod lint;
mod paths;
mod picture;
mod process;
mod series;
mod setup;
mod speed;
mod test;
mod testbed;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use cli::{BenchArgs, Cli, EbpfArgs, Task};
use paths::Paths;
use series::Series;
use setup::Part;

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
        Task::Testbed(args) => {
            let slow = args.slow();
            let wanted = if args.kernel.is_empty() { Series::ALL.to_vec() } else { args.kernel };
            setup::ensure(&paths, &wanted.iter().copied().map(Part::Kernel).collect::<Vec<_>>())?;
            for series in wanted {
                let module = match &slow {
                    None => testbed::build(&paths, series)?,
                    Some(slow) => testbed::build_slow(&paths, series, slow)?,
                };
                println!("testbed: {}", module.display());
            }
        }
        Task::Bench(BenchArgs { import: Some(megabytes), .. }) => {
            setup::ensure(&paths, &[Part::Parsers])?;
            let profiler = cargo::build_profiler(&paths)?;
            println!("import: {}", speed::import(&paths, &profiler, megabytes)?);
            println!("merge: {}", speed::merge(&paths, &profiler)?);
        }
        Task::Fuzz(args) => {
            setup::ensure(&paths, &[Part::Parsers])?;
            let programs = fuzz::build(&paths)?;
            let wanted: Vec<String> = if args.targets.is_empty() {
                fuzz::TARGETS.map(str::to_owned).to_vec()
            } else {
                args.targets
            };
            for target in wanted {
                println!(
                    "fuzz: {target}: {}",
                    fuzz::run(&paths, &programs, &target, args.seconds)?
                );
            }
        }
        Task::Bench(args) => return bench::run(&paths, args.kernel).map(exit_code),
        Task::Demo(args) => {
            return demo::run(&paths, args.driver, args.kernel.kernel).map(exit_code);
        }
        Task::GatePower(args) => {
            if !gate_power::run(&paths, &args)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Lint => lint::run(&paths)?,
        Task::Picture => picture::run(&paths)?,
        Task::Test(args) => {
            if !test::run(&paths, &args.selection())? {
                return Ok(ExitCode::FAILURE);
            }
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

/// A command's exit code as that of this program.
fn exit_code(code: i32) -> ExitCode {
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
