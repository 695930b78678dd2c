//! Load profiles as text: a list, and one in full.

use super::grid::words as grid;
use crate::load_profile::{Hook, Listed, LoadProfile, Origin, Work};

/// The list; `width` is the terminal's, in columns.
#[must_use]
pub fn table(listed: &[Listed], width: Option<u16>) -> String {
    let rows = listed.iter().map(row).collect();
    grid(&["profile", "handlers", "built-in", "LTP tests", "from"], rows, width)
}

fn row(listed: &Listed) -> Vec<String> {
    let origin = match &listed.origin {
        Origin::BuiltIn(_) => "built in".to_owned(),
        Origin::File(path) => path.display().to_string(),
    };
    let from = if listed.hidden { format!("{origin} (hidden by one above)") } else { origin };
    let (handlers, builtin, ltp) = match listed.profile.as_ref().map(|profile| &profile.work) {
        Err(_) => ("cannot be used".to_owned(), None, None),
        Ok(Work::Parts(parts)) => (format!("of {}", parts.join(", ")), None, None),
        Ok(Work::Hook(hook)) => (
            hook.handlers.iter().map(|wanted| wanted.name.as_str()).collect::<Vec<_>>().join(", "),
            hook.builtin.map(|builtin| builtin.kind.to_string()),
            hook.ltp.as_ref().map(|ltp| ltp.tests.clone()),
        ),
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![listed.name.clone(), handlers, or_dash(builtin), or_dash(ltp), from]
}

/// A load profile in full.
#[must_use]
pub fn in_full(profile: &LoadProfile) -> String {
    let mut text =
        format!("{}: {}\n  from       {}\n", profile.name, profile.title, profile.origin);
    let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<10} {value}\n"));
    if !profile.modules.is_empty() {
        line("module", &profile.modules.join(", or "));
    }
    match &profile.work {
        Work::Parts(parts) => line("in turn", &parts.join(", ")),
        Work::Hook(hook) => of_hook(hook, &mut line),
    }
    for note in profile.notes.lines() {
        text.push_str(&format!("  {note}\n"));
    }
    text
}

fn of_hook(hook: &Hook, line: &mut impl FnMut(&str, &str)) {
    for wanted in &hook.handlers {
        line("handler", &format!("{}, {} hits or more", wanted.name, wanted.least_hits));
    }
    if let Some(parameter) = &hook.parameter {
        line("needs", &format!("the module's parameter {parameter}=1"));
    }
    if let Some(ltp) = &hook.ltp {
        line("LTP", &format!("runtest/{}: {}", ltp.suite, ltp.tests));
    }
    if let Some(builtin) = &hook.builtin {
        let rate = builtin.rate.map_or("as fast as possible".to_owned(), |rate| rate.to_string());
        let workers = if builtin.workers == 1 { "worker" } else { "workers" };
        line(
            "built-in",
            &format!(
                "{}, {} operations, {} {workers}, {rate}",
                builtin.kind, builtin.operations, builtin.workers
            ),
        );
    }
}
