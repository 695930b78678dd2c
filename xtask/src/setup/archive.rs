//! Debian's archive, read by a private apt configuration.
//!
//! It reads suites that this machine does not have in its own: lists, cache and sources all lie
//! under `target/apt`, so that the machine's stay as they are. Mirror and keyring are those of the
//! machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::paths::Paths;
use crate::process;
use crate::series::Series;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt with sources, lists and downloads of its own.
pub(super) struct Apt {
    /// What it writes is here.
    pub(super) folder: PathBuf,
    config: PathBuf,
    /// What apt said last.
    pub(super) log: PathBuf,
}

impl Apt {
    /// Writes the configuration with the suites of these series.
    pub(super) fn configure(paths: &Paths, wanted: &[Series]) -> Result<Self> {
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
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(&self.config);
        command
    }

    /// Reads the package lists.
    pub(super) fn update(&self) -> Result<()> {
        process::run_logged(self.command("apt-get").args(["-q", "update"]), &self.log)
    }

    /// All versions of a package that are of the series.
    fn versions(&self, package: &str, series: Series) -> Result<Vec<Entry>> {
        let text = process::stdout(self.command("apt-cache").args(["show", package]))?;
        let entries = text.split("\n\n").filter_map(Entry::parse);
        Ok(entries.filter(|entry| series.has_version(&entry.version)).collect())
    }

    /// The newest version of a package that is of the series.
    pub(super) fn newest(&self, package: &str, series: Series) -> Result<Entry> {
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

    /// An empty folder for downloads.
    pub(super) fn empty_debs(&self) -> Result<PathBuf> {
        let debs = self.folder.join("debs");
        process::empty_dir(&debs)?;
        Ok(debs)
    }
}

/// Unpacks all packages in a folder; gives their number.
pub(super) fn extract(debs: &Path, to: &Path) -> Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(debs).context("cannot list the downloads")? {
        let deb = entry.context("cannot list the downloads")?.path();
        if deb.extension().is_some_and(|extension| extension == "deb") {
            process::run(Command::new("dpkg").arg("-x").arg(&deb).arg(to))?;
            found += 1;
        }
    }
    Ok(found)
}

fn is_newer(version: &str, than: &str) -> Result<bool> {
    let mut compare = Command::new("dpkg");
    compare.args(["--compare-versions", version, "gt", than]);
    Ok(process::capture(&mut compare)?.status.success())
}

/// One paragraph of `apt-cache show`.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its name.
    pub(super) package: String,
    /// Its version.
    pub(super) version: String,
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
    pub(super) fn depends_on(&self, prefix: &str) -> Result<String> {
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
}
