//! HTML: one self-contained file with plots, tables, losses and facts of one recording or of
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

use super::cell::{clean, full_name};
use super::curve;
use super::document::{Document, Figure};
use super::style::subject_of;
use profiler_recording::{HandlerRecording, Meter, Recording};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The page of one recording, or of several runs of one thing.
pub fn page(runs: &[Recording]) -> Vec<u8> {
    runs::document(runs).page()
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

/// The section on a handler of one recording.
fn section(recording: &Recording, handler: &HandlerRecording) -> Document {
    let meter = recording.meter;
    let title = clean(&full_name(recording, handler)).into_owned();
    if let Some(words) = instead(handler, meter) {
        return Document { title, lead: vec![words], ..Document::default() };
    }
    let [_, what] = subject_of(meter);
    let drawn = [
        (plot::percentiles(&[handler], meter), format!("{what} by percentile")),
        (plot::histogram(handler, meter), format!("Share of the calls by {}", curve::what(meter))),
    ];
    Document { plots: figures(&title, drawn), title, ..Document::default() }
}

/// What was drawn of a handler, each with the words on it.
fn figures(handler: &str, drawn: [(Option<String>, String); 2]) -> Vec<Figure> {
    let figures = drawn
        .into_iter()
        .filter_map(|(svg, words)| Figure::of(svg, format!("{words}, of {handler}"), words));
    figures.collect()
}

/// What stands in place of plots that would show nothing: no call, or one value.
fn instead(handler: &HandlerRecording, meter: Meter) -> Option<String> {
    if handler.count == 0 {
        return Some("No hit: the warnings above say why that may be.".to_owned());
    }
    let value = handler.min_ns.filter(|min| Some(*min) == handler.max_ns)?;
    let value = curve::label(meter)(value as f64);
    let unit = match meter {
        Meter::Probes => "",
        Meter::Exact => " instructions",
    };
    Some(format!("Every call took {value}{unit}."))
}
