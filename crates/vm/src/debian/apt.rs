//! Packages in Debian's archive, by a private apt configuration: lists, cache and downloads are in a folder of the
//! caller's, so that the machine's stay as they are and no root is needed. Keys are the machine's.

use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Uid, User, geteuid};

use profiler_system::files::{create_dir, failed, write};

use super::command::output;
use crate::Arch;

/// apt with lists and downloads of its own.
#[derive(Debug)]
pub struct Apt {
    /// What it writes is here.
    folder: PathBuf,
    /// What its packages are for.
    arch: Arch,
}

impl Apt {
    /// Writes the configuration to `folder`. apt reads `sources`, lines of a sources.list, in place of the machine's. For another
    /// architecture it is as on a machine of that on which nothing is installed.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn configure(folder: &Path, sources: Option<&str>, arch: Arch) -> io::Result<Self> {
        for name in ["lists/partial", "cache/archives/partial"] {
            create_dir(&folder.join(name))?;
        }
        let mut config = format!(
            "Dir::State::lists \"{}\";\nDir::Cache \"{}\";\n\
             Acquire::Languages \"none\";\nAcquire::Retries \"3\";\n\
             Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
             APT::Get::AllowUnauthenticated \"false\";\n\
             Acquire::AllowInsecureRepositories \"false\";\n\
             Acquire::AllowWeakRepositories \"false\";\n\
             Acquire::AllowDowngradeToInsecureRepositories \"false\";\n\
             #clear APT::Update::Post-Invoke;\n\
             #clear APT::Update::Post-Invoke-Success;\n\
             #clear DPkg::Post-Invoke;\n",
            folder.join("lists").display(),
            folder.join("cache").display(),
        );
        if let Some(sources) = sources {
            let list = folder.join("sources.list");
            write(&list, sources)?;
            let list = list.display();
            config += &format!("Dir::Etc::sourcelist \"{list}\";\nDir::Etc::sourceparts \"-\";\n");
        }
        if arch != Arch::HERE {
            let status = folder.join("status");
            write(&status, "")?;
            config += &format!(
                "APT::Architecture \"{0}\";\nAPT::Architectures {{ \"{0}\"; \"{1}\"; }};\nDir::State::status \"{2}\";\n",
                arch.debian(),
                Arch::HERE.debian(),
                status.display(),
            );
        }
        let apt = Self { folder: folder.to_owned(), arch };
        write(&apt.config(), &config)?;
        Ok(apt)
    }

    fn config(&self) -> PathBuf {
        self.folder.join("apt.conf")
    }

    /// An apt program that reads our configuration after the machine's own, and so above it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.config());
        command
    }

    /// Reads the package lists; gives apt's warnings. A source that cannot be reached is one of them.
    ///
    /// # Errors
    /// If there is no apt, a list is not signed as it should be, or the disk is full.
    pub fn update(&self) -> io::Result<String> {
        Ok(output(self.command("apt-get").args(["-q", "update"]))?.1)
    }

    /// Releases of all plain kernels, oldest first.
    ///
    /// # Errors
    /// If there is no apt.
    pub fn releases(&self) -> io::Result<Vec<String>> {
        let mut search = self.command("apt-cache");
        search.args(["search", "--names-only", "^linux-image-[0-9]"]);
        Ok(releases(&output(&mut search)?.0, self.arch))
    }

    /// The packages of a kernel, its image first, and if asked those to build modules with: for apt, and their bytes to download.
    ///
    /// # Errors
    /// If there is none.
    pub fn packages(&self, release: &str, with_headers: bool) -> io::Result<(Vec<String>, u64)> {
        let image = self.newest(&format!("linux-image-{release}"))?;
        // Since 7.0 the image is an empty package.
        let parts = ["linux-binary-", "linux-modules-"].map(|prefix| image.depends_on(prefix).ok());
        let mut packages = vec![image];
        for part in parts.into_iter().flatten() {
            packages.push(self.newest(&part)?);
        }
        if with_headers {
            let headers = self.newest(&format!("linux-headers-{release}"))?;
            let common = self.newest(&headers.depends_on("linux-headers-")?)?;
            // Tools that run on this machine.
            let kbuild = headers.depends_on("linux-kbuild-")?;
            let kbuild = self.newest(&format!("{kbuild}:{}", Arch::HERE.debian()))?;
            packages.extend([headers, common, kbuild]);
        }
        let bytes = packages.iter().map(|package| package.size).sum();
        Ok((packages.into_iter().map(|package| package.name).collect(), bytes))
    }

    /// The newest version of a package, the first in the order of apt's cache: `VersionList` of its pkgcache.h.
    fn newest(&self, package: &str) -> io::Result<Entry> {
        let (text, _) = output(self.command("apt-cache").args(["show", package]))?;
        let entry = text.split("\n\n").find_map(|paragraph| Entry::parse(package, paragraph));
        entry.ok_or_else(|| io::Error::other(format!("apt has no package {package}")))
    }

    /// Downloads packages, verified, to `debs`; each is a name, or `name=version`.
    ///
    /// # Errors
    /// If one does not exist, the network is down, or the disk is full.
    pub fn download(&self, packages: &[String], debs: &Path) -> io::Result<()> {
        let mut download = self.command("apt-get");
        download.args(["-q", "download"]).args(packages).current_dir(debs);
        // Run by root, apt downloads as this user if that one may write here, and else as root, with a warning.
        let user = User::from_name("_apt").ok().flatten().filter(|_| geteuid().is_root());
        user.map_or(Ok(()), |user| give(debs, user.uid))?;
        let done = output(&mut download);
        // Before they are unpacked nobody may exchange them.
        give(debs, geteuid())?;
        done.map(drop)
    }
}

