//! The page of one recording, or of several runs of one thing: medians over the runs, which are never pooled, and each figure by
//! run.

use super::overview::{self, Extent};
use super::plot;
use super::tree::Trees;
use crate::cell::Unit;
use crate::document::Document;
use crate::repeats::{Subject, subjects};
use crate::series;
use crate::style::subject_of;
use profiler_recording::{HandlerRecording, Meter, Recording};

/// The view of `runs`, with plots and call trees.
pub(super) fn document(runs: &[Recording]) -> Document {
    let mut document = series::document(runs, Unit::Auto, true);
    let subjects = subjects(runs);
    let meter = runs.first().map_or(Meter::Probes, |run| run.meter);
    let extents = subjects.iter().filter_map(|subject| {
        let called: Vec<&HandlerRecording> =
            subject.called().into_iter().map(|(_, handler)| handler).collect();
        Some((subject.name.clone(), Extent::of(&called)?))
    });
    let medians = if runs.len() > 1 { "; medians over the runs" } else { "" };
    document.plots.extend(overview::drawn(&Vec::from_iter(extents), meter, medians));
    let trees = Trees::of(runs);
    let sections = subjects.iter().map(|subject| {
        let handler = subject.runs.first().map(|(_, handler)| *handler);
        let table = trees.as_ref().zip(handler).and_then(|(trees, of)| trees.table(of));
        Document { tables: table.into_iter().collect(), ..section(runs, subject, meter) }
    });
    document.sections.splice(..0, sections);
    document.notes.extend(trees.into_iter().flat_map(|trees| trees.notes));
    document
}

/// The section of a handler: that of its only run with a call, or its figures by run.
fn section(runs: &[Recording], subject: &Subject<'_>, meter: Meter) -> Document {
    let called = subject.called();
    if called.len() < 2 {
        let (run, handler) = *called.first().unwrap_or(&subject.runs[0]);
        let mut section = super::section(&runs[run], handler);
        if !called.is_empty() && runs.len() > 1 {
            section.lead.insert(0, format!("Called in run {} alone.", run + 1));
        }
        return section;
    }
    let handlers: Vec<&HandlerRecording> = called.iter().map(|(_, handler)| *handler).collect();
    let (title, [_, what]) = (&subject.name, subject_of(meter));
    let drawn = [
        (plot::by_run(&called, meter), "Figures by run".to_owned()),
        (
            plot::percentiles(&handlers, meter),
            format!("{what} by percentile, a curve for each run"),
        ),
    ];
    let plots = super::figures(title, drawn);
    Document { title: title.clone(), plots, ..Document::default() }
}
