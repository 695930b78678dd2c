//! Completed intervals on disk: a recording each, in `FOLDER/MODULE-BUILD/START.json`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use tracing::{error, info, warn};

use super::config;
use crate::atomic_file::{self, OutputFile};
use crate::load::make_private;
use crate::profile::unlike::What;
use crate::profile::{Merge, Profile, SCHEMA};

/// Intervals of one build that are kept in memory, as one sum, while they cannot be written.
const MOST_PENDING: u64 = 60;

/// How a recording's first line names its schema, within so many bytes.
const HEAD: usize = 64;

/// The folder of completed intervals.
#[derive(Debug)]
pub(super) struct Store {
    config: config::Store,
    /// Sizes in bytes, by start and path: the oldest first.
    files: BTreeMap<(String, PathBuf), u64>,
    bytes: u64,
    /// Sums of intervals that could not be written, one a build.
    pending: Vec<Pending>,
    not_stored: u64,
    /// Whether it was said that old intervals are removed for new ones.
    is_full: bool,
}

#[derive(Debug)]
struct Pending {
    /// Name of the build's folder.
    build: String,
    sum: Profile,
    intervals: u64,
}

/// The folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep intervals in {}: {source}: name a folder of root's that nobody else can write to", path.display())]
pub struct StoreError {
    /// The folder.
    path: PathBuf,
    /// The reason.
    source: io::Error,
}

impl Store {
    /// The intervals in the folder, which is made if it is missing. What is there and is no interval is left
    /// alone, and named in the log.
    ///
    /// # Errors
    /// If others could change where it is or what is in it, or it cannot be made or read.
    pub(super) fn open(config: config::Store) -> Result<Self, StoreError> {
        let path = config.folder.clone();
        let failed = |source| StoreError { path: path.clone(), source };
        make_private(&path).map_err(failed)?;
        let mut store = Self {
            config,
            files: BTreeMap::new(),
            bytes: 0,
            pending: Vec::new(),
            not_stored: 0,
            is_full: false,
        };
        for entry in fs::read_dir(&path).map_err(failed)? {
            let folder = entry.map_err(failed)?.path();
            if !fs::symlink_metadata(&folder).is_ok_and(|facts| facts.is_dir()) {
                warn!("{} is not of this store, and left alone", folder.display());
                continue;
            }
            atomic_file::remove_stale(&folder);
            for entry in fs::read_dir(&folder).map_err(failed)?.flatten() {
                store.add(entry.path());
            }
        }
        Ok(store)
    }

