//! The picture of the documents: what a browser shows of the HTML report.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo;
use crate::paths::Paths;
use crate::process;
use crate::setup::readers::BROWSER;
use crate::setup::{self, Part};

/// Width and height in pixels: the table of ten handlers, and the plots of the first one.
const SIZE: &str = "1280,1000";

/// Draws the report of a run into docs/report.png.
pub(crate) fn run(paths: &Paths, result: Option<&Path>) -> Result<()> {
    let demo = paths.target().join("demo/result.json");
    let result = result.unwrap_or(&demo);
    if !result.exists() {
        bail!(
            "no {}: run `cargo xtask demo` first, or name a JSON file of a run",
            result.display()
        );
    }
    setup::ensure(paths, &[Part::Readers])?;
    let profiler = cargo::build_profiler(paths)?;
    let folder = paths.target().join("picture");
    process::remove_dir(&folder)?;
    process::create_dir(&folder)?;
    let page = folder.join("report.html");
    process::run(Command::new(profiler).arg("report").arg(result).arg("--output").arg(&page))?;
    let picture = folder.join("report.png");
    let mut browser = Command::new(BROWSER);
    // Chromium's sandbox refuses to start as root; the page is our own.
    browser.args(["--headless", "--no-sandbox", "--hide-scrollbars", "--no-first-run"]);
    browser.args(["--disable-background-networking", &format!("--window-size={SIZE}")]);
    browser.arg(format!("--screenshot={}", picture.display()));
    browser.arg(format!("file://{}", page.display()));
    process::run_logged(&mut browser, &folder.join("browser.log"))?;
    // Chromium ends with success also where it has written nothing.
    let content = fs::read(&picture).context("the browser left no picture")?;
    let committed = paths.root().join("docs/report.png");
    process::write(&committed, content)?;
    println!("picture: {}", committed.display());
    Ok(())
}
