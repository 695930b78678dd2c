//! Finds load profiles in folders of the user, folders of the system, and this program.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use profiler_base::error::{Failure, bail, exit};
use profiler_base::text::nearest;
use profiler_base::toml_file;

use super::{LoadProfile, Origin};

/// The profiles in this program, by name: all of `ltp-profiles/`.
pub(super) const BUILT_IN: &[(&str, &str)] =
    include!(concat!(env!("OUT_DIR"), "/load-profiles.rs"));

/// Where profiles are searched, in this order: the first of a name is taken.
#[derive(Debug, Clone, Default)]
pub struct Library {
    folders: Vec<PathBuf>,
}

/// One profile of a listing.
#[derive(Debug)]
pub struct Listed {
    pub name: String,
    /// Where it was found.
    pub origin: Origin,
    /// An earlier folder has one of this name, which is taken instead.
    pub hidden: bool,
    /// The profile, or its error.
    pub profile: Result<LoadProfile, Failure>,
}

impl Library {
    /// The folders `first`, then those that `PROFILER_PROFILES` names, separated by colons, then this program.
    pub fn of_user(first: &[PathBuf]) -> Self {
        let named = std::env::var_os("PROFILER_PROFILES").unwrap_or_default();
        let mut folders = first.to_vec();
        folders.extend(std::env::split_paths(&named));
        folders.retain(|folder| !folder.as_os_str().is_empty());
        Self { folders }
    }

    /// Where there are profiles, in the order of the search; within a folder by name.
    fn origins(&self) -> Result<Vec<Origin>, Failure> {
        let mut origins = Vec::new();
        for folder in &self.folders {
            let mut paths = files(folder).map_err(|error| {
                let folder = folder.display();
                unusable(format!("{folder}: cannot read this folder of load profiles: {error}"))
            })?;
            paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
            paths.sort();
            origins.extend(paths.into_iter().map(Origin::File));
        }
        origins.extend(BUILT_IN.iter().map(|(name, _)| Origin::BuiltIn(name)));
        Ok(origins)
    }

    /// All profiles, valid or not, in the order of the search; within a folder by name.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, Failure> {
        let mut seen = HashSet::new();
        let listed = self.origins()?.into_iter().map(|origin| {
            let name = origin.name();
            // Parts are looked up in the same folders.
            let profile = read(&origin).and_then(|it| self.parts(&it).map(|_| it));
            Listed { hidden: !seen.insert(name.clone()), name, origin, profile }
        });
        Ok(listed.collect())
    }

    /// The profile named `wanted`, or in the file `wanted` if that has a `/` or ends in `.toml`.
    ///
    /// # Errors
    /// If it does not exist or is not valid.
    pub fn find(&self, wanted: &str) -> Result<LoadProfile, Failure> {
        if wanted.contains('/') || wanted.ends_with(".toml") {
            return read(&Origin::File(wanted.into()));
        }
        self.named(wanted)
    }

    /// The profiles to run for this one: itself, or its parts in their order. A part is searched first in
    /// the folder of the profile.
    ///
    /// # Errors
    /// If a part does not exist, is not valid, or has parts itself.
    pub fn parts(&self, profile: &LoadProfile) -> Result<Vec<LoadProfile>, Failure> {
        if profile.parts.is_empty() {
            return Ok(vec![profile.clone()]);
        }
        let parts = profile.parts.iter().map(|name| {
            let part = self.part(name, &profile.origin);
            part.map_err(|why| unusable(format!("{}: part `{name}`: {why}", profile.origin)))
        });
        parts.collect()
    }

    fn part(&self, name: &str, of: &Origin) -> Result<LoadProfile, String> {
        let beside = match of {
            Origin::File(path) => Some(path.with_file_name(format!("{name}.toml"))),
            Origin::BuiltIn(_) => None,
        };
        let part = match beside.filter(|path| path.exists()) {
            Some(path) => read(&Origin::File(path)),
            None => self.named(name),
        };
        let part = part.map_err(|error| error.to_string())?;
        if !part.parts.is_empty() {
            return Err("has parts itself; name those here".to_owned());
        }
        Ok(part)
    }

    fn named(&self, name: &str) -> Result<LoadProfile, Failure> {
        let paths = self.folders.iter().map(|folder| folder.join(format!("{name}.toml")));
        let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
        let mut origins = paths.filter(|path| path.exists()).map(Origin::File);
        if let Some(origin) = origins.next().or(built_in.map(|(name, _)| Origin::BuiltIn(name))) {
            return read(&origin);
        }
        let known: BTreeSet<String> = self.origins()?.iter().map(Origin::name).collect();
        let near = nearest(name, known.iter().cloned());
        let near = near.map_or(String::new(), |near| format!(": did you mean `{near}`?"));
        let known = Vec::from_iter(known).join(", ");
        bail!(
            USAGE,
            "no load profile `{name}`{near}; there are {known} (`profiler profiles` describes them)"
        )
    }
}

