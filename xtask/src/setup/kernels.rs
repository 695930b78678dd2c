//! Kernels from Debian's packages, unpacked and never installed.
//!
//! A kernel that is too new for Debian 12's tools brings its own: compiler, C library and all that these
//! need are unpacked with it, and run in its folder as their root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::archive::{Apt, extract};
use crate::paths::Paths;
use crate::process;
use crate::series::Series;

/// The packages a kernel was unpacked from; written last, so its presence means complete.
const STAMP: &str = "packages.txt";

/// The file system that a compiler runs in is the kernel's folder; these come with the headers' own
/// dependencies, which name the compiler.
const TOOLS: &str = "base-files bash coreutils dash findutils grep make mawk pahole sed";

/// Where a module's sources are seen by its own tools, below the kernel's folder.
pub(crate) const BUILD_FOLDER: &str = "build";

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// The series it is the newest of.
    pub(crate) series: Series,
    /// The folder that holds its `boot`, `lib` and `usr`.
    pub(crate) root: PathBuf,
    /// What `uname -r` says in it.
    pub(crate) release: String,
    /// The packages it was unpacked from, lines of `name=version`.
    pub(crate) packages: String,
}

impl Kernel {
    /// The unpacked kernel of a series, if it is there and complete.
    pub(crate) fn open(paths: &Paths, series: Series) -> Option<Self> {
        let root = paths.kernel(series);
        let packages = fs::read_to_string(root.join(STAMP)).ok()?;
        let release = release_in(&packages)?;
        let kernel = Self { series, root, release, packages };
        (kernel.image().exists() && kernel.headers().exists()).then_some(kernel)
    }

    /// As [`open`](Self::open).
    ///
    /// # Errors
    /// If it is not there.
    pub(crate) fn require(paths: &Paths, series: Series) -> Result<Self> {
        Self::open(paths, series)
            .with_context(|| format!("no kernel in {}", paths.kernel(series).display()))
    }

    /// The compressed kernel.
    pub(crate) fn image(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The folder to build modules against.
    pub(crate) fn headers(&self) -> PathBuf {
        self.root.join("usr/src").join(format!("linux-headers-{}", self.release))
    }
}

/// The release out of the lines `package=version` of a stamp.
fn release_in(packages: &str) -> Option<String> {
    let name = packages.lines().next()?.split('=').next()?;
    Some(name.strip_prefix("linux-image-")?.to_owned())
}

/// Unpacks the newest kernel of each series.
pub(crate) fn install(paths: &Paths, wanted: &[Series]) -> Result<()> {
    let apt = Apt::configure(paths, wanted)?;
    println!("set-up: reading package lists");
    apt.update()?;
    for series in wanted {
        let packages = apt.resolve(*series)?;
        let image = packages.first().map_or("", |package| package.as_str());
        let (with, size) =
            if series.has_own_tools() { ("headers and compiler", 210) } else { ("headers", 100) };
        println!("set-up: Linux {series}: {image} with {with} (about {size} MB)");
        apt.unpack(*series, &packages, &paths.kernel(*series))?;
    }
    Ok(())
}

impl Apt {
    /// The packages of the newest kernel as `name=version`, the image first.
    fn resolve(&self, series: Series) -> Result<Vec<String>> {
        let meta = self.newest("linux-image-amd64", series)?;
        let image = meta.depends_on("linux-image-")?;
        let release = image.trim_start_matches("linux-image-");
        let headers = self.newest(&format!("linux-headers-{release}"), series)?;
        let mut packages = vec![
            format!("{image}={}", meta.version),
            format!("{}={}", headers.package, headers.version),
        ];
        if series.has_own_tools() {
            // Since 7.0 the image is an empty package; apt finds all that the headers need.
            for part in ["linux-binary-", "linux-modules-"] {
                packages.push(format!("{part}{release}={}", meta.version));
            }
            return Ok(packages);
        }
        let common = headers.depends_on("linux-headers-")?;
        let kbuild = headers.depends_on("linux-kbuild-")?;
        let kbuild = self.newest(&kbuild, series)?;
        packages.push(format!("{common}={}", headers.version));
        packages.push(format!("{}={}", kbuild.package, kbuild.version));
        Ok(packages)
    }

    /// Downloads packages to `debs`, and with the headers' own tools all that these need.
    fn download(&self, series: Series, packages: &[String], debs: &Path) -> Result<()> {
        let mut download = self.command("apt-get");
        download.args(["-q", "download"]).args(packages).current_dir(debs);
        process::run_logged(&mut download, &self.log)?;
        if !series.has_own_tools() {
            return Ok(());
        }
        // As if nothing were installed: not even the C library of this machine is used.
        let nothing = self.folder.join("nothing-installed");
        process::write(&nothing, "")?;
        process::create_dir(&debs.join("partial"))?;
        let headers = packages.iter().filter(|package| package.starts_with("linux-headers-"));
        let mut closure = self.command("apt-get");
        closure
            .args(["-q", "-y", "--download-only", "--no-install-recommends"])
            .args(["-o", &format!("Dir::State::status={}", nothing.display())])
            .args(["-o", &format!("Dir::Cache::archives={}", debs.display())])
            .arg("install")
            .args(headers)
            .args(TOOLS.split(' '));
        process::run_logged(&mut closure, &self.log)
    }

    fn unpack(&self, series: Series, packages: &[String], to: &Path) -> Result<()> {
        let debs = self.empty_debs()?;
        self.download(series, packages, &debs)?;

        let partial = to.with_extension("partial");
        process::empty_dir(&partial)?;
        let found = extract(&debs, &partial)?;
        if found < packages.len() {
            bail!("apt-get brought {found} of {} packages: {}", packages.len(), packages.join(" "));
        }
        let stamp = packages.join("\n") + "\n";
        let release = release_in(&stamp).context("the first package is no kernel image")?;
        if series.has_own_tools() {
            make_root(&partial, &release)?;
        } else {
            use_headers_in_place(&partial, &release)?;
        }
        // modprobe in the guest needs the index that the package's own script would have made.
        process::run(Command::new("/sbin/depmod").arg("-b").arg(&partial).arg(release))?;
        process::write(&partial.join(STAMP), stamp)?;
        process::remove_dir(to)?;
        fs::rename(&partial, to)
            .with_context(|| format!("cannot move the kernel to {}", to.display()))?;
        process::remove_dir(&debs)
    }
}

/// What the packages' own scripts would have done: a root for the tools to run in, with the kernel's
/// image where it lies in other packages.
fn make_root(root: &Path, release: &str) -> Result<()> {
    let link = |from: &Path, to: &Path| {
        symlink(from, to).with_context(|| format!("cannot create {}", to.display()))
    };
    link(Path::new("mawk"), &root.join("usr/bin/awk"))?;
    process::create_dir(&root.join(BUILD_FOLDER))?;
    let image = format!("usr/lib/modules/{release}/vmlinuz");
    fs::hard_link(root.join(&image), root.join(format!("boot/vmlinuz-{release}")))
        .with_context(|| format!("the packages hold no {image}"))
}

/// Debian's makefile of the headers names the common ones where a package would install them.
fn use_headers_in_place(root: &Path, release: &str) -> Result<()> {
    let makefile = root.join("usr/src").join(format!("linux-headers-{release}")).join("Makefile");
    let text = process::read(&makefile)?;
    process::write(&makefile, text.replace("include /usr/src/", "include ../"))
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
