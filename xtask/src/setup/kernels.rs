//! Kernels from Debian's packages, unpacked and never installed.
//!
//! A private apt configuration reads suites that this machine does not have in its own: its
//! lists, cache and sources all lie under `target/apt`, so that the machine's stay as they are.
//! Mirror and keyring are those of the machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::paths::Paths;
use crate::process;
use crate::series::Series;

/// The packages a kernel was unpacked from; written last, so its presence means complete.
const STAMP: &str = "packages.txt";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The file system that a compiler runs in is the kernel's folder; these come with the headers' own
/// dependencies, which name the compiler.
const TOOLS: [&str; 10] = [
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "findutils",
    "grep",
    "make",
    "mawk",
    "pahole",
    "sed",
];

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

struct Apt {
    folder: PathBuf,
    config: PathBuf,
    log: PathBuf,
}

impl Apt {
    fn configure(paths: &Paths, wanted: &[Series]) -> Result<Self> {
        let folder = paths.apt();
        for name in ["lists/partial", "cache/archives/partial", "debs"] {
            process::create_dir(&folder.join(name))?;
        }
        let sources = folder.join("sources.list");
        process::write(&sources, Mirror::of_this_machine()?.sources(wanted))?;
        let config = folder.join("apt.conf");
        let below = |name: &str| folder.join(name).display().to_string();
        process::write(
            &config,
            format!(
                "Dir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"-\";\n\
                 Dir::State::lists \"{}\";\nDir::Cache \"{}\";\n\
                 Acquire::Languages \"none\";\nAcquire::Retries \"3\";\n\
                 Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
                 APT::Sandbox::User \"root\";\n\
                 #clear APT::Update::Post-Invoke;\n\
                 #clear APT::Update::Post-Invoke-Success;\n\
                 #clear DPkg::Post-Invoke;\n",
                sources.display(),
                below("lists"),
                below("cache"),
            ),
        )?;
        Ok(Self { folder, config, log: paths.target().join("logs").join("kernels.log") })
    }

    /// An apt program that reads our configuration after the machine's own, and so above it.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(&self.config);
        command
    }

    fn update(&self) -> Result<()> {
        process::run_logged(self.command("apt-get").args(["-q", "update"]), &self.log)
    }

    /// All versions of a package that are of the series.
    fn versions(&self, package: &str, series: Series) -> Result<Vec<Entry>> {
        let text = process::stdout(self.command("apt-cache").args(["show", package]))?;
        let entries = text.split("\n\n").filter_map(Entry::parse);
        Ok(entries.filter(|entry| series.has_version(&entry.version)).collect())
    }

    /// The newest version of a package that is of the series.
    fn newest(&self, package: &str, series: Series) -> Result<Entry> {
        let mut newest: Option<Entry> = None;
        for entry in self.versions(package, series)? {
            let newer = match &newest {
                None => true,
                Some(best) => is_newer(&entry.version, &best.version)?,
            };
            if newer {
                newest = Some(entry);
            }
        }
        newest.with_context(|| {
            format!(
                "no {package} of Linux {series} in the suite {} of this machine's mirror: if it has moved \
                 on to a newer kernel, xtask/src/series.rs has to follow",
                series.suite().0
            )
        })
    }

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
            .args(TOOLS);
        process::run_logged(&mut closure, &self.log)
    }

    fn unpack(&self, series: Series, packages: &[String], to: &Path) -> Result<()> {
        let debs = self.folder.join("debs");
        process::remove_dir(&debs)?;
        process::create_dir(&debs)?;
        self.download(series, packages, &debs)?;

        let partial = to.with_extension("partial");
        process::remove_dir(&partial)?;
        process::create_dir(&partial)?;
        let mut found = 0;
        for entry in fs::read_dir(&debs).context("cannot list the downloads")? {
            let deb = entry.context("cannot list the downloads")?.path();
            if deb.extension().is_some_and(|extension| extension == "deb") {
                process::run(Command::new("dpkg").arg("-x").arg(&deb).arg(&partial))?;
                found += 1;
            }
        }
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
    let text = fs::read_to_string(&makefile)
        .with_context(|| format!("cannot read {}", makefile.display()))?;
    process::write(&makefile, text.replace("include /usr/src/", "include ../"))
}

fn is_newer(version: &str, than: &str) -> Result<bool> {
    let mut compare = Command::new("dpkg");
    compare.args(["--compare-versions", version, "gt", than]);
    Ok(process::capture(&mut compare)?.status.success())
}

/// One paragraph of `apt-cache show`.
#[derive(Debug)]
struct Entry {
    package: String,
    version: String,
    depends: String,
}

impl Entry {
    fn parse(paragraph: &str) -> Option<Self> {
        let field = |name: &str| {
            paragraph.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };
        Some(Self {
            package: field("Package:")?,
            version: field("Version:")?,
            depends: field("Depends:").unwrap_or_default(),
        })
    }

