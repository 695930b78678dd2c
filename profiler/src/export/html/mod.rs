//! HTML: one self-contained file with plots, tables, losses and facts of one recording, of two overlaid, or of
//! several runs; or with the report of a gate.
//!
//! The page's style sheet sets the colours of the SVG plots, so that one drawing serves light, dark and
//! print. The script sorts tables and switches the theme; without it the page shows everything, and call trees unfold.

mod changes;
mod chart;
mod costs;
mod facts;
pub mod gate;
mod overview;
mod paint;
mod parts;
mod plot;
mod rows;
mod runs;
mod tree;

use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use super::Exporter;
use super::cell::clean;
use super::curve;
use crate::recording::{HandlerRecording, Meter, Recording};
use parts::{Figure, Marked, Side};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
/// What figures of this meter are, above a page of recordings and in their plots' names.
const fn subject_of(meter: Meter) -> [&'static str; 3] {
    match meter {
        Meter::Probes => ["Handler latencies", "Latencies", "Latency"],
        Meter::Exact => ["Instructions of handlers", "Instructions", "Instructions"],
    }
}
const SCRIPT: &str = include_str!("script.js");

/// The page of one recording, of two to compare by eye, or of several runs of one thing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Html;

/// What the page says.
#[derive(Serialize)]
struct Page {
    /// Of the browser's tab.
    title: String,
    heading: &'static str,
    /// Of a gate.
    decision: Option<gate::Decision>,
    /// The recordings.
    labels: Vec<Marked>,
    warnings: Vec<Marked>,
    overview: Option<Figure>,
    summary_heading: &'static str,
    summary: rows::Grid,
    /// Rows of handlers without a change, folded.
    unchanged: Option<rows::Grid>,
    summary_note: &'static str,
    /// Every figure, folded.
    figures: Option<rows::Grid>,
    handlers: Vec<HandlerSection>,
    tree_notes: Vec<String>,
    books: Option<rows::Grid>,
    costs: Option<costs::Costs>,
    facts: Vec<facts::Fact>,
}

/// The page's section on a handler.
#[derive(Serialize)]
struct HandlerSection {
    name: String,
    /// Unique fragment of the page's address.
    anchor: String,
    note: Option<String>,
    plots: Vec<Figure>,
    trees: Vec<tree::Tree>,
}

impl Exporter for Html {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        overlaid(&[("", recording)]).bytes()
    }

    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        Some(runs::page(runs).bytes())
    }
}

impl Html {
    /// The page of `first` overlaid with `second`: handlers are matched by module and name, and those that
    /// only one of them has are shown alone.
    #[must_use]
    pub fn overlay(&self, first: (&str, &Recording), second: (&str, &Recording)) -> Vec<u8> {
        overlaid(&[first, second]).bytes()
    }
}

/// The page of one recording or two.
fn overlaid(recordings: &[(&str, &Recording)]) -> Page {
    let marks: &[&'static str] = if recordings.len() == 1 { &[""] } else { &["A", "B"] };
    let sides: Vec<Side<'_>> = marks
        .iter()
        .zip(recordings)
        .enumerate()
        .map(|(number, (mark, (_, recording)))| Side { mark, number, recording })
        .collect();
    let label = |(side, (label, _)): (&Side<'_>, &(&str, &Recording))| Marked {
        mark: side.mark,
        text: clean(label).into_owned(),
    };
    let trees: Vec<tree::Trees> = sides.iter().filter_map(tree::Trees::of).collect();
    let handlers = rows::names(&sides)
        .into_iter()
        .enumerate()
        .map(|(number, name)| section(&sides, &trees, number, &name))
        .collect();
    let warnings = sides.iter().flat_map(|side| {
        let warning = |text: &str| Marked { mark: side.mark, text: clean(text).into_owned() };
        side.recording.warnings.iter().map(move |of| warning(&of.text))
    });
    let which = if sides.len() > 1 { ". A is above B" } else { "" };
    let meter = sides.first().map_or(Meter::Probes, |side| side.recording.meter);
    let [heading, summary_heading, _] = subject_of(meter);
    Page {
        title: title(rows::names(&sides).into_iter().map(|name| name.shown), meter),
        heading,
        summary_heading,
        unchanged: None,
        decision: None,
        labels: sides.iter().zip(recordings).map(label).collect(),
        warnings: warnings.collect(),
        overview: overview::overview(&sides, which),
        summary: rows::summary(&sides),
        summary_note: rows::SUMMARY_NOTE,
        figures: None,
        handlers,
        tree_notes: trees.iter().flat_map(|trees| trees.notes.clone()).collect(),
        books: Some(rows::books(&sides)),
        costs: costs::of(&sides),
        facts: facts::of(&sides),
    }
}

impl Page {
    fn bytes(&self) -> Vec<u8> {
        let mut templates = Environment::new();
        templates.set_auto_escape_callback(|_| AutoEscape::Html);
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

/// The title of the browser's tab.
fn title(mut handlers: impl ExactSizeIterator<Item = String>, meter: Meter) -> String {
    let [all, _, one] = subject_of(meter);
    match (handlers.next(), handlers.len()) {
        (None, _) => all.to_owned(),
        (Some(only), 0) => format!("{one} of {only}"),
        (Some(first), more) => format!("{one} of {first} and {more} more"),
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
    let curve = |of: fn(&[plot::Of<'_>]) -> Option<String>| {
        (hits && constant.is_none()).then(|| of(&handlers)).flatten()
    };
    HandlerSection {
        name: name.shown.clone(),
        anchor: format!("handler-{number}"),
        note: (!notes.is_empty()).then(|| notes.join(" ")),
        plots: plots(
            &name.shown,
            handlers.first().map_or(Meter::Probes, |(side, _)| side.recording.meter),
            curve(plot::percentiles),
            curve(plot::histogram),
            plot::intervals(&handlers),
        ),
        trees: trees.iter().filter_map(|trees| trees.find(name)).collect(),
    }
}

/// The plots of one handler, where there are any.
fn plots(
    name: &str,
    meter: Meter,
    percentiles: Option<String>,
    histogram: Option<String>,
    intervals: Option<String>,
) -> Vec<Figure> {
    let [_, _, what] = subject_of(meter);
    let by = match meter {
        Meter::Probes => "duration",
        Meter::Exact => "instructions",
    };
    let figure = |svg, words: &str| Figure::of(svg, format!("{words}, of {name}"), words);
    let all = [
        figure(percentiles, &format!("{what} by percentile")),
        figure(histogram, &format!("Share of the calls by {by}")),
        figure(intervals, &format!("{what} over the window")),
    ];
    all.into_iter().flatten().collect()
}

/// What every call took, if no recording has two values: a plot of that shows nothing.
fn constant(handlers: &[(Side<'_>, &HandlerRecording)]) -> Option<String> {
    let called: Vec<_> = handlers.iter().filter(|(_, handler)| handler.count > 0).collect();
    let one = |(side, handler): &&(Side<'_>, &HandlerRecording)| {
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
    let values: Vec<String> = called.iter().map(one).collect::<Option<_>>()?;
    (!values.is_empty()).then(|| values.join(" "))
}
