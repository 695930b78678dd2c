//! The process between the profiler and the commands of a load. No descendant of a command outlives the supervisor, and the
//! supervisor does not outlive the profiler: its standard input is a pipe from the profiler, which closes even after a SIGKILL.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use profiler_recording::loads::{Ended, TestEnd};

use super::folder::LoadFolder;
use super::output::Output;
use super::processes::{Asked, Processes, wait_readable};
use super::protocol::{CommandKind, CommandRequest, Request, Sandbox, SupervisorMessage};

/// How long descendants of a test may outlive it without counting as left running: the other
/// processes of a pipeline need a moment.
const STRAGGLER_GRACE: Duration = Duration::from_millis(100);

/// The `main` of [`Role::Supervisor`](super::Role::Supervisor).
pub(crate) fn main() -> i32 {
    // First, as it blocks signals: SIGTERM must not end this process before it can remove anything.
    let ended = Supervisor::new().and_then(|mut supervisor| {
        let served = supervisor.serve();
        supervisor.clean_up(served)
    });
    let Err(error) = ended else { return 0 };
    SupervisorMessage::Failed(error.to_string()).send();
    1
}

struct Supervisor {
    input: BufReader<File>,
    /// A request that is not answered yet.
    unread: Vec<u8>,
    /// The profiler wants the end of all, or is dead.
    closed: bool,
    processes: Processes,
    /// Of the command that runs.
    output: Output,
    sandbox: Sandbox,
    folder: Option<LoadFolder>,
}

impl Supervisor {
    /// Waits until it is told what the sandbox is to be.
    fn new() -> io::Result<Self> {
        let processes = Processes::new()?;
        let mut input = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned()?));
        let (mut unread, closed, output) = (Vec::new(), false, Output::default());
        input.read_until(b'\n', &mut unread)?;
        let sandbox = serde_json::from_slice(&std::mem::take(&mut unread))?;
        Ok(Self { input, unread, closed, processes, output, sandbox, folder: None })
    }

    /// Makes the sandbox, and answers requests until there are no more.
    fn serve(&mut self) -> io::Result<()> {
        answer(self.create());
        while !self.closed {
            self.wait(None)?;
            if self.unread.is_empty() {
                continue;
            }
            match serde_json::from_slice(&std::mem::take(&mut self.unread))? {
                Request::Refresh => answer(self.refresh()),
                Request::Run(command) => SupervisorMessage::Ended(self.run(&command)?).send(),
            }
        }
        Ok(())
    }

    /// Waits for the profiler, SIGTERM, the end of a process or output, at most for `limit`, and reads what there is.
    fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let input = self.input.get_ref().as_fd();
        let pipe = self.output.pipe.as_ref().map_or(input, AsFd::as_fd);
        let [readable, ..] = wait_readable([input, self.processes.signals.as_fd(), pipe], limit)?;
        self.closed |= self.processes.sigterm_received()?;
        self.output.read()?;
        // The profiler writes a whole line at once; without its end the profiler is dead.
        if readable && self.input.read_until(b'\n', &mut self.unread)? == 0 {
            self.closed = true;
        }
        Ok(())
    }

    fn create(&mut self) -> Result<(), String> {
        if self.sandbox.private_mounts() {
            private_mounts()?;
        }
        let Some(path) = self.sandbox.folder.as_ref().map(Path::new) else { return Ok(()) };
        let folder = LoadFolder::create(path, self.sandbox.user.clone());
        let mode = self.sandbox.mode();
        let made = folder.and_then(|folder| self.folder.insert(folder).refresh(mode));
        let parent = path.parent().unwrap_or(Path::new("/")).display();
        made.map_err(|error| format!("a folder for its files in {parent}: {error}"))
    }

    fn refresh(&self) -> Result<(), String> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let refreshed = folder.refresh(self.sandbox.mode());
        refreshed.map_err(|error| format!("{}: {error}", folder.files().display()))
    }

    /// Removes the sandbox, with all processes, once requests are `served`.
    fn clean_up(&mut self, served: io::Result<()>) -> io::Result<()> {
        let ended = served.and(self.processes.kill_all().map(drop));
        let Some(folder) = &self.folder else { return ended };
        let Err(error) = folder.remove() else { return ended };
        let before = ended.map_or_else(|error| format!("{error}; "), |()| String::new());
        let files = folder.files();
        Err(io::Error::other(format!("{before}{} could not be removed: {error}", files.display())))
    }

    /// Runs a command, and ends all its descendants.
    fn run(&mut self, request: &CommandRequest) -> io::Result<Ended> {
        let started = Instant::now();
        let (end, elapsed) = match self.start(request) {
            Ok(()) => (self.end_of_command(request, started)?, started.elapsed()),
            Err(error) => (TestEnd::NotStarted(why_not_started(request, &error)), Duration::ZERO),
        };
        let is_over = matches!(end, TestEnd::Exit(_) | TestEnd::Signal(_));
        let (asked, limit) = match self.sandbox.kind {
            // As LTP's runners.
            CommandKind::Test if is_over => (Asked::Nobody, STRAGGLER_GRACE),
            CommandKind::Test | CommandKind::Plain => (Asked::All, request.grace),
            CommandKind::Builtin => (Asked::Command, request.grace),
        };
        self.processes.wait_for_all(asked, limit)?;
        let ended_before = self.processes.others_ended;
        let unkillable = self.processes.kill_all()?;
        let left_running = if is_over { self.processes.others_ended - ended_before } else { 0 };
        let output = std::mem::take(&mut self.output).end()?;
        Ok(Ended { end, elapsed, left_running, unkillable, output, left: None, outcome: None })
    }

    fn start(&mut self, request: &CommandRequest) -> io::Result<()> {
        let mut command = Command::new(&request.program);
        command.args(&request.args).stdin(Stdio::null());
        if let Some(files) = self.folder.as_ref().map(LoadFolder::files) {
            command.env("TMPDIR", &files);
            if self.sandbox.kind == CommandKind::Test {
                command.env("TMP", &files).env("HOME", &files).current_dir(files);
            }
        }
        command.envs(request.env.iter().map(|(name, value)| (name, value)));
        match self.sandbox.kind {
            CommandKind::Plain => {
                command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
            }
            CommandKind::Builtin => {}
            CommandKind::Test => self.output.connect(&mut command)?,
        }
        self.processes.start(&mut command, &self.sandbox)
    }

    /// Waits until the command ends, times out or is to be stopped.
    fn end_of_command(
        &mut self,
        request: &CommandRequest,
        started: Instant,
    ) -> io::Result<TestEnd> {
        loop {
            if let Some(end) = self.processes.reap()? {
                return Ok(end);
            }
            if self.closed {
                return Ok(TestEnd::Stopped);
            }
            let left = request.timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(TestEnd::TimedOut);
            }
            self.wait(left)?;
        }
    }
}

