//! HTML: one self-contained file with plots, tables, losses and facts of one recording or of
//! several runs; or with the report of a gate.
//!
//! The page's style sheet sets the colours of the SVG plots, so that one drawing serves light, dark and
//! print. The script sorts tables and switches the theme; without it the page shows everything, and call trees unfold.

mod drawing;
pub mod gate;
mod plot;
mod runs;

use minijinja::{AutoEscape, Environment, Value, context, escape_formatter};

use profiler_recording::Recording;

use super::cell::clean;
use super::document::Document;

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
