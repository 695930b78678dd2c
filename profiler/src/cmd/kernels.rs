//! `profiler kernels`: fetches, adds, lists and removes kernels.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use profiler_vm::debian::{Unpacked, is_of};
use serde::Serialize;

use super::show;
use crate::cli::kernels::KernelsAction;
use profiler_base::error::Failure;
use profiler_base::terminal::say;
use profiler_export::cell::bytes;
use profiler_export::document::Table;
use profiler_lab::kernels::Cache;
use profiler_lab::snapshots;

/// See the [command line](KernelsAction).
///
/// # Errors
/// If a version is unknown, apt fails, or the cache cannot be used.
pub fn run(action: &KernelsAction) -> Result<(), Failure> {
    let cache = Cache::of_user()?;
    match action {
        KernelsAction::Fetch(args) => cache.fetch(&args.versions, args.arch(), args.headers),
        KernelsAction::Add(args) => {
            let release = cache.add(&args.sources)?;
            say(&format!("added Linux {release}: `--kernel {release}` boots it"));
            Ok(())
        }
        KernelsAction::Remove(args) => remove(&cache, &args.versions),
        KernelsAction::List(args) => list(&cache, args.json),
    }
}

fn remove(cache: &Cache, versions: &[String]) -> Result<(), Failure> {
    let kept = snapshots::kept();
    // A kernel that was not fetched may have snapshots.
    let releases: Vec<String> = kept.iter().map(|kept| kept.release.clone()).collect();
    for kernel in cache.remove(versions, &releases)? {
        say(&format!("removed Linux {}", kernel.release));
    }
    for kept in kept {
        if versions.iter().any(|version| is_of(&kept.release, version)) {
            fs::remove_dir_all(&kept.folder).map_err(Failure::cannot_write(&kept.folder))?;
            say(&format!("removed a snapshot of Linux {}", kept.release));
        }
    }
    Ok(())
}

fn list(cache: &Cache, json: bool) -> Result<(), Failure> {
    let mut listed: Vec<Listed> = cache.list().into_iter().map(Listed::of).collect();
    for kept in snapshots::kept() {
        let known = listed.iter().position(|kernel| kernel.release == kept.release);
        let at = known.unwrap_or(listed.len());
        if known.is_none() {
            listed.push(Listed::new(kept.release, kept.folder.clone()));
        }
        listed[at].snapshots_bytes += size(&kept.folder);
    }
    if listed.is_empty() && !json {
        let folder = cache.folder().display();
        say(&format!("no kernel in {folder}: `profiler kernels fetch 6.1` gets one"));
        return Ok(());
    }
    let header = ["version", "release", "headers", "size", "snapshots"];
    let table = Table::words(header, listed.iter().map(Listed::row));
    show(json, &listed, |width| table.text(width))
}

/// A kernel of the list.
#[derive(Serialize)]
struct Listed {
    /// What `--kernel` takes, such as 6.1.
    version: String,
    release: String,
    headers: bool,
    size_bytes: u64,
    /// Guests of the lab that have booted it.
    snapshots_bytes: u64,
    folder: PathBuf,
}

impl Listed {
    fn new(release: String, folder: PathBuf) -> Self {
        let version = release.split('.').take(2).collect::<Vec<_>>().join(".");
        Self { version, release, headers: false, size_bytes: 0, snapshots_bytes: 0, folder }
    }

    /// A kernel that was fetched.
    fn of(kernel: Unpacked) -> Self {
        let (headers, size_bytes) = (kernel.headers().exists(), size(&kernel.root));
        Self { headers, size_bytes, ..Self::new(kernel.release, kernel.root) }
    }

    fn row(&self) -> Vec<String> {
        let headers = if self.headers { "yes" } else { "no" };
        let [size, snapshots] = [self.size_bytes, self.snapshots_bytes].map(bytes);
        vec![self.version.clone(), self.release.clone(), headers.into(), size, snapshots]
    }
}

/// What a folder takes on the disk; links are not followed.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(facts) if facts.is_dir() => size(&entry.path()),
        Ok(facts) => facts.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}
