//! Suites of Debian that this machine does not have in its own sources. Mirror and keyring are those of the machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use profiler_vm::Arch;
use profiler_vm::debian::{Apt, Partial};

use crate::process;
use crate::series::Series;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt in a folder of its own with the suites of these series, after it has read their package lists.
pub(super) fn apt(folder: &Path, wanted: &[Series], arch: Arch) -> Result<Apt> {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE)"]);
    let sources = sources(&process::stdout(&mut targets)?, wanted).context(
        "apt has no source with a Debian release; add your mirror to /etc/apt/sources.list",
    )?;
    let apt = Apt::configure(folder, Some(&sources), arch)?;
    apt.update()?;
    Ok(apt)
}

/// Unpacks a package without installing it.
pub(super) fn unpack(apt: &Apt, package: &str, to: &Path) -> Result<()> {
    let partial = Partial::new(to)?;
    apt.download(&[package.to_owned()], &partial.debs())?;
    partial.extract()?;
    Ok(partial.place()?)
}

/// The lines of a sources.list for these series, by the mirrors of this machine: lines `URI release`. Sources of third parties have
/// releases of other names.
fn sources(targets: &str, wanted: &[Series]) -> Option<String> {
    let (main, security_uri) = (uri_of(targets, "")?, uri_of(targets, "-security"));
    let mut lines = String::new();
    for series in wanted {
        let (suite, security) = series.suite();
        // Debian 11 is at its end: its last lists may be out of date for good.
        let late = if *series == Series::V5_10 { " check-valid-until=no" } else { "" };
        for (uri, suite) in std::iter::once((main, suite)).chain(security_uri.zip(security)) {
            lines += &format!("deb [signed-by={KEYRING}{late}] {uri} {suite} main\n");
        }
    }
    Some(lines)
}

fn uri_of<'a>(targets: &'a str, suffix: &str) -> Option<&'a str> {
    const RELEASES: [&str; 6] =
        ["bullseye", "bookworm", "trixie", "oldstable", "stable", "oldoldstable"];
    targets.lines().find_map(|line| {
        let (uri, release) = line.split_once(' ')?;
        RELEASES.contains(&release.strip_suffix(suffix)?).then_some(uri)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_machines_own() {
        let sources = sources(
            "https://other.example/apt/ nodistro\n\
             http://mirror.example/debian/ bookworm-updates\n\
             http://mirror.example/debian/ bookworm\n\
             http://mirror.example/sec/ bookworm-security\n",
            &[Series::V6_1, Series::V6_12, Series::V7_2],
        )
        .unwrap();
        assert!(sources.contains("http://mirror.example/debian/ bookworm main\n"));
        assert!(sources.contains("http://mirror.example/sec/ bookworm-security main\n"));
        assert!(sources.contains("http://mirror.example/debian/ bookworm-backports main\n"));
        assert!(sources.contains("http://mirror.example/debian/ sid main\n"));
        assert!(!sources.contains("bullseye") && !sources.contains("other.example"));
    }

    #[test]
    fn no_debian_source_is_no_mirror() {
        assert!(sources("https://other.example/apt/ nodistro\n", &[Series::V6_1]).is_none());
    }
}
