//! Builds by cargo. Outputs are found in cargo's messages, not by guessed paths.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::paths;
use crate::process;
use crate::setup;
use crate::stop;

/// Builds the release binary `profiler` with stable Rust.
pub(crate) fn build_profiler() -> Result<PathBuf> {
    println!("build: profiler, release");
    build(&[])
}

/// What a release is built for: named, so that its flags are not those of build scripts.
pub(crate) const STATIC_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the release binary `profiler` without shared libraries.
pub(crate) fn build_static() -> Result<PathBuf> {
    println!("build: profiler, release, static");
    let flags = format!(
        "target.{STATIC_TARGET}.rustflags=['-Ctarget-feature=+crt-static', '-Cstrip=symbols']"
    );
    build(&["--target", STATIC_TARGET, "--config", &flags])
}

/// Builds the program that runs in guests of arm64, without shared libraries, by Debian's Rust. What is counted is the guest's kernel, so
/// `opt_level` matters for the time of a boot alone, and to optimise takes two thirds of ten minutes of CPU time.
pub(crate) fn build_for_arm64(opt_level: u8) -> Result<PathBuf> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    println!("build: profiler for arm64, static");
    let flags = format!(
        "target.{TARGET}.rustflags=['--sysroot={}', '-Ctarget-feature=+crt-static', '-Cstrip=symbols']",
        setup::arm64::sysroot().display()
    );
    let linker = format!("target.{TARGET}.linker='aarch64-linux-gnu-gcc'");
    let folder = paths::arm64().join("build").display().to_string();
    let level = format!("profile.release.opt-level={opt_level}");
    let target = ["--target", TARGET, "--target-dir", &folder];
    let compiler = ["--config", &flags, "--config", &linker, "--config", &level];
    build(&[&target[..], &compiler, &["--config", "build.rustc='/usr/bin/rustc'"]].concat())
}

/// Builds the release binary `profiler`, with more of cargo's arguments.
fn build(more: &[&str]) -> Result<PathBuf> {
    let args = ["build", "--release", "--locked", "--package", "profiler", "--bin", "profiler"];
    executable(&messages(&[&args[..], more].concat())?, "profiler")
}

/// Cargo's arguments for all tests. Always the same packages, so that dependencies are built once: cargo selects their
/// features by what is built together. Optimised, because a debug build is slow under TCG.
pub(crate) const TESTED: &str = "--profile tested --workspace --exclude profiler-ebpf --locked";

/// More of cargo's arguments, for the unit tests: the targets that have some; of the programs, xtask alone. They compile each crate
/// of ours again in any case: without optimisation that takes a quarter of the time, and their arithmetic is checked.
pub(crate) const UNIT_TESTS: &str = "--lib --bin xtask --test pairing --config profile.tested.opt-level=0 \
    --config profile.tested.overflow-checks=true --config profile.tested.debug-assertions=true";

/// Programs of the tests.
#[derive(Debug, Clone)]
pub(crate) struct Tested {
    /// The program that tests start.
    pub(crate) profiler: PathBuf,
    /// The tests for this machine.
    pub(crate) host_tests: PathBuf,
    pub(crate) vm_tests: PathBuf,
}

/// Builds the programs of the tests, and the unit tests, too, if asked.
pub(crate) fn build_tests(with_unit_tests: bool) -> Result<Tested> {
    println!("build: tests");
    let build = |which: &str| {
        let args = ["test", "--no-run"].into_iter().chain(TESTED.split(' '));
        messages(&args.chain(which.split(' ')).collect::<Vec<_>>())
    };
    if with_unit_tests {
        build(UNIT_TESTS)?;
    }
    // That for the VM has to be named, or cargo leaves it out.
    let messages = build("--test host --test vm")?;
    Ok(Tested {
        profiler: executable(&messages, "profiler")?,
        host_tests: executable(&messages, "host")?,
        vm_tests: executable(&messages, "vm")?,
    })
}

/// Cargo's messages about a build, one JSON object per line.
fn messages(args: &[&str]) -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(args).args(["--quiet", "--message-format=json-render-diagnostics"]);
    // What the compiler says is printed as it comes: the end of it, in an error, would not do.
    cargo.current_dir(paths::root()).stdin(Stdio::null()).stdout(Stdio::piped());
    let output = stop::run(&mut cargo, Child::wait_with_output)?;
    ensure!(output.status.success(), "`{}` failed: {}", process::text(&cargo), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The executable of a target in cargo's messages.
fn executable(messages: &str, target: &str) -> Result<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["target"]["name"] == target)
        // Unit tests have the name of what they are in.
        .filter(|it| it["profile"]["test"] != true || it["target"]["kind"][0] == "test")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo built no executable `{target}`"))
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
        assert_eq!(executable(messages, "vm").unwrap(), PathBuf::from("/t/vm-1"));
        assert_eq!(executable(messages, "profiler").unwrap(), PathBuf::from("/t/profiler"));
        assert!(executable(messages, "other").is_err());
    }

    #[test]
    fn no_target_with_tests_is_left_out() {
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
        let told = process::stdout(cargo.current_dir(paths::root())).unwrap();
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

    /// To look for examples in each crate takes longer than this, and there are none.
    #[test]
    fn no_documentation_has_tests() {
        for folder in ["crates", "fuzz/src", "profiler/src", "xtask/src"] {
            for file in process::files_below(&paths::root().join(folder)).unwrap() {
                if file.extension().is_none_or(|extension| extension != "rs") {
                    continue;
                }
                let text = process::read(&file).unwrap();
                let docs = text.lines().filter_map(|line| {
                    let line = line.trim_start();
                    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
                });
                let fences = docs.filter_map(|doc| doc.trim_start().strip_prefix("```"));
                let mut begins = fences.step_by(2);
                assert!(begins.all(|begin| begin == "text"), "{}: mark it `text`", file.display());
            }
        }
    }
}
