//! Stock kernels in a cache of the user's, to boot in a lab: fetched by apt, found by version, removed.

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use profiler_vm::debian::{
    self, Apt, DebianError, Entry, Partial, Unpacked, is_of, numbers, use_headers_in_place,
};

use crate::load::{changeable, make_private, user_cache};

/// Why a kernel cannot be fetched, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum KernelsError {
    /// Nobody knows where the cache is.
    #[error("no folder for kernels: set XDG_CACHE_HOME to an absolute path, or HOME")]
    NoFolder,
    /// The cache cannot be used, or not safely.
    #[error(
        "cannot keep kernels in {}: {error}: set XDG_CACHE_HOME to a folder of your own",
        folder.display()
    )]
    Folder {
        /// The cache.
        folder: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// No package list could be read, as without a network, or none is Debian's.
    #[error(
        "apt's sources have no kernel of Debian for PCs: is the network up, and is one of them Debian's? \
         `apt-get update` said:\n{0}"
    )]
    NoneAtAll(String),
    /// apt knows kernels, but not that one.
    #[error(
        "apt's sources have no Linux {version}: there are {known}; a source in /etc/apt of the Debian \
         release that has it brings more"
    )]
    Unknown {
        /// What was asked for.
        version: String,
        /// All releases.
        known: String,
    },
    /// The cache does not have it.
    #[error("no kernel {version} in {}: there are {there}", folder.display())]
    NotThere {
        /// What was asked for.
        version: String,
        /// The cache.
        folder: PathBuf,
        /// All releases in it.
        there: String,
    },
    /// apt or dpkg failed.
    #[error("{}{}", remedy(.0), .0)]
    Debian(#[from] DebianError),
}

fn remedy(error: &DebianError) -> &'static str {
    match error {
        DebianError::NotStarted { .. } => {
            "kernels come by apt and dpkg; without them unpack a kernel's package and give its folder with --kernel: "
        }
        _ if error.is_disk_full() => {
            "the disk is full; free some space, or set XDG_CACHE_HOME to another folder: "
        }
        DebianError::Failed { .. } => "apt or dpkg failed (is the network up?): ",
        _ => "",
    }
}

/// A folder of kernels, each below its release.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache of the user who runs this, which need not exist.
    ///
    /// # Errors
    /// If others can change it: what root boots has to be its own.
    pub fn of_user() -> Result<Self, KernelsError> {
        let folder = user_cache().ok_or(KernelsError::NoFolder)?.join("kernels");
        let cache = Self { folder };
        let others = if cache.folder.exists() { changeable(&cache.folder) } else { Ok(None) };
        match others {
            Ok(None) => Ok(cache),
            Ok(Some(path)) => {
                let text = format!("others can change {}", path.display());
                Err(cache.unusable(io::Error::other(text)))
            }
            Err(error) => Err(cache.unusable(error)),
        }
    }

    /// The cache in this folder, whoever can change it.
    #[cfg(test)]
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn unusable(&self, error: io::Error) -> KernelsError {
        KernelsError::Folder { folder: self.folder.clone(), error }
    }

    /// All kernels that are whole, oldest release first.
    #[must_use]
    pub fn list(&self) -> Vec<Unpacked> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut kernels: Vec<Unpacked> =
            entries.filter_map(|entry| Unpacked::open(&entry.path())).collect();
        kernels.sort_by_key(|kernel| numbers(&kernel.release));
        kernels
    }

    /// The newest kernel of a version: a release such as `6.1.0-56-amd64`, or its beginning.
    #[must_use]
    pub fn newest(&self, version: &str) -> Option<Unpacked> {
        self.list().into_iter().rfind(|kernel| is_of(&kernel.release, version))
    }

    /// Fetches the newest kernel of each version, unless it is there; `say` gets what is done.
    ///
    /// # Errors
    /// If one does not exist, then none is fetched; if the cache cannot be written, or apt fails.
    pub fn fetch(
        &self,
        versions: &[String],
        with_headers: bool,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), KernelsError> {
        let _lock = self.lock()?;
        let apt = Apt::configure(&self.folder.with_file_name("apt"), None)?;
        say("reading the package lists of apt's sources");
        let warnings = apt.update()?;
        let releases = apt.releases()?;
        if releases.is_empty() {
            return Err(KernelsError::NoneAtAll(warnings));
        }
        let chosen: Result<Vec<&String>, KernelsError> =
            versions.iter().map(|version| choose(&releases, version)).collect();
        for release in chosen? {
            let to = self.folder.join(release);
            if Unpacked::open(&to).is_some_and(|there| !with_headers || there.headers().exists()) {
                say(&format!("Linux {release} is there"));
                continue;
            }
            let mut packages = apt.kernel(release, &|_| true)?;
            if with_headers {
                packages.extend(apt.headers(release, &|_| true)?);
            }
            let bytes: u64 = packages.iter().map(|package| package.size).sum();
            say(&format!("fetching Linux {release} ({} MiB)", bytes >> 20));
            let partial = Partial::new(&to)?;
            let names: Vec<String> = packages.iter().map(Entry::name).collect();
            apt.download(&names, &partial.debs())?;
            partial.extract(names.len())?;
            if with_headers {
                use_headers_in_place(&partial.root(), release)?;
            }
            debian::place(partial, release, &packages)?;
        }
        Ok(())
    }

    /// Removes all kernels of each version; gives them.
    ///
    /// # Errors
    /// If there is none of one, then none is removed; if one cannot be removed.
    pub fn remove(&self, versions: &[String]) -> Result<Vec<Unpacked>, KernelsError> {
        let mut kernels = self.list();
        for version in versions {
            if !kernels.iter().any(|kernel| is_of(&kernel.release, version)) {
                let there: Vec<String> = kernels.into_iter().map(|kernel| kernel.release).collect();
                let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                let (version, folder) = (version.clone(), self.folder.clone());
                return Err(KernelsError::NotThere { version, folder, there });
            }
        }
        let _lock = self.lock()?;
        kernels.retain(|kernel| versions.iter().any(|version| is_of(&kernel.release, version)));
        for kernel in &kernels {
            debian::remove(&kernel.root)?;
        }
        Ok(kernels)
    }

    /// Makes the folder, and waits for any other process that fetches or removes. Held until dropped.
    fn lock(&self) -> Result<Flock<File>, KernelsError> {
        make_private(&self.folder).map_err(|error| self.unusable(error))?;
        let file = File::create(self.folder.join(".lock")).map_err(|error| self.unusable(error))?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| self.unusable(errno.into()))
    }
}

/// The newest of the releases, which are in order, that is of the version.
fn choose<'a>(releases: &'a [String], version: &str) -> Result<&'a String, KernelsError> {
    releases.iter().rfind(|release| is_of(release, version)).ok_or_else(|| KernelsError::Unknown {
        version: version.to_owned(),
        known: releases.join(", "),
    })
}
