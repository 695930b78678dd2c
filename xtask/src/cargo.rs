//! Builds by cargo. Outputs are found in cargo's messages, not by guessed paths.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::paths::Paths;
use crate::process;
use crate::setup;
use crate::stop;

/// Builds the release binary `profiler` with stable Rust.
pub(crate) fn build_profiler(paths: &Paths) -> Result<PathBuf> {
    println!("build: profiler, release");
    build(paths, &["build", "--release", "--package", "profiler", "--bin", "profiler"], "profiler")
}

/// What a release is built for: named, so that its flags are not those of build scripts.
pub(crate) const STATIC_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the release binary `profiler` without shared libraries.
pub(crate) fn build_static(paths: &Paths) -> Result<PathBuf> {
    println!("build: profiler, release, static");
    let flags = format!(
        "target.{STATIC_TARGET}.rustflags=['-Ctarget-feature=+crt-static', '-Cstrip=symbols']"
    );
    let args = ["build", "--release", "--package", "profiler", "--bin", "profiler"];
    build(
        paths,
        &[&args[..], &["--target", STATIC_TARGET, "--config", &flags]].concat(),
        "profiler",
    )
}

/// What the program of arm64's guests is built for.
const ARM64_TARGET: &str = "aarch64-unknown-linux-gnu";

/// Builds the program that runs in guests of arm64, without shared libraries, by Debian's Rust.
pub(crate) fn build_for_arm64(paths: &Paths) -> Result<PathBuf> {
    println!("build: profiler for arm64, release, static");
    let sysroot = setup::arm64::sysroot(paths);
    let flags = format!(
        "target.{ARM64_TARGET}.rustflags=['--sysroot={}', '-Ctarget-feature=+crt-static', '-Cstrip=symbols']",
        sysroot.display()
    );
    let linker = format!("target.{ARM64_TARGET}.linker='aarch64-linux-gnu-gcc'");
    let folder = paths.arm64().join("build").display().to_string();
    let args = ["build", "--release", "--package", "profiler", "--bin", "profiler"];
    let more = ["--target", ARM64_TARGET, "--target-dir", &folder, "--config", &flags];
    let compiler = ["--config", &linker, "--config", "build.rustc='/usr/bin/rustc'"];
    // To optimise takes most of the minutes, and what is counted is the guest's kernel.
    let quick = ["--config", "profile.release.opt-level=1"];
    build(paths, &[&args[..], &more, &compiler, &quick].concat(), "profiler")
}

/// Cargo's arguments for all tests. Always the same packages, so that dependencies are built once: cargo selects their
/// features by what is built together. Release, because a debug build is slow under TCG and would be a second build.
pub(crate) const TESTED: [&str; 5] =
    ["--release", "--workspace", "--exclude", "profiler-ebpf", "--locked"];

/// More of cargo's arguments, for the unit tests. They compile the library a second time in any case: without optimisation that
/// takes a quarter of the time, and the arithmetic of `profiler` is checked. Of the programs, xtask alone has unit tests.
pub(crate) const UNIT_TESTS: [&str; 11] = [
    "--lib",
    "--bin",
    "xtask",
    "--test",
    "pairing",
    "--config",
    "profile.release.package.profiler.opt-level=0",
    "--config",
    "profile.release.package.profiler.overflow-checks=true",
    "--config",
    "profile.release.package.profiler.debug-assertions=true",
];

/// Programs of the tests.
#[derive(Debug, Clone)]
pub(crate) struct Tested {
    /// The program that tests start.
    pub(crate) profiler: PathBuf,
    /// The tests for this machine.
    pub(crate) host_tests: PathBuf,
    /// The tests for the VM.
    pub(crate) vm_tests: PathBuf,
}

/// Which tests to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tests {
    /// [`TESTED`]: the unit tests, too.
    All,
    /// Those of [`Tested`] alone.
    Programs,
}

/// Builds tests, and the program that they start.
pub(crate) fn build_tests(paths: &Paths, tests: Tests) -> Result<Tested> {
    println!("build: tests, release");
    let build =
        |which: &[&str]| messages(paths, &[&["test", "--no-run"], &TESTED[..], which].concat());
    if tests == Tests::All {
        build(&UNIT_TESTS)?;
    }
    // That for the VM has to be named, or cargo leaves it out.
    let messages = build(&["--test", "host", "--test", "vm"])?;
    let find = |target| {
        executable(&messages, target)
            .with_context(|| format!("cargo built no executable `{target}`"))
    };
    Ok(Tested { profiler: find("profiler")?, host_tests: find("host")?, vm_tests: find("vm")? })
}

fn build(paths: &Paths, args: &[&str], target: &str) -> Result<PathBuf> {
    let mut all = args.to_vec();
    all.push("--locked");
    executable(&messages(paths, &all)?, target)
        .with_context(|| format!("`cargo {}` built no executable `{target}`", args.join(" ")))
}

/// Cargo's messages about a build, one JSON object per line.
fn messages(paths: &Paths, args: &[&str]) -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(args).args(["--quiet", "--message-format=json-render-diagnostics"]);
    cargo.current_dir(paths.root()).stdin(Stdio::null()).stdout(Stdio::piped());
    let output = stop::start(&mut cargo)?.output()?;
    if !output.status.success() {
        bail!("`{}` failed: {}", process::text(&cargo), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The executable of a target in cargo's messages.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    // Unit tests have the name of what they are in.
    let is_unit_test = |message: &Value| {
        message["profile"]["test"] == true && message["target"]["kind"][0] != "test"
    };
    messages
        .filter(|message| message["target"]["name"] == target && !is_unit_test(message))
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_that_of_the_target() {
        let messages = "{\"target\":{\"name\":\"profiler\"},\"executable\":null}\n\
                        not json\n\
                        {\"target\":{\"name\":\"profiler\",\"kind\":[\"bin\"]},\"profile\":{\"test\":true},\"executable\":\"/t/unit\"}\n\
                        {\"target\":{\"name\":\"profiler\"},\"executable\":\"/t/profiler\"}\n\
                        {\"target\":{\"name\":\"vm\"},\"executable\":\"/t/vm-1\"}\n";
        assert_eq!(executable(messages, "vm"), Some(PathBuf::from("/t/vm-1")));
        assert_eq!(executable(messages, "profiler"), Some(PathBuf::from("/t/profiler")));
        assert_eq!(executable(messages, "other"), None);
    }

    #[test]
    fn no_target_with_tests_is_left_out() {
        let mut cargo = Command::new("cargo");
        let paths = Paths::find().unwrap();
        cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
        let told = process::stdout(cargo.current_dir(paths.root())).unwrap();
        let told: Value = serde_json::from_str(&told).unwrap();
        let packages = told["packages"].as_array().unwrap().iter();
        let targets = packages.flat_map(|package| package["targets"].as_array().unwrap());
        let mut tested: Vec<String> = targets
            .filter(|target| target["test"] == true)
            .map(|target| {
                let kinds = target["kind"].as_array().unwrap();
                let is_library = kinds.iter().any(|kind| kind == "lib" || kind == "rlib");
                if is_library {
                    "--lib".to_owned()
                } else {
                    format!("{} {}", kinds[0], target["name"])
                }
            })
            .collect();
        tested.sort_unstable();
        tested.dedup();
        let named = ["\"bin\" \"xtask\"", "\"test\" \"host\"", "\"test\" \"pairing\"", "--lib"];
        assert_eq!(tested, named);
    }
}
