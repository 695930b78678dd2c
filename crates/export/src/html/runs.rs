//! The page of one recording, or of several runs of one thing: medians over the runs, which are never pooled, each figure by run, and
//! what `profiler explain` says of one recording.

use profiler_explain::{Explained, Function, NamedRuns, explain};
use profiler_recording::{HandlerRecording, Meter, Recording};

use super::plot;
use crate::cell::Unit;
use crate::document::{Document, Figure, Note, Table};
use crate::explain::{Shown, tree};
use crate::handlers::{Subject, subjects};
use crate::series;
use crate::style::subject_of;

/// Functions below this percentage of the handler's instructions are summed, and so are those that many calls deep:
/// browsers have a limit of their own for elements within each other.
const SHOWN: Shown = Shown { depth: Some(100), min_share: 0.1, width: None };

const OF_TREE: &str = "Calls, and instructions with and without those of what a function called, per call of the handler; largest first. \
                       Functions below 0.1 % are summed. A click on a function unfolds it; `profiler explain` has source lines, and the \
                       difference between two builds.";

/// The view of `runs`, with plots and call trees.
pub(super) fn document(runs: &[Recording]) -> Document {
    let mut document = series::document(runs, Unit::Auto, true);
    let subjects = subjects(runs);
    let meter = runs.first().map_or(Meter::Probes, |run| run.meter);
    let medians = if runs.len() > 1 { "; medians over the runs" } else { "" };
    let caption = format!(
        "From TP50 to TP99 of each handler, with ticks at TP90 and TP95; the dot is the average{medians}"
    );
    let overview = Figure::of(plot::overview(&subjects, meter), caption);
    document.plots.extend(overview.map(|it| Figure { wide: true, ..it }));
    let name = if runs.len() == 1 { "this recording" } else { "these runs" };
    let named = NamedRuns { name: name.to_owned(), runs: runs.iter().collect() };
    // Runs without call tree have nothing to explain.
    let (explained, notes) = explain(&[named], None).unwrap_or_default();
    let sections = subjects.iter().map(|subject| {
        let tables = Vec::from_iter(call_tree(&explained, subject.runs[0].1));
        Document { tables, ..section(runs, subject, meter) }
    });
    document.sections.splice(..0, sections);
    document.notes.extend(notes.into_iter().map(|note| Note::new("note", note)));
    document
}

/// The section of a handler: of its only run with a call, or its figures by run. One value is said, and not drawn.
fn section(runs: &[Recording], subject: &Subject<'_>, meter: Meter) -> Document {
    let called = subject.called();
    let handlers: Vec<&HandlerRecording> = called.iter().map(|(_, handler)| *handler).collect();
    let percentiles = plot::percentiles(&handlers, meter);
    let [_, what] = subject_of(meter);
    let (mut lead, mut drawn) = (Vec::new(), Vec::new());
    match called.as_slice() {
        [] => lead.push("No hit: the warnings above say why that may be.".to_owned()),
        [(run, handler)] => {
            lead.extend((runs.len() > 1).then(|| format!("Called in run {} alone.", run + 1)));
            match handler.min_ns.filter(|min| Some(*min) == handler.max_ns) {
                Some(value) => lead.push(every_call(value as f64, meter)),
                None => {
                    let words = format!("Share of the calls by {}", plot::what(meter));
                    drawn.push((percentiles, format!("{what} by percentile")));
                    drawn.push((plot::histogram(handler, meter), words));
                }
            }
        }
        several => {
            drawn.push((plot::by_run(several, meter), "Figures by run".to_owned()));
            drawn.push((percentiles, format!("{what} by percentile, a curve for each run")));
        }
    }
    let plots = drawn.into_iter().filter_map(|(svg, words)| Figure::of(svg, words));
    Document { plots: plots.collect(), lead, title: subject.name.clone(), ..Document::default() }
}

fn every_call(value: f64, meter: Meter) -> String {
    let unit = match meter {
        Meter::Probes => "",
        Meter::Exact => " instructions",
    };
    format!("Every call took {}{unit}.", plot::label(meter)(value))
}

/// The call tree of a handler, which unfolds.
fn call_tree(explained: &[Explained], handler: &HandlerRecording) -> Option<Table> {
    let function = Function::of(&handler.name, handler.module.as_ref());
    let of = explained.iter().find(|of| of.handler == function)?;
    let title = "Where its instructions go".to_owned();
    Some(Table { title, note: OF_TREE.to_owned(), ..tree(of, SHOWN) })
}
