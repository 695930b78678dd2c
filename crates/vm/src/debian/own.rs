//! Kernels out of packages of any distribution, which the user has as files, or out of a folder.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use profiler_system::files::{copy, create_dir, failed, remove_dir};

use super::command::output;
use super::partial::Partial;
use super::unpacked::{ADDED, Unpacked, place};
use crate::image::{self, KernelImage};

/// Folders where packages have a kernel's image and modules, what is before the release in their names, and where Debian's have them.
const PLACES: [(&str, &str, &str); 3] =
    [(BOOT, IMAGE, BOOT), (MODULES, "", MODULES), ("usr/lib/modules", "", MODULES)];
const BOOT: &str = "boot";
const IMAGE: &str = "vmlinuz-";
const MODULES: &str = "lib/modules";

/// What RHEL has beside its kernels is a copy of one.
const RESCUE: &str = "rescue";

/// No image of a kernel has more bytes.
const MOST_BYTES: u64 = 512 << 20;

/// Longest release: `__NEW_UTS_LEN` of `linux/utsname.h`.
const MOST_CHARS: usize = 64;

/// Puts the kernel of these packages (`.rpm`, `.deb`) and folders into the cache `kernels`; gives its release.
///
/// Each package is unpacked apart, and of it plain files in plain folders are taken alone, so that no link leads out of it.
///
/// # Errors
/// If they cannot be unpacked, or have no kernel that boots here, several, or one that is there.
pub fn add(sources: &[PathBuf], kernels: &Path) -> io::Result<String> {
    let given: Vec<String> = sources.iter().map(|source| source.display().to_string()).collect();
    let fails = |what: String| {
        let text = format!("no kernel in {}: {what}", given.join(", "));
        io::Error::new(io::ErrorKind::InvalidInput, text)
    };
    let mut partial = Partial::new(&kernels.join("added"))?;
    let root = partial.root();
    create_dir(&root.join(BOOT))?;
    let mut found = BTreeSet::new();
    for source in sources {
        let unpacked = partial.debs().join("unpacked");
        let folder = if source.is_dir() {
            source
        } else {
            let package = fs::canonicalize(source).map_err(|error| fails(error.to_string()))?;
            unpack(&package, &unpacked)?;
            &unpacked
        };
        found.extend(releases(folder));
        // Before it is copied: a folder may be that of a whole machine.
        if found.len() > 1 {
            let all = Vec::from_iter(found).join(", ");
            return Err(fails(format!("they are of several kernels ({all}): add one at a time")));
        }
        if let Some(release) = found.first() {
            take_all(folder, &root, release)?;
        }
        remove_dir(&unpacked)?;
    }
    let release = found.pop_first().ok_or_else(|| {
        fails("there is neither boot/vmlinuz-RELEASE nor lib/modules/RELEASE".to_owned())
    })?;
    if !is_release(&release) {
        return Err(fails(format!("{release:?} is no release of a kernel")));
    }
    let to = kernels.join(&release);
    if Unpacked::open(&to).is_some() {
        return Err(fails(format!("Linux {release} is there: remove it first")));
    }
    place_image(&root, &release).map_err(fails)?;
    partial.to = to;
    let stamp = [&[format!("linux-image-{release}{ADDED}")], &given[..]].concat();
    place(partial, &release, &stamp)?;
    Ok(release)
}

/// Whether it can be the name of a folder and an argument: what `uname -r` says begins with a digit.
fn is_release(text: &str) -> bool {
    text.len() < MOST_CHARS
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._+~-".contains(c))
}

/// Unpacks a package. One of Debian's has its files in an archive of its own.
fn unpack(package: &Path, to: &Path) -> io::Result<()> {
    create_dir(to)?;
    extract(package, to)?;
    let data = fs::read_dir(to).map_err(failed("list", to))?.flatten().find(|entry| {
        entry.file_name().to_string_lossy().starts_with("data.tar")
            && entry.file_type().is_ok_and(|kind| kind.is_file())
    });
    data.map_or(Ok(()), |data| extract(&data.path(), to))
}

/// Unpacks an archive by bsdtar, which writes through no link.
fn extract(archive: &Path, to: &Path) -> io::Result<()> {
    let mut command = Command::new("bsdtar");
    command.args(["--no-same-owner", "--no-same-permissions", "-xf"]).arg(archive);
    output(command.arg("-C").arg(to))?;
    // A folder that its owner may not change could not be removed.
    output(Command::new("chmod").args(["-R", "u+rwX"]).arg(to)).map(drop)
}

/// The places that are there, without any that a link leads to: one in a package may lead anywhere.
fn places(from: &Path) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    PLACES.into_iter().filter(move |(folder, ..)| {
        let mut above = Path::new(folder).ancestors();
        above.all(|path| fs::symlink_metadata(from.join(path)).is_ok_and(|facts| facts.is_dir()))
    })
}

/// Releases of the kernels that are there, or are in part.
fn releases(from: &Path) -> BTreeSet<String> {
    let mut releases = BTreeSet::new();
    for (folder, before, _) in places(from) {
        for entry in fs::read_dir(from.join(folder)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            releases.extend(name.strip_prefix(before).map(str::to_owned));
        }
    }
    releases.retain(|release| !release.contains(RESCUE));
    releases
}

/// Copies what is there of a kernel to where a kernel of Debian's has it.
fn take_all(from: &Path, root: &Path, release: &str) -> io::Result<()> {
    places(from).try_for_each(|(folder, before, to)| {
        let name = format!("{before}{release}");
        take(&from.join(folder).join(&name), &root.join(to).join(name))
    })
}

