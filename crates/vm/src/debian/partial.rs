//! Folders that are there whole or not at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use profiler_system::durable;
use profiler_system::files::{create_dir, failed, remove_dir};

use super::command::output;

/// Packages on their way to a folder. They are in a folder beside it, which the next one empties if this process is
/// killed, so there must be only one at a time; dropped before [`place`](Self::place), it leaves nothing.
#[derive(Debug)]
pub struct Partial {
    folder: PathBuf,
    pub(super) to: PathBuf,
}

impl Partial {
    /// An empty one beside `to`.
    ///
    /// # Errors
    /// If its folders cannot be made.
    pub fn new(to: &Path) -> io::Result<Self> {
        let partial = Self { folder: to.with_file_name(".partial"), to: to.to_owned() };
        remove_dir(&partial.folder)?;
        create_dir(&partial.debs())?;
        create_dir(&partial.root())?;
        Ok(partial)
    }

    /// The folder for packages.
    pub fn debs(&self) -> PathBuf {
        self.folder.join("debs")
    }

    /// The folder that is placed.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Unpacks all packages.
    ///
    /// # Errors
    /// If there is no dpkg, or the disk is full.
    pub fn extract(&self) -> io::Result<()> {
        let debs = self.debs();
        for entry in fs::read_dir(&debs).map_err(failed("list", &debs))? {
            let deb = entry.map_err(failed("list", &debs))?.path();
            if deb.extension().is_some_and(|extension| extension == "deb") {
                output(Command::new("dpkg").arg("-x").arg(&deb).arg(self.root()))?;
            }
        }
        Ok(())
    }

    /// Moves what was unpacked to its place, on disk when this returns; what was there is removed.
    ///
    /// # Errors
    /// If it cannot be moved.
    pub fn place(self) -> io::Result<()> {
        let to = &self.to;
        if to.exists() {
            fs::rename(to, self.folder.join("old")).map_err(failed("replace", to))?;
        }
        durable::rename(&self.root(), to).map_err(failed("create", to))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes a folder in one step: killed meanwhile, it leaves no half of one.
///
/// # Errors
/// If it cannot be removed.
pub fn remove(folder: &Path) -> io::Result<()> {
    let partial = Partial::new(folder)?;
    fs::rename(folder, partial.root()).map_err(failed("remove", folder))?;
    remove_dir(&partial.folder)
}
