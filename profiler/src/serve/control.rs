//! The local socket: root alone asks the daemon to release a module, and what it does.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::warn;

use profiler_base::error::{Failure, bail, exit};
use profiler_load::make_private;

use super::status::Status;
use super::unusable;

/// Where the daemon's socket and its lock are.
pub const FOLDER: &str = "/run/profiler";

const SOCKET: &str = "serve.sock";
const LOCK: &str = "serve.lock";
const SOCKET_USE: &str = "the daemon's socket";

/// Longest request, in bytes.
const LONGEST_REQUEST: u64 = 4096;

/// How long a client may take to send its request, and to read the answer.
const TIME_OF_CLIENT: Duration = Duration::from_secs(10);

/// How long the daemon may take to answer: probes on hundreds of handlers take a while.
const TIME_OF_DAEMON: Duration = Duration::from_secs(180);

/// A request to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Report the status.
    Status,
    /// Take the probes off a module, so that it can be unloaded.
    Release(String),
    /// Put them back although it was not unloaded.
    Resume(String),
}

/// The daemon's answer, by the name of what it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Status(Status),
    /// The module can be unloaded, unless others hold it.
    Released(Released),
    /// The handlers of the module that are measured again.
    Resumed(Vec<String>),
}

/// The outcome of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// The handlers that were measured; none if the module was not.
    pub handlers: Vec<String>,
    /// Calls of these in the interval that the release ended.
    pub calls: u64,
    /// References that others hold on the module, so that it cannot be unloaded; 0 if none.
    pub references: u64,
}

/// A request, and where its answer goes.
pub(super) type Question = (Request, oneshot::Sender<Result<Answer, Failure>>);

/// Takes the lock that only one daemon holds; the kernel releases it when the process ends.
///
/// # Errors
/// If another daemon has it, or others than root could change the folder.
pub(super) fn lock(folder: &Path) -> Result<Flock<fs::File>, Failure> {
    make_private(folder).map_err(unusable(folder, SOCKET_USE))?;
    let path = folder.join(LOCK);
    let failed = unusable(&path, SOCKET_USE);
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(&path);
    let locked = Flock::lock(file.map_err(&failed)?, FlockArg::LockExclusiveNonblock);
    let mut file = locked.map_err(|(file, _)| {
        let mut owner = String::new();
        let _ = file.take(20).read_to_string(&mut owner);
        let owner = owner.trim();
        let text = format!(
            "another `profiler serve` runs already (process {owner}): stop it first, or give it this module in its configuration"
        );
        Failure::new(exit::CANNOT_MEASURE, text)
    })?;
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
    Ok(file)
}

/// Answers requests from now on. To be called within a runtime, with the lock.
///
/// # Errors
/// If the socket cannot be made.
pub(super) fn listen(folder: &Path, questions: mpsc::Sender<Question>) -> Result<(), Failure> {
    let path = folder.join(SOCKET);
    let failed = unusable(&path, SOCKET_USE);
    // An earlier daemon leaves its socket.
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(failed(error));
    }
    let listener = UnixListener::bind(&path).map_err(&failed)?;
    // Nobody else can connect; who did before is asked for.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    tokio::spawn(serve(listener, questions));
    Ok(())
}

