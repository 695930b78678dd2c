//! What was measured, and on which machine; side by side for two recordings.

use std::borrow::Cow;

use serde::Serialize;

use super::Side;
use crate::export::cell::{Unit, clean};
use crate::export::table::heading;

/// A line of facts.
#[derive(Serialize)]
pub(super) struct Fact {
    label: Cow<'static, str>,
    /// One per recording.
    values: Vec<String>,
    /// Whether two recordings differ in it.
    differs: bool,
}

impl Fact {
    /// A fact of the whole page.
    pub(super) fn one(label: impl Into<Cow<'static, str>>, value: &str) -> Self {
        Self { label: label.into(), values: vec![clean(value).into_owned()], differs: false }
    }

    /// What it is called.
    pub(super) fn label(&self) -> &str {
        &self.label
    }
}

/// The same facts as above the text table.
pub(super) fn of(sides: &[Side<'_>]) -> Vec<Fact> {
    let all: Vec<Vec<(&'static str, String)>> = sides
        .iter()
        .map(|side| heading(side.recording, Unit::Auto.resolve(side.recording)))
        .collect();
    let mut labels: Vec<&'static str> = Vec::new();
    for (label, _) in all.iter().flatten() {
        if !labels.contains(label) {
            labels.push(label);
        }
    }
    // The page's tables have units in their headers.
    labels.retain(|label| *label != "unit");
    let fact = |label: &'static str| {
        let values: Vec<String> = all
            .iter()
            .map(|lines| {
                let of_label = lines.iter().filter(|(other, _)| *other == label);
                let texts: Vec<_> = of_label.map(|(_, text)| clean(text)).collect();
                texts.join("; ")
            })
            .collect();
        let differs = values.windows(2).any(|pair| pair[0] != pair[1]);
        Fact { label: label.into(), values, differs }
    };
    labels.into_iter().map(fact).collect()
}
