//! The agent in `tests/data/agent`, and its BPF programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the agent's.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/agent").join(name)
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Builds the agent.
pub(crate) fn build(folder: &Path) -> PathBuf {
    let agent = folder.join("agent");
    succeed(Command::new("cc").arg("-o").arg(&agent).arg(source("agent.c")).arg("-lbpf"));
    agent
}

/// Builds an object of BPF programs.
pub(crate) fn compiled(source: &Path, folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let object = folder.join(name).with_extension("bpf.o");
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-D__TARGET_ARCH_x86", "-O2"]);
    clang.arg("-I/usr/include/x86_64-linux-gnu").args(options);
    succeed(clang.arg("-c").arg(source).arg("-o").arg(&object));
    object
}
