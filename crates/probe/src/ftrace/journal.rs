//! The journal of changes in tracefs. Each change is noted before it is made, so that it is undone however
//! the program ends: by the program itself, by its [keeper](crate::keeper), or by its next start.
//!
//! The journal is a file of lines of JSON below `/run`, which is empty after a boot, as tracefs is as it
//! was. Whoever changes anything holds a lock on it, which the kernel takes back when the process
//! ends: a journal with lines and without a lock is that of a process that was killed. Who undoes them
//! holds the lock meanwhile, so that a keeper and a next start do not get in each other's way: the one
//! waits for the other, and then finds nothing to do.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use profiler_kernel::host::read_fact;

use super::tracefs::{self, CURRENT, TRACER};
use crate::{
    ProbeError,
    errno::Doing as _,
    life::{Life, State},
};

/// Where the journal lies, below `/`.
const FOLDER: &str = "run/profiler";
const FILE: &str = "ftrace.journal";

/// What is tried where it cannot be used.
const USING: &str = "using the journal of changes /run/profiler/ftrace.journal";

/// How long the kernel may be busy when a change is undone.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait for a process to end, or to undo what another one has left. An ending process closes its
/// descriptors one after another, and each perf event waits for a grace period.
const PATIENCE_FOR_OTHERS: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// The process that makes the changes; the first line.
    Owner { life: Life, boot: Option<String> },
    /// A file had another value, or a list was empty.
    Value { file: PathBuf, was: String },
    /// A folder was not there.
    Instance { folder: PathBuf },
}

/// What a process that was killed had left, and was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// The process.
    pub pid: u32,
    /// The files and folders that were put back, last changed first.
    pub files: Vec<PathBuf>,
    /// Those that could not be, with what the system said.
    pub failed: Vec<String>,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, files, failed } = self;
        write!(f, "a profiler (process {pid}) was killed while it traced:")?;
        if !files.is_empty() {
            let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            write!(f, " put back {}", files.join(", "))?;
        }
        if !failed.is_empty() {
            write!(f, " could not put back {}", failed.join(", "))?;
        }
        Ok(())
    }
}

/// The journal of this process. Dropping it undoes what it holds.
#[derive(Debug)]
pub(super) struct Journal {
    file: Flock<File>,
    changes: Vec<Line>,
}

impl Journal {
    /// Begins a journal. What a process that was killed has left is undone first.
    ///
    /// # Errors
    /// While another process has one, or it cannot be written, or what was left cannot be undone.
    pub(super) fn begin(root: &Path) -> Result<(Self, Option<Recovered>), ProbeError> {
        let folder = root.join(FOLDER);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).doing(USING)?;
        let file = options().create(true).open(folder.join(FILE)).doing(USING)?;
        let mut file = match lock(file, root).doing(USING)? {
            Ok(file) => file,
            Err(owner) => return Err(running(owner)),
        };
        let recovered = undo_stale(&mut file, root).doing(USING)?;
        if let Some(Recovered { failed, .. }) = &recovered
            && !failed.is_empty()
        {
            return Err(not_restored(failed));
        }
        let owner = Line::Owner { life: Life::this(root), boot: boot(root) };
        append(&mut file, &owner).doing(USING)?;
        Ok((Self { file, changes: Vec::new() }, recovered))
    }

    /// Sets a file to a value, and notes that it has to return to `was`.
    ///
    /// # Errors
    /// When it cannot be written; then it is as it was.
    pub(super) fn set(&mut self, file: PathBuf, was: &str, value: &str) -> Result<(), ProbeError> {
        self.change(Line::Value { file: file.clone(), was: was.to_owned() })?;
        tracefs::write(&file, value).doing(&format!("writing {}", file.display()))
    }

    /// Makes an instance.
    ///
    /// # Errors
    /// When the kernel does not make it.
    pub(super) fn instance(&mut self, folder: PathBuf) -> Result<(), ProbeError> {
        self.change(Line::Instance { folder: folder.clone() })?;
        fs::create_dir(&folder).doing(&format!("making the instance {}", folder.display()))
    }

    fn change(&mut self, line: Line) -> Result<(), ProbeError> {
        append(&mut self.file, &line).doing(USING)?;
        self.changes.push(line);
        Ok(())
    }
}

impl Drop for Journal {
    /// Undoes all changes. Those that cannot be undone stay in the journal, for the next start.
    fn drop(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let (_, failed) = undo_all(&self.changes);
        let undone = match failed.as_slice() {
            [] => clear(&mut self.file).doing(USING),
            _ => Err(not_restored(&failed)),
        };
        if let Err(error) = undone {
            profiler_base::terminal::say(&format!("warning: {error}"));
        }
    }
}

