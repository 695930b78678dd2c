//! Looks for the first commit of a driver that made a handler slower: `git bisect run` in a work tree of its own, by a script that
//! builds a commit and has `profiler gate` judge it beside the good one. What was said of each is kept beside the tree, so that a
//! bisection goes on after a stop.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::export::cell::clean;
use crate::load::dying_with_parent;
use crate::text::plural;

/// Folder below git's, which all work trees of a repository share.
const FOLDER: &str = "profiler-bisect";
/// Builds and judges what is checked out.
const STEP: &str = include_str!("step.sh");

/// Before a command of git: hooks of the repository are for its users, and could end a step or change its tree.
const NO_HOOKS: [&str; 2] = ["-c", "core.hooksPath=/dev/null"];
/// What git gives to programs that it starts, such as a hook that calls this one: it would name another repository or tree.
const OF_GIT: [&str; 7] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_CONFIG_PARAMETERS",
];

/// What to look for, and how to build and judge it.
#[derive(Debug, Clone)]
pub struct Options {
    /// A folder of the driver's repository.
    pub repository: PathBuf,
    /// A revision that is fast enough: an ancestor of `bad`.
    pub good: String,
    /// A revision that is slower.
    pub bad: String,
    /// The command that builds the module, for `sh`, in the root of a checkout.
    pub build: String,
    /// The module's file in the checkout; `None` is the only one that the build makes.
    pub module: Option<PathBuf>,
    /// Forget an earlier bisection of this repository.
    pub start_over: bool,
    /// `profiler gate` and its options, without the builds.
    pub gate: Vec<OsString>,
}

/// What was found. A commit is its hash and the first line of its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The first slower commit; several if those between could not be measured.
    pub first: Vec<String>,
    /// What the gate said of the first slower commit; empty if there are several.
    pub words: String,
    /// Commits that were left out, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Commits that were built, both ends among them.
    pub builds: usize,
}

impl Found {
    /// The first slower commit or those that it is one of, and what was left out.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = match self.first.as_slice() {
            [first] => format!("bisect: {first} is the first slower commit\n{}\n", self.words),
            several => format!(
                "bisect: one of these is the first slower commit:\n  {}\n",
                several.join("\n  ")
            ),
        };
        text.push_str(&format!("bisect: {} build{}", self.builds, plural(self.builds)));
        let count = self.skipped.len();
        if count > 0 {
            text.push_str(&format!(", {count} commit{} left out:", plural(count)));
        }
        text.push('\n');
        for (commit, why) in &self.skipped {
            text.push_str(&format!("  {commit}: {}\n", why.lines().next().unwrap_or_default()));
        }
        text.lines().map(|line| format!("{}\n", clean(line))).collect()
    }
}

/// Looks for the commit; `say` gets each step as a line.
///
/// # Errors
/// If a revision or the repository is not there, the good one cannot be built, the bad one is not slower, or the gate
/// fails for a reason that lies in this machine. Called again with the same options it goes on.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Found, Failure> {
    let root = PathBuf::from(git(&options.repository, ["rev-parse", "--show-toplevel"])?);
    let [good, bad] = ends(&root, options)?;
    let state = State::open(&root, options, [&good, &bad])?;
    let tree = state.file("tree");
    if !tree.join(".git").exists() {
        let add = ["worktree", "add", "--quiet", "--force", "--detach"].map(OsStr::new);
        git(&root, add.into_iter().chain([tree.as_os_str(), OsStr::new(&good)]))?;
    }
    if !state.file("good.ko").exists() {
        git(&tree, ["checkout", "--quiet", "--force", "--detach", &good])?;
        // The judge of the good one takes it: whole, as it is not built again after a stop.
        let keep = ["sh", "-c", "cp \"$4\" \"$2.new\" && mv \"$2.new\" \"$2\"", "sh"];
        if state.end(&keep.map(OsString::from), say)? != 0 {
            let (good, why) = (described(&root, &good)?, state.said(&good));
            let text = format!("the good revision {good} cannot be measured: {why}");
            return Err(Failure::new(exit::BAD_INPUT, text));
        }
    }
    if git(&tree, ["bisect", "log"]).is_err() {
        git(&tree, ["checkout", "--quiet", "--force", "--detach", &bad])?;
        if state.end(&options.gate, say)? != 1 {
            let [good, slow] = [described(&root, &good)?, described(&root, &bad)?];
            let why = state.said(&bad);
            let text = format!("{slow} is not shown to be slower than {good}: {why}");
            return Err(Failure::new(exit::INCONCLUSIVE, text));
        }
        git(&tree, ["bisect", "start", &bad, &good])?;
    }
    // A parent and its child are decided by both ends.
    if state.marked("# first bad commit: [")?.is_empty() {
        // The script ends with git, the gate with the script, and git with this process: nothing goes on when that is killed.
        let by = ["git", NO_HOOKS[0], NO_HOOKS[1], "bisect", "run"];
        let by = [&by[..], &["setpriv", "--pdeathsig", "KILL", "sh"]].concat();
        let ended = state.step(&by, &options.gate, say)?;
        // 2: only commits that were left out are left.
        if !matches!(ended, Some(0 | 2)) {
            let text = format!("`git bisect run` ended with exit code {}", ended.unwrap_or(-1));
            return Err(Failure::new(exit::BAD_INPUT, text));
        }
    }
    let found = state.found()?;
    state.forget(&root)?;
    fs::remove_dir_all(&state.folder)
        .map_err(|error| Failure::cannot_write(&state.folder, &error))?;
    Ok(found)
}