fn give(folder: &Path, user: Uid) -> io::Result<()> {
    chown(folder, Some(user.as_raw()), None).map_err(failed("change the owner of", folder))
}

/// The releases in lines `linux-image-RELEASE - DESCRIPTION`: signed kernels with pages of 4 KiB, neither `-rt` nor `-cloud`.
fn releases(found: &str, arch: Arch) -> Vec<String> {
    let mut releases: Vec<String> =
        found.lines().filter_map(|line| release(line, arch)).map(str::to_owned).collect();
    releases.sort_by_key(|release| super::numbers(release));
    releases.dedup();
    releases
}

fn release(line: &str, arch: Arch) -> Option<&str> {
    let release = line.split_whitespace().next()?.strip_prefix("linux-image-")?;
    let version = release.strip_suffix(arch.debian())?.strip_suffix('-')?;
    // `linux-image-6.12-amd64` is no kernel, but depends on the newest.
    let is_kernel = version.split(['.', '-']).nth(2).is_some();
    let is_plain = !["-rt", "-cloud", "-16k"].iter().any(|kind| version.ends_with(kind));
    (is_kernel && is_plain).then_some(release)
}

/// One paragraph of `apt-cache show`.
#[derive(Debug)]
struct Entry {
    /// What apt downloads: `package=version`.
    name: String,
    depends: String,
    /// Bytes to download.
    size: u64,
}

impl Entry {
    fn parse(package: &str, paragraph: &str) -> Option<Self> {
        let field = |name: &str| {
            paragraph.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };
        Some(Self {
            name: format!("{package}={}", field("Version:")?),
            depends: field("Depends:").unwrap_or_default(),
            size: field("Size:").and_then(|size| size.parse().ok()).unwrap_or(0),
        })
    }

