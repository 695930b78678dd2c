//! An unpacked kernel: its image in `boot`, its modules in `lib/modules`, and headers in `usr/src`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use profiler_system::files::{create_dir, failed, read, write};
use profiler_system::search_path;

use super::command::output;
use super::partial::Partial;

/// The packages a kernel was unpacked from; written last, so its presence means complete.
const STAMP: &str = "packages.txt";

/// In the place of a version, in the first line of a stamp: apt has not verified it.
pub(super) const ADDED: &str = "=added";

/// A kernel out of Debian's packages.
#[derive(Debug, Clone)]
pub struct Unpacked {
    /// The folder that holds its `boot`, `lib` and `usr`.
    pub root: PathBuf,
    /// What `uname -r` says in it.
    pub release: String,
    /// The packages it was unpacked from, lines of `name=version`.
    pub packages: String,
}

impl Unpacked {
    /// The kernel in the folder `root`, if it is there and complete.
    pub fn open(root: &Path) -> Option<Self> {
        let packages = fs::read_to_string(root.join(STAMP)).ok()?;
        let release = release_in(&packages)?;
        let kernel = Self { root: root.to_owned(), release, packages };
        kernel.image().exists().then_some(kernel)
    }

    /// Whether it comes from files of the user's.
    pub fn is_added(&self) -> bool {
        self.packages.lines().next().is_some_and(|first| first.ends_with(ADDED))
    }

    /// The compressed kernel.
    pub fn image(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The folder to build modules against, if its packages were unpacked, too.
    pub fn headers(&self) -> PathBuf {
        self.root.join("usr/src").join(format!("linux-headers-{}", self.release))
    }
}

/// The release out of the lines `package=version` of a stamp.
fn release_in(packages: &str) -> Option<String> {
    let name = packages.lines().next()?.split('=').next()?;
    Some(name.strip_prefix("linux-image-")?.to_owned())
}

/// Makes what was unpacked of the kernel `release` a kernel that boots, with an index of its modules, and moves it to its place.
/// `packages` are what it is of, a line each, its image first.
///
/// # Errors
/// If a part of it is missing, or the disk is full.
pub fn place(partial: Partial, release: &str, packages: &[String]) -> io::Result<()> {
    let packages = packages.join("\n") + "\n";
    let kernel = Unpacked { root: partial.root(), release: release.to_owned(), packages };
    let root = &kernel.root;
    // Since 7.0 the image lies beside the modules, and no package has the folder /lib.
    let (image, lib) = (kernel.image(), root.join("lib"));
    if !image.exists() {
        create_dir(&root.join("boot"))?;
        fs::hard_link(root.join(format!("usr/lib/modules/{release}/vmlinuz")), &image)
            .map_err(failed("create", &image))?;
    }
    if !lib.exists() {
        symlink("usr/lib", &lib).map_err(failed("create", &lib))?;
    }
    // The guest's modules are found by the index that the package's own script would have made.
    if lib.join("modules").join(release).exists() {
        let mut depmod = Command::new("depmod");
        depmod.env("PATH", search_path()).arg("-b").arg(root).arg(release);
        output(&mut depmod)?;
    }
    let makefile = kernel.headers().join("Makefile");
    if makefile.exists() {
        // It names the headers where a package would install them.
        write(&makefile, read(&makefile)?.replace("/usr/src/", "../"))?;
    }
    write(&root.join(STAMP), &kernel.packages)?;
    partial.place()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_comes_from_the_image() {
        let stamp = "linux-image-6.1.0-56-amd64=6.1.192-2\nlinux-headers-6.1.0-56-amd64=6\n";
        assert_eq!(release_in(stamp).as_deref(), Some("6.1.0-56-amd64"));
        assert_eq!(release_in(""), None);
    }
}