/// The hashes of both ends of the search.
fn ends(root: &Path, options: &Options) -> Result<[String; 2], Failure> {
    let [good, bad] = [commit(root, &options.good)?, commit(root, &options.bad)?];
    if good == bad || git(root, ["merge-base", "--is-ancestor", &good, &bad]).is_err() {
        let [good, bad] = [described(root, &good)?, described(root, &bad)?];
        let text = format!("the good revision {good} is not an ancestor of the bad one, {bad}");
        return Err(Failure::new(exit::USAGE, text));
    }
    Ok([good, bad])
}

fn commit(root: &Path, revision: &str) -> Result<String, Failure> {
    let wanted = format!("{revision}^{{commit}}");
    // Never an option, whatever it begins with.
    git(root, ["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted]).map_err(|_| {
        let text = format!("{} has no commit `{revision}`", root.display());
        Failure::new(exit::USAGE, text)
    })
}

/// A commit for a reader.
fn described(folder: &Path, hash: &str) -> Result<String, Failure> {
    git(folder, ["log", "-1", "--abbrev=12", "--format=%h (%s)", hash])
}

/// What a bisection knows besides git, in git's own folder, and its work tree. Nobody else has it open.
struct State<'a> {
    options: &'a Options,
    folder: PathBuf,
    /// Empty, and locked as long as the bisection is under way. Steps have it as their input: it stays locked until they end.
    lock: Flock<File>,
}

impl<'a> State<'a> {
    /// Opens the bisection under way, or begins one.
    fn open(root: &Path, options: &'a Options, ends: [&str; 2]) -> Result<Self, Failure> {
        let folder = root.join(git(root, ["rev-parse", "--git-common-dir"])?).join(FOLDER);
        let cannot = |error| Failure::cannot_write(&folder, &error);
        fs::create_dir_all(folder.join("said")).map_err(cannot)?;
        let lock = File::options().read(true).append(true).create(true).open(folder.join("lock"));
        let lock = Flock::lock(lock.map_err(cannot)?, FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => {
                let text = "another bisection of this repository is running, or the last step of one that was killed: let it end first";
                Failure::new(exit::USAGE, text)
            }
            errno => cannot(errno.into()),
        })?;
        let state = Self { options, folder, lock };
        if options.start_over {
            state.forget(root)?;
        }
        let module = options.module.as_deref().map(Path::to_string_lossy).unwrap_or_default();
        // The program's name has the number of its process; messages are kept where it is said now.
        let judged = options.gate.iter().skip(1).map(|word| word.to_string_lossy());
        let judged = judged.take_while(|word| word != "--logs").collect::<Vec<_>>().join(" ");
        let question = [ends[0], ends[1], &options.build, &module, &judged].join("\n");
        match fs::read_to_string(state.file("question")) {
            Ok(other) if other == question => {}
            Ok(_) => {
                let text = "a bisection between other revisions, or with another build command or other limits, was \
                            begun in this repository: say --start-over to forget it";
                return Err(Failure::new(exit::USAGE, text));
            }
            Err(_) => OutputFile::open(&state.file("question"))?.commit(question.as_bytes())?,
        }
        Ok(state)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Removes all of a bisection but the lock.
    fn forget(&self, root: &Path) -> Result<(), Failure> {
        let tree = self.file("tree");
        if tree.exists() {
            let remove = ["worktree", "remove", "--force", "--force"].map(OsStr::new);
            // Git refuses a tree that it has removed in part.
            if git(root, remove.into_iter().chain([tree.as_os_str()])).is_err() {
                fs::remove_dir_all(&tree).map_err(|error| Failure::cannot_write(&tree, &error))?;
                git(root, ["worktree", "prune"])?;
            }
        }
        for name in ["question", "good.ko", "build.log", "clean.log", "failure"] {
            let _ = fs::remove_file(self.file(name));
        }
        let said = self.file("said");
        let emptied = fs::remove_dir_all(&said).and_then(|()| fs::create_dir(&said));
        emptied.map_err(|error| Failure::cannot_write(&said, &error))
    }

    /// Runs the script on an end of the search: 0, 1 or 125.
    fn end(&self, judge: &[OsString], say: &mut dyn FnMut(&str)) -> Result<i32, Failure> {
        match self.step(&["sh"], judge, say)? {
            Some(code @ (0 | 1 | 125)) => Ok(code),
            _ => {
                let text = "a step was ended by a signal: is memory short?";
                Err(Failure::new(exit::CANNOT_MEASURE, text))
            }
        }
    }

