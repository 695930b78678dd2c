//! Builds by cargo whose outputs are found by what cargo says, not by guessed paths.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::paths::Paths;
use crate::process;

/// Builds the release binary `profiler` with stable Rust.
pub(crate) fn build_profiler(paths: &Paths) -> Result<PathBuf> {
    println!("build: profiler, release");
    build(paths, &["build", "--release", "--package", "profiler", "--bin", "profiler"], "profiler")
}

/// Builds the tests for the VM. Release: under TCG a debug build spends its time on itself.
pub(crate) fn build_vm_tests(paths: &Paths) -> Result<PathBuf> {
    println!("build: VM tests, release");
    build(paths, &["test", "--release", "--package", "profiler", "--test", "vm", "--no-run"], "vm")
}

fn build(paths: &Paths, args: &[&str], target: &str) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(args).args(["--locked", "--quiet", "--message-format=json-render-diagnostics"]);
    cargo.current_dir(paths.root()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let text = process::text(&cargo);
    let output = cargo.output().with_context(|| format!("cannot run `{text}`"))?;
    if !output.status.success() {
        bail!("`{text}` failed: {}", output.status);
    }
    executable(&String::from_utf8_lossy(&output.stdout), target)
        .with_context(|| format!("`{text}` built no executable `{target}`"))
}

/// The executable of a target among cargo's messages, one JSON object a line.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["target"]["name"] == target)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_that_of_the_target() {
        let messages = "{\"target\":{\"name\":\"profiler\"},\"executable\":null}\n\
                        not json\n\
                        {\"target\":{\"name\":\"profiler\"},\"executable\":\"/t/profiler\"}\n\
                        {\"target\":{\"name\":\"vm\"},\"executable\":\"/t/vm-1\"}\n";
        assert_eq!(executable(messages, "vm"), Some(PathBuf::from("/t/vm-1")));
        assert_eq!(executable(messages, "profiler"), Some(PathBuf::from("/t/profiler")));
        assert_eq!(executable(messages, "other"), None);
    }
}
