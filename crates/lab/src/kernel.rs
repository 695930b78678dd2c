//! Finds the kernel to boot.

use std::path::{Path, PathBuf};

use profiler_vm::KernelImage;

use crate::kernels::Cache;
use profiler_base::error::{Failure, exit};

/// The kernel that `given` names: a file, a folder, a version in /boot, or the newest of a version that was fetched.
///
/// # Errors
/// If there is none.
pub fn find(given: &str) -> Result<KernelImage, Failure> {
    find_in(Path::new("/"), Cache::of_user, given)
}

fn find_in(
    root: &Path,
    cache: impl FnOnce() -> Result<Cache, Failure>,
    given: &str,
) -> Result<KernelImage, Failure> {
    let path = Path::new(given);
    let installed = root.join("boot").join(format!("vmlinuz-{given}"));
    let file = if path.is_dir() {
        match images_in(&path.join("boot")).as_slice() {
            [image] => image.clone(),
            images => {
                return Err(cannot_measure(format!(
                    "{given} holds {} files boot/vmlinuz-*: give the vmlinuz itself with --kernel",
                    images.len()
                )));
            }
        }
    } else if path.exists() {
        path.to_owned()
    } else if !given.contains('/') && installed.exists() {
        installed
    } else {
        let cache = cache().map_err(|failure| cannot_measure(failure.message))?;
        cache.newest(given).ok_or_else(|| not_found(root, given))?.image()
    };
    KernelImage::open(&file).map_err(|error| cannot_measure(error.to_string()))
}

fn cannot_measure(text: String) -> Failure {
    Failure::new(exit::CANNOT_MEASURE, text)
}

fn not_found(root: &Path, given: &str) -> Failure {
    let images = images_in(&root.join("boot"));
    let versions =
        images.iter().filter_map(|path| path.file_name()?.to_str()?.strip_prefix("vmlinuz-"));
    let versions: Vec<&str> = versions.collect();
    let installed = if versions.is_empty() { "none".to_owned() } else { versions.join(", ") };
    cannot_measure(format!(
        "no kernel `{given}`: there is no such file or folder, and no /boot/vmlinuz-{given} \
         (installed: {installed}); `profiler kernels fetch {given}` fetches Debian's, and `profiler kernels \
         add` takes packages of others; or unpack them and give the folder with --kernel"
    ))
}

/// Kernels in a folder, sorted by name.
fn images_in(folder: &Path) -> Vec<PathBuf> {
    let folder = glob::Pattern::escape(&folder.to_string_lossy());
    glob::glob(&format!("{folder}/vmlinuz-*")).into_iter().flatten().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The checked part of a bzImage's setup code.
    fn image(release: &str) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
        image
    }

    fn tree(releases: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("boot")).unwrap();
        for release in releases {
            let file = root.path().join("boot").join(format!("vmlinuz-{release}"));
            fs::write(file, image(release)).unwrap();
            fs::create_dir_all(root.path().join("lib/modules").join(release)).unwrap();
        }
        root
    }

    fn find_without(root: &Path, given: &str) -> Result<KernelImage, Failure> {
        let none = tempfile::tempdir().unwrap();
        find_in(root, || Ok(Cache::at(none.path().into())), given)
    }

    #[test]
    fn a_version_a_folder_and_a_file_are_kernels() {
        let root = tree(&["6.1.0-9-amd64"]);
        let of_version = find_without(root.path(), "6.1.0-9-amd64").unwrap();
        assert_eq!(of_version.release, "6.1.0-9-amd64");
        let folder = root.path().to_str().unwrap();
        assert_eq!(find_without(Path::new("/"), folder).unwrap(), of_version);
        let file = of_version.path.to_str().unwrap();
        assert_eq!(find_without(Path::new("/"), file).unwrap(), of_version);
    }

    #[test]
    fn a_version_that_was_fetched_is_a_kernel() {
        let cached = tree(&["6.1.0-9-amd64"]);
        let folder = cached.path().parent().unwrap().join("none");
        fs::write(cached.path().join("packages.txt"), "linux-image-6.1.0-9-amd64=6.1.9-1\n")
            .unwrap();
        let cache = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(cached.path(), cache.path().join("6.1.0-9-amd64")).unwrap();
        let find = |given: &str| find_in(&folder, || Ok(Cache::at(cache.path().into())), given);
        assert_eq!(find("6.1").unwrap().release, "6.1.0-9-amd64");
        assert!(find("6.12").unwrap_err().message.contains("no kernel `6.12`"));
        // One in /boot needs no cache, whatever that is.
        let installed = find_in(cached.path(), || unreachable!(), "6.1.0-9-amd64");
        assert_eq!(installed.unwrap().release, "6.1.0-9-amd64");
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let root = tree(&["6.1.0-9-amd64", "6.12.9"]);
        let error = |given: &str| find_without(root.path(), given).unwrap_err().to_string();
        let none = error("5.10");
        assert!(
            none.contains("no kernel `5.10`") && none.contains("`profiler kernels add`"),
            "{none}"
        );
        assert!(none.contains("`profiler kernels fetch 5.10`"), "{none}");
        assert!(none.contains("installed: 6.1.0-9-amd64, 6.12.9"), "{none}");
        let several = error(root.path().to_str().unwrap());
        assert!(several.contains("holds 2 files boot/vmlinuz-*"), "{several}");
    }
}
