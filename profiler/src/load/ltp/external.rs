//! A runner of LTP's own: in its list each test is replaced by an agent of this program, which then asks over a socket what
//! to run.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::time::timeout;

use super::controller::{AgentConnection, TestController};
use super::future_set::FutureSet;
use super::protocol::AgentMessage;
use super::test_folder::TestFolder;
use crate::load::command::CommandLoad;
use crate::load::run::Load;
use crate::load::sandbox::{Role, SandboxOptions, changeable};
use crate::recording::loads::{LoadFailure, LoadOutcome, LoadStatus};

/// Longest path of a socket (`sun_path` of unix(7) without its terminator).
const MAX_SOCKET_PATH: usize = 107;
/// How long to wait for the last agents once the runner has ended.
const LAST_AGENTS_TIMEOUT: Duration = Duration::from_secs(15);

/// An LTP runner, ready to start.
pub(super) struct ExternalRunner<'a> {
    controller: &'a TestController,
    folder: &'a TestFolder,
    listener: UnixListener,
    log: PathBuf,
    /// Number of the next test's folder.
    next: AtomicU64,
}

impl<'a> ExternalRunner<'a> {
    /// Creates the socket and writes the list of tests to `list`.
    pub(super) fn new(
        controller: &'a TestController,
        folder: &'a TestFolder,
        list: &Path,
    ) -> Result<Self, String> {
        let fail = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        // The runner, which is root's, opens all of this by path.
        if controller.user.is_some()
            && let Some(unsafe_folder) =
                changeable(folder.path()).map_err(|error| fail(folder.path(), error))?
        {
            return Err(format!(
                "{} can be changed by other users than root, who could replace files of the runner: choose \
                 another folder with --load-dir or TMPDIR, or --ltp-runner direct",
                unsafe_folder.display()
            ));
        }
        let own = folder.own();
        let socket = own.join("socket");
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(format!(
                "the path {} is too long for a socket: choose a shorter folder with TMPDIR or --load-dir",
                socket.display()
            ));
        }
        let listener = UnixListener::bind(&socket).map_err(|error| fail(&socket, error))?;
        let agent = own.join("agent");
        let program = match controller.profiler.path() {
            // `self` would be the process that follows the link.
            path if path == Path::new("/proc/self/exe") => {
                PathBuf::from(format!("/proc/{}/exe", std::process::id()))
            }
            path => path.canonicalize().map_err(|error| fail(path, error))?,
        };
        symlink(program, &agent).map_err(|error| fail(&agent, error))?;
        let mut text = String::new();
        for (number, test) in controller.spec.tests.iter().enumerate() {
            text.push_str(&format!(
                "{} {} {} {} {number}\n",
                test.name,
                quoted(&agent)?,
                Role::TestAgent.argument(),
                quoted(&socket)?,
            ));
        }
        std::fs::write(list, text).map_err(|error| fail(list, error))?;
        let log = own.join("runner.log");
        Ok(Self { controller, folder, listener, log, next: AtomicU64::new(0) })
    }

    /// Runs `argv` to its end, and each test that it starts. The outcome is the command's.
    pub(super) async fn run(&self, argv: Vec<OsString>) -> Result<LoadOutcome, String> {
        // The output goes to a file, which says what happened if the runner fails.
        let script = "log=$1; shift; exec \"$@\" >\"$log\" 2>&1";
        let mut args: Vec<OsString> = ["-c", script, "sh"].map(OsString::from).into();
        args.push(self.log.clone().into());
        args.extend(argv);
        // The runner stays the profiler's user: only the tests run as another one. The limits are for
        // both.
        let sandbox = SandboxOptions { user: None, ..self.controller.sandbox.clone() };
        let command = CommandLoad::new("/bin/sh", args)
            .profiler(self.controller.profiler.clone())
            .sandbox(sandbox);
        let mut running = Load::run(Box::new(command), self.controller.stop.clone());
        let mut tests = FutureSet::new();
        let mut first_error = None;
        let outcome = loop {
            tokio::select! {
                outcome = &mut running => break outcome,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => tests.push(self.serve(AgentConnection::new(stream))),
                    Err(error) => return Err(format!("no connection to a test: {error}")),
                },
                Some(result) = tests.next() => {
                    first_error = first_error.or(result.err());
                }
            }
        };
        let rest = async {
            while let Some(result) = tests.next().await {
                first_error = first_error.take().or(result.err());
            }
        };
        let _ = timeout(LAST_AGENTS_TIMEOUT, rest).await;
        match first_error {
            // A runner that is stopped ends its agents too.
            Some(text) if !self.controller.stop.is_stopped() => Err(text),
            _ => Ok(outcome),
        }
    }

    /// Serves an agent that the runner has started for a test.
    async fn serve(&self, mut agent: AgentConnection) -> Result<(), String> {
        let number = match agent.receive().await? {
            AgentMessage::Hello(number) => number,
            other => return Err(format!("unexpected message of the agent: {other:?}")),
        };
        if self.controller.stop.is_stopped() {
            return Ok(());
        }
        let name = format!("test-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let path = self.folder.fresh(&name)?;
        let ran = self.controller.run_test(&mut agent, number, &path, false).await;
        self.folder.remove(&name)?;
        ran
    }

    /// The status of the load whose runner has ended with `status`.
    pub(super) fn status(&self, name: &str, status: LoadStatus) -> LoadStatus {
        let missing = self.controller.not_started();
        match status {
            LoadStatus::Completed if missing.is_empty() => LoadStatus::Completed,
            LoadStatus::Stopped { by } => LoadStatus::Stopped { by },
            status => {
                let what = match status {
                    LoadStatus::Failed(failure) => failure.to_string(),
                    _ => format!("{name} ended without having run {}", missing.join(", ")),
                };
                let text =
                    format!("{what}; the end of the output of {name}:\n{}", self.last_lines());
                LoadStatus::Failed(LoadFailure::BrokeOff { text })
            }
        }
    }

    fn last_lines(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let from = lines.len().saturating_sub(10);
        lines.get(from..).unwrap_or_default().join("\n")
    }
}

/// A path as a word of a list. Runners and shell understand double quotes.
fn quoted(path: &Path) -> Result<String, String> {
    let text = path.to_str().filter(|text| !text.contains(['"', '\\', '$', '`', '\n']));
    let text = text.ok_or_else(|| {
        format!("the path {} cannot be quoted in a list of tests: choose another folder with TMPDIR or --load-dir", path.display())
    })?;
    Ok(if text.contains(|c: char| c.is_whitespace() || "';|&<>()*?~#".contains(c)) {
        format!("\"{text}\"")
    } else {
        text.to_owned()
    })
}