    /// The first package with this prefix that it depends on.
    fn depends_on(&self, prefix: &str) -> io::Result<String> {
        let mut names =
            self.depends.split([',', '|']).filter_map(|part| part.split_whitespace().next());
        let name = names.find(|name| name.starts_with(prefix)).ok_or_else(|| {
            io::Error::other(format!("the package {} needs no {prefix}*", self.name))
        })?;
        Ok(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs apt"]
    fn only_signed_lists_are_taken_and_apts_own_sandbox_stays() {
        const SIGNED: [&str; 4] = [
            "APT::Get::AllowUnauthenticated",
            "Acquire::AllowInsecureRepositories",
            "Acquire::AllowWeakRepositories",
            "Acquire::AllowDowngradeToInsecureRepositories",
        ];
        let folder = tempfile::tempdir().unwrap();
        // A machine that takes anything.
        let careless = folder.path().join("careless");
        write(&careless, SIGNED.map(|name| format!("{name} \"true\";\n")).concat()).unwrap();
        let apt = Apt::configure(&folder.path().join("apt"), None, Arch::HERE).unwrap();
        let dump = |mut config: Command| {
            output(config.arg("dump").env("APT_CONFIG", &careless)).unwrap().0
        };
        let (machine, ours) = (dump(Command::new("apt-config")), dump(apt.command("apt-config")));
        for name in SIGNED {
            assert!(machine.contains(&format!("{name} \"true\";\n")), "{name}");
            assert!(ours.contains(&format!("{name} \"false\";\n")), "{name}");
        }
        let user = |dump: &str| {
            dump.lines().find(|line| line.starts_with("APT::Sandbox::User ")).map(str::to_owned)
        };
        assert_eq!(user(&ours), user(&machine));
    }

    #[test]
    fn releases_are_those_of_signed_kernels_for_pcs() {
        let found = "linux-image-6.1.0-56-amd64 - Linux 6.1 for 64-bit PCs (signed)\n\
             linux-image-6.1.0-56-amd64-dbg - Debug symbols for linux-image-6.1.0-56-amd64\n\
             linux-image-6.1.0-56-amd64-unsigned - Linux 6.1 for 64-bit PCs\n\
             linux-image-6.1.0-56-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)\n\
             linux-image-6.12-amd64 - Linux for 64-bit PCs (meta-package)\n\
             linux-image-6.12.107+deb12-rt-amd64 - Linux 6.12 for 64-bit PCs, PREEMPT_RT (signed)\n\
             linux-image-6.12.107+deb12-amd64 - Linux 6.12 for 64-bit PCs (signed)\n\
             linux-image-6.1.0-9-amd64 - Linux 6.1 for 64-bit PCs (signed)\n";
        let expected = ["6.1.0-9-amd64", "6.1.0-56-amd64", "6.12.107+deb12-amd64"];
        assert_eq!(releases(found, Arch::X86_64), expected);
        let found = "linux-image-6.1.0-56-arm64 - Linux 6.1 for 64-bit ARMv8 machines (signed)\n\
             linux-image-6.12.95+deb12-arm64-16k - Linux 6.12 for 64-bit ARMv8 machines with 16k pages (signed)\n\
             linux-image-6.12.95+deb12-rt-arm64 - Linux 6.12, PREEMPT_RT (signed)\n";
        assert_eq!(releases(found, Arch::Arm64), ["6.1.0-56-arm64"]);
        assert!(releases("", Arch::X86_64).is_empty());
    }

    #[test]
    fn dependencies_are_found_among_alternatives() {
        let entry = Entry::parse(
            "linux-headers-6.12.95+deb12-amd64",
            "Package: linux-headers-6.12.95+deb12-amd64\nVersion: 6.12.95-1~bpo12+1\n\
             Depends: linux-base (>= 4.12~), linux-headers-6.12.95+deb12-common (= 6), \
             linux-image-6.12.95+deb12-amd64 (= 6) | linux-image-unsigned (= 6), \
             linux-kbuild-6.12.95+deb12, gcc-12\nSize: 1892\n",
        )
        .unwrap();
        let name = |prefix| entry.depends_on(prefix).unwrap();
        assert_eq!(name("linux-headers-"), "linux-headers-6.12.95+deb12-common");
        assert_eq!(name("linux-kbuild-"), "linux-kbuild-6.12.95+deb12");
        assert!(entry.depends_on("linux-nothing-").is_err());
        assert_eq!(entry.size, 1892);
        assert_eq!(entry.name, "linux-headers-6.12.95+deb12-amd64=6.12.95-1~bpo12+1");
    }
}
