//! `profiler kernels` with a cache of its own, and with scripts in the place of apt, dpkg and depmod: no network is needed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profiler::error::exit;

use crate::durable::{assert_durable, calls};
use crate::program::text;

/// apt's answers for Linux 6.1 and 6.12; `$SAYS` is what a download fails with.
const APT: &str = r#"
case "$*" in
*update) [ -z "$OFFLINE" ] || echo "W: Failed to fetch http://deb.example/" >&2 ;;
*search*) [ -n "$OFFLINE" ] || printf '%s - Linux (signed)\n' linux-image-6.1.0-9-amd64 linux-image-6.1.0-56-amd64 \
    linux-image-6.1.0-56-rt-amd64 linux-image-6.12-amd64 linux-image-6.12.9+deb12-amd64 ;;
*show*) for package; do :; done
    printf 'Package: %s\nVersion: 6-1\nSize: 1\nDepends: linux-headers-common, linux-kbuild-6\n\n' "$package" ;;
*download*) for package; do :; done
    stat -c %U . >"$XDG_CACHE_HOME/downloads"
    [ -z "$SAYS" ] || { echo "$SAYS" >&2; exit 100; }
    while case "$1" in linux-*) false ;; esac; do shift; done
    for package; do echo "$package" >"$package.deb"; done ;;
*) exit 1 ;;
esac
"#;

/// Unpacks `linux-image-RELEASE=VERSION.deb` and that of headers.
const DPKG: &str = r#"
release=$(basename "$2"); release=${release%=*}
case "$release" in
linux-image-*) release=${release#linux-image-}
    mkdir -p "$3/boot" "$3/lib/modules/$release"
    touch "$3/boot/vmlinuz-$release" ;;
linux-headers-*-amd64) mkdir -p "$3/usr/src/$release"
    echo 'include /usr/src/linux-headers-common/Makefile' >"$3/usr/src/$release/Makefile" ;;
esac
"#;

const DEPMOD: &str = r#"
touch "$2/lib/modules/$3/modules.dep"
"#;

/// A folder with the cache, and with a folder of programs.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        for (name, script) in
            [("apt-get", APT), ("apt-cache", APT), ("dpkg", DPKG), ("depmod", DEPMOD)]
        {
            let path = folder.path().join("bin").join(name);
            fs::write(&path, format!("#!/bin/sh{script}")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self(folder)
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        let path = format!("{}:/usr/bin:/bin", self.0.path().join("bin").display());
        command.arg("kernels").args(args.split(' ')).env("PATH", path);
        command.env("XDG_CACHE_HOME", self.0.path().join("cache"));
        command
    }

    fn run(&self, args: &str) -> Output {
        self.command(args).output().unwrap()
    }

    /// Releases in the cache, and whether they have headers.
    fn listed(&self) -> Vec<(String, bool)> {
        let output = self.run("list --json");
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let entry = |entry: &serde_json::Value| {
            (entry["release"].as_str().unwrap().to_owned(), entry["headers"].as_bool().unwrap())
        };
        listed.as_array().unwrap().iter().map(entry).collect()
    }

    fn cache(&self) -> PathBuf {
        self.0.path().join("cache/profiler/kernels")
    }
}

#[track_caller]
fn fails(mut command: Command, code: u8, parts: &[&str]) {
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code.into()), "{said}");
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_kernel_is_on_disk_before_it_is_there() {
    let machine = Machine::new();
    let calls = calls(&machine.command("fetch 6.1"));
    assert_durable(&calls, &machine.cache().join("6.1.0-56-amd64"));
}

