//! `profiler kernels`: fetches, lists and removes kernels.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use profiler_vm::debian::Unpacked;
use serde::Serialize;

use super::{data_to_stdout, grid, json, report::stdout_width, to_stdout};
use crate::cli::{KernelsAction, KernelsArgs};
use crate::error::Failure;
use crate::export::cell::bytes;
use crate::kernels::Cache;
use crate::terminal::say;

/// See the [command line](KernelsArgs).
///
/// # Errors
/// If a version is unknown, apt fails, or the cache cannot be used.
pub fn run(args: &KernelsArgs) -> Result<(), Failure> {
    let cache = Cache::of_user()?;
    match &args.action {
        KernelsAction::Fetch(args) => {
            cache.fetch(&args.versions, args.headers, &mut |text| say(text))?;
            Ok(())
        }
        KernelsAction::Remove(args) => {
            let removed = cache.remove(&args.versions)?;
            removed.iter().for_each(|kernel| say(&format!("removed Linux {}", kernel.release)));
            Ok(())
        }
        KernelsAction::List(args) => {
            let listed: Vec<Listed> = cache.list().into_iter().map(Listed::of).collect();
            if args.json {
                return data_to_stdout(json(&listed)?.as_bytes());
            }
            if listed.is_empty() {
                say(&format!(
                    "no kernel in {}: `profiler kernels fetch 6.1` gets one",
                    cache.folder().display()
                ));
                return Ok(());
            }
            let rows = listed.iter().map(Listed::row).collect();
            to_stdout(&grid(&["version", "release", "headers", "size"], rows, stdout_width()))
        }
    }
}

/// A kernel of the list.
#[derive(Serialize)]
struct Listed {
    /// What `--kernel` takes, such as 6.1.
    version: String,
    release: String,
    headers: bool,
    size_bytes: u64,
    folder: PathBuf,
}

impl Listed {
    fn of(kernel: Unpacked) -> Self {
        Self {
            version: kernel.release.split('.').take(2).collect::<Vec<_>>().join("."),
            headers: kernel.headers().exists(),
            size_bytes: size(&kernel.root),
            release: kernel.release,
            folder: kernel.root,
        }
    }

    fn row(&self) -> Vec<String> {
        let headers = if self.headers { "yes" } else { "no" };
        vec![self.version.clone(), self.release.clone(), headers.into(), bytes(self.size_bytes)]
    }
}

/// What a folder takes on the disk; links are not followed.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(facts) if facts.is_dir() => size(&entry.path()),
        Ok(facts) => facts.blocks() * 512,
        Err(_) => 0,
    };
    entries.map(of).sum()
}