    /// The first package with this prefix that it depends on.
    fn depends_on(&self, prefix: &str) -> Result<String> {
        self.depends
            .split([',', '|'])
            .filter_map(|part| part.split_whitespace().next())
            .find(|name| name.starts_with(prefix))
            .map(str::to_owned)
            .with_context(|| format!("{} {} needs no {prefix}*", self.package, self.version))
    }
}

/// Where this machine has its Debian from.
struct Mirror {
    main: String,
    security: Option<String>,
}

impl Mirror {
    fn of_this_machine() -> Result<Self> {
        let mut targets = Command::new("apt-get");
        targets.args(["indextargets", "--no-release-info", "--format"]);
        targets.args(["$(REPO_URI) $(RELEASE) $(CREATED_BY)", "Created-By: Packages"]);
        Self::choose(&process::stdout(&mut targets)?).context(
            "apt has no source with a Debian release; add your mirror to /etc/apt/sources.list",
        )
    }

    /// Lines `URI release created-by`; sources of third parties have releases of other names.
    fn choose(targets: &str) -> Option<Self> {
        const RELEASES: [&str; 6] =
            ["bullseye", "bookworm", "trixie", "oldstable", "stable", "oldoldstable"];
        let uri_of = |is_wanted: &dyn Fn(&str) -> bool| {
            targets.lines().find_map(|line| {
                let mut words = line.split_whitespace();
                let (uri, release) = (words.next()?, words.next()?);
                is_wanted(release).then(|| uri.to_owned())
            })
        };
        let main = uri_of(&|release| RELEASES.contains(&release))?;
        let security = uri_of(&|release| {
            release.strip_suffix("-security").is_some_and(|name| RELEASES.contains(&name))
        });
        Some(Self { main, security })
    }

    fn sources(&self, wanted: &[Series]) -> String {
        let mut options = Vec::new();
        if Path::new(KEYRING).exists() {
            options.push(format!("signed-by={KEYRING}"));
        }
        let mut lines = String::new();
        for series in wanted {
            let (suite, security) = series.suite();
            let mut options = options.clone();
            if *series == Series::V5_10 {
                // Debian 11 is at its end: its last lists may be out of date for good.
                options.push("check-valid-until=no".to_owned());
            }
            let options = match options.as_slice() {
                [] => String::new(),
                some => format!("[{}] ", some.join(" ")),
            };
            let mut add = |uri: &str, suite: &str| {
                lines.push_str(&format!("deb {options}{uri} {suite} main\n"));
            };
            add(&self.main, suite);
            if let (Some(uri), Some(suite)) = (&self.security, security) {
                add(uri, suite);
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_machines_own() {
        let mirror = Mirror::choose(
            "https://other.example/apt/ nodistro Packages\n\
             http://mirror.example/debian/ bookworm-updates Packages\n\
             http://mirror.example/debian/ bookworm Packages\n\
             http://mirror.example/sec/ bookworm-security Packages\n",
        )
        .unwrap();
        assert_eq!(mirror.main, "http://mirror.example/debian/");
        let sources = mirror.sources(&[Series::V6_1, Series::V6_12, Series::V7_2]);
        assert!(sources.contains("http://mirror.example/sec/ bookworm-security main\n"));
        assert!(sources.contains("http://mirror.example/debian/ bookworm-backports main\n"));
        assert!(sources.contains("http://mirror.example/debian/ sid main\n"));
        assert!(!sources.contains("bullseye") && !sources.contains("other.example"));
    }

    #[test]
    fn no_debian_source_is_no_mirror() {
        assert!(Mirror::choose("https://other.example/apt/ nodistro Packages\n").is_none());
    }

    #[test]
    fn dependencies_are_found_among_alternatives() {
        let entry = Entry::parse(
            "Package: linux-headers-6.12.95+deb12-amd64\nVersion: 6.12.95-1~bpo12+1\n\
             Depends: linux-base (>= 4.12~), linux-headers-6.12.95+deb12-common (= 6), \
             linux-image-6.12.95+deb12-amd64 (= 6) | linux-image-unsigned (= 6), \
             linux-kbuild-6.12.95+deb12, gcc-12\n",
        )
        .unwrap();
        let name = |prefix| entry.depends_on(prefix).unwrap();
        assert_eq!(name("linux-headers-"), "linux-headers-6.12.95+deb12-common");
        assert_eq!(name("linux-kbuild-"), "linux-kbuild-6.12.95+deb12");
        assert!(entry.depends_on("linux-nothing-").is_err());
    }

    #[test]
    fn the_release_comes_from_the_image() {
        let stamp = "linux-image-6.1.0-56-amd64=6.1.192-2\nlinux-headers-6.1.0-56-amd64=6\n";
        assert_eq!(release_in(stamp).as_deref(), Some("6.1.0-56-amd64"));
        assert_eq!(release_in(""), None);
    }
}