fn answer(done: Result<(), String>) {
    done.map_or_else(SupervisorMessage::Failed, |()| SupervisorMessage::Ready).send();
}

/// Has mounts of this process stay its own, and its children able to have theirs; mounts of the machine still come here. One that
/// may not do that may not mount anything either.
///
/// # Errors
/// A sentence that says what to do: without mounts of its own it would leave the load's on the machine.
fn private_mounts() -> Result<(), String> {
    let none: Option<&str> = None;
    let slaves = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    match unshare(CloneFlags::CLONE_NEWNS).and_then(|()| mount(none, "/", none, slaves, none)) {
        Ok(()) | Err(Errno::EPERM | Errno::EACCES) => Ok(()),
        Err(Errno::EINVAL) => {
            Err("mounts of its own: / is no mount point here, as in a plain chroot: before \
            `chroot DIR`, run `mount --bind DIR DIR`, or run the load in a container"
                .to_owned())
        }
        Err(errno) => Err(format!("mounts of its own: {}", errno.desc())),
    }
}

/// Why a command could not be executed, and what to do.
fn why_not_started(request: &CommandRequest, error: &io::Error) -> String {
    let Some(errno) = error.raw_os_error().map(Errno::from_raw) else { return error.to_string() };
    let remedy = match errno {
        Errno::ENOENT if request.program.as_encoded_bytes().contains(&b'/') => {
            "check the path, and the interpreter in the first line if it is a script"
        }
        Errno::ENOENT => "check the spelling and PATH, or give the full path",
        Errno::EACCES => {
            "is it executable (chmod +x), and can its folder be searched by the load's user?"
        }
        _ => "try the same command in a shell",
    };
    format!("{} ({errno:?}): {remedy}", errno.desc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_mounts_of_its_own_it_says_what_to_do() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let in_chroot = || {
            // This thread's root alone is changed.
            unshare(CloneFlags::CLONE_FS).unwrap();
            nix::unistd::chroot(folder.path()).unwrap();
            private_mounts()
        };
        let text = std::thread::scope(|scope| scope.spawn(in_chroot).join()).unwrap().unwrap_err();
        assert!(text.contains("mount --bind DIR DIR"), "{text}");
    }
}
