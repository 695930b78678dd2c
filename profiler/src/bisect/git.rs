//! Git, by its program.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::{Deserialize, Serialize};

use super::Verdict;
use crate::error::{Failure, exit};

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// Its hash.
    pub hash: String,
    /// First line of its message.
    pub subject: String,
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = self.hash.get(..12).unwrap_or(&self.hash);
        write!(f, "{short} ({})", self.subject)
    }
}

/// How a bisection ended.
pub(super) enum Ending {
    /// The first bad commit.
    First(Commit),
    /// It is one of these, and all but the last were skipped.
    OneOf(Vec<Commit>),
}

/// The driver's repository.
pub(super) struct Repository {
    root: PathBuf,
}

/// A checkout of its own.
pub(super) struct Tree<'a> {
    of: &'a Repository,
    folder: PathBuf,
}

impl Repository {
    pub(super) fn open(folder: &Path) -> Result<Self, Failure> {
        let root = git(folder, ["rev-parse", "--show-toplevel"])?;
        Ok(Self { root: root.into() })
    }

    /// The folder that all its work trees share.
    pub(super) fn common(&self) -> Result<PathBuf, Failure> {
        let folder = git(&self.root, ["rev-parse", "--git-common-dir"])?;
        Ok(self.root.join(folder))
    }

    /// Both ends of the search.
    pub(super) fn ends(&self, good: &str, bad: &str) -> Result<[Commit; 2], Failure> {
        let [good, bad] = [self.commit(good)?, self.commit(bad)?];
        let args = ["merge-base", "--is-ancestor", &good.hash, &bad.hash];
        if good == bad || !output(&self.root, args)?.status.success() {
            let text = format!("the good revision {good} is not an ancestor of the bad one, {bad}");
            return Err(Failure::new(exit::USAGE, text));
        }
        Ok([good, bad])
    }

    fn commit(&self, revision: &str) -> Result<Commit, Failure> {
        // Never an option, whatever it begins with.
        let args = [
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            &format!("{revision}^{{commit}}"),
        ];
        let hash = git(&self.root, args).map_err(|_| {
            let text = format!("{} has no commit `{revision}`", self.root.display());
            Failure::new(exit::USAGE, text)
        })?;
        commit(&self.root, &hash)
    }

    /// Removes the work tree in `folder`, if there is one.
    pub(super) fn forget_tree(&self, folder: &Path) -> Result<(), Failure> {
        if folder.exists() {
            let remove = ["worktree", "remove", "--force", "--force"].map(OsStr::new);
            git(&self.root, remove.into_iter().chain([folder.as_os_str()]))?;
        }
        Ok(())
    }

    /// The work tree in `folder`, which is made at `commit` if it is not there.
    pub(super) fn tree(&self, folder: &Path, commit: &Commit) -> Result<Tree<'_>, Failure> {
        if !folder.join(".git").exists() {
            let add = ["worktree", "add", "--quiet", "--force", "--detach"].map(OsStr::new);
            git(&self.root, add.into_iter().chain([folder.as_os_str(), OsStr::new(&commit.hash)]))?;
        }
        Ok(Tree { of: self, folder: folder.to_owned() })
    }
}

impl Tree<'_> {
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Nothing but `commit` in it: what an earlier build left could hide that the next one fails.
    pub(super) fn check_out(&self, commit: &Commit) -> Result<(), Failure> {
        git(&self.folder, ["checkout", "--quiet", "--force", "--detach", &commit.hash])?;
        self.clean()
    }

    /// Removes what is not of the commit.
    pub(super) fn clean(&self) -> Result<(), Failure> {
        git(&self.folder, ["reset", "--quiet", "--hard"])?;
        git(&self.folder, ["clean", "--quiet", "-ffdx"]).map(drop)
    }

    pub(super) fn is_under_way(&self) -> bool {
        output(&self.folder, ["bisect", "log"]).is_ok_and(|output| output.status.success())
    }

    pub(super) fn start(&self, good: &Commit, bad: &Commit) -> Result<(), Failure> {
        self.clean()?;
        git(&self.folder, ["bisect", "start", &bad.hash, &good.hash]).map(drop)
    }

    /// Marks what is checked out, and checks the next commit out.
    pub(super) fn mark(&self, verdict: Verdict) -> Result<(), Failure> {
        self.clean()?;
        let word = match verdict {
            Verdict::Good => "good",
            Verdict::Bad => "bad",
            Verdict::Unknown => "skip",
        };
        let output = output(&self.folder, ["bisect", word])?;
        // 2: only skipped commits are left, which the log lists.
        match output.status.code() {
            Some(0 | 2) => Ok(()),
            _ => Err(failed(&format!("bisect {word}"), &output)),
        }
    }

    /// The commit that is checked out.
    pub(super) fn head(&self) -> Result<Commit, Failure> {
        let hash = git(&self.folder, ["rev-parse", "HEAD"])?;
        commit(&self.folder, &hash)
    }

    /// The end, if it is there: git writes it to the log.
    pub(super) fn ending(&self) -> Result<Option<Ending>, Failure> {
        let log = git(&self.folder, ["bisect", "log"])?;
        let named = |mark: &str| -> Result<Vec<Commit>, Failure> {
            let hash = |line: &str| {
                let rest = line.strip_prefix(mark)?.trim_start();
                Some(rest.strip_prefix('[')?.split_once(']')?.0.to_owned())
            };
            log.lines().filter_map(hash).map(|hash| commit(&self.folder, &hash)).collect()
        };
        if let Some(first) = named("# first bad commit:")?.pop() {
            return Ok(Some(Ending::First(first)));
        }
        let possible = named("# possible first bad commit:")?;
        Ok((!possible.is_empty()).then_some(Ending::OneOf(possible)))
    }

    pub(super) fn remove(self) -> Result<(), Failure> {
        self.of.forget_tree(&self.folder)
    }
}

fn commit(folder: &Path, hash: &str) -> Result<Commit, Failure> {
    let subject = git(folder, ["log", "-1", "--format=%s", hash])?;
    Ok(Commit { hash: hash.to_owned(), subject })
}

/// What a command of git prints.
fn git<S: AsRef<OsStr>>(
    folder: &Path,
    args: impl IntoIterator<Item = S>,
) -> Result<String, Failure> {
    let args: Vec<S> = args.into_iter().collect();
    let output = output(folder, &args)?;
    if !output.status.success() {
        let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
        return Err(failed(&words.join(" "), &output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn output<S: AsRef<OsStr>>(
    folder: &Path,
    args: impl IntoIterator<Item = S>,
) -> Result<Output, Failure> {
    Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            let text = format!("cannot run git: {error}: install it");
            Failure::new(exit::CANNOT_MEASURE, text)
        })
}

fn failed(what: &str, output: &Output) -> Failure {
    let said = String::from_utf8_lossy(&output.stderr);
    let text = format!("`git {what}` failed ({}): {}", output.status, said.trim());
    Failure::new(exit::BAD_INPUT, text)
}
