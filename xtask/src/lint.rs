//! Formatting and lints.

use std::process::Command;

use anyhow::Result;

use crate::paths::Paths;
use crate::process;

/// Fails on the first file that rustfmt would change, and on any warning of clippy.
pub(crate) fn run(paths: &Paths) -> Result<()> {
    let cargo = || {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(paths.root());
        cargo
    };
    println!("lint: cargo fmt");
    process::run(cargo().args(["fmt", "--all", "--check"]))?;
    println!("lint: cargo clippy");
    process::run(
        cargo()
            .args(["clippy", "--quiet", "--locked", "--all-targets"])
            .args(["--", "--deny", "warnings"]),
    )?;
    // `--all-targets` leaves the VM tests out, because they have `test = false`.
    process::run(
        cargo()
            .args(["clippy", "--quiet", "--locked", "--package", "profiler", "--test", "vm"])
            .args(["--", "--deny", "warnings"]),
    )?;
    println!("lint: clean");
    Ok(())
}
