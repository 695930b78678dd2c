//! The BPF object: its build, and the record of the sources it was built from.
//!
//! The object is committed so that users need neither nightly Rust nor LLVM. Its record,
//! `SOURCES.sha256`, is what `sha256sum -c` reads; lines with `#` name the tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::paths;
use crate::process;
use crate::setup::{self, LLVM_PREFIX};

const OBJECT: &str = "profiler-bpf.o";
const RECORD: &str = "SOURCES.sha256";

/// Begins the record's line with the tools that built the object.
const TOOLS: &str = "# tools: ";

/// The dependency that is compiled into the object.
const DEPENDENCY: &str = "aya-ebpf";

/// Updates the committed object and its record.
pub(crate) fn update() -> Result<()> {
    let (object, tools) = build()?;
    let committed = prebuilt().join(OBJECT);
    process::copy(&object, &committed)?;
    process::write(&prebuilt().join(RECORD), record_of_tree(&tools)?)?;
    println!("ebpf: {} and {RECORD} written", committed.display());
    Ok(())
}

/// Builds the object below `target/` and compares it with the committed one.
///
/// # Errors
/// If they differ and the same tools built both.
pub(crate) fn rebuild() -> Result<()> {
    let (object, tools) = build()?;
    let same = fs::read(&object)? == fs::read(prebuilt().join(OBJECT))?;
    println!("ebpf: {} {}", object.display(), compared(same, &recorded()?.1, &tools)?);
    Ok(())
}

/// What the comparison of a rebuilt object with the committed one says. The record's hashes come with the same commit as the
/// object: that it has the code of its sources, only a build shows.
fn compared(same: bool, recorded: &str, tools: &str) -> Result<String> {
    if same {
        return Ok(format!("is equal to the committed object; built with {tools}"));
    }
    if recorded == tools {
        bail!(
            "the committed BPF object is not that of its sources: the recorded tools ({tools}) build another. \
             Run `cargo xtask ebpf` and commit profiler-ebpf/prebuilt; do not use the committed object before you know \
             where it comes from"
        );
    }
    Ok(format!(
        "was built with {tools}: not compared with the committed object, which was built with {recorded}"
    ))
}

/// Fails if the sources have changed since the committed object was built.
pub(crate) fn check() -> Result<()> {
    let (record, tools) = recorded()?;
    let differences = differences(&record, &record_of_tree(&tools)?);
    ensure!(
        differences.is_empty(),
        "the committed BPF object is stale:\n  {}\n\
         run `cargo xtask ebpf` and commit profiler-ebpf/prebuilt",
        differences.join("\n  ")
    );
    println!("ebpf: the committed object is the one recorded with these sources");
    Ok(())
}

/// The record, and the tools that it names.
fn recorded() -> Result<(String, String)> {
    let record = process::read(&prebuilt().join(RECORD))
        .context("run `cargo xtask ebpf` and commit what it writes")?;
    let tools = record.lines().find_map(|line| line.strip_prefix(TOOLS)).unwrap_or_default();
    let tools = tools.to_owned();
    Ok((record, tools))
}

fn prebuilt() -> PathBuf {
    paths::root().join("profiler-ebpf/prebuilt")
}

/// Debian's compiler, which the set-up installs: its LLVM must not be newer than that of bpf-linker.
const RUSTC: &str = "/usr/bin/rustc";

/// The versions of the compiler and of its LLVM.
fn compiler() -> Result<String> {
    let version = process::stdout(Command::new(RUSTC).arg("-vV"))?;
    let llvm = version.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let rustc = version.lines().next().unwrap_or("rustc");
    Ok(format!("{rustc}, LLVM {}", llvm.unwrap_or("of no version")))
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

/// What the object is built from: the record's text.
fn record_of_tree(tools: &str) -> Result<String> {
    let root = paths::root();
    let mut files = Vec::new();
    for crate_ in ["crates/common", "profiler-ebpf"] {
        files.push(root.join(crate_).join("Cargo.toml"));
        files.extend(process::files_below(&root.join(crate_).join("src"))?);
    }
    files.push(prebuilt().join(OBJECT));
    let mut cargo = Command::new("cargo");
    let dependency = process::stdout(cargo.args(["pkgid", DEPENDENCY]).current_dir(root))?;
    let (_, version) = dependency.trim().rsplit_once('@').context("cargo names no version")?;
    let digests = process::sha256sums(root, &files)?;
    Ok(format!(
        "# What profiler-bpf.o was built from: `cargo xtask ebpf` writes this file,\n\
         # `cargo xtask ebpf --check` (or sha256sum -c, from the project's root) compares.\n\
         # dependency: {DEPENDENCY} {version}\n\
         {TOOLS}{tools}\n{digests}"
    ))
}

/// The lines that only one of two records has: the old ones with `-`, the new ones with `+`.
fn differences(record: &str, tree: &str) -> Vec<String> {
    let mut differences = Vec::new();
    for (sign, of, other) in [("-", record, tree), ("+", tree, record)] {
        let lines = of.lines().filter(|line| !other.lines().any(|it| it == *line));
        differences.extend(lines.map(|line| format!("{sign} {line}")));
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_tools_have_to_build_the_committed_object() {
        assert!(compared(true, "rustc 1", "rustc 1").unwrap().starts_with("is equal"));
        assert!(compared(true, "rustc 1", "rustc 2").unwrap().starts_with("is equal"));
        let error = compared(false, "rustc 1", "rustc 1").unwrap_err().to_string();
        assert!(error.contains("is not that of its sources"), "{error}");
        let said = compared(false, "rustc 1", "rustc 2").unwrap();
        assert_eq!(
            said,
            "was built with rustc 2: not compared with the committed object, which was built with rustc 1"
        );
    }

    #[test]
    fn every_kind_of_difference_is_named() {
        let then = "# dependency: aya-ebpf 0.2.1\na  same\nb  edited\nc  deleted\n";
        let now = "# dependency: aya-ebpf 0.3.0\na  same\nx  edited\nd  added\n";
        let expected = [
            "- # dependency: aya-ebpf 0.2.1",
            "- b  edited",
            "- c  deleted",
            "+ # dependency: aya-ebpf 0.3.0",
            "+ x  edited",
            "+ d  added",
        ];
        assert_eq!(differences(then, now), expected);
        assert!(differences(then, then).is_empty());
    }
}
