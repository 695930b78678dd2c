//! The BPF object: its build, and the record of the sources it was built from.
//!
//! The object is committed so that users need neither nightly Rust nor LLVM. Its record,
//! `SOURCES.sha256`, is what `sha256sum -c` reads; lines with `#` name the tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::paths;
use crate::process;
use crate::setup::{self, LLVM_PREFIX};

const OBJECT: &str = "profiler-bpf.o";
const RECORD: &str = "SOURCES.sha256";

/// Begins the record's line with the tools that built the object.
const TOOLS: &str = "# tools: ";

/// Updates the committed object and its record.
pub(crate) fn update() -> Result<()> {
    let (object, tools) = build()?;
    let committed = prebuilt(OBJECT);
    process::copy(&object, &committed)?;
    process::write(&prebuilt(RECORD), record_of_tree(&tools)?)?;
    println!("ebpf: {} and {RECORD} written", committed.display());
    Ok(())
}

/// Builds the object below `target/` and compares it with the committed one. The record's hashes come with the same commit as
/// the object: that it has the code of its sources, only a build shows.
///
/// # Errors
/// If they differ and the same tools built both.
pub(crate) fn rebuild() -> Result<()> {
    let (object, tools) = build()?;
    let is_same = fs::read(&object)? == fs::read(prebuilt(OBJECT))?;
    let record = process::read(&prebuilt(RECORD))?;
    println!("ebpf: {} {}", object.display(), compared(is_same, &record, &tools)?);
    Ok(())
}

/// What the comparison of a rebuilt object with the committed one says.
fn compared(is_same: bool, record: &str, tools: &str) -> Result<&'static str> {
    if is_same {
        return Ok("is equal to the committed object");
    }
    ensure!(
        !record.lines().any(|line| line.strip_prefix(TOOLS) == Some(tools)),
        "the committed BPF object is not that of its sources: the recorded tools ({tools}) build another. \
         Run `cargo xtask ebpf` and commit profiler-ebpf/prebuilt; do not use the committed object before you know \
         where it comes from"
    );
    Ok("is not compared with the committed object, which other tools built")
}

/// Fails if the sources have changed since the committed object was built.
pub(crate) fn check() -> Result<()> {
    let record = process::read(&prebuilt(RECORD))?;
    let tools = record.lines().find_map(|line| line.strip_prefix(TOOLS)).unwrap_or_default();
    let tree = record_of_tree(tools)?;
    ensure!(
        record == tree,
        "the committed BPF object is stale:{}\nrun `cargo xtask ebpf` and commit profiler-ebpf/prebuilt",
        differences(&record, &tree)
    );
    println!("ebpf: the committed object is the one recorded with these sources");
    Ok(())
}

/// The record's text for the files as they are. `sha256sum -c` alone would not see a new file, or a line that is gone.
fn record_of_tree(tools: &str) -> Result<String> {
    let mut files = Vec::new();
    for crate_ in ["crates/common", "profiler-ebpf"].map(|name| paths::root().join(name)) {
        files.push(crate_.join("Cargo.toml"));
        files.extend(process::files_below(&crate_.join("src"))?);
    }
    files.push(prebuilt(OBJECT));
    Ok(format!(
        "# What profiler-bpf.o was built from: `cargo xtask ebpf` writes this file,\n\
         # `cargo xtask ebpf --check` (or sha256sum -c, from the project's root) compares.\n\
         {TOOLS}{tools}\n{}",
        process::sha256sums(paths::root(), &files)?
    ))
}

/// The lines that only one of two records has: the old ones with `-`, the new ones with `+`.
fn differences(record: &str, tree: &str) -> String {
    let mut differences = String::new();
    for (sign, of, other) in [("-", record, tree), ("+", tree, record)] {
        for line in of.lines().filter(|line| !other.lines().any(|it| it == *line)) {
            differences += &format!("\n  {sign} {line}");
        }
    }
    differences
}

fn prebuilt(file: &str) -> PathBuf {
    paths::root().join("profiler-ebpf/prebuilt").join(file)
}

