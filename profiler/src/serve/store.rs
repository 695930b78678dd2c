//! Completed intervals on disk: a recording each, in `FOLDER/MODULE-BUILD/START-NUMBER.json`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::rc::Rc;

use jiff::civil::DateTime;
use nix::sys::statvfs::statvfs;
use tracing::{error, info, warn};

use profiler_base::atomic_file::{self, OutputFile};
use profiler_base::error::Failure;
use profiler_base::text::plural;
use profiler_load::make_private;
use profiler_recording::unlike::What;
use profiler_recording::{Merge, Recording};

use super::config;
use super::ledger::{self, Entry, Ledger};
use super::state::Intervals;
use super::unusable;

/// Sums that are kept in memory while they cannot be written, over all builds.
const MOST_PENDING: usize = 16;

/// Most sources that such a sum names; beyond it counts as one source, so that its size stays bounded.
const MOST_SOURCES: usize = 60;

/// A start in a file's name.
const START: &str = "%Y%m%dT%H%M%S.%6fZ";

#[derive(Debug)]
pub(super) struct Store {
    config: config::Store,
    /// By number, which counts the intervals of this folder from 1 in the order in which they were closed; of several, the last.
    files: BTreeMap<u64, Stored>,
    /// Sums of intervals that could not be written, the oldest first; one a build, unless its intervals do not add up.
    pending: Vec<Pending>,
    ledger: Ledger,
    /// Bytes of the files, and how many were removed or lost.
    counts: Intervals,
    /// The number of the interval that was closed last, as far as is known.
    last: u64,
    /// Whether it was logged that old intervals are removed for new ones.
    is_full: bool,
}

#[derive(Debug)]
struct Stored {
    /// That of its build, which all files there share: there may be 100,000.
    folder: Rc<Path>,
    name: Box<str>,
    bytes: u64,
}

#[derive(Debug)]
struct Pending {
    /// Name of the build's folder.
    build: String,
    sum: Recording,
    intervals: u64,
    /// Number of the interval that was closed last.
    number: u64,
}

impl Store {
    /// The intervals in the folder, which is made if it is missing. Other files are left
    /// alone, and named in the log.
    ///
    /// # Errors
    /// If others could change where it is or what is in it, or it cannot be made or read.
    pub(super) fn open(config: config::Store) -> Result<Self, Failure> {
        let path = config.folder.clone();
        let failed = unusable(&path, "intervals");
        make_private(&path).map_err(&failed)?;
        let (ledger, before) = Ledger::open(&path);
        let mut store = Self {
            config,
            files: BTreeMap::new(),
            pending: Vec::new(),
            ledger,
            counts: Intervals::default(),
            last: 0,
            is_full: false,
        };
        for entry in fs::read_dir(&path).map_err(&failed)? {
            let folder = entry.map_err(&failed)?.path();
            if folder.ends_with(ledger::NAME) {
                continue;
            }
            if !fs::symlink_metadata(&folder).is_ok_and(|facts| facts.is_dir()) {
                warn!("ignoring {}: not a folder of intervals", folder.display());
                continue;
            }
            atomic_file::remove_stale(&folder);
            let folder: Rc<Path> = folder.into();
            for entry in fs::read_dir(&folder).map_err(&failed)?.flatten() {
                store.count_file(&folder, &entry.path());
            }
        }
        let highest = store.files.last_key_value().map_or(0, |(number, _)| *number);
        store.last = highest.max(before.closed);
        store.count_killed(before, highest);
        Ok(store)
    }

    /// Counts intervals that the previous daemon had closed, but not written, when it was killed.
    fn count_killed(&mut self, before: Entry, highest: u64) {
        // Just written, and not noted yet.
        let written = if before.closed == highest { before.under_way } else { 0 };
        let lost = before.waiting.saturating_sub(written);
        if lost > 0 {
            let last = format!("up to number {}", before.closed);
            self.lose(
                lost,
                &last,
                "closed, and in memory alone when the daemon before was killed; make room on the disk, or end the daemon \
                 by SIGTERM",
            );
        }
        self.write_ledger(0);
    }

