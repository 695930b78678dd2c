//! The list of load profiles.

use itertools::Itertools as _;

use profiler_load::profile::{Listed, LoadProfile, Origin};

use super::document::{Table, or_dash};

/// The list; `width` is the terminal's, in columns.
pub fn table(listed: &[Listed], width: Option<u16>) -> String {
    let head = ["profile", "handlers", "built-in", "LTP tests", "from"];
    Table::words(head, listed.iter().map(row)).text(width)
}

fn row(listed: &Listed) -> Vec<String> {
    let origin = match &listed.origin {
        Origin::BuiltIn(_) => "built in".to_owned(),
        Origin::File(path) => path.display().to_string(),
    };
    let from = if listed.hidden { format!("{origin} (hidden by one above)") } else { origin };
    let (handlers, builtin, ltp) = match &listed.profile {
        Err(_) => ("cannot be used".to_owned(), None, None),
        Ok(profile) if !profile.parts.is_empty() => {
            (format!("of {}", profile.parts.join(", ")), None, None)
        }
        Ok(LoadProfile { hook, .. }) => (
            hook.handlers.iter().map(|wanted| &wanted.name).join(", "),
            hook.builtin.map(|builtin| builtin.kind.to_string()),
            hook.ltp.as_ref().map(|ltp| ltp.tests.clone()),
        ),
    };
    vec![listed.name.clone(), handlers, or_dash(builtin), or_dash(ltp), from]
}
