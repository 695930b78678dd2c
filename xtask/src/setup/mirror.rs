//! Suites of Debian that this machine does not have in its own sources. Mirror and keyring are those of the machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use profiler_vm::Arch;
use profiler_vm::debian::{Apt, Partial};

use crate::paths::Paths;
use crate::process;
use crate::series::Series;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt with the suites of these series, after it has read their package lists.
pub(super) fn apt(paths: &Paths, wanted: &[Series]) -> Result<Apt> {
    let apt = configured(&paths.target().join("apt"), wanted, Arch::HERE)?;
    apt.update()?;
    Ok(apt)
}

/// Unpacks a package of Debian 12 without installing it.
pub(super) fn unpack(paths: &Paths, package: &str, to: &Path) -> Result<()> {
    unpack_of(&apt(paths, &[Series::V6_1])?, package, to)
}

/// Unpacks a package that `apt` knows.
pub(super) fn unpack_of(apt: &Apt, package: &str, to: &Path) -> Result<()> {
    let partial = Partial::new(to)?;
    apt.download(&[package.to_owned()], &partial.debs())?;
    partial.extract(1)?;
    Ok(partial.place()?)
}

/// The same in another folder, without lists.
pub(super) fn configured(folder: &Path, wanted: &[Series], arch: Arch) -> Result<Apt> {
    Ok(Apt::configure(folder, Some(&Mirror::of_this_machine()?.sources(wanted)), arch)?)
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
}