    /// Counts a file that was there before.
    fn add(&mut self, path: PathBuf) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with('.') {
            return;
        }
        match (start_of(name), whole(&path)) {
            (Some(start), Ok(bytes)) => {
                let key = (start.to_owned(), path.clone());
                self.files.insert(key, bytes);
                self.bytes += bytes;
            }
            (None, _) => warn!("{} is no interval, and left alone", path.display()),
            (_, Err(what)) => warn!("{} {what}, and is left alone", path.display()),
        }
    }

    /// Intervals on disk, their bytes, and intervals that are not there.
    pub(super) fn figures(&self) -> [u64; 3] {
        [self.files.len() as u64, self.bytes, self.not_stored]
    }

    /// Goes on with what another folder had not taken.
    pub(super) fn take_over(&mut self, other: Self) {
        self.pending = other.pending;
        self.not_stored = other.not_stored;
    }

    /// Writes a completed interval of a build, with those before it that could not be written.
    pub(super) fn put(&mut self, module: &str, build: &str, interval: Profile) {
        let is_plain = |c: &char| c.is_ascii_alphanumeric();
        let id: String = build.chars().filter(is_plain).collect();
        let id = if id.is_empty() { "unknown" } else { &id };
        let build = format!("{module}-{id}");
        let waiting = self.pending.iter().position(|pending| pending.build == build);
        let waiting = waiting.map(|at| self.pending.swap_remove(at));
        let Pending { sum, intervals, .. } = match waiting {
            None => Pending { build: build.clone(), sum: interval, intervals: 1 },
            Some(waiting) => self.joined(waiting, interval),
        };
        match self.write(&build, &sum) {
            Ok(()) if intervals > 1 => info!("{intervals} intervals of {build} are on disk, as one"),
            Ok(()) => {}
            Err(error) => {
                warn!("an interval of {build} could not be written, and is kept in memory: {error}");
                self.pending.push(Pending { build, sum, intervals });
            }
        }
    }

    /// The sum of what waits and of a new interval, unless too many wait.
    fn joined(&mut self, waiting: Pending, interval: Profile) -> Pending {
        let Pending { build, sum, intervals } = waiting;
        let lost = if intervals >= MOST_PENDING {
            "they are too many to keep in memory".to_owned()
        } else {
            let mut merge = Merge::new(What::ALL);
            let added = merge.add(sum, &build).and_then(|()| merge.add(interval.clone(), &build));
            match added.and_then(|()| merge.finish()) {
                Ok(sum) => return Pending { build, sum, intervals: intervals + 1 },
                Err(error) => error.to_string(),
            }
        };
        self.not_stored += intervals;
        error!("{intervals} intervals of {build} are lost: {lost}");
        Pending { build, sum: interval, intervals: 1 }
    }

    /// Says that what waits is lost: the daemon ends.
    pub(super) fn end(&mut self) {
        for Pending { build, intervals, .. } in self.pending.drain(..) {
            self.not_stored += intervals;
            error!("{intervals} intervals of {build} are lost: they could not be written");
        }
    }

    fn write(&mut self, build: &str, recording: &Profile) -> Result<(), String> {
        let bytes = recording.to_json();
        let length = bytes.len() as u64;
        let config::Store { folder, max_bytes, min_free_bytes } = &self.config;
        if length > *max_bytes {
            return Err(format!("it has {length} bytes, and max-bytes is {max_bytes}"));
        }
        let text = |error: io::Error| error.to_string();
        let system = statvfs(folder).map_err(|error| text(error.into()))?;
        let free = system.blocks_available().saturating_mul(system.fragment_size());
        if free < length.saturating_add(*min_free_bytes) {
            return Err(format!(
                "{free} bytes are free in {}, and min-free-bytes is {min_free_bytes}",
                folder.display()
            ));
        }
        let of_build = folder.join(build);
        let folder = folder.clone();
        self.make_room(length);
        if !of_build.exists() {
            fs::DirBuilder::new().mode(0o700).create(&of_build).map_err(text)?;
            // Its name is on disk before what is in it.
            File::open(&folder).and_then(|folder| folder.sync_all()).map_err(text)?;
        }
        let start = recording.started.strftime("%Y%m%dT%H%M%S.%6fZ").to_string();
        // After a step of the clock there may be one that began at the same time.
        let names = std::iter::once(start.clone()).chain((2..).map(|n| format!("{start}-{n}")));
        let mut paths = names.map(|name| of_build.join(name + ".json"));
        let path = paths.find(|path| !path.exists()).unwrap_or_default();
        let written = OutputFile::open(&path).and_then(|file| file.commit(&bytes));
        written.map_err(|error| error.to_string())?;
        self.files.insert((start, path), length);
        self.bytes += length;
        Ok(())
    }

    /// Removes the oldest intervals until `bytes` more fit.
    fn make_room(&mut self, bytes: u64) {
        let mut removed = 0;
        while self.bytes + bytes > self.config.max_bytes {
            let Some(((_, path), length)) = self.files.pop_first() else { break };
            self.bytes -= length;
            if let Err(error) = fs::remove_file(&path) {
                warn!("cannot remove {}: {error}", path.display());
                continue;
            }
            removed += 1;
            // Fails if there are others in it.
            let _ = path.parent().map(fs::remove_dir);
        }
        self.not_stored += removed;
        if removed > 0 && !std::mem::replace(&mut self.is_full, true) {
            warn!(
                "intervals in {} take {} bytes: from now on the oldest are removed for new ones",
                self.config.folder.display(),
                self.config.max_bytes
            );
        }
    }
}

/// The start in the name of an interval's file.
fn start_of(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(".json")?;
    let start = stem.split('-').next()?;
    let shape = "00000000T000000.000000Z";
    let fits = |(c, shape): (char, char)| if shape == '0' { c.is_ascii_digit() } else { c == shape };
    let start_fits = start.len() == shape.len() && start.chars().zip(shape.chars()).all(fits);
    let number = stem.get(start.len()..).unwrap_or_default();
    let is_number = number.strip_prefix('-').is_none_or(|number| number.parse::<u32>().is_ok());
    (start_fits && is_number).then_some(start)
}

/// The size of a file that begins and ends as a recording does: a torn one lacks its end.
fn whole(path: &Path) -> Result<u64, String> {
    let unreadable = |error: io::Error| format!("cannot be read ({error})");
    let facts = fs::symlink_metadata(path).map_err(unreadable)?;
    if !facts.is_file() {
        return Err("is no file".to_owned());
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let mut head = Vec::new();
    file.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(unreadable)?;
    let head = String::from_utf8_lossy(&head);
    if !head.contains(&format!("\"schema\": \"{SCHEMA}\"")) {
        return Err("is no recording".to_owned());
    }
    let mut tail = [0; 2];
    let end = file.seek(SeekFrom::End(-2)).and_then(|_| file.read_exact(&mut tail));
    end.map_err(unreadable)?;
    if tail != *b"}\n" {
        return Err("is a recording without its end".to_owned());
    }
    Ok(facts.len())
}