/// Debian's compiler, which the set-up installs: its LLVM must not be newer than that of bpf-linker.
const RUSTC: &str = "/usr/bin/rustc";

/// The versions of the compiler and of its LLVM.
fn compiler() -> Result<String> {
    let said = process::stdout(Command::new(RUSTC).arg("-vV"))?;
    let llvm = said.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let llvm = llvm.context("rustc names no LLVM")?;
    Ok(format!("{}, LLVM {llvm}", said.lines().next().unwrap_or_default()))
}

/// The flags aya needs, instructions of Linux 5.1 and later, and paths that are the same on every machine.
fn flags() -> Result<String> {
    let sysroot = process::stdout(Command::new(RUSTC).args(["--print", "sysroot"]))?;
    let library = format!("{}/lib/rustlib/src/rust", sysroot.trim());
    let cargo_home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"))
        .context("HOME is not set")?;
    Ok(format!(
        "--cfg=bpf_target_arch=\"x86_64\"\x1f-Cdebuginfo=2\x1f-Ctarget-cpu=v3\x1f-Clink-arg=--btf\x1f\
         --remap-path-prefix={}=.\x1f--remap-path-prefix={cargo_home}=cargo\x1f\
         --remap-path-prefix={library}=rust",
        paths::root().display()
    ))
}

/// Builds the object at `target/bpf/profiler-bpf.o`; gives its path and the versions of all tools that its bytes depend on.
fn build() -> Result<(PathBuf, String)> {
    setup::ensure(&[setup::BPF_BUILD])?;
    let compiler = compiler()?;
    let folder = paths::target().join("bpf");
    let linker = paths::tools().join("bin");
    let path = std::env::var("PATH").unwrap_or_default();
    println!("ebpf: building with {compiler}");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--quiet", "--locked", "--release", "--package", "profiler-ebpf"])
        // The object's type information is made of these.
        .args(["--config", "profile.release.debug=\"line-tables-only\""])
        .args(["--target", "bpfel-unknown-none", "-Z", "build-std=core", "--target-dir"])
        .arg(&folder)
        .current_dir(paths::root())
        .env("RUSTC", RUSTC)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags()?)
        .env("PATH", format!("{}:{path}", linker.display()))
        // Set by the cargo that runs us, for another compiler.
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    process::run(&mut cargo)?;
    let object = folder.join(OBJECT);
    // The DWARF is ten times the object; the verifier's log needs the BTF alone.
    let mut strip = Command::new(Path::new(LLVM_PREFIX).join("bin/llvm-strip"));
    strip.args(["-g", "-o"]).arg(&object);
    process::run(strip.arg(folder.join("bpfel-unknown-none/release/profiler-bpf")))?;
    let llvm = process::version(Path::new(LLVM_PREFIX).join("bin/llvm-config"))?;
    let linker = format!("bpf-linker {} with LLVM {llvm}", setup::BPF_LINKER.version);
    Ok((object, format!("{compiler}, {linker}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_tools_have_to_build_the_committed_object() {
        let record = "# tools: rustc 1\na  file\n";
        assert!(compared(true, record, "rustc 1").unwrap().starts_with("is equal"));
        assert!(compared(true, record, "rustc 2").unwrap().starts_with("is equal"));
        let error = compared(false, record, "rustc 1").unwrap_err().to_string();
        assert!(error.contains("is not that of its sources"), "{error}");
        assert!(compared(false, record, "rustc 2").unwrap().starts_with("is not compared"));
    }

    #[test]
    fn every_kind_of_difference_is_named() {
        let then = "a  same\nb  edited\nc  deleted\nmalformed\n";
        let now = "a  same\nx  edited\nd  added\n";
        let expected =
            "\n  - b  edited\n  - c  deleted\n  - malformed\n  + x  edited\n  + d  added";
        assert_eq!(differences(then, now), expected);
        assert!(differences(then, then).is_empty());
    }

    #[test]
    fn the_committed_record_is_that_of_these_files() {
        check().unwrap();
    }
}
