//! What is released: a Debian package and a static binary, both of the same build.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cargo::{self, STATIC_TARGET};
use crate::paths;
use crate::process;
use crate::setup::{self, CARGO_DEB, arm64};
use crate::vm::word;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The Debian release that both are tried in.
const SUITE: &str = "bookworm";

/// What the clean root has beside the packages that every Debian has.
const IN_ROOT: &str = "--include=bash-completion,man-db,procps,systemd";

/// The check has this environment; the download has that of the user, which may name a proxy.
const IN_NOTHING: &str = "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8";

/// Completions for each shell, where Debian has them below /usr/share.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/profiler"),
    ("zsh", "zsh/vendor-completions/_profiler"),
    ("fish", "fish/vendor_completions.d/profiler.fish"),
];

/// Files of the archive beside the program, its man pages and its completions.
const FILES: [&str; 5] =
    ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "docs/systemd/profiler.service"];

/// Makes both in `target/dist`; with `check` installs and runs them.
pub(crate) fn run(check: bool) -> Result<()> {
    setup::ensure(&[setup::DIST, setup::ARM64])?;
    let program = cargo::build_static()?;
    let dist = paths::target().join("dist");
    process::empty_dir(&dist)?;
    process::copy(&cargo::build_for_arm64(1)?, &dist.join(arm64::GUEST))?;
    share(&program, &dist.join("share"))?;
    let package = package(&dist)?;
    println!("dist: {}", package.display());
    let archive = archive(&program, &dist)?;
    println!("dist: {}", archive.display());
    if check {
        try_out(&package, &archive)?;
        println!("dist: both were installed and run in a clean Debian {SUITE}");
    }
    Ok(())
}

/// Writes the man pages and completions, as they lie in /usr/share.
fn share(program: &Path, share: &Path) -> Result<()> {
    let pages = share.join("man/man1");
    process::create_dir(&pages)?;
    process::run(Command::new(program).args(["man", "--dir"]).arg(pages))?;
    for (shell, file) in COMPLETIONS {
        let file = share.join(file);
        process::create_dir(file.parent().unwrap_or(share))?;
        let completions = process::stdout(Command::new(program).args(["completions", shell]))?;
        process::write(&file, completions)?;
    }
    Ok(())
}

/// The Debian package; `profiler/Cargo.toml` lists its files.
fn package(dist: &Path) -> Result<PathBuf> {
    let file = dist.join("profiler.deb");
    let mut deb = Command::new(CARGO_DEB.program());
    deb.args(["--package", "profiler", "--no-build", "--locked", "--quiet"]);
    deb.args(["--target", STATIC_TARGET]).arg("--output").arg(&file).current_dir(paths::root());
    process::run(&mut deb)?;
    Ok(file)
}

/// The archive with the static binary.
fn archive(program: &Path, dist: &Path) -> Result<PathBuf> {
    let name = format!("profiler-{VERSION}-{ARCH}");
    let file = dist.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--file"]).arg(&file);
    // All in one folder.
    tar.arg(format!("--transform=s,^docs/systemd/,,;s,^,{name}/,"));
    tar.arg("--directory").arg(dist).args(["share", arm64::GUEST]);
    tar.arg("--directory").arg(program.with_file_name("")).arg("profiler");
    process::run(tar.arg("--directory").arg(paths::root()).args(FILES))?;
    Ok(file)
}

/// Installs and runs both in a clean Debian root; needs root. The root's mounts and processes end with it, also if it is
/// killed, and its files are below `target/`.
fn try_out(package: &Path, archive: &Path) -> Result<()> {
    let check = paths::root().join("xtask/src/dist/check.sh");
    let folder = tempfile::tempdir_in(paths::target()).context("cannot make a folder")?;
    let mut root = Command::new("unshare");
    root.args(["--mount", "--pid", "--fork", "--kill-child", "mmdebstrap"]);
    root.env("TMPDIR", folder.path());
    root.args(["--variant=minbase", "--format=null", IN_ROOT]);
    for (from, to) in
        [(package, "/profiler.deb"), (archive, "/profiler.tar.gz"), (&check, "/check.sh")]
    {
        root.arg(format!("--customize-hook=upload {} {to}", word(from)));
    }
    root.arg(format!("--customize-hook={IN_NOTHING} chroot \"$1\" sh /check.sh {VERSION} {ARCH}"));
    root.arg(SUITE);
    process::stdout(&mut root).map(drop)
}
