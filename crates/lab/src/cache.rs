//! Runs of a baseline that were measured before: with them a gate measures the candidate alone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use profiler_base::error::Failure;
use profiler_load::make_private;
use profiler_recording::{Recording, Series};

/// Number of baselines that are kept; the oldest is removed first. One of a driver with 100 handlers takes 30 MB.
const MOST: usize = 8;

/// A hash of all that a result depends on: the bytes of `files` (the module, the kernel, the emulator, the program that measures)
/// and `words` (what is measured, and how).
///
/// # Errors
/// If a file cannot be read.
pub(super) fn key(files: &[&Path], words: &[&str]) -> io::Result<String> {
    let mut hash = Sha256::new();
    for file in files {
        let mut of_file = Sha256::new();
        io::copy(&mut File::open(file)?, &mut of_file)?;
        hash.update(of_file.finalize());
    }
    for word in words {
        hash.update(Sha256::digest(word));
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// The cache in `folder`, which is made if it is missing.
///
/// # Errors
/// If it cannot be made, or others could change what is in it.
pub(super) fn open(folder: &Path) -> io::Result<PathBuf> {
    let folder = std::path::absolute(folder)?;
    make_private(&folder)?;
    Ok(folder)
}

/// The runs that were kept in a file, if it can be read.
pub(super) fn find(file: &Path) -> Option<Vec<Recording>> {
    let runs = Series::read(file).ok()?.runs;
    touch(file);
    Some(runs)
}

/// Marks a file as used, so that it is not the oldest.
pub(super) fn touch(file: &Path) {
    let file = File::options().append(true).open(file);
    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
}

/// Keeps `runs`, and removes the oldest of too many.
///
/// # Errors
/// If they cannot be written.
pub(super) fn keep(file: &Path, runs: &[Recording]) -> Result<(), Failure> {
    Series::new("baseline", runs.to_vec()).write(file)?;
    let beside = file.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten();
    let mut kept: Vec<(SystemTime, PathBuf)> = beside
        .filter(|entry| entry.path().extension().is_some_and(|ending| ending == "json"))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    kept.sort();
    for (_, path) in &kept[..kept.len().saturating_sub(MOST)] {
        // There is one too many until the next time.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_recording::CallTree;
    use profiler_tests::recording::runs;

    #[test]
    fn what_a_run_depends_on_is_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        fs::write(&one, "ab").unwrap();
        fs::write(&two, "c").unwrap();
        let key = |files: &[&Path], words: &[&str]| super::key(files, words).unwrap();
        let first = key(&[&one, &two], &["x", "yz"]);
        assert_eq!(first, key(&[&one, &two], &["x", "yz"]));
        assert_ne!(first, key(&[&two, &one], &["x", "yz"]));
        assert_ne!(first, key(&[&one, &two], &["xy", "z"]));
        fs::write(&one, "a").unwrap();
        fs::write(&two, "bc").unwrap();
        assert_ne!(first, key(&[&one, &two], &["x", "yz"]), "where a file ends counts");
        assert!(super::key(&[&folder.path().join("none")], &[]).is_err());
    }

    #[test]
    fn runs_are_found_again_and_the_oldest_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = open(&folder.path().join("cache")).unwrap();
        let files: Vec<PathBuf> =
            (0..=MOST).map(|number| cache.join(format!("{number}.json"))).collect();
        let measured = runs(&[CallTree::default()]);
        assert!(find(&files[0]).is_none());
        for (age, file) in files[..MOST].iter().enumerate() {
            keep(file, &measured).unwrap();
            let then = SystemTime::now() - std::time::Duration::from_secs(1000 - age as u64);
            File::options().append(true).open(file).unwrap().set_modified(then).unwrap();
        }
        assert_eq!(find(&files[0]).unwrap(), measured);
        keep(&files[MOST], &measured).unwrap();
        let left: Vec<bool> = files.iter().map(|file| find(file).is_some()).collect();
        assert_eq!((left[0], left[1], left[2], left[MOST]), (true, false, true, true), "used last");
        fs::write(&files[2], "{").unwrap();
        assert!(find(&files[2]).is_none(), "what is torn is measured again");
    }
}
