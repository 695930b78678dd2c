//! `profiler kernels`: fetches, adds, lists and removes kernels.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use serde::Serialize;

use profiler_base::error::Failure;
use profiler_base::terminal::say;
use profiler_export::cell::bytes;
use profiler_export::document::Table;
use profiler_lab::kernels::Cache;
use profiler_lab::snapshots;
use profiler_vm::Arch;
use profiler_vm::debian::{Unpacked, is_of};

use super::show;

/// What to do with the cache of kernels.
#[derive(Debug, Subcommand)]
pub enum KernelsAction {
    /// Fetch stock Debian kernels from apt's own sources, for `--kernel` of `lab`, `gate` and `bisect`.
    Fetch(FetchArgs),
    /// Add a kernel of any distribution out of its packages.
    Add(AddArgs),
    /// List the kernels that were fetched or added, and the snapshots of guests that booted one.
    List(ListKernelsArgs),
    /// Remove kernels that were fetched or added, and the snapshots of guests that booted them.
    Remove(RemoveArgs),
}

const FETCH_EXAMPLES: &str = "\
The kernels go to profiler/kernels below $XDG_CACHE_HOME, or ~/.cache. Nothing is installed, and no root is needed.

Examples:
  # the newest of each that apt's sources have
  profiler kernels fetch 6.1 6.12
  # with what a driver is built against
  profiler kernels fetch 6.1.0-56-amd64 --headers
  # for a lab with modules of arm64
  profiler kernels fetch 6.1 --arch arm64";

/// Arguments of `profiler kernels fetch`.
#[derive(Debug, Args)]
#[command(after_help = FETCH_EXAMPLES)]
pub struct FetchArgs {
    /// A release, or its beginning: then the newest.
    #[arg(value_name = "VERSION", required = true)]
    pub versions: Vec<String>,
    /// Also its headers, to build modules with.
    #[arg(long)]
    pub headers: bool,
    /// Machines that they are for, by Debian's name [default: those that a release names, else this one's].
    #[arg(long, value_name = "ARCH", value_parser = machines())]
    pub arch: Option<Arch>,
}

impl FetchArgs {
    /// Machines that they are for.
    pub fn arch(&self) -> Arch {
        let named = Arch::ALL.into_iter().find(|arch| {
            self.versions.iter().any(|version| version.ends_with(&format!("-{}", arch.debian())))
        });
        self.arch.or(named).unwrap_or(Arch::HERE)
    }
}

fn machines() -> impl TypedValueParser<Value = Arch> {
    PossibleValuesParser::new(Arch::ALL.map(Arch::debian))
        .map(|name| Arch::ALL.into_iter().find(|arch| arch.debian() == name).unwrap_or(Arch::HERE))
}

const ADD_EXAMPLES: &str = "\
Packages are unpacked by bsdtar (libarchive-tools, bsdtar), never installed, and nothing verifies them.

Examples:
  # RHEL's and its rebuilds'
  profiler kernels add kernel-core-4.18.0-553.el8_10.x86_64.rpm kernel-modules-4.18.0-553.el8_10.x86_64.rpm
  # Ubuntu's
  profiler kernels add linux-image-unsigned-5.15.0-1-generic.deb linux-modules-5.15.0-1-generic.deb
  # a folder with boot/vmlinuz-RELEASE and lib/modules/RELEASE
  profiler kernels add /srv/fleet/root";

/// Arguments of `profiler kernels add`.
#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub struct AddArgs {
    /// Packages of one kernel: that of its image, and those of its modules; or a folder where they were unpacked.
    #[arg(value_name = "FILE.rpm|FILE.deb|FOLDER", required = true)]
    pub sources: Vec<PathBuf>,
}

const LIST_EXAMPLES: &str = "\
Examples:
  profiler kernels list
  # for a script
  profiler kernels list --json";

/// Arguments of `profiler kernels list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListKernelsArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const REMOVE_EXAMPLES: &str = "\
Examples:
  # all that are of 6.1
  profiler kernels remove 6.1";

/// Arguments of `profiler kernels remove`.
#[derive(Debug, Args)]
#[command(after_help = REMOVE_EXAMPLES)]
pub struct RemoveArgs {
    /// A release, or its beginning: then all of them.
    #[arg(value_name = "VERSION", required = true)]
    pub versions: Vec<String>,
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_those_that_a_release_names() {
        let of = |version: &str, arch| {
            let versions = vec![version.to_owned()];
            FetchArgs { versions, headers: false, arch }.arch()
        };
        assert_eq!(of("6.1", None), Arch::HERE);
        assert_eq!(of("6.1.0-56-arm64", None), Arch::Arm64);
        assert_eq!(of("6.1.0-56-amd64", None), Arch::X86_64);
        assert_eq!(of("6.1", Some(Arch::Arm64)), Arch::Arm64);
    }
}
