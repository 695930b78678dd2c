//! `profiler profiles`: lists and checks load profiles.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use profiler_base::error::{Failure, bail};
use profiler_export::load_profiles::table;
use profiler_load::profile::{Library, Listed, Origin};

use super::show;

const EXAMPLES: &str = "\
A load profile is a TOML file: handlers, the tests of LTP and the built-in load that call them, and
how many hits a run should have. Your own ones replace or extend the built-in ones: put them in a folder
that --profiles-dir or PROFILER_PROFILES names. The first of a name wins, in that order.

Examples:
  profiler profiles                                # all of them, checked
  profiler profiles bind execve                    # the files of two of them
  profiler profiles --profiles-dir ./my-profiles   # your own too";

/// Arguments of `profiler profiles`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProfilesArgs {
    /// Load profiles whose files to print, by name or file.
    #[arg(value_name = "NAME|FILE")]
    pub names: Vec<String>,
    /// Folder of load profiles that is searched before all others (repeatable).
    #[arg(long = "profiles-dir", visible_alias = "dir", value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

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
        let texts = profiles.iter().map(|of| format!("# {}\n{}", of.origin, of.text));
        return show(args.json, &profiles, |_| texts.collect::<Vec<_>>().join("\n"));
    }
    let listed = library.list()?;
    let entries: Vec<Value> = listed.iter().map(entry).collect();
    show(args.json, &entries, |width| table(&listed, width))?;
    let errors = listed.iter().filter_map(|of| of.profile.as_ref().err());
    let errors: Vec<String> = errors.map(ToString::to_string).collect();
    if errors.is_empty() {
        return Ok(());
    }
    let (bad, all, errors) = (errors.len(), listed.len(), errors.join("\n  "));
    bail!(BAD_INPUT, "{bad} of {all} load profiles cannot be used:\n  {errors}")
}

/// One load profile of the list, in JSON.
fn entry(of: &Listed) -> Value {
    // A path need not be UTF-8.
    let origin = match &of.origin {
        Origin::File(path) => json!({ "file": path.to_string_lossy() }),
        Origin::BuiltIn(name) => json!({ "built_in": name }),
    };
    json!({
        "name": of.name,
        "origin": origin,
        "hidden": of.hidden,
        "profile": of.profile.as_ref().ok(),
        "error": of.profile.as_ref().err().map(ToString::to_string),
    })
}
