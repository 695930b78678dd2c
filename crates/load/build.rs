//! Lists the load profiles, which the program carries with it.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> Result<(), String> {
    list_load_profiles().map_err(|error| format!("cannot list ltp-profiles: {error}"))
}

/// Writes the names and texts of all load profiles, as an expression.
fn list_load_profiles() -> io::Result<()> {
    let folder = fs::canonicalize("../../ltp-profiles")?;
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let (Some(name), Some(ending)) = (path.file_stem(), path.extension())
            && ending == "toml"
        {
            entries.push(format!("({name:?}, include_str!({path:?})),\n"));
        }
    }
    entries.sort();
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("load-profiles.rs"), format!("&[{}]", entries.concat()))
}
