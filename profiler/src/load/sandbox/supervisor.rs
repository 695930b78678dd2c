//! The process between the profiler and the command of a load. No descendant of the command outlives the
//! supervisor, and the supervisor does not outlive the profiler:
//!
//! - it is the subreaper of all orphans below it, so even a daemon that left its session stays its
//!   descendant, and "no child left" means that nothing is left;
//! - its standard input is a pipe from the profiler, which closes when that dies, be it by SIGKILL.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use super::cgroup;
use super::folder::remove_empty;
use super::process_tree::{ProcessTree, Subreaper};
use super::protocol::{CREATED, SupervisorMessage, SupervisorOptions};
use super::temp_folder::TempFolder;
use crate::load::syscalls::wait_readable;

/// The `main` of [`Role::Supervisor`](super::Role::Supervisor): arguments are the command.
pub(in crate::load) fn main(mut args: impl Iterator<Item = OsString>) -> i32 {
    // First, as it blocks signals: SIGTERM must not end this process before it can remove anything.
    let subreaper = Subreaper::new();
    let read_line = || {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line).unwrap_or_default()
    };
    let options = serde_json::from_str(&read_line());
    let (Ok(options), Some(program)) = (options, args.next()) else { return 2 };
    let options: SupervisorOptions = options;
    if read_line() != CREATED {
        // The profiler died, or could not create all of it. Nobody has used the folder.
        if let Some(folder) = &options.temp_folder {
            let _ = remove_empty(folder);
        }
        remove_cgroup(&options);
        return 0;
    }
    let user = options.user.map(|(user, _)| user);
    // Opened before the command can put anything else in its place.
    let temp_folder = options.temp_folder.clone().map(|path| TempFolder::open(path, user));
    let result = subreaper.and_then(|subreaper| match start(&options, program, args)? {
        Some(tree) => supervise(&options, &subreaper, tree),
        None => Ok(()),
    });
    // What remains is removed by the profiler, if it still lives.
    drop(temp_folder);
    remove_cgroup(&options);
    match result {
        Ok(()) => 0,
        Err(error) => {
            send(&SupervisorMessage::Error(error.to_string()));
            1
        }
    }
}

fn remove_cgroup(options: &SupervisorOptions) {
    if let Some(group) = &options.cgroup {
        let _ = cgroup::remove(group);
    }
}

fn send(message: &SupervisorMessage) {
    // A profiler that does not read is dead or about to be: the clean-up goes on.
    let _ = message.send();
}

/// Starts the command; `None` if it cannot be executed, which is reported.
fn start(
    options: &SupervisorOptions,
    program: OsString,
    args: impl Iterator<Item = OsString>,
) -> io::Result<Option<ProcessTree>> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    // The profiler's standard output is its report, so the command's goes to standard error.
    command.stdout(if options.writes_messages {
        Stdio::inherit()
    } else {
        io::stderr().as_fd().try_clone_to_owned()?.into()
    });
    if let Some((user, group)) = options.user {
        command.uid(user).gid(group);
    }
    if let Some(folder) = &options.temp_folder {
        command.env("TMPDIR", folder);
    }
    let open =
        |group: &std::path::PathBuf| File::options().write(true).open(group.join("cgroup.procs"));
    let group = options.cgroup.as_ref().map(open).transpose()?;
    let mut blocked = SigSet::empty();
    if options.writes_messages {
        // A stop may come before the command can handle it: it must not be killed without a report.
        blocked.add(Signal::SIGTERM);
    }
    match ProcessTree::start(&mut command, group, blocked) {
        Ok(tree) => Ok(Some(tree)),
        Err(error) => {
            send(&match error.raw_os_error() {
                Some(errno) => SupervisorMessage::NotStarted(errno),
                None => SupervisorMessage::Error(error.to_string()),
            });
            Ok(None)
        }
    }
}

/// Waits for the end of the command, of the standard input, or for SIGTERM; then ends what is left.
fn supervise(
    options: &SupervisorOptions,
    subreaper: &Subreaper,
    mut tree: ProcessTree,
) -> io::Result<()> {
    let mut stdin = io::stdin();
    loop {
        if let Some(exit) = tree.reap()? {
            send(&SupervisorMessage::Ended(exit));
            break;
        }
        let [readable, signalled] = wait_readable([stdin.as_fd(), subreaper.as_fd()], None)?;
        let interrupted = |error: &io::Error| error.kind() == io::ErrorKind::Interrupted;
        if readable && !stdin.read(&mut [0; 1]).is_err_and(|error| interrupted(&error)) {
            break;
        }
        if signalled && subreaper.sigterm_received()? {
            break;
        }
    }
    let grace = Duration::from_millis(options.grace_ms);
    let left = if options.writes_messages {
        tree.end_by_child(grace, subreaper)?
    } else {
        tree.end(grace, subreaper)?
    };
    if !left.is_empty() {
        send(&SupervisorMessage::Unkillable(left));
    }
    Ok(())
}