    /// Runs the script in the work tree, once or by git; the exit code.
    fn step(
        &self,
        by: &[&str],
        judge: &[OsString],
        say: &mut dyn FnMut(&str),
    ) -> Result<Option<i32>, Failure> {
        let _ = fs::remove_file(self.file("failure"));
        let code = self.run_script(by, judge, say).map_err(|error| {
            Failure::new(exit::CANNOT_MEASURE, format!("cannot run {}: {error}", by.join(" ")))
        })?;
        // What ends all: the judge's exit code, and its last line.
        let Ok(failure) = fs::read_to_string(self.file("failure")) else { return Ok(code) };
        let (code, text) = failure.split_once(' ').unwrap_or((&failure, ""));
        let text = match text.trim().trim_start_matches("error: ") {
            "" => format!("a step ended with exit code {code} and no message: is memory short?"),
            text => text.to_owned(),
        };
        // Other codes are the shell's: it could not start the gate, or a signal ended that.
        let code = code.trim().parse().ok();
        let code = code.filter(|code| {
            matches!(
                *code,
                exit::INTERNAL
                    ..=exit::DRIVER_REPLACED | exit::HUNG_UP | exit::INTERRUPTED | exit::TERMINATED
            )
        });
        Err(Failure::new(code.unwrap_or(exit::CANNOT_MEASURE), text))
    }

    fn run_script(
        &self,
        by: &[&str],
        judge: &[OsString],
        say: &mut dyn FnMut(&str),
    ) -> io::Result<Option<i32>> {
        let mut command = Command::new(by[0]);
        command.args(&by[1..]).args(["-c", STEP, "sh"]).arg(&self.folder).arg(&self.options.build);
        command.arg(self.options.module.as_deref().unwrap_or(Path::new("")));
        command.arg(std::env::current_dir()?).arg(std::process::id().to_string()).args(judge);
        command.current_dir(self.file("tree")).stdin(self.lock.try_clone()?);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        // Those are for a report of the whole.
        command.env_remove("GITHUB_ACTIONS").env_remove("GITHUB_STEP_SUMMARY");
        OF_GIT.iter().for_each(|name| _ = command.env_remove(name));
        dying_with_parent(&mut command);
        let mut child = command.spawn()?;
        for line in child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
            say(&line.unwrap_or_default());
        }
        Ok(child.wait()?.code())
    }

    /// What the judge said of a commit, or why there is nothing to judge.
    fn said(&self, hash: &str) -> String {
        let bytes = fs::read(self.file("said").join(hash)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    /// Commits with this mark in git's log. A bisection that goes on after a stop may mark one again.
    fn marked(&self, mark: &str) -> Result<Vec<String>, Failure> {
        let log = git(&self.file("tree"), ["bisect", "log"])?;
        let mut hashes: Vec<String> = Vec::new();
        for line in log.lines() {
            let hash = line.strip_prefix(mark).and_then(|rest| rest.split_once(']'));
            if let Some((hash, _)) = hash.filter(|(hash, _)| !hashes.iter().any(|it| it == hash)) {
                hashes.push(hash.to_owned());
            }
        }
        Ok(hashes)
    }

    /// What is known at the end: git writes the first bad commit, or those that it may be, to its log.
    fn found(&self) -> Result<Found, Failure> {
        let tree = self.file("tree");
        let mut first = self.marked("# first bad commit: [")?;
        if first.is_empty() {
            first = self.marked("# possible first bad commit: [")?;
        }
        let mut skipped = Vec::new();
        for hash in self.marked("# skip: [")? {
            skipped.push((described(&tree, &hash)?, self.said(&hash)));
        }
        Ok(Found {
            words: if let [first] = &first[..] { self.said(first) } else { String::new() },
            first: first.iter().map(|hash| described(&tree, hash)).collect::<Result<_, _>>()?,
            skipped,
            builds: fs::read_dir(self.file("said")).map_or(0, Iterator::count),
        })
    }
}

/// What a command of git prints.
fn git<S: AsRef<OsStr>>(
    folder: &Path,
    args: impl IntoIterator<Item = S>,
) -> Result<String, Failure> {
    let mut command = Command::new("git");
    command.args(NO_HOOKS).arg("-C").arg(folder).args(args).env("LC_ALL", "C").stdin(Stdio::null());
    OF_GIT.iter().for_each(|name| _ = command.env_remove(name));
    let Output { status, stdout, stderr } = command.output().map_err(|error| {
        Failure::new(exit::CANNOT_MEASURE, format!("cannot run git: {error}: install it"))
    })?;
    if !status.success() {
        let words: Vec<_> = command.get_args().skip(4).map(OsStr::to_string_lossy).collect();
        let said = String::from_utf8_lossy(&stderr);
        let text = format!("`git {}` failed ({status}): {}", words.join(" "), said.trim());
        return Err(Failure::new(exit::BAD_INPUT, text));
    }
    Ok(String::from_utf8_lossy(&stdout).trim_end().to_owned())
}

#[cfg(test)]
mod tests;
