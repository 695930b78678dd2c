//! Views of load profiles: a list, and one in full.

use super::document::{Document, Fact, Note, Table, or_dash};
use crate::load_profile::{Hook, Listed, LoadProfile, Origin, Work};
use crate::text::plural;

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
    let (handlers, builtin, ltp) = match listed.profile.as_ref().map(|profile| &profile.work) {
        Err(_) => ("cannot be used".to_owned(), None, None),
        Ok(Work::Parts(parts)) => (format!("of {}", parts.join(", ")), None, None),
        Ok(Work::Hook(hook)) => (
            hook.handlers.iter().map(|wanted| wanted.name.as_str()).collect::<Vec<_>>().join(", "),
            hook.builtin.map(|builtin| builtin.kind.to_string()),
            hook.ltp.as_ref().map(|ltp| ltp.tests.clone()),
        ),
    };
    vec![listed.name.clone(), handlers, or_dash(builtin), or_dash(ltp), from]
}

/// A load profile in full.
pub fn in_full(profile: &LoadProfile) -> String {
    let mut facts = vec![Fact::new("from", profile.origin.to_string())];
    if !profile.modules.is_empty() {
        facts.push(Fact::new("module", profile.modules.join(", or ")));
    }
    match &profile.work {
        Work::Parts(parts) => facts.push(Fact::new("in turn", parts.join(", "))),
        Work::Hook(hook) => facts.extend(of_hook(hook)),
    }
    Document {
        lead: vec![format!("{}: {}", profile.name, profile.title)],
        facts,
        notes: profile.notes.lines().map(|line| Note::new("", line)).collect(),
        ..Document::default()
    }
    .text(None)
}

fn of_hook(hook: &Hook) -> Vec<Fact> {
    let handlers = hook.handlers.iter();
    let mut facts: Vec<Fact> = handlers
        .map(|of| Fact::new("handler", format!("{}, {} hits or more", of.name, of.least_hits)))
        .collect();
    if let Some(parameter) = &hook.parameter {
        facts.push(Fact::new("needs", format!("the module's parameter {parameter}=1")));
    }
    if let Some(ltp) = &hook.ltp {
        facts.push(Fact::new("LTP", format!("runtest/{}: {}", ltp.suite, ltp.tests)));
    }
    if let Some(builtin) = &hook.builtin {
        let rate = builtin.rate.map_or("as fast as possible".to_owned(), |rate| rate.to_string());
        let words = format!(
            "{}, {} operations, {} worker{}, {rate}",
            builtin.kind,
            builtin.operations,
            builtin.workers,
            plural(builtin.workers)
        );
        facts.push(Fact::new("built-in", words));
    }
    facts
}