async fn serve(listener: UnixListener, questions: mpsc::Sender<Question>) {
    loop {
        match listener.accept().await {
            // A task each, so that a silent client does not block others.
            Ok((stream, _)) => {
                let questions = questions.clone();
                tokio::spawn(async move {
                    if let Err(error) = answer(stream, &questions).await {
                        warn!("a request on the local socket failed: {error}");
                    }
                });
            }
            Err(error) => {
                warn!("cannot accept on the local socket: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn answer(
    mut stream: tokio::net::UnixStream,
    questions: &mpsc::Sender<Question>,
) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other(format!("user {peer} is not root")));
    }
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(reader.take(LONGEST_REQUEST));
    timeout(TIME_OF_CLIENT, reader.read_line(&mut line)).await??;
    let answer = match serde_json::from_str(&line) {
        Err(error) => {
            let message =
                format!("the daemon does not know this request: {error}: is it another version?");
            Err(Failure::new(exit::USAGE, message))
        }
        Ok(request) => {
            let (sender, receiver) = oneshot::channel();
            let _ = questions.send((request, sender)).await;
            receiver.await.map_err(|_| io::Error::other("the daemon ends"))?
        }
    };
    let line = serde_json::to_string(&answer)? + "\n";
    timeout(TIME_OF_CLIENT, writer.write_all(line.as_bytes())).await?
}

/// Asks the daemon whose socket is in `folder`.
///
/// # Errors
/// If there is none, it refuses, or does not answer.
pub fn ask(folder: &Path, request: &Request) -> Result<Answer, Failure> {
    let stream = UnixStream::connect(folder.join(SOCKET));
    let error = match stream.and_then(|stream| converse(&stream, request)) {
        Ok(answer) => return answer,
        Err(error) => error,
    };
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => bail!(
            NO_TARGET,
            "no `profiler serve` runs on this machine: start one (`systemctl start profiler`), or see its journal"
        ),
        io::ErrorKind::PermissionDenied => {
            bail!(CANNOT_MEASURE, "only root may ask the daemon: run this as root")
        }
        io::ErrorKind::WouldBlock => bail!(
            INTERNAL,
            "the daemon has not answered for {} s, and may still do what it was asked: see `profiler status`, or its journal",
            TIME_OF_DAEMON.as_secs()
        ),
        _ => bail!(INTERNAL, "the daemon gave no answer: {error}: see its journal"),
    }
}

fn converse(mut stream: &UnixStream, request: &Request) -> io::Result<Result<Answer, Failure>> {
    stream.set_read_timeout(Some(TIME_OF_DAEMON))?;
    stream.write_all((serde_json::to_string(request)? + "\n").as_bytes())?;
    let mut line = String::new();
    if BufReader::new(stream).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_refused_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("run");
        let held = lock(&folder).unwrap();
        let error = lock(&folder).unwrap_err().to_string();
        assert!(
            error.contains(&format!("runs already (process {})", std::process::id())),
            "{error}"
        );
        drop(held);
        lock(&folder).unwrap();
    }

    #[test]
    fn what_is_asked_reaches_the_engine_and_its_answer_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("run");
        let asked = || ask(&folder, &Request::Status).map_err(|failure| failure.code);
        assert_eq!(asked(), Err(exit::NO_TARGET));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let _lock = lock(&folder).unwrap();
        let (sender, mut questions) = mpsc::channel(1);
        runtime.block_on(async { listen(&folder, sender) }).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(SOCKET))), (0o700, 0o600));
        runtime.spawn(async move {
            while let Some((request, answer)) = questions.recv().await {
                let _ = answer.send(match request {
                    Request::Release(module) => Ok(Answer::Resumed(vec![module])),
                    _ => Err(Failure::new(9, "no")),
                });
            }
        });
        let release = |module: &str| ask(&folder, &Request::Release(module.to_owned()));
        assert_eq!(release("driver"), Ok(Answer::Resumed(vec!["driver".to_owned()])));
        let refused = ask(&folder, &Request::Status).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (9, "no"));

        // Who reads the line alone knows what it is.
        let line = |request: &[u8]| {
            let mut stream = UnixStream::connect(folder.join(SOCKET)).unwrap();
            stream.write_all(request).unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            line
        };
        assert_eq!(line(b"{\"release\":\"driver\"}\n"), "{\"Ok\":{\"resumed\":[\"driver\"]}}\n");
        assert!(line(b"\"status\"\n").starts_with("{\"Err\":{"));

        // Nonsense, and more of it than is read, get an answer; who says nothing does not keep others out for ever.
        for nonsense in [&b"what?\n"[..], &[b'x'; 10_000]] {
            let mut stream = UnixStream::connect(folder.join(SOCKET)).unwrap();
            let _ = stream.write_all(nonsense);
            let mut line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut line);
            assert!(line.is_empty() || line.contains("does not know this request"), "{line}");
        }
        assert!(release("again").is_ok());
        drop(runtime);
        assert_eq!(asked(), Err(exit::NO_TARGET));
    }
}
