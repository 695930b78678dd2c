//! The program as a user starts it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use profiler_recording::{Backend, HandlerRecording, Recording};
use tempfile::TempDir;

use crate::common::assert_valid;
use crate::window::{MEMORY, preempts, program};

/// Timeout of all waits here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);

/// A folder of a test in memory.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir_in(MEMORY).unwrap();
    // Accessible to tests as another user.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();
    folder
}

/// `profiler ARGS...`, the arguments given as one line.
pub(crate) fn profiler(line: &str) -> Command {
    let mut command = Command::new(program());
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

/// How the program ended, and what it wrote.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::from(command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    #[track_caller]
    pub(crate) fn assert_code(&self, code: u8) -> &Self {
        assert_eq!(self.code, Some(i32::from(code)), "{self:?}");
        self
    }

    /// The last line of standard error: the error message.
    #[track_caller]
    pub(crate) fn assert_error(&self, words: &[&str]) -> &Self {
        let at = self.stderr.find("error: ").unwrap_or_else(|| panic!("no error: {self:?}"));
        for word in words {
            assert!(self.stderr[at..].contains(word), "`{word}` is missing: {self:?}");
        }
        self
    }

    /// No probe was attached.
    #[track_caller]
    pub(crate) fn assert_nothing_done(&self) -> &Self {
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(!self.stderr.contains("probes on"), "{self:?}");
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The program while it runs, its output in files.
pub(crate) struct Started {
    child: Child,
    pub(crate) folder: TempDir,
}

impl Started {
    /// Starts `profiler run ARGS...`; `{}` in an argument is the folder of this run.
    pub(crate) fn run(line: &str, load: &[&str]) -> Self {
        Self::with(&format!("run {line}"), load)
    }

    /// Starts `profiler ARGS...`, in the same way.
    pub(crate) fn with(line: &str, load: &[&str]) -> Self {
        let folder = folder();
        let line = line.replace("{}", &folder.path().to_string_lossy());
        let file = |name| File::create(folder.path().join(name)).unwrap();
        let mut command = profiler(&line);
        if !load.is_empty() {
            command.arg("--").args(load.iter().map(OsStr::new));
        }
        let child = command.stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap();
        Self { child, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Waits for the window's start.
    pub(crate) fn wait_measuring(&mut self) {
        eventually("the window does not begin", || {
            let text = self.read("stderr");
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended by itself, {ended:?}: {text}");
            text.lines().any(|line| line.starts_with("measuring"))
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> Ended {
        let mut status = None;
        eventually("the program does not end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        Ended {
            code: status.and_then(|status| status.code()),
            stdout: self.read("stdout"),
            stderr: self.read("stderr"),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // After a failed test the next one must not find its probes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The recording in a file that the program wrote. It has to conform to the schema, and `profiler report` has to
/// print the run's table.
pub(crate) fn saved(file: PathBuf, table: &str) -> Recording {
    let bytes = fs::read(&file).unwrap();
    assert_valid(&serde_json::from_slice(&bytes).unwrap());
    let report = Ended::of(profiler("report").arg(&file));
    assert_eq!((report.code, report.stderr.as_str()), (Some(0), ""));
    assert_eq!(report.stdout, table, "the table of the file is not the table of the run");
    Recording::parse(&bytes, &file).unwrap()
}

pub(crate) fn handler<'a>(profile: &'a Recording, name: &str) -> &'a HandlerRecording {
    let found = profile.handlers.iter().find(|handler| handler.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {:?}", profile.handlers))
}

/// Nothing was lost, and the account balances.
#[track_caller]
pub(crate) fn assert_whole(handler: &HandlerRecording) {
    let losses = &handler.losses;
    let text = format!("{}: {losses:?}", handler.name);
    assert_eq!(losses.imbalance(handler.count), 0, "{text}");
    assert_eq!((losses.lost, losses.unpaired_exits, losses.missed), (0, 0, 0), "{text}");
}

/// Every one of these calls was counted. Tasks that call at once may be preempted within a trampoline's
/// program where the kernel does that: what it then skipped for the other has to be reported.
#[track_caller]
pub(crate) fn assert_every_call(handler: &HandlerRecording, calls: u64) {
    let losses = &handler.losses;
    let trampoline = matches!(handler.backend, Some(Backend::Fsession | Backend::Fentry));
    if trampoline && losses.missed > 0 && preempts() {
        let text = format!("{}: {} of {calls}: {losses:?}", handler.name, handler.count);
        assert_eq!(losses.imbalance(handler.count), 0, "{text}");
        assert!(handler.count < calls && calls <= handler.count + losses.unmeasured(), "{text}");
        assert!(handler.count * 2 > calls, "{text}");
    } else {
        assert_eq!(handler.count, calls, "{}", handler.name);
        assert_whole(handler);
    }
}
