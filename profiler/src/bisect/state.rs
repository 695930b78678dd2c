//! What a bisection knows besides git: it lies in git's own folder, beside the work tree.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::git::Repository;
use super::{Commit, Judged, Options, Verdict};
use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};

/// Folder below git's.
const FOLDER: &str = "profiler-bisect";

/// An open bisection. Nobody else has it open.
pub(super) struct State {
    folder: PathBuf,
    stored: Stored,
    lock: Flock<File>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    /// Hashes of both ends, the command and the module: another question has other answers.
    question: Vec<String>,
    builds: u32,
    judged: Vec<(Commit, bool, String)>,
}

impl State {
    /// Opens the bisection under way, or begins one.
    pub(super) fn open(
        repository: &Repository,
        options: &Options,
        ends: [&Commit; 2],
    ) -> Result<Self, Failure> {
        let folder = repository.common()?.join(FOLDER);
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            let text = format!("cannot {what} {}: {error}", folder.display());
            Failure::new(exit::BAD_OUTPUT, text)
        };
        fs::create_dir_all(&folder).map_err(|error| cannot("make", &error))?;
        let lock = File::options().read(true).append(true).create(true).open(folder.join("lock"));
        let lock = lock.map_err(|error| cannot("write to", &error))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => {
                let text = "another bisection of this repository is running, or the build of one that was killed: let it end first";
                Failure::new(exit::USAGE, text)
            }
            errno => cannot("lock", &errno.desc()),
        })?;
        let mut question: Vec<String> = ends.map(|end| end.hash.clone()).into();
        let module = options.module.as_deref().map(Path::to_string_lossy).unwrap_or_default();
        question.extend([options.build.clone(), module.into_owned()]);
        let mut state = Self { folder, stored: Stored::default(), lock };
        if options.start_over {
            state.forget(repository)?;
        }
        match fs::read(state.file()) {
            Ok(bytes) => {
                state.stored = serde_json::from_slice(&bytes).map_err(|error| {
                    let text =
                        format!("{} is damaged: {error}; say --start-over", state.file().display());
                    Failure::new(exit::BAD_INPUT, text)
                })?;
                if state.stored.question != question {
                    let text = "a bisection between other revisions, or with another build command, was begun in \
                                this repository: say --start-over to forget it";
                    return Err(Failure::new(exit::USAGE, text));
                }
            }
            Err(_) => state.stored.question = question,
        }
        Ok(state)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The empty file that is locked as long as the bisection is under way.
    pub(super) fn lock(&self) -> &File {
        &self.lock
    }

    fn file(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    fn write(&self) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(&self.stored)
            .map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
        Ok(OutputFile::open(&self.file())?.commit(&bytes)?)
    }

    pub(super) fn count_build(&mut self) -> Result<(), Failure> {
        self.stored.builds += 1;
        self.write()
    }

    pub(super) fn builds(&self) -> u32 {
        self.stored.builds
    }

    /// Keeps what was found out about a commit.
    pub(super) fn keep(&mut self, commit: &Commit, judged: &Judged) -> Result<(), Failure> {
        self.stored.judged.retain(|(known, ..)| known != commit);
        let is_known = judged.verdict != Verdict::Unknown;
        self.stored.judged.push((commit.clone(), is_known, judged.words.clone()));
        self.write()
    }

    /// What was said of it.
    pub(super) fn words(&self, commit: &Commit) -> String {
        let found = self.stored.judged.iter().find(|(known, ..)| known == commit);
        found.map_or_else(String::new, |(.., words)| words.clone())
    }

    pub(super) fn skipped(&self) -> Vec<(Commit, String)> {
        let skipped = self.stored.judged.iter().filter(|(_, is_known, _)| !is_known);
        skipped.map(|(commit, _, words)| (commit.clone(), words.clone())).collect()
    }

    /// Removes all of an earlier bisection but the lock.
    fn forget(&self, repository: &Repository) -> Result<(), Failure> {
        repository.forget_tree(&self.folder.join("tree"))?;
        for name in ["state.json", "good.ko", "build.log"] {
            let _ = fs::remove_file(self.folder.join(name));
        }
        Ok(())
    }

    /// Removes all of it.
    pub(super) fn remove(self) -> Result<(), Failure> {
        fs::remove_dir_all(&self.folder).map_err(|error| {
            let text = format!("cannot remove {}: {error}", self.folder.display());
            Failure::new(exit::BAD_OUTPUT, text)
        })
    }
}