/// Copies a plain file, or a folder with the plain files and folders in it.
fn take(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(from) {
        Ok(facts) if facts.is_file() => copy(from, to)?,
        Ok(facts) if facts.is_dir() => {
            create_dir(to)?;
            for entry in fs::read_dir(from).map_err(failed("list", from))? {
                let entry = entry.map_err(failed("list", from))?;
                take(&entry.path(), &to.join(entry.file_name()))?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Puts the image, unpacked if it is one of arm64 that is packed, where a kernel of Debian's has it.
fn place_image(root: &Path, release: &str) -> Result<(), String> {
    let to = root.join(BOOT).join(format!("{IMAGE}{release}"));
    let beside = root.join(MODULES).join(release).join("vmlinuz");
    let from = [&to, &beside].into_iter().find(|path| path.exists()).ok_or(
        "the kernel's image is missing: add the package that has it, too (kernel-core, linux-image-...)",
    )?;
    if fs::metadata(from).map_err(of_image)?.len() > MOST_BYTES {
        return Err(format!("its image has more than {} MiB", MOST_BYTES >> 20));
    }
    let bytes = image::unpacked_for_arm64(fs::read(from).map_err(of_image)?)?;
    fs::write(&to, bytes).map_err(of_image)?;
    let image =
        KernelImage::open(&to).map_err(|_| "its image is none that boots here".to_owned())?;
    match image.release == release {
        true => Ok(()),
        false => Err(format!("the image is of Linux {}, the rest of {release}", image.release)),
    }
}

fn of_image(error: io::Error) -> String {
    format!("its image: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASE: &str = "4.18.0-1.x86_64";

    fn write(path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Two folders: one with a kernel of x86-64 and a module, and a cache.
    fn kernel() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let [from, kernels] = ["from", "kernels"].map(|name| folder.path().join(name));
        write(&from.join(format!("lib/modules/{RELEASE}/vmlinuz")), &image::tests::named(RELEASE));
        (folder, from, kernels)
    }

    fn error(from: &Path, kernels: &Path) -> String {
        let error = add(&[from.to_owned()], kernels).unwrap_err().to_string();
        assert!(!kernels.join(".partial").exists(), "what fails leaves nothing");
        assert!(error.starts_with(&format!("no kernel in {}: ", from.display())), "{error}");
        error
    }

    #[test]
    fn a_folder_that_is_no_kernel_or_several_is_refused() {
        let (_folder, from, kernels) = kernel();
        assert!(error(&from.join("lib"), &kernels).contains("neither boot/vmlinuz-RELEASE nor"));
        write(&from.join("lib/modules/3.10.0/x.ko"), b"");
        assert!(error(&from, &kernels).contains("several kernels (3.10.0, 4.18.0-1.x86_64)"));
        fs::remove_dir_all(from.join("lib/modules/3.10.0")).unwrap();
        let image = from.join(format!("lib/modules/{RELEASE}/vmlinuz"));
        write(&image, &image::tests::named("5.4.0"));
        assert!(error(&from, &kernels).contains("is of Linux 5.4.0, the rest of 4.18.0-1.x86_64"));
        write(&image, b"");
        assert!(error(&from, &kernels).contains("none that boots here"));
        fs::remove_file(&image).unwrap();
        assert!(error(&from, &kernels).contains("image is missing"));
    }

    #[test]
    fn a_release_is_a_name_that_leads_nowhere() {
        for bad in ["..", "-n", ".lock", "x", "4=1", "4\n", "4 1", "", &"4".repeat(64)] {
            assert!(!is_release(bad), "{bad:?}");
        }
        for good in ["4.18.0-553.el8_10.x86_64", "6.12.95+deb12-arm64", "5.15.0-1~20-generic"] {
            assert!(is_release(good), "{good}");
        }
        let (_folder, from, kernels) = kernel();
        let modules = from.join("lib/modules");
        fs::rename(modules.join(RELEASE), modules.join(".lock")).unwrap();
        assert!(error(&from, &kernels).contains("\".lock\" is no release of a kernel"));
    }

    #[test]
    fn links_are_not_followed_and_of_boot_only_a_kernel_is_taken() {
        let (folder, from, kernels) = kernel();
        let secret = folder.path().join("secret");
        write(&secret.join("lib/modules/1/vmlinuz-1"), b"");
        for (at, name) in [("usr", &secret), ("boot", &secret)] {
            std::os::unix::fs::symlink(name, from.join(at)).unwrap();
        }
        take_all(&from, &kernels, "1").unwrap();
        assert!(!kernels.exists(), "nothing of the secret");
        assert_eq!(Vec::from_iter(releases(&from)), [RELEASE], "modules alone");
        fs::remove_file(from.join("boot")).unwrap();
        for name in ["vmlinuz-0-rescue-7f", &format!("initrd.img-{RELEASE}")] {
            write(&from.join("boot").join(name), b"");
        }
        assert_eq!(Vec::from_iter(releases(&from)), [RELEASE]);
        let modules = Path::new(MODULES).join(RELEASE);
        std::os::unix::fs::symlink(&secret, from.join(&modules).join("link")).unwrap();
        take_all(&from, &kernels, RELEASE).unwrap();
        assert_eq!(fs::read_dir(&kernels).unwrap().count(), 1, "modules alone");
        assert_eq!(fs::read_dir(kernels.join(&modules)).unwrap().count(), 1, "no link");
    }
}