    fn lose(&mut self, lost: u64, which: &str, why: &str) {
        self.counts.lost += lost;
        error!("lost {lost} interval{} {which}: {why}", plural(lost));
    }

    /// Notes on disk what would be lost with this process: the intervals that wait, of which `under_way` are being written to the
    /// file of the last number.
    fn write_ledger(&mut self, under_way: u64) {
        let waiting = self.intervals().waiting;
        self.ledger.write(Entry { closed: self.last, waiting, under_way });
    }

    pub(super) fn set_bounds(&mut self, max_bytes: u64, min_free_bytes: u64) {
        (self.config.max_bytes, self.config.min_free_bytes) = (max_bytes, min_free_bytes);
        self.is_full = false;
    }

    /// Counts a file that was there before.
    fn count_file(&mut self, folder: &Rc<Path>, path: &Path) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let facts = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
        match number_in(name).zip(facts) {
            Some((number, _)) if self.files.contains_key(&number) => {
                warn!("ignoring {}: another interval has its number", path.display());
            }
            Some((number, facts)) => {
                let (folder, bytes) = (Rc::clone(folder), facts.len());
                self.counts.bytes += bytes;
                self.files.insert(number, Stored { folder, name: name.into(), bytes });
            }
            // A temporary file that another program writes.
            None if name.starts_with('.') => {}
            None => warn!("ignoring {}: not an interval file", path.display()),
        }
    }

    /// Where the intervals are now.
    pub(super) fn intervals(&self) -> Intervals {
        let waiting = self.pending.iter().map(|pending| pending.intervals).sum();
        Intervals { on_disk: self.files.len() as u64, waiting, ..self.counts }
    }

    /// Writes a completed interval of a build, with those before it that could not be written.
    pub(super) fn put(&mut self, module: &str, build: &str, interval: Recording) {
        let build = folder_name(module, build);
        self.last += 1;
        let mut new = Pending { build, sum: interval, intervals: 1, number: self.last };
        if let Some(at) = self.pending.iter().rposition(|pending| pending.build == new.build) {
            match joined(&self.pending[at], &new) {
                Ok(sum) => {
                    self.pending.remove(at);
                    new = sum;
                }
                Err(error) => warn!(
                    "intervals of {} that wait do not add up, and are kept apart: {error}",
                    new.build
                ),
            }
        }
        let (build, intervals) = (new.build.clone(), new.intervals);
        self.pending.push(new);
        self.write_ledger(intervals);
        if let Err(error) = self.write_newest_first(false) {
            warn!("an interval of {build} could not be written, and is kept in memory: {error}");
            self.bound_pending();
        }
    }

    /// Drops the oldest sums where more wait than memory is meant for.
    fn bound_pending(&mut self) {
        while self.pending.len() > MOST_PENDING {
            let Pending { build, intervals, .. } = self.pending.remove(0);
            let why =
                format!("intervals of {MOST_PENDING} builds wait in memory: make room on the disk");
            self.lose(intervals, &format!("of {build}"), &why);
        }
        self.write_ledger(0);
    }

    /// Writes what waits, including builds that are no longer measured.
    pub(super) fn write_pending(&mut self) {
        // What cannot be written still waits.
        let _ = self.write_newest_first(true);
    }

    /// Writes what waits; `goes_on` to others where there is no room for one. To write takes CPU time, which a full disk must not
    /// multiply.
    fn write_newest_first(&mut self, goes_on: bool) -> Result<(), String> {
        let (mut left, mut written) = (Vec::new(), Ok(()));
        while let Some(sum) = self.pending.pop() {
            let Pending { build, intervals, .. } = &sum;
            if let Err(error) = self.write(build, &sum.sum, sum.number) {
                left.push(sum);
                written = Err(error);
                if !goes_on {
                    break;
                }
            } else if *intervals > 1 {
                info!("{intervals} intervals of {build} are on disk, as one");
            }
        }
        self.pending.extend(left.into_iter().rev());
        self.write_ledger(0);
        written
    }

    /// The daemon ends: logs what is lost.
    pub(super) fn end(&mut self) {
        self.write_pending();
        for Pending { build, intervals, .. } in std::mem::take(&mut self.pending) {
            self.lose(intervals, &format!("of {build}"), "it could not be written");
        }
        self.write_ledger(0);
    }

    fn write(&mut self, build: &str, recording: &Recording, number: u64) -> Result<(), String> {
        let text = recording.to_json();
        let bytes = text.len() as u64;
        let config::Store { folder, max_bytes, min_free_bytes } = self.config.clone();
        if bytes > max_bytes {
            return Err(format!("it has {bytes} bytes, and max-bytes is {max_bytes}"));
        }
        let system = statvfs(&folder).map_err(|error| error.to_string())?;
        let free = system.blocks_available().saturating_mul(system.fragment_size());
        if free < bytes.saturating_add(min_free_bytes) {
            let folder = folder.display();
            return Err(format!(
                "{free} bytes are free in {folder}, and min-free-bytes is {min_free_bytes}"
            ));
        }
        self.make_room(bytes);
        let of_build = folder.join(build);
        if !of_build.exists() {
            let made = fs::DirBuilder::new().mode(0o700).create(&of_build);
            // Sync the folder's name before its files.
            let synced = made.and_then(|()| fs::File::open(&folder)?.sync_all());
            synced.map_err(|error| error.to_string())?;
        }
        let name = format!("{}-{number}.json", recording.started.strftime(START));
        let output = OutputFile::open(&of_build.join(&name));
        output.and_then(|it| it.commit(&text)).map_err(|error| error.to_string())?;
        self.counts.bytes += bytes;
        let (folder, name) = (of_build.into(), name.into());
        self.files.insert(number, Stored { folder, name, bytes });
        Ok(())
    }

    /// Removes the oldest intervals until `bytes` more fit.
    fn make_room(&mut self, bytes: u64) {
        let mut removed = 0;
        while self.counts.bytes + bytes > self.config.max_bytes
            && let Some(oldest) = self.files.first_entry()
        {
            let Stored { folder, name, bytes } = oldest.get();
            let path = folder.join(&**name);
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                warn!("cannot remove {}: {error}", path.display());
                break;
            }
            self.counts.bytes -= bytes;
            removed += 1;
            // Fails if there are others in it.
            let _ = fs::remove_dir(folder);
            oldest.remove();
        }
        self.counts.removed += removed;
        if removed > 0 && !std::mem::replace(&mut self.is_full, true) {
            warn!(
                "intervals in {} take {} bytes: from now on the oldest are removed for new ones",
                self.config.folder.display(),
                self.config.max_bytes
            );
        }
    }
}

