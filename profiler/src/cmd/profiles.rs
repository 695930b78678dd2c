//! `profiler profiles`: lists and checks load profiles.

use serde::Serialize;

use super::{data_to_stdout, stdout_width, to_stdout};
use crate::cli::ProfilesArgs;
use crate::error::{Failure, exit};
use crate::export::json::indented;
use crate::export::load_profiles::table;
use crate::load_profile::{Library, Listed, LoadProfile, Origin};

/// Lists and checks all load profiles, or shows the named ones.
///
/// # Errors
/// If a named one does not exist, any cannot be used, or the output cannot be written.
pub fn run(args: &ProfilesArgs) -> Result<(), Failure> {
    let library = Library::of_user(&args.folders);
    if !args.names.is_empty() {
        let mut profiles = Vec::new();
        for name in &args.names {
            let profile = library.find(name)?;
            library.parts(&profile)?;
            profiles.push(profile);
        }
        if args.json {
            return data_to_stdout(&indented(&profiles));
        }
        let texts = profiles.iter().map(|of| format!("# {}\n{}", of.origin, of.text));
        return to_stdout(&texts.collect::<Vec<_>>().join("\n"));
    }
    let listed = library.list()?;
    if args.json {
        let entries: Vec<Entry> = listed.iter().map(Entry::of).collect();
        data_to_stdout(&indented(&entries))?;
    } else {
        to_stdout(&table(&listed, stdout_width()))?;
    }
    let mut bad = Vec::new();
    for entry in &listed {
        if let Err(error) = &entry.profile {
            bad.push(error.to_string());
        }
    }
    match bad.as_slice() {
        [] => Ok(()),
        all => Err(Failure::new(
            exit::BAD_INPUT,
            format!(
                "{} of {} load profiles cannot be used:\n  {}",
                all.len(),
                listed.len(),
                all.join("\n  ")
            ),
        )),
    }
}

/// One load profile of the list, in JSON.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    origin: &'a Origin,
    hidden: bool,
    profile: Option<&'a LoadProfile>,
    error: Option<String>,
}

impl<'a> Entry<'a> {
    fn of(listed: &'a Listed) -> Self {
        Self {
            name: &listed.name,
            origin: &listed.origin,
            hidden: listed.hidden,
            profile: listed.profile.as_ref().ok(),
            error: listed.profile.as_ref().err().map(ToString::to_string),
        }
    }
}