/// Undoes what a process that was killed has left; `None` if there is nothing.
///
/// # Errors
/// When there is a journal that cannot be read.
pub(crate) fn recover(root: &Path) -> io::Result<Option<Recovered>> {
    let file = match options().open(root.join(FOLDER).join(FILE)) {
        Ok(file) => file,
        // Somebody without rights has left nothing, and can undo nothing.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    match lock(file, root)? {
        Ok(mut file) => undo_stale(&mut file, root),
        Err(_) => Ok(None),
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

/// The file with a lock, or who holds it where another process traces. Who is about to end, or undoes what one
/// that is gone has left, is waited for.
fn lock(mut file: File, root: &Path) -> io::Result<Result<Flock<File>, Option<Life>>> {
    let patience = Instant::now() + PATIENCE_FOR_OTHERS;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => return Ok(Ok(file)),
            Err((file, Errno::EWOULDBLOCK)) => file,
            Err((_, errno)) => return Err(errno.into()),
        };
        // A journal without an owner is about to have one, or none any more.
        let owner = owner(&file);
        let stays = |life: Life| matches!(life.state(root), State::Lives | State::Unknown);
        if owner.is_some_and(stays) || Instant::now() >= patience {
            return Ok(Err(owner));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn lines(mut file: &File) -> Vec<Line> {
    let mut text = Vec::new();
    if file.rewind().is_err() || file.read_to_end(&mut text).is_err() {
        return Vec::new();
    }
    // A change is made after its line is whole: half a line is none.
    text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

fn owner(file: &File) -> Option<Life> {
    let Some(Line::Owner { life, .. }) = lines(file).into_iter().next() else { return None };
    Some(life)
}

fn running(owner: Option<Life>) -> ProbeError {
    let process = owner.map_or_else(String::new, |life| format!(" (process {})", life.pid));
    ProbeError::Other(format!(
        "another profiler{process} is using the function_graph tracer: wait for its end, or use \
         another backend"
    ))
}

fn not_restored(failed: &[String]) -> ProbeError {
    ProbeError::Other(format!(
        "what the profiler changed in tracefs could not be put back: {}; its next start tries again",
        failed.join("; ")
    ))
}

/// Undoes what the journal holds, whose owner is gone, and empties it.
fn undo_stale(file: &mut File, root: &Path) -> io::Result<Option<Recovered>> {
    let lines = lines(file);
    let Some((Line::Owner { life, boot: its_boot }, changes)) = lines.split_first() else {
        clear(file)?;
        return Ok(None);
    };
    let recovered = if changes.is_empty() || *its_boot != boot(root) {
        None
    } else {
        let (files, failed) = match taken_over(changes) {
            None => undo_all(changes),
            Some(by) => (Vec::new(), vec![by]),
        };
        Some(Recovered { pid: life.pid, files, failed })
    };
    if recovered.as_ref().is_none_or(|recovered| recovered.failed.is_empty()) {
        clear(file)?;
    }
    Ok(recovered)
}

/// Whether another tool has started to trace since: then the settings are that tool's.
fn taken_over(changes: &[Line]) -> Option<String> {
    let (file, was) = changes.iter().find_map(|change| match change {
        Line::Value { file, was } if file.ends_with(CURRENT) => Some((file, was)),
        _ => None,
    })?;
    let now = fs::read_to_string(file).ok()?;
    let now = now.trim_end();
    (now != TRACER && now != was)
        .then(|| format!("{} is `{now}` now, which somebody else has set", file.display()))
}

fn append(file: &mut File, line: &Line) -> io::Result<()> {
    // After a full disk half a line may be there: it ends here.
    let text = format!("\n{}\n", serde_json::to_string(line)?);
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

fn clear(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.sync_data()
}

/// Undoes changes, the last one first: what was, and what could not be.
fn undo_all(changes: &[Line]) -> (Vec<PathBuf>, Vec<String>) {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for change in changes.iter().rev() {
        let (path, undo): (_, &dyn Fn() -> io::Result<()>) = match change {
            Line::Owner { .. } => continue,
            Line::Value { file, was } => (file, &|| tracefs::write(file, was)),
            Line::Instance { folder } => (folder, &|| remove_instance(folder)),
        };
        match patiently(Instant::now() + PATIENCE, undo) {
            Ok(()) => done.push(path.clone()),
            // Noted and never made, or of a module that is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => failed.push(format!("{}: {error}", path.display())),
        }
    }
    (done, failed)
}

fn remove_instance(folder: &Path) -> io::Result<()> {
    tracefs::write(&folder.join(CURRENT), "nop")?;
    fs::remove_dir(folder)
}

/// Tries until `patience` ends. The kernel changes nothing that is in use, and the files of a process that was just
/// killed may be open for a moment longer.
pub(crate) fn patiently(patience: Instant, change: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
    loop {
        match change() {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < patience =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

fn boot(root: &Path) -> Option<String> {
    read_fact(&root.join("proc/sys/kernel/random/boot_id"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::tests::{show, show_ending, show_this};

    /// A machine with some files of tracefs, of which `current_tracer` is one.
    fn machine() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let boot = root.path().join("proc/sys/kernel/random");
        fs::create_dir_all(&boot).unwrap();
        fs::write(boot.join("boot_id"), "one\n").unwrap();
        for (file, text) in [(CURRENT, "nop\n"), ("size", "7\n"), ("filter", "\n")] {
            fs::write(root.path().join(file), text).unwrap();
        }
        show_this(root.path(), 1);
        let tracer = root.path().join(CURRENT);
        (root, tracer)
    }

    fn text(root: &tempfile::TempDir, file: &str) -> String {
        fs::read_to_string(root.path().join(file)).unwrap()
    }

    fn change(root: &tempfile::TempDir) -> Journal {
        let (mut journal, recovered) = Journal::begin(root.path()).unwrap();
        assert_eq!(recovered, None);
        journal.set(root.path().join("filter"), "", "handler").unwrap();
        journal.set(root.path().join("size"), "7", "8192").unwrap();
        journal.set(root.path().join(CURRENT), "nop", TRACER).unwrap();
        journal
    }

    /// As the kernel ends a process that is killed: nothing is undone, and the lock is free.
    fn kill(mut journal: Journal) {
        journal.changes.clear();
    }

    fn assert_untouched(root: &tempfile::TempDir) {
        assert_eq!(text(root, CURRENT), "nop\n");
        assert_eq!((text(root, "size"), text(root, "filter")), ("7\n".into(), "\n".into()));
    }

    #[test]
    fn a_dropped_journal_undoes_its_changes() {
        let (root, _) = machine();
        let journal = change(&root);
        assert_eq!(text(&root, "size"), "8192\n");
        drop(journal);
        assert_untouched(&root);
        assert_eq!(recover(root.path()).unwrap(), None);
    }

    #[test]
    fn the_next_start_undoes_what_a_killed_one_left() {
        let (root, tracer) = machine();
        kill(change(&root));
        assert_eq!(text(&root, "filter"), "handler\n");
        let recovered = recover(root.path()).unwrap().unwrap();
        assert_eq!(recovered.pid, std::process::id());
        let files = vec![tracer, root.path().join("size"), root.path().join("filter")];
        assert_eq!((recovered.files, recovered.failed), (files, vec![]));
        assert_untouched(&root);
        assert_eq!(recover(root.path()).unwrap(), None, "once is enough");

        kill(change(&root));
        let (_journal, recovered) = Journal::begin(root.path()).unwrap();
        assert!(recovered.is_some());
        assert_untouched(&root);
    }

    #[test]
    fn a_second_profiler_is_told_of_the_first_and_undoes_nothing() {
        let (root, _) = machine();
        let journal = change(&root);
        let error = Journal::begin(root.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert_eq!(recover(root.path()).unwrap(), None);
        assert_eq!(text(&root, "size"), "8192\n");
        drop(journal);
        assert_untouched(&root);
    }

    /// The same journal as one of another process.
    fn change_of_another(root: &tempfile::TempDir, pid: u32) -> Journal {
        let journal = change(root);
        let path = root.path().join(FOLDER).join(FILE);
        let lines = fs::read_to_string(&path).unwrap();
        let own = format!("\"pid\":{},", std::process::id());
        assert!(lines.contains(&own), "{lines}");
        fs::write(&path, lines.replace(&own, &format!("\"pid\":{pid},"))).unwrap();
        journal
    }

    /// The kernel takes back the lock of a process that was killed when it closes the files, and whoever
    /// puts back what was left holds it for as long as that takes.
    #[test]
    fn who_comes_right_after_a_kill_waits_until_all_is_put_back() {
        for by_keeper in [false, true] {
            let (root, _) = machine();
            let mut journal = change_of_another(&root, 77);
            show(root.path(), 77, "Z", 1, 1000);
            let folder = root.path().to_owned();
            let next = std::thread::spawn(move || Journal::begin(&folder).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            assert!(!next.is_finished(), "it does not wait");
            assert_eq!(text(&root, "size"), "8192\n");
            if by_keeper {
                undo_stale(&mut journal.file, root.path()).unwrap();
            }
            kill(journal);
            let (_next, recovered) = next.join().unwrap();
            let pid = recovered.map(|recovered| recovered.pid);
            assert_eq!(pid, if by_keeper { None } else { Some(77) });
            assert_untouched(&root);
        }
    }

    /// A killed process keeps its lock until it has closed its files, and is no zombie until then.
    #[test]
    fn who_comes_while_a_killed_one_still_ends_waits_for_it() {
        for (flags, pending) in [(0x40_0004, 0), (0x40_0000, 0x100)] {
            let (root, _) = machine();
            let journal = change_of_another(&root, 77);
            show_ending(root.path(), 77, flags, pending);
            let folder = root.path().to_owned();
            let next = std::thread::spawn(move || Journal::begin(&folder));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!next.is_finished(), "{:?}", next.join().unwrap());
            kill(journal);
            let (_next, recovered) = next.join().unwrap().unwrap();
            assert_eq!(recovered.map(|recovered| recovered.pid), Some(77));
            assert_untouched(&root);
        }
    }

    #[test]
    fn nobody_waits_for_a_process_that_lives() {
        let (root, _) = machine();
        let journal = change_of_another(&root, 77);
        show(root.path(), 77, "R", 1, 1000);
        let begun = Instant::now();
        let running = Journal::begin(root.path()).unwrap_err();
        assert!(running.to_string().contains("(process 77)"), "{running}");
        assert!(begun.elapsed() < PATIENCE_FOR_OTHERS / 2);
        kill(journal);
    }

    #[test]
    fn what_somebody_else_has_set_since_is_left_alone() {
        let (root, tracer) = machine();
        kill(change(&root));
        fs::write(&tracer, "function\n").unwrap();
        let recovered = recover(root.path()).unwrap().unwrap();
        assert!(recovered.failed[0].contains("`function`"), "{recovered:?}");
        assert_eq!(text(&root, "size"), "8192\n");
        let error = Journal::begin(root.path()).unwrap_err().to_string();
        assert!(error.contains("could not be put back"), "{error}");
        // The other tool has ended.
        fs::write(&tracer, "nop\n").unwrap();
        assert_eq!(recover(root.path()).unwrap().unwrap().failed, Vec::<String>::new());
        assert_untouched(&root);
    }

    #[test]
    fn half_a_line_is_of_a_change_that_was_not_made() {
        let (root, _) = machine();
        kill(change(&root));
        let path = root.path().join(FOLDER).join(FILE);
        let mut journal = fs::read(&path).unwrap();
        journal.extend(br#"{"value":{"file":"/x","wa"#);
        fs::write(&path, journal).unwrap();
        assert_eq!(recover(root.path()).unwrap().unwrap().files.len(), 3);
        assert_untouched(&root);
    }

    #[test]
    fn a_change_after_half_a_line_is_undone() {
        let (root, _) = machine();
        let (mut journal, _) = Journal::begin(root.path()).unwrap();
        // What a full disk leaves of a change that was not made.
        (&*journal.file).write_all(br#"{"value":{"file":"/x","wa"#).unwrap();
        journal.set(root.path().join("size"), "7", "8192").unwrap();
        kill(journal);
        assert_eq!(recover(root.path()).unwrap().unwrap().files.len(), 1);
        assert_untouched(&root);
    }

    #[test]
    fn another_boot_has_nothing_to_undo() {
        let (root, _) = machine();
        kill(change(&root));
        fs::write(root.path().join("proc/sys/kernel/random/boot_id"), "two\n").unwrap();
        assert_eq!(recover(root.path()).unwrap(), None);
        assert_eq!(text(&root, "size"), "8192\n");
    }

    #[test]
    fn a_machine_without_a_journal_has_nothing_to_undo() {
        let (root, _) = machine();
        assert_eq!(recover(root.path()).unwrap(), None);
        fs::create_dir_all(root.path().join(FOLDER)).unwrap();
        fs::write(root.path().join(FOLDER).join(FILE), b"\xff\n").unwrap();
        assert_eq!(recover(root.path()).unwrap(), None);
    }
}
