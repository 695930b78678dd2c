//! Kernels to boot in a lab: on this machine, or in a cache of the user's, fetched by apt or added from packages, found by version, removed.

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use profiler_base::error::{Failure, exit};
use profiler_base::terminal::say;
use profiler_load::{make_private, refuse_changeable, user_cache};
use profiler_vm::debian::{self, Apt, Partial, Unpacked, is_of, numbers};
use profiler_vm::{Arch, KernelImage};

/// What an error of [`debian`] is, with its remedy.
fn failure(error: io::Error) -> Failure {
    let (code, remedy) = match error.kind() {
        ErrorKind::Unsupported => (
            exit::CANNOT_MEASURE,
            "without it unpack a kernel's package and give its folder with --kernel: ",
        ),
        ErrorKind::StorageFull => (
            exit::BAD_OUTPUT,
            "the disk is full; free some space, or set XDG_CACHE_HOME to another folder: ",
        ),
        ErrorKind::InvalidData => (exit::BAD_INPUT, "the package cannot be unpacked: "),
        ErrorKind::InvalidInput => (exit::BAD_INPUT, ""),
        ErrorKind::NetworkDown => {
            (exit::CANNOT_MEASURE, "apt or dpkg failed (is the network up?): ")
        }
        _ => (exit::CANNOT_MEASURE, ""),
    };
    Failure::new(code, format!("{remedy}{error}"))
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
    pub fn of_user() -> Result<Self, Failure> {
        let none = "no folder for kernels: set XDG_CACHE_HOME to an absolute path, or HOME";
        let folder = user_cache().ok_or_else(|| Failure::new(exit::BAD_OUTPUT, none))?;
        let cache = Self { folder: folder.join("kernels") };
        if cache.folder.exists() {
            refuse_changeable(&cache.folder).map_err(|error| cache.unusable(error))?;
        }
        Ok(cache)
    }

    /// The cache in this folder, whoever can change it.
    #[cfg(test)]
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn unusable(&self, error: io::Error) -> Failure {
        let folder = self.folder.display();
        let remedy = "set XDG_CACHE_HOME to a folder of your own";
        Failure::new(
            exit::BAD_OUTPUT,
            format!("cannot keep kernels in {folder}: {error}: {remedy}"),
        )
    }

    /// All kernels that are whole, oldest release first.
    pub fn list(&self) -> Vec<Unpacked> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut kernels: Vec<Unpacked> =
            entries.filter_map(|entry| Unpacked::open(&entry.path())).collect();
        kernels.sort_by_key(|kernel| numbers(&kernel.release));
        kernels
    }

    /// The newest kernel of a version: a release such as `6.1.0-56-amd64`, or its beginning; if there are some for this machine, of
    /// those.
    pub fn newest(&self, version: &str) -> Option<Unpacked> {
        let mut kernels = self.list();
        kernels.retain(|kernel| is_of(&kernel.release, version));
        let is_for_here = |kernel: &Unpacked| {
            KernelImage::open(&kernel.image()).is_ok_and(|image| image.arch == Arch::HERE)
        };
        kernels.into_iter().max_by_key(|kernel| (is_for_here(kernel), numbers(&kernel.release)))
    }

    /// Fetches the newest kernel of each version, unless it is there.
    ///
    /// # Errors
    /// If one does not exist, then none is fetched; if the cache cannot be written, or apt fails.
    pub fn fetch(
        &self,
        versions: &[String],
        arch: Arch,
        with_headers: bool,
    ) -> Result<(), Failure> {
        let _lock = self.lock()?;
        let lists = if arch == Arch::HERE { "apt" } else { "apt-foreign" };
        let apt =
            Apt::configure(&self.folder.with_file_name(lists), None, arch).map_err(failure)?;
        say("reading the package lists of apt's sources");
        let warnings = apt.update().map_err(failure)?;
        let releases = apt.releases().map_err(failure)?;
        if releases.is_empty() {
            let text = format!(
                "apt's sources have no kernel of Debian for {}: is the network up, and is one of them Debian's? \
                 `apt-get update` said:\n{warnings}",
                arch.debian()
            );
            return Err(Failure::new(exit::CANNOT_MEASURE, text));
        }
        let chosen: Result<Vec<&String>, Failure> =
            versions.iter().map(|version| choose(&releases, version)).collect();
        for release in chosen? {
            self.fetch_one(&apt, release, with_headers).map_err(failure)?;
        }
        Ok(())
    }

    fn fetch_one(&self, apt: &Apt, release: &str, with_headers: bool) -> io::Result<()> {
        let to = self.folder.join(release);
        let is_enough = |there: &Unpacked| !with_headers || there.headers().exists();
        if let Some(there) = Unpacked::open(&to).filter(is_enough) {
            let how = match there.is_added() {
                true => ", added from files: `profiler kernels remove` it to fetch it",
                false => "",
            };
            say(&format!("Linux {release} is there{how}"));
            return Ok(());
        }
        let (packages, bytes) = apt.packages(release, with_headers)?;
        say(&format!("fetching Linux {release} ({} MiB)", bytes >> 20));
        let partial = Partial::new(&to)?;
        apt.download(&packages, &partial.debs())?;
        partial.extract()?;
        debian::place(partial, release, &packages)
    }

    /// Adds the kernel of these packages and folders; gives its release.
    ///
    /// # Errors
    /// If they have none that boots, or several; if the cache cannot be written, or bsdtar fails.
    pub fn add(&self, sources: &[PathBuf]) -> Result<String, Failure> {
        let _lock = self.lock()?;
        debian::add(sources, &self.folder).map_err(failure)
    }

    /// Removes all kernels of each version; gives them. There may be none of one of the releases in `others`.
    ///
    /// # Errors
    /// If there is none of one, then none is removed; if one cannot be removed.
    pub fn remove(&self, versions: &[String], others: &[String]) -> Result<Vec<Unpacked>, Failure> {
        let mut kernels = self.list();
        for version in versions {
            let mut known = kernels.iter().map(|kernel| &kernel.release).chain(others);
            if !known.any(|release| is_of(release, version)) {
                let there: Vec<String> = kernels.into_iter().map(|kernel| kernel.release).collect();
                let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                let folder = self.folder.display();
                let text = format!("no kernel {version} in {folder}: there are {there}");
                return Err(Failure::new(exit::USAGE, text));
            }
        }
        let _lock = self.lock()?;
        kernels.retain(|kernel| versions.iter().any(|version| is_of(&kernel.release, version)));
        for kernel in &kernels {
            debian::remove(&kernel.root).map_err(failure)?;
        }
        Ok(kernels)
    }

    /// Creates the folder and locks it against other processes that fetch or remove, until dropped.
    fn lock(&self) -> Result<Flock<File>, Failure> {
        make_private(&self.folder).map_err(|error| self.unusable(error))?;
        let file = File::create(self.folder.join(".lock")).map_err(|error| self.unusable(error))?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| self.unusable(errno.into()))
    }
}

