//! Looks for the first commit of a driver that made a handler slower. `git bisect` chooses the commits, in a work tree
//! of its own; what is known is kept beside it, so that a bisection goes on after a stop.

mod build;
mod git;
mod state;
pub mod text;

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Failure, exit};
pub use git::Commit;
use git::{Ending, Repository};
use state::State;

/// What to look for, and how to build it.
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
}

/// What a measurement says of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// As fast as the good one.
    Good,
    /// Slower.
    Bad,
    /// It is not known.
    Unknown,
}

/// A measured commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, for a reader.
    pub words: String,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The first slower commit; several if those between could not be measured.
    pub first: Vec<Commit>,
    /// What the measurement of the first slower commit said; empty if there are several.
    pub words: String,
    /// Commits that were left out, with the reason.
    pub skipped: Vec<(Commit, String)>,
    /// Builds that it took, with those of both ends.
    pub builds: u32,
}

/// Measures the good build, whose file is the first, against another.
pub type Measure<'a> = &'a mut dyn FnMut(&Path, &Path) -> Result<Judged, Failure>;

/// Looks for the commit; `say` gets each step as a line.
///
/// # Errors
/// If a revision or the repository is not there, the good one cannot be built, the bad one is not slower, or a measurement
/// fails for a reason that lies in this machine. Called again with the same options it goes on.
pub fn run(
    options: &Options,
    measure: Measure<'_>,
    say: &mut dyn FnMut(&str),
) -> Result<Found, Failure> {
    let repository = Repository::open(&options.repository)?;
    let [good, bad] = repository.ends(&options.good, &options.bad)?;
    let mut state = State::open(&repository, options, [&good, &bad])?;
    let tree = repository.tree(&state.folder().join("tree"), &good)?;
    let good_file = state.folder().join("good.ko");
    if !good_file.exists() {
        tree.check_out(&good)?;
        state.count_build()?;
        let file = build::module(&tree, options, state.folder(), state.lock()).map_err(|why| {
            let text = format!("the good revision {good} cannot be measured: {why}");
            Failure::new(exit::BAD_INPUT, text)
        })?;
        copy(&file, &good_file)?;
    }
    if !tree.is_under_way() {
        tree.check_out(&bad)?;
        let judged = judge(&tree, options, &mut state, &bad, measure, say)?;
        if judged.verdict != Verdict::Bad {
            let text = format!("{bad} is not shown to be slower than {good}: {}", judged.words);
            return Err(Failure::new(exit::INCONCLUSIVE, text));
        }
        tree.start(&good, &bad)?;
    }
    let first = loop {
        match tree.ending()? {
            Some(Ending::First(first)) => break vec![first],
            Some(Ending::OneOf(commits)) => break commits,
            None => {}
        }
        let commit = tree.head()?;
        let judged = judge(&tree, options, &mut state, &commit, measure, say)?;
        tree.mark(judged.verdict)?;
    };
    let words = match first.as_slice() {
        [first] => state.words(first),
        _ => String::new(),
    };
    let found = Found { first, words, skipped: state.skipped(), builds: state.builds() };
    tree.remove()?;
    state.remove()?;
    Ok(found)
}

/// Builds and measures what is checked out.
fn judge(
    tree: &git::Tree<'_>,
    options: &Options,
    state: &mut State,
    commit: &Commit,
    measure: Measure<'_>,
    say: &mut dyn FnMut(&str),
) -> Result<Judged, Failure> {
    say(&format!("building {commit}"));
    state.count_build()?;
    let judged = match build::module(tree, options, state.folder(), state.lock()) {
        Ok(file) => measure(&state.folder().join("good.ko"), &file)?,
        Err(words) => Judged { verdict: Verdict::Unknown, words },
    };
    let verdict = match judged.verdict {
        Verdict::Good => "good",
        Verdict::Bad => "slower",
        Verdict::Unknown => "left out",
    };
    say(&format!("{commit}: {verdict}: {}", judged.words));
    state.keep(commit, &judged)?;
    Ok(judged)
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map(drop).map_err(|error| {
        let text = format!("cannot copy {} to {}: {error}", from.display(), to.display());
        Failure::new(exit::BAD_OUTPUT, text)
    })
}

#[cfg(test)]
mod tests;
