//! `profiler kernels` with a cache of its own, and with scripts in the place of apt, dpkg and depmod: no network is needed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profiler_base::error::exit;

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

/// An RPM: a lead, two headers without an entry, and the packed files.
fn rpm(path: &Path, files: &Path) {
    let mut rpm = vec![0xed, 0xab, 0xee, 0xdb, 3, 0];
    rpm.resize(96, 0);
    for _ in 0..2 {
        rpm.extend([0x8e, 0xad, 0xe8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    let mut pack = Command::new("bsdtar");
    pack.args(["--format", "newc", "-czf", "-", "-C"]).arg(files).arg(".");
    let packed = pack.output().unwrap();
    assert!(packed.status.success(), "{packed:?}");
    rpm.extend(packed.stdout);
    fs::write(path, rpm).unwrap();
}

#[test]
fn a_kernel_of_another_distribution_is_added() {
    const RELEASE: &str = "4.18.0-553.el8_10.x86_64";
    let machine = Machine::new();
    let at = |name: &str| machine.0.path().join(name);
    let write = |path: PathBuf, bytes: &[u8]| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let mut image = vec![0; 2048];
    image[0x202..0x206].copy_from_slice(b"HdrS");
    (image[0x206], image[0x207], image[0x20f]) = (15, 2, 1);
    image[0x300..0x300 + RELEASE.len()].copy_from_slice(RELEASE.as_bytes());
    let modules = format!("lib/modules/{RELEASE}");
    write(at("core").join(&modules).join("vmlinuz"), &image);
    std::os::unix::fs::symlink("/etc", at("core").join(&modules).join("build")).unwrap();
    write(at("modules").join(&modules).join("kernel/fs/9p.ko.xz"), b"9p");
    for package in ["core", "modules"] {
        rpm(&at(&format!("{package}.rpm")), &at(package));
    }
    let file = |name: &str| at(name).display().to_string();
    let both = format!("add {} {}", file("core.rpm"), file("modules.rpm"));
    let modules_alone = machine.command(&format!("add {}", file("modules.rpm")));
    fails(modules_alone, exit::BAD_INPUT, &["image is missing: add the package that has it"]);
    assert_eq!(entries(&machine.cache()), [".lock"]);
    let added = machine.run(&both);
    assert!(text(&added.stderr).contains(&format!("`--kernel {RELEASE}` boots it")), "{added:?}");
    assert_eq!(machine.listed(), [(RELEASE.to_owned(), false)]);
    let kernel = machine.cache().join(RELEASE);
    assert_eq!(entries(&kernel.join(&modules)), ["kernel", "modules.dep", "vmlinuz"]);
    assert_eq!(fs::read(kernel.join(format!("boot/vmlinuz-{RELEASE}"))).unwrap(), image);
    fails(machine.command(&both), exit::BAD_INPUT, &["Linux 4.18", " is there: remove it first"]);
    assert!(machine.run("remove 4.18").status.success());
    // The same as Debian's kind of package, and as a folder.
    let mut tar = Command::new("bsdtar");
    tar.args(["--format", "ustar", "-cf", &file("data.tar"), "-C", &file("core"), "."]);
    assert!(tar.status().unwrap().success());
    fs::write(at("debian-binary"), "2.0\n").unwrap();
    let mut ar = Command::new("bsdtar");
    ar.args(["--format", "ar", "-cf", &file("core.deb"), "-C", &file(".")]);
    assert!(ar.args(["debian-binary", "data.tar"]).status().unwrap().success());
    assert!(machine.run(&format!("add {} {}", file("core.deb"), file("modules"))).status.success());
    assert_eq!(entries(&kernel.join(&modules)), ["kernel", "modules.dep", "vmlinuz"]);
    fails(
        machine.command("add /nowhere.rpm"),
        exit::BAD_INPUT,
        &["no kernel in /nowhere.rpm: No such file"],
    );
    fs::write(at("cut.rpm"), &fs::read(at("core.rpm")).unwrap()[..150]).unwrap();
    let cut = machine.command(&format!("add {}", file("cut.rpm")));
    fails(cut, exit::BAD_INPUT, &["the package cannot be unpacked", "cut.rpm"]);
    assert!(machine.run("remove 4.18").status.success());
    let mut without_bsdtar = machine.command(&both);
    without_bsdtar.env("PATH", at("bin"));
    fails(without_bsdtar, exit::CANNOT_MEASURE, &["cannot run `bsdtar", "libarchive-tools"]);
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
