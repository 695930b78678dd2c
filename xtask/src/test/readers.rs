//! Exported files read by other programs: the tests of `profiler/tests/readers.rs` and
//! `profiler/tests/browser.rs`, with a Python that has other implementations and steers a browser.

use std::process::{Command, Stdio};

use anyhow::Result;

use super::libtest::{self, Parser};
use super::report::{Report, Status};
use crate::cargo::TESTED;
use crate::paths::Paths;
use crate::process;
use crate::setup::readers;

/// The test binaries, with the words for the report.
const TESTS: [(&str, &str); 2] = [("readers", "other readers"), ("browser", "browser")];

/// Debian's Chromium.
const BROWSER: &str = "/usr/bin/chromium";

/// Runs them; without the Python they are listed as not run.
pub(super) fn run(paths: &Paths, report: &mut Report) -> Result<()> {
    println!("test: exported files, read by other programs");
    for (test, place) in TESTS {
        if readers::is_ready(paths) {
            binary(paths, test, place, report)?;
        } else {
            let packages = readers::PACKAGES.join(", ");
            let reason = format!("no Python with {packages}: run `cargo xtask setup` first");
            report.add(place, "(all)", Status::NotRun(reason));
        }
    }
    Ok(())
}

fn binary(paths: &Paths, test: &str, place: &str, report: &mut Report) -> Result<()> {
    let cargo = |more: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo.arg("test").args(TESTED).args(["--test", test]);
        cargo.arg("--").args(more).current_dir(paths.root()).stdin(Stdio::null());
        cargo.env("PROFILER_READERS_PYTHON", readers::python(paths));
        cargo.env("PROFILER_BROWSER", BROWSER);
        cargo
    };
    let Some(listed) = report.step(place, "build", process::stdout(&mut cargo(&["--list"]))) else {
        return Ok(());
    };
    let output = process::capture(&mut cargo(&[]))?;
    let mut parser = Parser::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        println!("{line}");
        parser.line(line);
    }
    report.add_run(
        place,
        &libtest::listed(&listed),
        &parser.endings,
        "the test binary ended early",
    );
    Ok(())
}