#[test]
fn kernels_are_fetched_listed_and_removed() {
    let machine = Machine::new();
    assert!(text(&machine.run("list").stderr).contains("`profiler kernels fetch 6.1`"));
    let output = machine.run("fetch 6.1 6.12");
    assert!(output.status.success(), "{output:?}");
    let both = [("6.1.0-56-amd64".to_owned(), false), ("6.12.9+deb12-amd64".to_owned(), false)];
    assert_eq!(machine.listed(), both);
    assert_eq!(entries(&machine.cache()), [".lock", "6.1.0-56-amd64", "6.12.9+deb12-amd64"]);
    assert!(machine.cache().join("6.1.0-56-amd64/lib/modules/6.1.0-56-amd64/modules.dep").exists());
    assert!(text(&machine.run("fetch 6.1").stderr).contains("Linux 6.1.0-56-amd64 is there"));

    assert!(machine.run("fetch 6.1 --headers").status.success());
    assert_eq!(machine.listed()[0], ("6.1.0-56-amd64".to_owned(), true));
    let makefile = "6.1.0-56-amd64/usr/src/linux-headers-6.1.0-56-amd64/Makefile";
    let makefile = fs::read_to_string(machine.cache().join(makefile)).unwrap();
    assert_eq!(makefile, "include ../linux-headers-common/Makefile\n");

    let table = text(&machine.run("list").stdout);
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["version", "release", "headers", "size", "snapshots"]);
    assert_eq!(rows[2][..3], ["6.1", "6.1.0-56-amd64", "yes"]);
    assert_eq!(rows[3][..3], ["6.12", "6.12.9+deb12-amd64", "no"]);

    assert!(machine.run("remove 6.1").status.success());
    assert_eq!(machine.listed(), both[1..]);
    fails(machine.command("remove 6.1"), exit::USAGE, &["no kernel 6.1 in ", "6.12.9+deb12-amd64"]);
}

#[test]
fn what_cannot_be_fetched_leaves_nothing() {
    let machine = Machine::new();
    let known = "no Linux 5.10: there are 6.1.0-9-amd64, 6.1.0-56-amd64, 6.12.9+deb12-amd64;";
    fails(machine.command("fetch 6.1 5.10"), exit::USAGE, &[known]);
    let mut offline = machine.command("fetch 6.1");
    offline.env("OFFLINE", "1");
    fails(offline, exit::CANNOT_MEASURE, &["is the network up", "W: Failed to fetch http://deb"]);
    for (says, code) in [
        ("E: You don't have enough free space in /cache/.", exit::BAD_OUTPUT),
        ("E: Failed to fetch http://deb.example/ Could not connect", exit::CANNOT_MEASURE),
    ] {
        let mut command = machine.command("fetch 6.1");
        command.env("SAYS", says);
        fails(command, code, &[says, "apt-get -c "]);
    }
    let mut without_apt = machine.command("fetch 6.1");
    without_apt.env("PATH", "/nowhere");
    fails(without_apt, exit::CANNOT_MEASURE, &["cannot run `apt-get ", "--kernel"]);
    assert_eq!(entries(&machine.cache()), [".lock"]);
}

/// What reads packages from the network should have no rights, and is `_apt` where root runs it.
#[test]
fn apt_downloads_as_a_user_without_rights() {
    let machine = Machine::new();
    assert!(machine.run("fetch 6.1").status.success());
    let id = |args: &[&str]| Command::new("id").args(args).output().unwrap();
    let me = text(&id(&["-un"]).stdout).trim().to_owned();
    let is_for_apt = me == "root" && id(&["_apt"]).status.success();
    let owner = fs::read_to_string(machine.0.path().join("cache/downloads")).unwrap();
    assert_eq!(owner.trim(), if is_for_apt { "_apt" } else { &me });
}

#[test]
fn a_cache_that_others_can_change_is_refused() {
    let machine = Machine::new();
    assert!(machine.run("fetch 6.1").status.success());
    fs::set_permissions(machine.cache(), fs::Permissions::from_mode(0o777)).unwrap();
    let said = format!("others can change {}", machine.cache().display());
    for args in ["list", "fetch 6.12", "remove 6.1"] {
        fails(machine.command(args), exit::BAD_OUTPUT, &[&said, "set XDG_CACHE_HOME"]);
    }
    assert!(machine.cache().join("6.1.0-56-amd64/packages.txt").exists());
}
