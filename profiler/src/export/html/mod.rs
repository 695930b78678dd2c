//! HTML: one self-contained file with plots, tables, losses and facts of one recording, of two overlaid, or of
//! several runs; or with the report of a gate.
//!
//! The page's style sheet sets the colours of the SVG plots, so that one drawing serves light, dark and
//! print. The script sorts tables and switches the theme; without it the page shows everything, and call trees unfold.

mod changes;
mod drawing;
pub mod gate;
mod overview;
mod plot;
mod runs;
mod tree;

use minijinja::{AutoEscape, Environment, Value, context, escape_formatter};

use super::cell::{Unit, clean};
use super::document::{Document, Figure};
use super::side::{Name, Side, Style, find, names, subject_of};
use super::{curve, recording, series};
use crate::recording::{HandlerRecording, Meter, Recording};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The page of one recording, or of several runs of one thing.
pub fn page(runs: &[Recording]) -> Vec<u8> {
    let document = match runs {
        [run] => document(&[Side::only(run)]),
        runs => runs::document(runs),
    };
    document.page()
}

/// The page of `first` overlaid with `second`, to compare by eye: handlers are matched by module and name, and those that
/// only one of them has are shown alone.
pub fn overlay(first: (&str, &Recording), second: (&str, &Recording)) -> Vec<u8> {
    let side = |number, mark, (name, recording)| Side { mark, number, name, recording };
    document(&[side(0, "A", first), side(1, "B", second)]).page()
}

/// The view of one recording or two, with plots and call trees.
fn document(sides: &[Side<'_>]) -> Document {
    let unit = |side: &Side<'_>| series::unit(Unit::Auto, std::slice::from_ref(side.recording));
    let unit = sides.iter().map(unit).max().unwrap_or_default();
    let mut document = recording::document(sides, Style { unit, wide: true });
    let trees: Vec<tree::Trees> = sides.iter().filter_map(tree::Trees::of).collect();
    let handlers = names(sides).into_iter().map(|name| section(sides, &trees, &name));
    document.sections.splice(..0, handlers);
    document.notes.extend(trees.into_iter().flat_map(|trees| trees.notes));
    document
        .plots
        .extend(overview::overview(sides, if sides.len() > 1 { ". A is above B" } else { "" }));
    document
}

impl Document {
    fn page(&self) -> Vec<u8> {
        let mut templates = Environment::new();
        templates.set_auto_escape_callback(|_| AutoEscape::Html);
        templates.set_formatter(|out, state, value| match value.as_str() {
            Some(text) if !value.is_safe() => {
                escape_formatter(out, state, &Value::from(clean(text).into_owned()))
            }
            _ => escape_formatter(out, state, value),
        });
        templates.set_trim_blocks(true);
        templates.set_lstrip_blocks(true);
        let rendered = templates.template_from_str(PAGE).and_then(|page| {
            page.render(context! { page => self, style => STYLE, script => SCRIPT })
        });
        // A test renders the template.
        debug_assert!(rendered.is_ok(), "{rendered:?}");
        rendered
            .unwrap_or_else(|error| format!("the page's template is broken: {error}"))
            .into_bytes()
    }
}

/// The section on a handler.
fn section(sides: &[Side<'_>], trees: &[tree::Trees], name: &Name) -> Document {
    let handlers = find(sides, name);
    let is_called = handlers.iter().any(|(_, handler)| handler.count > 0);
    let has = |side: &&Side<'_>| handlers.iter().any(|(found, _)| found.number == side.number);
    let missing: Vec<&str> = sides.iter().filter(|side| !has(side)).map(|side| side.mark).collect();
    let constant = constant(&handlers);
    let is_drawn = is_called && constant.is_none();
    let mut lead = Vec::from_iter(constant);
    if !is_called {
        lead.push("No hit: the warnings above say why that may be.".to_owned());
    } else if !missing.is_empty() {
        lead.push(format!("Not in recording {}.", missing.join(", ")));
    }
    Document {
        title: name.shown.clone(),
        lead: if lead.is_empty() { lead } else { vec![lead.join(" ")] },
        plots: plots(&name.shown, &handlers, is_drawn),
        tables: trees.iter().filter_map(|trees| trees.table(name)).collect(),
        ..Document::default()
    }
}

/// The plots of one handler; without those of its distribution where that `is_drawn` not.
fn plots(name: &str, handlers: &[plot::Of<'_>], is_drawn: bool) -> Vec<Figure> {
    let meter = handlers.first().map_or(Meter::Probes, |(side, _)| side.recording.meter);
    let [_, what] = subject_of(meter);
    let by = curve::what(meter);
    let figure = |svg, words: String| Figure::of(svg, format!("{words}, of {name}"), words);
    let drawn =
        |of: fn(&[plot::Of<'_>]) -> Option<String>| is_drawn.then(|| of(handlers)).flatten();
    let all = [
        figure(drawn(plot::percentiles), format!("{what} by percentile")),
        figure(drawn(plot::histogram), format!("Share of the calls by {by}")),
        figure(plot::intervals(handlers), format!("{what} over the window")),
    ];
    all.into_iter().flatten().collect()
}

/// What every call took, if no recording has two values: a plot of that shows nothing.
fn constant(handlers: &[(Side<'_>, &HandlerRecording)]) -> Option<String> {
    let called = handlers.iter().filter(|(_, handler)| handler.count > 0);
    let one = |(side, handler): &(Side<'_>, &HandlerRecording)| {
        let value = handler.min_ns.filter(|min| Some(*min) == handler.max_ns)?;
        let value = curve::label(side.recording.meter)(value as f64);
        let unit = match side.recording.meter {
            Meter::Probes => "",
            Meter::Exact => " instructions",
        };
        Some(match side.mark {
            "" => format!("Every call took {value}{unit}."),
            mark => format!("{mark}: every call took {value}{unit}."),
        })
    };
    let values: Vec<String> = called.map(one).collect::<Option<_>>()?;
    (!values.is_empty()).then(|| values.join(" "))
}
