//! Kernels out of packages of any distribution, which the user has as files, or out of a folder.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{DebianError, create_dir, output, remove_dir};
use super::partial::Partial;
use super::unpacked::place_as;
use crate::image::{self, KernelImage};

/// What a package has of a kernel. `lib` may be a link to `usr/lib`, and is none in a kernel that is placed.
const MODULES: [&str; 2] = ["lib/modules", "usr/lib/modules"];
const BOOT: &str = "boot";

/// Puts the kernel of these packages (`.rpm`, `.deb`) and folders into the cache `kernels`; gives its release.
///
/// Only plain files of `boot` and of the modules' folders are taken, each package unpacked apart, so that no link in one leads
/// out of it.
///
/// # Errors
/// If they cannot be unpacked, have no kernel that boots here, or have several.
pub fn add(sources: &[PathBuf], kernels: &Path) -> Result<String, DebianError> {
    let mut partial = Partial::new(&kernels.join("added"))?;
    let root = partial.root();
    for source in sources {
        if source.is_dir() {
            take_all(source, &root)?;
            continue;
        }
        let unpacked = partial.debs().join("unpacked");
        unpack(source, &unpacked)?;
        take_all(&unpacked, &root)?;
        remove_dir(&unpacked)?;
    }
    let release = release(&root)?;
    place_image(&root, &release)?;
    partial.place_at(&kernels.join(&release));
    let names = sources.iter().filter_map(|source| source.file_name());
    let stamp = names.fold(format!("linux-image-{release}=added\n"), |stamp, name| {
        stamp + &name.to_string_lossy().replace('\n', " ") + "\n"
    });
    place_as(partial, &release, &stamp)?;
    Ok(release)
}

/// Unpacks a package by bsdtar, which reads both kinds and follows no link.
fn unpack(package: &Path, to: &Path) -> Result<(), DebianError> {
    create_dir(to)?;
    let extract = |archive: &Path| {
        let mut command = Command::new("bsdtar");
        command.args(["--no-same-owner", "--no-same-permissions", "-xf"]).arg(archive);
        output(command.arg("-C").arg(to)).map(drop)
    };
    let package = fs::canonicalize(package).map_err(DebianError::file("open", package))?;
    extract(&package)?;
    if package.extension().is_some_and(|ending| ending == "deb") {
        let entries = fs::read_dir(to).map_err(DebianError::file("list", to))?;
        let is_data = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"data.tar"))
        };
        let data = entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_data);
        let none =
            || DebianError::NoKernel { of: package.clone(), what: "it has no data.tar".to_owned() };
        extract(&data.ok_or_else(none)?)?;
    }
    Ok(())
}

/// Copies what `from` has of a kernel to where a kernel of Debian's has it. A link in a package may lead anywhere.
fn take_all(from: &Path, root: &Path) -> Result<(), DebianError> {
    let is_plain = |folder: &&str| {
        let above = Path::new(folder).ancestors().filter(|above| *above != Path::new(""));
        let facts = |path: &Path| fs::symlink_metadata(from.join(path));
        above.into_iter().all(|path| facts(path).is_ok_and(|facts| facts.is_dir()))
    };
    let folders = [BOOT].into_iter().chain(MODULES).filter(is_plain);
    folders.into_iter().try_for_each(|folder| {
        let to = if folder == BOOT { BOOT } else { MODULES[0] };
        take(&from.join(folder), &root.join(to))
    })
}

