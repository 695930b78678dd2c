//! The module of a checkout.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Options;
use super::git::Tree;

/// Builds what is checked out. The output goes to `build.log` in `folder`. The empty file `lock`, by which others know that the
/// checkout is in use, is the build's input: it stays locked until the build ends, too.
///
/// # Errors
/// With the reason, if that fails or there is not one module.
pub(super) fn module(
    tree: &Tree<'_>,
    options: &Options,
    folder: &Path,
    lock: &File,
) -> Result<PathBuf, String> {
    tree.clean().map_err(|failure| failure.message)?;
    let log = folder.join("build.log");
    let unwritable = |error| format!("cannot write {}: {error}", log.display());
    let output = File::create(&log).map_err(unwritable)?;
    let errors = output.try_clone().map_err(unwritable)?;
    let status = Command::new("sh")
        .args(["-c", &options.build])
        .current_dir(tree.folder())
        .stdin(lock.try_clone().map_err(unwritable)?)
        .stdout(output)
        .stderr(errors)
        .status()
        .map_err(|error| format!("cannot run sh: {error}"))?;
    if !status.success() {
        return Err(format!("`{}` ended with {status}: {}", options.build, last_line(&log)));
    }
    match &options.module {
        Some(file) => {
            let file = tree.folder().join(file);
            let missing = || format!("`{}` made no {}", options.build, file.display());
            if file.is_file() { Ok(file) } else { Err(missing()) }
        }
        None => only_module(tree.folder(), &options.build),
    }
}

fn only_module(folder: &Path, build: &str) -> Result<PathBuf, String> {
    let pattern = glob::Pattern::escape(&folder.to_string_lossy()) + "/**/*.ko";
    let mut files: Vec<PathBuf> =
        glob::glob(&pattern).map_err(|error| error.to_string())?.filter_map(Result::ok).collect();
    match (files.pop(), files.len()) {
        (Some(file), 0) => Ok(file),
        (None, _) => Err(format!("`{build}` made no module")),
        (_, more) => Err(format!("`{build}` made {} modules: name one with --module", more + 1)),
    }
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output").to_owned()
}
