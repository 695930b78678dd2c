//! HTML: one self-contained file with plots, tables, losses and facts of one recording, or of two
//! overlaid.
//!
//! The page's style sheet sets the colours of the SVG plots, so that one drawing serves light, dark and
//! print. The script sorts tables and switches the theme; without it the page shows everything, and call trees unfold.

mod chart;
mod costs;
mod facts;
mod overview;
mod paint;
mod plot;
mod rows;
mod tree;

use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use super::Exporter;
use super::cell::clean;
use super::curve;
use crate::profile::{HandlerProfile, Meter, Profile};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The page of one recording, or of two to compare by eye.
#[derive(Debug, Clone, Copy, Default)]
pub struct Html;

/// One recording of the page.
#[derive(Clone, Copy)]
struct Side<'a> {
    /// `A` or `B`; empty if there is only one recording.
    mark: &'static str,
    /// 0 for the first, 1 for the second.
    number: usize,
    profile: &'a Profile,
}

/// The page's section on a handler.
#[derive(Serialize)]
struct HandlerSection {
    name: String,
    /// Unique fragment of the page's address.
    anchor: String,
    note: Option<String>,
    percentiles: Option<String>,
    histogram: Option<String>,
    intervals: Option<String>,
    trees: Vec<tree::Tree>,
}

impl Exporter for Html {
    fn serialize(&self, profile: &Profile) -> Vec<u8> {
        self.page(&[("", profile)])
    }
}

impl Html {
    /// The page of `first` overlaid with `second`: handlers are matched by module and name, and those that
    /// only one of them has are shown alone.
    #[must_use]
    pub fn overlay(&self, first: (&str, &Profile), second: (&str, &Profile)) -> Vec<u8> {
        self.page(&[first, second])
    }

    fn page(self, profiles: &[(&str, &Profile)]) -> Vec<u8> {
        let marks: &[&'static str] = if profiles.len() == 1 { &[""] } else { &["A", "B"] };
        let sides: Vec<Side<'_>> = marks
            .iter()
            .zip(profiles)
            .enumerate()
            .map(|(number, (mark, (_, profile)))| Side { mark, number, profile })
            .collect();
        let labels: Vec<_> = sides
            .iter()
            .zip(profiles)
            .map(|(side, (label, _))| context! { mark => side.mark, label => clean(label) })
            .collect();
        let trees: Vec<tree::Trees> = sides.iter().filter_map(tree::Trees::of).collect();
        let handlers: Vec<HandlerSection> = rows::names(&sides)
            .into_iter()
            .enumerate()
            .map(|(number, name)| section(&sides, &trees, number, &name))
            .collect();
        let tree_notes: Vec<&String> = trees.iter().flat_map(|trees| &trees.notes).collect();
        let warnings: Vec<_> = sides
            .iter()
            .flat_map(|side| {
                side.profile.warnings.iter().map(
                    |warning| context! { mark => side.mark, text => clean(&warning.text).into_owned() },
                )
            })
            .collect();

        let mut templates = Environment::new();
        templates.set_auto_escape_callback(|_| AutoEscape::Html);
        templates.set_trim_blocks(true);
        templates.set_lstrip_blocks(true);
        let rendered = templates.template_from_str(PAGE).and_then(|page| {
            page.render(context! {
                title => title(&sides),
                style => STYLE,
                script => SCRIPT,
                labels,
                facts => facts::of(&sides),
                overview => overview::overview(&sides),
                summary => rows::summary(&sides),
                books => rows::books(&sides),
                costs => costs::of(&sides),
                handlers,
                tree_notes,
                warnings,
            })
        });
        // A test renders the template.
        debug_assert!(rendered.is_ok(), "{rendered:?}");
        rendered
            .unwrap_or_else(|error| format!("the page's template is broken: {error}"))
            .into_bytes()
    }
}

/// The title of the browser's tab.
fn title(sides: &[Side<'_>]) -> String {
    let names = rows::names(sides);
    match names.as_slice() {
        [] => "Handler latencies".to_owned(),
        [only] => format!("Latency of {}", only.shown),
        [first, rest @ ..] => format!("Latency of {} and {} more", first.shown, rest.len()),
    }
}

fn section(
    sides: &[Side<'_>],
    trees: &[tree::Trees],
    number: usize,
    name: &rows::Name,
) -> HandlerSection {
    let handlers = rows::find(sides, name);
    let hits = handlers.iter().any(|(_, handler)| handler.count > 0);
    let missing: Vec<&str> = sides
        .iter()
        .filter(|side| !handlers.iter().any(|(found, _)| found.mark == side.mark))
        .map(|side| side.mark)
        .collect();
    let constant = constant(&handlers);
    let mut notes: Vec<String> = constant.iter().cloned().collect();
    if !hits {
        notes.push("No hit: the warnings above say why that may be.".to_owned());
    } else if !missing.is_empty() {
        notes.push(format!("Not in recording {}.", missing.join(", ")));
    }
    let has_curve = hits && constant.is_none();
    HandlerSection {
        name: name.shown.clone(),
        anchor: format!("handler-{number}"),
        note: (!notes.is_empty()).then(|| notes.join(" ")),
        percentiles: has_curve.then(|| plot::percentiles(&handlers)).flatten(),
        histogram: has_curve.then(|| plot::histogram(&handlers)).flatten(),
        intervals: plot::intervals(&handlers),
        trees: trees.iter().filter_map(|trees| trees.find(name)).collect(),
    }
}

/// What every call took, if no recording has two values: a plot of that shows nothing.
fn constant(handlers: &[(Side<'_>, &HandlerProfile)]) -> Option<String> {
    let called: Vec<_> = handlers.iter().filter(|(_, handler)| handler.count > 0).collect();
    let one = |(side, handler): &&(Side<'_>, &HandlerProfile)| {
        let value = handler.min_ns.filter(|min| Some(*min) == handler.max_ns)?;
        let value = curve::label(side.profile.meter)(value as f64);
        let unit = match side.profile.meter {
            Meter::Probes => "",
            Meter::Exact => " instructions",
        };
        Some(match side.mark {
            "" => format!("Every call took {value}{unit}."),
            mark => format!("{mark}: every call took {value}{unit}."),
        })
    };
    let values: Vec<String> = called.iter().map(one).collect::<Option<_>>()?;
    (!values.is_empty()).then(|| values.join(" "))
}