/// Copies plain files and folders.
fn take(from: &Path, to: &Path) -> Result<(), DebianError> {
    create_dir(to)?;
    for entry in fs::read_dir(from).map_err(DebianError::file("list", from))? {
        let entry = entry.map_err(DebianError::file("list", from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().map_err(DebianError::file("read", &path))? {
            kind if kind.is_dir() => take(&path, &target)?,
            kind if kind.is_file() => {
                fs::copy(&path, &target).map_err(DebianError::file("copy", &path))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The release of the only kernel there.
fn release(root: &Path) -> Result<String, DebianError> {
    let names = |folder: &Path| -> BTreeSet<OsString> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect()
    };
    let of_modules = names(&root.join(MODULES[0])).into_iter();
    let mut releases: BTreeSet<String> =
        of_modules.map(|name| name.to_string_lossy().into_owned()).collect();
    let images = names(&root.join(BOOT)).into_iter();
    releases.extend(
        images.filter_map(|name| Some(name.to_str()?.strip_prefix("vmlinuz-")?.to_owned())),
    );
    let releases: Vec<String> = releases.into_iter().collect();
    let fails = |what: String| DebianError::NoKernel { of: root.to_owned(), what };
    match releases.as_slice() {
        [release] => Ok(release.clone()),
        [] => {
            Err(fails("they have neither boot/vmlinuz-RELEASE nor lib/modules/RELEASE".to_owned()))
        }
        several => Err(fails(format!(
            "they are of several kernels ({}): add one at a time",
            several.join(", ")
        ))),
    }
}

/// Puts the image, unpacked if it is one of arm64 that is packed, where a kernel of Debian's has it.
fn place_image(root: &Path, release: &str) -> Result<(), DebianError> {
    let to = root.join(BOOT).join(format!("vmlinuz-{release}"));
    let beside = root.join(MODULES[0]).join(release).join("vmlinuz");
    let fails = |what: String| DebianError::NoKernel { of: to.clone(), what };
    let from = [&to, &beside].into_iter().find(|path| path.exists());
    let from = from.ok_or_else(|| {
        fails("the kernel's image is missing: add the package that has it, too (kernel-core, linux-image-...)".to_owned())
    })?;
    let bytes = fs::read(from).map_err(DebianError::file("read", from))?;
    let bytes = image::unpacked_for_arm64(bytes).map_err(fails)?;
    create_dir(&root.join(BOOT))?;
    fs::write(&to, bytes).map_err(DebianError::file("write", &to))?;
    let image = KernelImage::open(&to).map_err(|error| fails(error.to_string()))?;
    if image.release != release {
        return Err(fails(format!(
            "the image is of Linux {}, its modules of {release}",
            image.release
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a kernel of x86-64 and a module.
    fn kernel(folder: &Path, release: &str, image_folder: &str) {
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        write(image_folder, &image::tests::named(release));
        write(&format!("lib/modules/{release}/kernel/fs/9p.ko.xz"), b"");
    }

    fn error(sources: &[PathBuf], kernels: &Path) -> String {
        let error = add(sources, kernels).unwrap_err().to_string();
        assert!(!kernels.join(".partial").exists(), "what fails leaves nothing");
        error
    }

    #[test]
    fn a_folder_that_is_no_kernel_or_several_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [from, kernels] = ["from", "kernels"].map(|name| folder.path().join(name));
        fs::create_dir_all(&from).unwrap();
        let of = std::slice::from_ref(&from);
        assert!(error(of, &kernels).contains("neither boot/vmlinuz-RELEASE nor"));
        kernel(&from, "4.18.0-1.x86_64", "lib/modules/4.18.0-1.x86_64/vmlinuz");
        fs::create_dir_all(from.join("lib/modules/3.10.0")).unwrap();
        assert!(error(of, &kernels).contains("several kernels (3.10.0, 4.18.0-1.x86_64)"));
        fs::remove_dir(from.join("lib/modules/3.10.0")).unwrap();
        fs::write(from.join("lib/modules/4.18.0-1.x86_64/vmlinuz"), image::tests::named("5.4.0"))
            .unwrap();
        assert!(error(of, &kernels).contains("is of Linux 5.4.0, its modules of 4.18.0-1.x86_64"));
        fs::remove_file(from.join("lib/modules/4.18.0-1.x86_64/vmlinuz")).unwrap();
        assert!(error(of, &kernels).contains("image is missing"));
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to, secret] = ["from", "to", "secret"].map(|name| folder.path().join(name));
        fs::create_dir_all(from.join("lib")).unwrap();
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("vmlinuz-1"), "").unwrap();
        std::os::unix::fs::symlink(&secret, from.join("boot")).unwrap();
        std::os::unix::fs::symlink(&secret, from.join("lib/modules")).unwrap();
        fs::create_dir_all(secret.join("lib/modules")).unwrap();
        std::os::unix::fs::symlink(&secret, from.join("usr")).unwrap();
        take_all(&from, &to).unwrap();
        assert!(!to.exists());
    }
}
