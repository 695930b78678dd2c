//! Exported files read by other implementations: the tests of `profiler/tests/readers.rs`, with a
//! Python that has them.

use std::process::{Command, Stdio};

use anyhow::Result;

use super::libtest::{self, Parser};
use super::report::{Report, Status};
use crate::paths::Paths;
use crate::process;
use crate::setup::readers;

const PLACE: &str = "other readers";

/// Runs them; without the Python they are listed as not run.
pub(super) fn run(paths: &Paths, report: &mut Report) -> Result<()> {
    println!("test: exported files, read by other implementations");
    if !readers::is_ready(paths) {
        let reason = "no Python with hdrhistogram and prometheus_client below target/: run \
                      `cargo xtask setup` first";
        report.add(PLACE, "(all)", Status::NotRun(reason.to_owned()));
        return Ok(());
    }
    let cargo = |more: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--package", "profiler", "--test", "readers", "--locked"]);
        cargo.arg("--").args(more).current_dir(paths.root()).stdin(Stdio::null());
        cargo.env("PROFILER_READERS_PYTHON", readers::python(paths));
        cargo
    };
    let Some(listed) = report.step(PLACE, "build", process::stdout(&mut cargo(&["--list"]))) else {
        return Ok(());
    };
    let output = process::capture(&mut cargo(&[]))?;
    let mut parser = Parser::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        println!("{line}");
        parser.line(line);
    }
    report.add_run(
        PLACE,
        &libtest::listed(&listed),
        &parser.endings,
        "the test binary ended early",
    );
    Ok(())
}