/// The newest of the releases, which are in order, that is of the version.
fn choose<'a>(releases: &'a [String], version: &str) -> Result<&'a String, Failure> {
    releases.iter().rfind(|release| is_of(release, version)).ok_or_else(|| {
        let text = format!(
            "apt's sources have no Linux {version}: there are {}; a source in /etc/apt of the Debian \
             release that has it brings more",
            releases.join(", ")
        );
        Failure::new(exit::USAGE, text)
    })
}

/// The kernel that `given` names: a file, a folder, a version in /boot, or the newest of a version that was fetched.
///
/// # Errors
/// If there is none.
pub fn find(given: &str) -> Result<KernelImage, Failure> {
    find_in(Path::new("/"), Cache::of_user, given)
}

fn find_in(
    root: &Path,
    cache: impl FnOnce() -> Result<Cache, Failure>,
    given: &str,
) -> Result<KernelImage, Failure> {
    let path = Path::new(given);
    let installed = root.join("boot").join(format!("vmlinuz-{given}"));
    let file = if path.is_dir() {
        match images_in(&path.join("boot")).as_slice() {
            [image] => image.clone(),
            images => {
                return Err(cannot_measure(format!(
                    "{given} holds {} files boot/vmlinuz-*: give the vmlinuz itself with --kernel",
                    images.len()
                )));
            }
        }
    } else if path.exists() {
        path.to_owned()
    } else if !given.contains('/') && installed.exists() {
        installed
    } else {
        let cache = cache().map_err(|failure| cannot_measure(failure.message))?;
        cache.newest(given).ok_or_else(|| not_found(root, given))?.image()
    };
    KernelImage::open(&file).map_err(|error| cannot_measure(error.to_string()))
}

fn cannot_measure(text: String) -> Failure {
    Failure::new(exit::CANNOT_MEASURE, text)
}

fn not_found(root: &Path, given: &str) -> Failure {
    let images = images_in(&root.join("boot"));
    let versions =
        images.iter().filter_map(|path| path.file_name()?.to_str()?.strip_prefix("vmlinuz-"));
    let versions: Vec<&str> = versions.collect();
    let installed = if versions.is_empty() { "none".to_owned() } else { versions.join(", ") };
    cannot_measure(format!(
        "no kernel `{given}`: there is no such file or folder, and no /boot/vmlinuz-{given} \
         (installed: {installed}); `profiler kernels fetch {given}` fetches Debian's, and `profiler kernels \
         add` takes packages of others; or unpack them and give the folder with --kernel"
    ))
}

/// Kernels in a folder, sorted by name.
fn images_in(folder: &Path) -> Vec<PathBuf> {
    let folder = glob::Pattern::escape(&folder.to_string_lossy());
    glob::glob(&format!("{folder}/vmlinuz-*")).into_iter().flatten().flatten().collect()
}
