//! Runs of a baseline that were measured before: with them a gate measures the candidate alone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use crate::error::Failure;
use crate::load::make_private;
use crate::recording::{Recording, Series};

/// Baselines that are kept; the oldest goes first. That of a driver with 100 handlers has 30 MB.
const MOST: usize = 8;

/// A folder of recordings, each named by what it depends on.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// What runs depend on, as a file's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// Of the bytes of `files` (the module, the kernel, the emulator, the program that measures) and of `words` (what is
    /// measured, and how).
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of(files: &[&Path], words: &[&str]) -> io::Result<Self> {
        let mut hash = Sha256::new();
        for file in files {
            let mut of_file = Sha256::new();
            io::copy(&mut File::open(file)?, &mut of_file)?;
            hash.update(of_file.finalize());
        }
        for word in words {
            hash.update(Sha256::digest(word));
        }
        let hex = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(hex))
    }
}

impl Cache {
    /// The cache in `folder`, which is made if it is missing.
    ///
    /// # Errors
    /// If it cannot be made, or others could change what is in it.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let folder = std::path::absolute(folder)?;
        make_private(&folder)?;
        Ok(Self { folder })
    }

    fn path(&self, Key(name): &Key) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    /// The runs that were kept under `key`; none if there are none, or none that can be read.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<Vec<Recording>> {
        let path = self.path(key);
        let runs = Series::read(&path).ok()?.runs;
        // What is used is not the oldest.
        let _ = File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        Some(runs)
    }

    /// Keeps `runs`, and removes the oldest of too many.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn keep(&self, key: &Key, runs: &[Recording]) -> Result<(), Failure> {
        Series::new("baseline", runs.to_vec()).write(&self.path(key))?;
        let mut kept: Vec<(SystemTime, PathBuf)> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::tests::runs;
    use crate::recording::CallTree;

    #[test]
    fn what_a_run_depends_on_is_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        fs::write(&one, "ab").unwrap();
        fs::write(&two, "c").unwrap();
        let key = |files: &[&Path], words: &[&str]| Key::of(files, words).unwrap();
        let first = key(&[&one, &two], &["x", "yz"]);
        assert_eq!(first, key(&[&one, &two], &["x", "yz"]));
        assert_ne!(first, key(&[&two, &one], &["x", "yz"]));
        assert_ne!(first, key(&[&one, &two], &["xy", "z"]));
        fs::write(&one, "a").unwrap();
        fs::write(&two, "bc").unwrap();
        assert_ne!(first, key(&[&one, &two], &["x", "yz"]), "where a file ends counts");
        assert!(Key::of(&[&folder.path().join("none")], &[]).is_err());
    }

    #[test]
    fn runs_are_found_again_and_the_oldest_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("cache");
        let cache = Cache::open(&below).unwrap();
        let keys: Vec<Key> =
            (0..=MOST).map(|number| Key::of(&[], &[&number.to_string()]).unwrap()).collect();
        let measured = runs(&[CallTree::default()]);
        assert!(cache.find(&keys[0]).is_none());
        for (age, key) in keys[..MOST].iter().enumerate() {
            cache.keep(key, &measured).unwrap();
            let then = SystemTime::now() - std::time::Duration::from_secs(1000 - age as u64);
            File::options().append(true).open(cache.path(key)).unwrap().set_modified(then).unwrap();
        }
        assert_eq!(cache.find(&keys[0]).unwrap(), measured);
        cache.keep(&keys[MOST], &measured).unwrap();
        let left: Vec<bool> = keys.iter().map(|key| cache.find(key).is_some()).collect();
        assert_eq!((left[0], left[1], left[2], left[MOST]), (true, false, true, true), "used last");
        fs::write(cache.path(&keys[2]), "{").unwrap();
        assert!(cache.find(&keys[2]).is_none(), "what is torn is measured again");
    }
}
