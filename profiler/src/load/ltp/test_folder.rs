//! The private folder of an LTP load, in which tests create files, mounts and loop devices. All of that is
//! removed after the load, also when the profiler is killed.
//!
//! The folder itself and `own` in it, with the runners' files, are root's. Next to `own` are folders that
//! belong to the tests' user, who cannot rename them; what is in those is accessed by descriptor only (see
//! [`Folder`]).

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::stat::Mode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::mounts::{self, MountRules};
use crate::load::sandbox::{
    self, CleanupProcess, Folder, LoadUser, MODE_FOR_ALL, ProfilerProgram, Role, Sandbox,
    SandboxOptions, SandboxPlan, unused_name, wait_for_end_of_input,
};

/// The folder with files of the profiler and the runners.
const OWN: &str = "own";

/// Tells the clean-up process that the profiler has cleaned up itself.
const CLEANED: &str = "cleaned";

/// The folder, and a process that cleans it up if the profiler is killed.
pub(super) struct TestFolder {
    path: PathBuf,
    cleaner: Cleaner,
    /// The user that tests run as, if not the caller.
    user: Option<LoadUser>,
    /// It has been cleaned up, or could not be.
    closed: bool,
    // Dropped last: its input must not be closed before the folder is removed.
    process: CleanupProcess,
}

/// The first line of the clean-up process's input, as JSON: what does not exist yet.
#[derive(Debug, Serialize, Deserialize)]
struct CleanupPaths {
    folder: PathBuf,
    cgroup: Option<PathBuf>,
}

/// The second line, once all exists. The process answers when it has the folder open.
#[derive(Debug, Serialize, Deserialize)]
struct CleanupTask {
    rules: MountRules,
    /// Device and inode of the folder: its path may lead elsewhere by the time it is opened.
    id: (u64, u64),
}

impl TestFolder {
    /// Creates a folder where `options` say, and `sandbox` as planned, whose control group the clean-up process removes, too.
    pub(super) fn new(
        options: &SandboxOptions,
        plan: SandboxPlan,
        sandbox: &mut Sandbox,
        profiler: &ProfilerProgram,
    ) -> Result<Self, String> {
        let user = options.other_user()?.cloned();
        let parent = options.parent_folder();
        let path = parent.join(unused_name("profiler-ltp-"));
        let of_process = |error: io::Error| {
            let program = profiler.path().display();
            format!("the process that cleans up the tests' folder, {program}: {error}")
        };
        // What removes them comes first.
        let mut command = profiler.command(Role::CleanTestFolder);
        command.stdout(Stdio::piped());
        let mut process = CleanupProcess::start(&mut command).map_err(of_process)?;
        let paths = CleanupPaths { folder: path.clone(), cgroup: plan.cgroup().cloned() };
        write_line(&mut process, &paths).map_err(of_process)?;
        sandbox.create(plan)?;
        let top = Folder::create(&path)
            .map_err(|error| format!("a folder for the tests in {}: {error}", parent.display()))?;
        let at_path = |error: io::Error| format!("{}: {error}", path.display());
        let cleaner = Cleaner::new(top, user.as_ref()).map_err(at_path)?;
        let id = cleaner.top.id().map_err(at_path)?;
        let task = CleanupTask { rules: cleaner.rules.clone(), id };
        // From here on it is removed by descriptor.
        let mut folder = Self { path, cleaner, user, closed: false, process };
        // Before any test can put another folder in its place.
        write_line(&mut folder.process, &task)
            .and_then(|()| folder.process.wait_for_answer())
            .map_err(of_process)?;
        Ok(folder)
    }

    /// The folder for files of the profiler and the runners, which no other user can read.
    pub(super) fn own(&self) -> PathBuf {
        self.path.join(OWN)
    }

