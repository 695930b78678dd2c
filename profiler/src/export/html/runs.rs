//! The page of several runs of one thing: medians over the runs, which are never pooled, and each figure by run.

use super::overview::{self, Extent};
use super::{plot, tree};
use crate::export::cell::Unit;
use crate::export::document::{Document, Figure};
use crate::export::repeats::{Subject, subjects};
use crate::export::series;
use crate::export::side::{Name, Side, subject_of};
use crate::recording::{HandlerRecording, Meter, Recording};

/// The view of `runs`, with plots and call trees.
pub(super) fn document(runs: &[Recording]) -> Document {
    let mut document = series::document(runs, Unit::Auto, true);
    let subjects = subjects(runs);
    let meter = runs.first().map_or(Meter::Probes, |run| run.meter);
    let extents = subjects.iter().filter_map(|subject| {
        let called: Vec<&HandlerRecording> =
            subject.called().into_iter().map(|(_, handler)| handler).collect();
        Some((subject.name.clone(), vec![Extent::of(0, &called)?]))
    });
    document.plots.extend(overview::drawn(
        &Vec::from_iter(extents),
        meter,
        "; medians over the runs",
    ));
    let trees = tree::Trees::of_runs(runs);
    let section = |subject: &Subject<'_>| {
        let name = name(subject);
        let tables = trees.iter().filter_map(|trees| trees.table(&name)).collect();
        Document { tables, ..section(runs, subject, &name, meter) }
    };
    document.sections.splice(..0, subjects.iter().map(section));
    document.notes.extend(trees.into_iter().flat_map(|trees| trees.notes));
    document
}

fn name(subject: &Subject<'_>) -> Name {
    let shown = subject.name.clone();
    let of = |(_, handler): &(usize, &HandlerRecording)| Name {
        name: handler.name.clone(),
        module: handler.module.clone(),
        shown,
    };
    subject.runs.first().map(of).unwrap_or_default()
}

/// The section of a handler: that of its only run with a call, or its figures by run.
fn section(runs: &[Recording], subject: &Subject<'_>, name: &Name, meter: Meter) -> Document {
    let called = subject.called();
    let side = |run: usize| Some(Side::only(runs.get(run)?));
    if let [] | [_] = called.as_slice() {
        let only = called.first().or(subject.runs.first());
        let only: Vec<Side<'_>> = only.and_then(|(run, _)| side(*run)).into_iter().collect();
        let mut section = super::section(&only, &[], name);
        if let [(run, _)] = called.as_slice() {
            section.lead.insert(0, format!("Called in run {} alone.", run + 1));
        }
        return section;
    }
    let sides = called.iter().filter_map(|(run, handler)| Some((side(*run)?, *handler)));
    let overlaid = plot::percentiles(&Vec::from_iter(sides));
    let (shown, [_, what]) = (&subject.name, subject_of(meter));
    let drawn = [
        Figure::of(
            plot::by_run(&called, meter),
            format!("figures of {shown} by run"),
            "Figures by run",
        ),
        Figure::of(
            overlaid,
            format!("{what} by percentile in each run, of {shown}"),
            format!("{what} by percentile, a curve for each run"),
        ),
    ];
    let plots = drawn.into_iter().flatten().collect();
    Document { title: shown.clone(), plots, ..Document::default() }
}
