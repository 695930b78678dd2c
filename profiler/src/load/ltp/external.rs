//! What LTP's own runners have in common: a list in which each test is started by a process of this program,
//! which then asks over a socket what to run.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::time::timeout;

use super::LtpLoad;
use super::conduct::{Conduct, Link};
use super::wire::Answer;
use super::work::WorkFolder;
use crate::load::confine::Confinement;
use crate::load::folder::changeable;
use crate::load::helper::Role;
use crate::load::{CommandLoad, LoadFailure, LoadOutcome, LoadStatus};

/// Longest path of a socket (`sun_path` of unix(7), less its end mark).
const LONGEST_SOCKET: usize = 107;
/// How long the last agents are waited for once the runner has ended.
const LAST_WORDS: Duration = Duration::from_secs(15);

/// A runner of LTP's, ready to start.
pub(super) struct Outside<'a> {
    load: &'a LtpLoad,
    conduct: &'a Conduct,
    work: &'a WorkFolder,
    listener: UnixListener,
    log: PathBuf,
    /// How many have had a folder.
    tests: AtomicU64,
}

impl<'a> Outside<'a> {
    /// Makes the socket and writes the list to `list`.
    pub(super) fn new(
        load: &'a LtpLoad,
        conduct: &'a Conduct,
        work: &'a WorkFolder,
        list: &Path,
    ) -> Result<Self, String> {
        let fail = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        // Root's runner finds all of this by its path.
        let changeable = match &load.confinement.user {
            Some(user) if !user.is_me() => {
                changeable(work.path()).map_err(|error| fail(work.path(), error))?
            }
            _ => None,
        };
        if let Some(folder) = changeable {
            return Err(format!(
                "{} can be changed by others than root, who could have the runner take their files for its own: \
                 choose another folder with --load-dir or TMPDIR, or --ltp-runner direct",
                folder.display()
            ));
        }
        let own = work.own();
        let socket = own.join("socket");
        if socket.as_os_str().len() > LONGEST_SOCKET {
            return Err(format!(
                "the path {} is too long for a socket: choose a shorter folder with TMPDIR or --load-dir",
                socket.display()
            ));
        }
        let listener = UnixListener::bind(&socket).map_err(|error| fail(&socket, error))?;
        let agent = own.join("agent");
        let program = match load.helper.path() {
            // Of the process that follows the link: the profiler's is meant.
            path if path == Path::new("/proc/self/exe") => {
                PathBuf::from(format!("/proc/{}/exe", std::process::id()))
            }
            path => path.canonicalize().map_err(|error| fail(path, error))?,
        };
        symlink(program, &agent).map_err(|error| fail(&agent, error))?;
        let mut text = String::new();
        for (number, test) in load.spec.tests.iter().enumerate() {
            text.push_str(&format!(
                "{} {} {} {} {number}\n",
                test.name,
                quoted(&agent)?,
                Role::TestAgent.argument(),
                quoted(&socket)?,
            ));
        }
        std::fs::write(list, text).map_err(|error| fail(list, error))?;
        let tests = AtomicU64::new(0);
        Ok(Self { load, conduct, work, listener, log: own.join("runner.log"), tests })
    }

    /// Runs `argv` to its end, and each test that it starts. The outcome is that of the command.
    pub(super) async fn run(&self, argv: Vec<OsString>) -> Result<LoadOutcome, String> {
        // The output goes to a file, which tells what happened if the runner fails.
        let mut whole: Vec<OsString> =
            ["-c".into(), "log=$1; shift; exec \"$@\" >\"$log\" 2>&1".into(), "sh".into()].into();
        whole.push(self.log.clone().into());
        whole.extend(argv);
        // The runner stays what the profiler is: only the tests are of another user, and with it they
        // are kept to the limits.
        let limits = Confinement { user: None, ..self.load.confinement.clone() };
        let command = CommandLoad::new("/bin/sh", whole).helper(self.load.helper.clone());
        let command = command.confine(limits);
        let mut running = Box::pin(super::Load::run(Box::new(command), self.conduct.stop.clone()));
        let trouble = std::sync::Mutex::new(None::<String>);
        let mut tests = Vec::new();
        let outcome = {
            let mut links: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>> =
                Vec::new();
            let outcome = loop {
                tokio::select! {
                    outcome = &mut running => break outcome,
                    accepted = self.listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            let trouble = &trouble;
                            links.push(Box::pin(async move {
                                if let Err(text) = self.serve(Link::new(stream)).await {
                                    let mut first = trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                                    first.get_or_insert(text);
                                }
                            }));
                        }
                        Err(error) => return Err(format!("no connection to a test: {error}")),
                    },
                    () = any(&mut links), if !links.is_empty() => {}
                }
            };
            let _ = timeout(LAST_WORDS, async {
                while !links.is_empty() {
                    any(&mut links).await;
                }
            })
            .await;
            tests.append(&mut links);
            outcome
        };
        drop(tests);
        match trouble.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            // A runner that is stopped takes its agents with it.
            Some(text) if !self.conduct.stop.is_stopped() => Err(text),
            _ => Ok(outcome),
        }
    }

    /// Answers one process that a runner has started for a test.
    async fn serve(&self, mut link: Link) -> Result<(), String> {
        let number = match link.answer().await? {
            Answer::Hello(number) => number,
            other => return Err(format!("an answer out of turn: {other:?}")),
        };
        if self.conduct.stop.is_stopped() {
            return Ok(());
        }
        let name = format!("test-{}", self.tests.fetch_add(1, Ordering::Relaxed));
        let folder = self.work.fresh(&name)?;
        let ran = self.conduct.run_test(&mut link, number, &folder, false).await;
        self.work.remove(&name)?;
        ran
    }

    /// How a load ends whose runner ended so.
    pub(super) fn status(
        &self,
        name: &str,
        status: LoadStatus,
        code_tells_of_tests: bool,
    ) -> LoadStatus {
        let missing = self.conduct.not_begun();
        match status {
            LoadStatus::Failed(LoadFailure::ExitCode { .. })
                if code_tells_of_tests && missing.is_empty() =>
            {
                LoadStatus::Completed
            }
            LoadStatus::Completed if missing.is_empty() => LoadStatus::Completed,
            LoadStatus::Stopped { by } => LoadStatus::Stopped { by },
            status => {
                let what = match status {
                    LoadStatus::Failed(failure) => failure.to_string(),
                    _ => format!("{name} ended without having run {}", missing.join(", ")),
                };
                let text = format!("{what}; the last that {name} wrote:\n{}", self.last_lines());
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

/// Waits until one of them has ended, and takes those out that have.
async fn any(all: &mut Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>>) {
    std::future::poll_fn(|context| {
        let before = all.len();
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.len() < before || all.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// A path as a word of a list: both runners and the shell understand double quotes.
fn quoted(path: &Path) -> Result<String, String> {
    let text = path.to_str().filter(|text| !text.contains(['"', '\\', '$', '`', '\n']));
    let text = text.ok_or_else(|| {
        format!("the path {} cannot stand in a list of tests: choose another folder with TMPDIR or --load-dir", path.display())
    })?;
    Ok(if text.contains(|c: char| c.is_whitespace() || "';|&<>()*?~#".contains(c)) {
        format!("\"{text}\"")
    } else {
        text.to_owned()
    })
}