fn folder_name(module: &str, build: &str) -> String {
    let id: String = build.chars().filter(char::is_ascii_alphanumeric).collect();
    let id = if id.is_empty() { "unknown" } else { &id };
    format!("{module}-{id}")
}

/// The sum of a build's waiting intervals and its new one.
fn joined(waiting: &Pending, new: &Pending) -> Result<Pending, Failure> {
    let mut merge = Merge::new(What::ALL);
    let mut sum = waiting.sum.clone();
    if sum.sources.len() >= MOST_SOURCES {
        sum.sources.clear();
    }
    merge.add(sum, &waiting.build)?;
    merge.add(new.sum.clone(), &new.build)?;
    let intervals = waiting.intervals + new.intervals;
    Ok(Pending { build: new.build.clone(), sum: merge.finish()?, intervals, number: new.number })
}

/// The number in the name of an interval's file.
fn number_in(name: &str) -> Option<u64> {
    let (start, number) = name.strip_suffix(".json")?.split_once('-')?;
    DateTime::strptime(START, start).ok()?;
    number.parse().ok().filter(|number| *number < u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    use super::super::attachment::tests::{attachment, drains};
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn config(folder: &Path, max_bytes: u64) -> config::Store {
        config::Store { folder: folder.join("store"), max_bytes, min_free_bytes: 0 }
    }

    /// An interval of `calls` that began `second` seconds after midnight.
    fn interval(calls: u64, second: u64) -> Recording {
        let mut attached = attachment("aa", drains(&[calls], 9));
        attached.drain(true).unwrap();
        let started = format!("2026-11-23T00:00:{second:02}.5Z").parse().unwrap();
        Recording { started, ..attached.close() }
    }

    /// In a store of a short interval there are 80,000 files.
    #[test]
    fn an_interval_is_written_without_reading_the_folder() {
        const FOLDER: &str = "PROFILER_TEST_STORE";
        if let Some(folder) = std::env::var_os(FOLDER) {
            let folder = std::path::PathBuf::from(folder);
            let mut store = Store::open(config(&folder, 1 << 20)).unwrap();
            store.put("m", "aa", interval(1, 0));
            fs::create_dir(folder.join("marker")).unwrap();
            (1..5).for_each(|second| store.put("m", "aa", interval(second, second)));
            fs::create_dir(folder.join("marker2")).unwrap();
            return;
        }
        let folder = folder();
        let log = folder.path().join("calls");
        let test = std::thread::current().name().unwrap().to_owned();
        let traced = std::process::Command::new("strace")
            .args(["-f", "-y", "-qq", "-e", "trace=getdents64,mkdir,fsync,rename,renameat", "-o"])
            .args([log.as_path(), &std::env::current_exe().unwrap()])
            .args(["--exact", &test])
            .env(FOLDER, folder.path())
            .output()
            .expect("strace is needed: install package `strace`");
        assert!(traced.status.success(), "{traced:?}");
        let calls = fs::read_to_string(log).unwrap();
        let calls = calls.split("marker").nth(1).unwrap();
        let count = |call: &str| calls.matches(call).count();
        assert_eq!((count("getdents64("), count("rename")), (0, 4), "{calls}");
        // The file and its folder.
        assert!(count("fsync(") >= 8, "{calls}");
    }

    /// Names in the folder of a build.
    fn names(store: &Path, build: &str) -> Vec<String> {
        let entries = fs::read_dir(store.join("store").join(build)).into_iter().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    const NAMES: [&str; 3] = [
        "20261123T000001.500000Z-1.json",
        "20261123T000002.500000Z-2.json",
        "20261123T000003.500000Z-3.json",
    ];

    #[test]
    fn intervals_are_files_that_merge() {
        let folder = folder();
        let mut store = Store::open(config(folder.path(), 1 << 20)).unwrap();
        let all: Vec<Recording> = (1..=3).map(|n| interval(10 * n, n)).collect();
        all.iter().for_each(|one| store.put("driver", "aa", one.clone()));
        store.put("driver", "", all[0].clone());
        assert_eq!(names(folder.path(), "driver-aa"), NAMES);
        assert_eq!(names(folder.path(), "driver-unknown"), ["20261123T000001.500000Z-4.json"]);
        for (name, one) in NAMES.iter().zip(&all) {
            let read = Recording::read(&folder.path().join("store/driver-aa").join(name)).unwrap();
            assert_eq!(&read, one);
        }
        let Intervals { on_disk: files, bytes, .. } = store.intervals();
        assert_eq!(store.intervals(), Intervals { on_disk: 4, bytes, ..Intervals::default() });
        let mode =
            fs::metadata(folder.path().join("store/driver-aa")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // A new start counts them.
        let store = Store::open(config(folder.path(), 1 << 20)).unwrap();
        assert_eq!(store.intervals(), Intervals { on_disk: files, bytes, ..Intervals::default() });
    }

    /// A clock that was far ahead, and one that stood still: what was written first goes first, also after a new start.
    #[test]
    fn the_order_is_that_of_writing_whatever_the_clock_said() {
        let folder = folder();
        let bytes = interval(10, 1).to_json().len() as u64;
        let mut store = Store::open(config(folder.path(), 4 * bytes)).unwrap();
        [50, 1, 1].into_iter().for_each(|second| store.put("driver", "aa", interval(10, second)));
        let mut store = Store::open(config(folder.path(), 2 * bytes + bytes / 2)).unwrap();
        store.put("driver", "aa", interval(10, 2));
        let expected = ["20261123T000001.500000Z-3.json", "20261123T000002.500000Z-4.json"];
        assert_eq!(names(folder.path(), "driver-aa"), expected);
        assert_eq!(store.intervals().removed, 2);
    }

    #[test]
    fn the_oldest_go_first() {
        let folder = folder();
        let bytes = interval(10, 1).to_json().len() as u64;
        let mut store = Store::open(config(folder.path(), 2 * bytes + bytes / 2)).unwrap();
        store.put("driver", "old", interval(10, 1));
        store.put("driver", "new", interval(10, 2));
        store.put("driver", "new", interval(10, 3));
        assert_eq!(names(folder.path(), "driver-new"), NAMES[1..]);
        assert!(!folder.path().join("store/driver-old").exists(), "it is empty");
        let kept = Intervals { on_disk: 2, bytes: 2 * bytes, removed: 1, ..Intervals::default() };
        assert_eq!(store.intervals(), kept);
        // One that never fits is not put in the place of all others.
        store.put("driver", "new", interval(5000, 4));
        assert_eq!(store.intervals(), Intervals { waiting: 1, ..kept });
    }

    #[test]
    fn what_could_not_be_written_is_written_later_as_one() {
        let folder = folder();
        let full = config::Store { min_free_bytes: 1 << 60, ..config(folder.path(), 1 << 20) };
        let mut store = Store::open(full).unwrap();
        (1..=3).for_each(|n| store.put("driver", "aa", interval(10 * n, n)));
        store.put("driver", "bb", interval(5, 1));
        assert_eq!(store.intervals(), Intervals { waiting: 4, ..Intervals::default() });
        assert!(names(folder.path(), "driver-aa").is_empty(), "nothing below the floor");
        store.config.min_free_bytes = 0;
        store.put("driver", "aa", interval(40, 4));
        let name = "20261123T000001.500000Z-5.json";
        assert_eq!(names(folder.path(), "driver-aa"), [name]);
        let read = Recording::read(&folder.path().join("store/driver-aa").join(name)).unwrap();
        // One of `rare` in each.
        assert_eq!((read.calls(), read.sources.len()), (10 + 20 + 30 + 40 + 4, 4));
        // A build that is not measured any more has no interval to come with.
        assert_eq!(names(folder.path(), "driver-bb"), ["20261123T000001.500000Z-4.json"]);
        store.config.min_free_bytes = 1 << 60;
        store.put("driver", "bb", interval(5, 2));
        store.end();
        let Intervals { waiting, lost, .. } = store.intervals();
        assert_eq!((waiting, lost), (0, 1), "what cannot be written in the end is lost");
    }

    fn full(folder: &Path) -> config::Store {
        config::Store { min_free_bytes: 1 << 60, ..config(folder, 1 << 20) }
    }

    #[test]
    fn what_cannot_be_written_goes_on_being_summed() {
        let folder = folder();
        let mut store = Store::open(full(folder.path())).unwrap();
        let count = 2 * MOST_SOURCES as u64 + 5;
        for n in 0..count {
            let mut one = interval(1, 1);
            one.started += std::time::Duration::from_secs(60 * n);
            store.put("driver", "aa", one);
        }
        let waiting = Intervals { waiting: count, ..Intervals::default() };
        assert_eq!((store.pending.len(), store.intervals()), (1, waiting));
        let sum = &store.pending[0].sum;
        // One of `busy` and one of `rare` in each.
        assert_eq!(sum.calls(), 2 * count);
        assert!(sum.sources.len() <= MOST_SOURCES + 1, "{}", sum.sources.len());
    }

    #[test]
    fn what_does_not_add_up_waits_apart_and_the_oldest_of_too_many_go() {
        let folder = folder();
        let mut store = Store::open(full(folder.path())).unwrap();
        store.put("driver", "aa", interval(1, 1));
        // The same interval again cannot be a part of the sum.
        store.put("driver", "aa", interval(1, 1));
        assert_eq!((store.pending.len(), store.intervals().waiting), (2, 2));
        for n in 2..=MOST_PENDING as u64 {
            store.put("driver", &format!("b{n}"), interval(1, n));
        }
        let most = MOST_PENDING as u64;
        let bounded = Intervals { waiting: most, lost: 1, ..Intervals::default() };
        assert_eq!(store.intervals(), bounded);
        assert_eq!(store.pending[0].number, 2, "the oldest is gone");
    }

    #[test]
    fn what_a_kill_takes_is_reported_by_the_next_daemon() {
        let folder = folder();
        let mut store = Store::open(config(folder.path(), 1 << 20)).unwrap();
        store.put("driver", "aa", interval(10, 1));
        store.config.min_free_bytes = 1 << 60;
        (2..=4).for_each(|n| store.put("driver", "aa", interval(10, n)));
        store.put("driver", "bb", interval(10, 5));
        // Killed: nothing is called any more.
        drop(store);
        let mut store = Store::open(config(folder.path(), 1 << 20)).unwrap();
        let Intervals { on_disk, waiting, lost, .. } = store.intervals();
        assert_eq!((on_disk, waiting, lost), (1, 0, 4));
        // The gap in the numbers stays.
        store.put("driver", "aa", interval(10, 6));
        assert!(
            names(folder.path(), "driver-aa")
                .contains(&"20261123T000006.500000Z-6.json".to_owned())
        );
        drop(store);
        // It is reported once.
        let mut store = Store::open(config(folder.path(), 1 << 20)).unwrap();
        assert_eq!(store.intervals().lost, 0);
        // The interval of another build that was written last is none of those that wait.
        store.config.min_free_bytes = 1 << 60;
        store.put("driver", "aa", interval(10, 7));
        store.config.max_bytes = 1;
        store.config.min_free_bytes = 0;
        store.put("driver", "aa", interval(10, 8));
        store.config.max_bytes = 1 << 20;
        let waiting = std::mem::take(&mut store.pending);
        store.put("driver", "bb", interval(10, 9));
        store.pending = waiting;
        store.write_ledger(0);
        drop(store);
        assert_eq!(Store::open(config(folder.path(), 1 << 20)).unwrap().intervals().lost, 2);
    }

    #[test]
    fn what_is_foreign_is_left_alone() {
        let folder = folder();
        let mut store = Store::open(config(folder.path(), 1 << 20)).unwrap();
        (1..=3).for_each(|n| store.put("driver", "aa", interval(10, n)));
        let of_build = folder.path().join("store/driver-aa");
        let bytes = fs::metadata(of_build.join(NAMES[0])).unwrap().len();
        fs::rename(of_build.join(NAMES[0]), of_build.join("notes.json")).unwrap();
        fs::create_dir(of_build.join("20261123T000004.500000Z-4.json")).unwrap();
        symlink("/etc/hostname", of_build.join("20261123T000005.500000Z-5.json")).unwrap();
        fs::write(folder.path().join("store/README"), "mine").unwrap();
        symlink("/etc", folder.path().join("store/link")).unwrap();
        let mut store = Store::open(config(folder.path(), 2 * bytes)).unwrap();
        let two = Intervals { on_disk: 2, bytes: 2 * bytes, ..Intervals::default() };
        assert_eq!(store.intervals(), two);
        // Not even to make room.
        store.put("driver", "aa", interval(10, 9));
        assert_eq!(store.intervals(), Intervals { removed: 1, ..two });
        let left = names(folder.path(), "driver-aa");
        assert_eq!(left.len(), 5, "{left:?}");
        assert!(left.contains(&"notes.json".to_owned()) && !left.contains(&NAMES[1].to_owned()));
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let folder = folder();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Store::open(config(&open, 1 << 20)).unwrap_err().to_string();
        assert!(error.contains("others can change") && error.contains("open"), "{error}");
        assert!(!open.join("store").exists());
    }

    #[test]
    fn only_names_of_intervals_are_parsed() {
        assert_eq!(NAMES.map(number_in), [Some(1), Some(2), Some(3)]);
        for other in [
            "x-1.json",
            "20261123T000001.500000Z-1",
            "20261123T000001.500000Z.json",
            "20261123T000001.500000Z-x.json",
            "20261123T00000x.500000Z-1.json",
            "20261123T000001.500000Z-18446744073709551615.json",
            ".json",
        ] {
            assert_eq!(number_in(other), None, "{other}");
        }
    }
}