/// A file or folder that cannot be read, or a part that cannot be used: why, and what to do.
fn unusable(why: String) -> Failure {
    Failure::new(exit::BAD_INPUT, why)
}

/// What is in a folder.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn read(origin: &Origin) -> Result<LoadProfile, Failure> {
    let name = origin.name();
    let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
    let text = match (origin, built_in) {
        (Origin::BuiltIn(_), text) => text.map_or("", |(_, text)| text).to_owned(),
        (Origin::File(path), None) => toml_file::read(path)?,
        (Origin::File(path), Some(_)) => toml_file::read(path).map_err(|error| {
            let instead = "there is a built-in profile of that name: --profile";
            unusable(format!("{error}; {instead} {name}"))
        })?,
    };
    LoadProfile::parse(origin.clone(), &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOK: &str = "title = \"mine\"\n[[handler]]\nname = \"x\"\nleast_hits = 1\n[builtin]\nkind = \"bind\"\noperations = 1\n";

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn the_program_contains_every_profile_of_the_repository() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ltp-profiles");
        let in_repository = Library { folders: vec![folder] }.origins().unwrap();
        let in_repository: BTreeSet<String> = in_repository
            .iter()
            .filter(|origin| matches!(origin, Origin::File(_)))
            .map(Origin::name)
            .collect();
        let built_in: BTreeSet<String> =
            BUILT_IN.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(built_in, in_repository);
    }

    #[test]
    fn a_folder_of_the_user_comes_first() {
        let mine = folder(&[("bind.toml", HOOK), ("own.toml", HOOK), ("notes.txt", "no profile")]);
        let library = Library { folders: vec![mine.path().to_owned()] };
        assert_eq!(library.find("bind").unwrap().title, "mine");
        assert_eq!(library.find("own").unwrap().title, "mine");
        assert_ne!(library.find("connect").unwrap().title, "mine");
        let listed = library.list().unwrap();
        let names: Vec<&str> = listed.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names[..2], ["bind", "own"]);
        let hidden: Vec<String> = listed
            .iter()
            .filter(|entry| entry.hidden)
            .map(|entry| entry.origin.to_string())
            .collect();
        assert_eq!(hidden, ["built-in bind.toml"]);
        assert!(listed.iter().all(|entry| entry.profile.is_ok()), "{listed:?}");
    }

    #[test]
    fn an_unknown_name_is_an_error_with_a_similar_name() {
        let error = Library::default().find("conect").unwrap_err().to_string();
        assert!(error.contains("did you mean `connect`?"), "{error}");
        let error = Library::default().find("nowhere/connect.toml").unwrap_err().to_string();
        assert!(error.contains("--profile connect"), "{error}");
        let gone = Library { folders: vec!["/no/such/folder".into()] };
        assert_eq!(gone.list().unwrap_err().code, exit::BAD_INPUT);
    }

    #[test]
    fn parts_are_found_in_the_folder_of_their_profile_and_in_the_program() {
        let all = "title = \"all\"\nparts = [\"own\", \"connect\"]";
        let nested = "title = \"all\"\nparts = [\"all\"]";
        let missing = "title = \"all\"\nparts = [\"nothing\"]";
        let mine = folder(&[
            ("own.toml", HOOK),
            ("all.toml", all),
            ("nested.toml", nested),
            ("missing.toml", missing),
        ]);
        let library = Library::default();
        let find = |name: &str| {
            let path = mine.path().join(name);
            library.find(&path.to_string_lossy()).unwrap()
        };
        let parts = library.parts(&find("all.toml")).unwrap();
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["own", "connect"]);
        for (name, words) in [("nested.toml", "parts itself"), ("missing.toml", "no load profile")]
        {
            let error = library.parts(&find(name)).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains(name), "{error}");
        }
        let listed = Library { folders: vec![mine.path().to_owned()] }.list().unwrap();
        let bad: Vec<&str> = listed
            .iter()
            .filter(|entry| entry.profile.is_err())
            .map(|entry| entry.name.as_str())
            .collect();
        assert_eq!(bad, ["missing", "nested"]);
    }
}