    /// An empty folder `name` in it for the tests' user.
    pub(super) fn fresh(&self, name: &str) -> Result<PathBuf, String> {
        self.remove(name)?;
        let path = self.path.join(name);
        let created = self.cleaner.top.make(OsStr::new(name));
        created
            .and_then(|folder| folder.hand_over(self.user.as_ref(), MODE_FOR_ALL))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Removes the folder `name` in it.
    pub(super) fn remove(&self, name: &str) -> Result<(), String> {
        let removed = self.cleaner.remove(Path::new(name));
        removed.map_err(|error| format!("{}: {error}", self.path.join(name).display()))
    }

    /// Removes it.
    pub(super) fn close(mut self) -> Result<(), String> {
        self.clean()
            .map_err(|error| format!("{} could not be removed: {error}", self.path.display()))
    }

    fn clean(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        self.closed = true;
        let cleaned = self.cleaner.remove_all(&self.path);
        // The clean-up process could not remove what is left, either.
        let _ = self.process.write(CLEANED);
        cleaned
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        // There is no one to report an error to.
        let _ = self.clean();
    }
}

fn write_line(process: &mut CleanupProcess, value: &impl Serialize) -> io::Result<()> {
    process.write(serde_json::to_string(value)? + "\n")
}

fn read_line<T: DeserializeOwned>() -> io::Result<T> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

/// The `main` of [`Role::CleanTestFolder`]: opens the folder when told that it exists, waits for the end of the input, then
/// removes it and the control group.
pub(in crate::load) fn clean_main() -> i32 {
    sandbox::ignore_signals();
    let Ok(CleanupPaths { folder: path, cgroup }) = read_line() else { return 2 };
    let cleaner = match read_line().map(|task| Cleaner::open(&path, task)) {
        Ok(Ok(cleaner)) => Some(cleaner),
        // A whole line, or a folder that is another: without an answer, the profiler does it itself.
        Ok(Err(_)) => return 1,
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return 1,
        Err(_) => None,
    };
    if cleaner.is_some() {
        // A profiler that does not read it is dead: the end of the input comes next.
        let _ = io::stdout().write_all(b"\n").and_then(|()| io::stdout().flush());
    }
    if wait_for_end_of_input() == CLEANED.as_bytes() {
        return 0;
    }
    if let Some(cgroup) = cgroup {
        // Kills the processes in it.
        let _ = sandbox::remove_cgroup(&cgroup);
    }
    let Some(cleaner) = cleaner else {
        // The profiler was killed, or failed, before anything but `own` was in the folder.
        let removed = Folder::open(&path)
            .and_then(|top| top.remove_empty(OsStr::new(OWN)))
            .and_then(|()| sandbox::remove_empty(&path));
        return i32::from(removed.is_err_and(|error| error.kind() != io::ErrorKind::NotFound));
    };
    let deadline = Instant::now() + sandbox::REMOVAL_TIMEOUT;
    while cleaner.remove_all(&path).is_err() {
        if Instant::now() > deadline {
            return 1;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    0
}

/// The open folder, and what may be unmounted in it.
struct Cleaner {
    top: Folder,
    rules: MountRules,
}

impl Cleaner {
    /// Prepares the new folder for tests of `user`.
    fn new(top: Folder, user: Option<&LoadUser>) -> io::Result<Self> {
        top.make(OsStr::new(OWN))?;
        // Others may pass through it, but neither read nor write it.
        top.set_mode(Mode::S_IRWXU | Mode::S_IXGRP | Mode::S_IXOTH)?;
        let before = mounts::all()?.into_iter().map(|mount| mount.key).collect();
        let user = user.map(|user| user.uid);
        Ok(Self { top, rules: MountRules { user, before } })
    }

    /// The folder at `path`, if it is the one of `task`.
    fn open(path: &Path, task: CleanupTask) -> io::Result<Self> {
        let top = Folder::open(path)?;
        if top.id()? != task.id {
            return Err(io::Error::other("it has been replaced"));
        }
        Ok(Self { top, rules: task.rules })
    }

    /// Removes the folder, which is at `path` unless somebody has renamed it.
    fn remove_all(&self, path: &Path) -> io::Result<()> {
        if self.top.path()?.is_none() {
            return Ok(());
        }
        self.detach(Path::new(""))?;
        sandbox::empty(&self.top, self.rules.user)?;
        sandbox::remove_empty(path)
    }

    /// Removes the folder `name` in it.
    fn remove(&self, name: &Path) -> io::Result<()> {
        self.detach(name)?;
        sandbox::remove(&self.top, name.as_os_str(), self.rules.user)
    }

    /// Unmounts what the tests have mounted below `name`, and detaches loop devices from files there.
    fn detach(&self, name: &Path) -> io::Result<()> {
        let Some(top) = self.top.path()? else { return Ok(()) };
        // Repeatedly, for mounts that were hidden by another one.
        while self.unmount(&top, name)? {}
        // Only root can attach loop devices.
        if self.rules.user.is_none() {
            mounts::detach_loops(&top.join(name));
        }
        Ok(())
    }

    /// Unmounts what is mounted below `name`, last first. True if there was anything.
    fn unmount(&self, top: &Path, name: &Path) -> io::Result<bool> {
        let mut any = false;
        for mount in mounts::all()?.iter().rev() {
            let Ok(below) = mount.point.strip_prefix(top) else { continue };
            if !below.starts_with(name) || !self.rules.may_unmount(mount) {
                continue;
            }
            // The table has the path at the time of the mount: check what is there now.
            let Ok(place) = self.top.place(below) else { continue };
            if place.mount_id()? != mount.key.id {
                continue;
            }
            // Lazily: an open file must not keep it mounted.
            if let Err(errno) = umount2(&place.proc_path(), MntFlags::MNT_DETACH) {
                let text = format!("cannot unmount {}: {}", mount.point.display(), errno.desc());
                return Err(io::Error::other(text));
            }
            any = true;
        }
        Ok(any)
    }
}
