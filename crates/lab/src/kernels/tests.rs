use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// A cache with kernels of these releases, whole but for their content.
fn cache(releases: &[&str]) -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("profiler/kernels"));
    for release in releases {
        unpack(&cache.folder.join(release), release);
    }
    // As the cache itself makes it, whatever the umask is.
    for folder in [&cache.folder, cache.folder.parent().unwrap()] {
        fs::create_dir_all(folder).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    }
    (folder, cache)
}

fn unpack(root: &Path, release: &str) {
    fs::create_dir_all(root.join("boot")).unwrap();
    fs::write(root.join(format!("boot/vmlinuz-{release}")), image(release)).unwrap();
    fs::write(root.join("packages.txt"), format!("linux-image-{release}=6.1.192-2\n")).unwrap();
}

/// What reads as a kernel: of arm64 if its release says so, and else of x86-64.
fn image(release: &str) -> Vec<u8> {
    let mut image = vec![0; 2048];
    if release.ends_with("arm64") || release.ends_with("aarch64") {
        image[0x38..0x3c].copy_from_slice(b"ARM\x64");
        image.extend(format!("Linux version {release} (debian)").bytes());
    } else {
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x210].copy_from_slice(&[15, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        image[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
    }
    image
}

fn releases(kernels: &[Unpacked]) -> Vec<&str> {
    kernels.iter().map(|kernel| kernel.release.as_str()).collect()
}

#[test]
fn the_newest_of_a_version_is_taken() {
    let known = ["6.1.0-9-amd64", "6.1.0-56-amd64", "6.12.107+deb12-amd64"].map(str::to_owned);
    let (_folder, cache) = cache(&["6.12.107+deb12-amd64", "6.1.0-56-amd64", "6.1.0-9-amd64"]);
    assert_eq!(releases(&cache.list()), known);
    for (version, release) in
        [("6.1", &known[1]), ("6.12", &known[2]), ("6", &known[2]), (&known[0], &known[0])]
    {
        assert_eq!(choose(&known, version).unwrap(), release);
        assert_eq!(&cache.newest(version).unwrap().release, release);
    }
    assert!(cache.newest("6.1.0-5").is_none());
    let error = choose(&known, "5.10").unwrap_err().to_string();
    assert!(error.contains("no Linux 5.10: there are 6.1.0-9-amd64, 6.1.0-56-amd64, "), "{error}");
}

#[test]
fn a_version_is_of_this_machine_and_a_release_of_its_own() {
    let other = Arch::ALL.into_iter().find(|arch| *arch != Arch::HERE).unwrap();
    let here = format!("6.1.0-9-{}", Arch::HERE.debian());
    let there = format!("6.1.0-56-{}", other.debian());
    let (_folder, cache) = cache(&[&here, &there]);
    for (version, release) in [("6.1", &here), (&there, &there), ("6.1.0-56", &there)] {
        assert_eq!(&cache.newest(version).unwrap().release, release);
    }
    // Other distributions say it in the kernel's words.
    let [here, there] = [("5", Arch::HERE), ("6", other)]
        .map(|(n, arch)| format!("4.18.0-{n}.el8.{}", arch.name()));
    let (_folder, cache) = self::cache(&[&here, &there]);
    assert_eq!(cache.newest("4.18").unwrap().release, here);
}

#[test]
fn a_kernel_that_is_not_whole_is_not_there() {
    let (_folder, cache) = cache(&["6.1.0-56-amd64"]);
    let partial = Partial::new(&cache.folder.join("6.12.9-amd64")).unwrap();
    unpack(&partial.root(), "6.12.9-amd64");
    unpack(&cache.folder.join("6.13.9-amd64"), "6.13.9-amd64");
    fs::remove_file(cache.folder.join("6.13.9-amd64/packages.txt")).unwrap();
    assert_eq!(releases(&cache.list()), ["6.1.0-56-amd64"]);
    // As if the process had been killed: the next one begins anew.
    std::mem::forget(partial);
    let partial = Partial::new(&cache.folder.join("6.12.9-amd64")).unwrap();
    assert!(fs::read_dir(partial.root()).unwrap().next().is_none());
    unpack(&partial.root(), "6.12.9-amd64");
    partial.place().unwrap();
    assert_eq!(releases(&cache.list()), ["6.1.0-56-amd64", "6.12.9-amd64"]);
    assert!(!cache.folder.join(".partial").exists());
    drop(Partial::new(&cache.folder.join("6.14.9-amd64")).unwrap());
    assert!(!cache.folder.join(".partial").exists(), "what fails leaves nothing");
}

#[test]
fn all_of_a_version_are_removed_or_none() {
    let (_folder, cache) = cache(&["6.1.0-9-amd64", "6.1.0-56-amd64", "6.12.9-amd64"]);
    let versions = |versions: &[&str]| versions.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    let error = cache.remove(&versions(&["6.1", "5.10"]), &[]).unwrap_err();
    assert_eq!(error.code, exit::USAGE, "{error}");
    assert!(error.to_string().contains("no kernel 5.10 in "), "{error}");
    assert_eq!(cache.list().len(), 3, "nothing was removed");
    let removed = cache.remove(&versions(&["6.1", "4.18"]), &versions(&["4.18.0-9"])).unwrap();
    assert_eq!(releases(&removed), ["6.1.0-9-amd64", "6.1.0-56-amd64"]);
    assert_eq!(releases(&cache.list()), ["6.12.9-amd64"]);
    assert!(!cache.folder.join("6.1.0-9-amd64").exists());
    assert!(!cache.folder.join(".partial").exists());
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
    fs::write(cached.path().join("packages.txt"), "linux-image-6.1.0-9-amd64=6.1.9-1\n").unwrap();
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
    assert!(none.contains("no kernel `5.10`") && none.contains("`profiler kernels add`"), "{none}");
    assert!(none.contains("`profiler kernels fetch 5.10`"), "{none}");
    assert!(none.contains("installed: 6.1.0-9-amd64, 6.12.9"), "{none}");
    let several = error(root.path().to_str().unwrap());
    assert!(several.contains("holds 2 files boot/vmlinuz-*"), "{several}");
}
