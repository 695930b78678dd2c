//! The picture in README.md: a part of the demo's HTML report, as a browser shows it.

use std::process::Command;

use anyhow::{Result, bail};

use crate::cargo;
use crate::demo;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::venv::{BROWSER, Venv};
use crate::setup::{self, Part};

/// Whose plots are shown.
const HANDLER: &str = "connect_syscall_handler";

/// Runs the demo and draws its report into docs/report.png.
pub(crate) fn run(paths: &Paths) -> Result<()> {
    setup::ensure(paths, &[Part::Readers])?;
    let code = demo::run(paths, Series::V6_1)?;
    if code != 0 {
        bail!("the demo ended with exit code {code}");
    }
    let demo = paths.target().join("demo");
    let page = demo.join("report.html");
    let mut report = Command::new(cargo::build_profiler(paths)?);
    report.arg("report").arg(demo.join("result.json")).arg("--output").arg(&page);
    process::run(&mut report)?;
    let picture = paths.root().join("docs/report.png");
    let mut browser = Command::new(Venv::readers(paths).python());
    browser.arg(paths.root().join("xtask/src/picture.py")).arg(BROWSER).arg(&page);
    process::run(browser.arg(HANDLER).arg(&picture))?;
    println!("picture: {}", picture.display());
    Ok(())
}
