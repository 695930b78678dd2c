//! The view of a tax report: a table of operations and subjects, and where each subject's dearest operations spend it.

use profiler_base::text::listed;

use super::{FunctionTax, SubjectRecord, Tax, TaxReport};
use crate::document::{Document, Layout, Note, Row, Table, or_dash};

/// Operations of each subject that are split, and functions of each of these that have a row.
const OPERATIONS: usize = 3;
const FUNCTIONS: usize = 5;

/// The smallest figure that is not shown as zero.
const LEAST: f64 = 0.05;

/// The view of `report`.
pub fn document(report: &TaxReport) -> Document {
    let words = "instructions of an operation in system calls, without a subject, and how many more with each";
    let splits = (0..report.subjects.len()).filter_map(|at| split(report, at));
    Document {
        title: "What operations take more".to_owned(),
        lead: vec![format!("Linux {}: {words}", report.kernel)],
        facts: facts(report),
        tables: vec![operations(report)],
        sections: splits.collect(),
        notes: notes(report),
        ..Document::default()
    }
}

fn facts(report: &TaxReport) -> Vec<Note> {
    let facts = report.subjects.iter().map(|subject| {
        let id = subject.build_id.as_deref().unwrap_or("unknown");
        let hooks = or_dash(subject.hooks.map(|hooks| hooks.to_string()));
        let SubjectRecord { label, given, .. } = subject;
        Note::new("with", format!("{label}: {given} (build id {id:.12}, hooks {hooks})"))
    });
    facts.collect()
}

fn operations(report: &TaxReport) -> Table {
    let mut head = vec!["operation", "without"];
    for subject in &report.subjects {
        head.extend([subject.label.as_str(), "%"]);
    }
    let rows = report.operations.iter().map(|operation| {
        let without = operation.without_instructions;
        let mut cells = vec![operation.load.clone(), figure(without)];
        for tax in &operation.with {
            let more = tax.as_ref().map(|tax| tax.more);
            cells.push(or_dash(more.map(signed)));
            cells.push(or_dash(more.map(|more| signed(more / without * 100.0))));
        }
        cells
    });
    Table::figures(head, rows)
}

/// The dearest operations with a subject: parts, and the functions that its handlers run.
fn split(report: &TaxReport, at: usize) -> Option<Document> {
    let subject = report.subjects.get(at)?;
    let operations = report.operations.iter();
    let taxes = operations.filter_map(|of| Some((&of.load, of.with.get(at)?.as_ref()?)));
    let mut taxes: Vec<(&String, &Tax)> = taxes.filter(|(_, tax)| tax.more >= LEAST).collect();
    taxes.sort_by(|(_, a), (_, b)| b.more.total_cmp(&a.more));
    let mut rows = Vec::new();
    for (load, tax) in taxes.iter().take(OPERATIONS) {
        rows.push(row(0, (*load).clone(), None, Some(tax.more)));
        rows.extend(parts(tax));
    }
    let head = [subject.label.as_str(), "calls", "instructions"];
    let table = Table { layout: Layout::Tree, rows, ..Table::figures(head, []) };
    Document::of_table(&subject.label, table)
}

fn parts(tax: &Tax) -> Vec<Row> {
    let mut rows = vec![row(1, "around its handlers".to_owned(), None, Some(tax.around_handlers))];
    rows.extend(tax.hooks.iter().map(|hook| {
        let state = hook.state.map_or(String::new(), |state| format!(", {}", state.name()));
        let name = format!("{} {}{state}", hook.kind.name(), hook.places.join(" or "));
        row(2, name, Some(hook.calls), None)
    }));
    rows.push(row(1, "in its handlers".to_owned(), None, Some(tax.in_handlers)));
    if tax.elsewhere > 0.0 {
        rows.push(row(1, "besides, outside of system calls".to_owned(), None, Some(tax.elsewhere)));
    }
    let (first, others) = tax.functions.split_at(tax.functions.len().min(FUNCTIONS));
    rows.extend(first.iter().map(|FunctionTax { function, calls, instructions }| {
        row(2, function.to_string(), Some(*calls), Some(*instructions))
    }));
    if !others.is_empty() {
        let sum = others.iter().map(|it| it.instructions).sum();
        rows.push(row(2, format!("({} others)", others.len()), None, Some(sum)));
    }
    rows
}

fn row(depth: usize, name: String, calls: Option<f64>, instructions: Option<f64>) -> Row {
    let [calls, instructions] = [calls, instructions].map(|it| it.map_or(String::new(), figure));
    Row { depth, cells: vec![name, calls, instructions] }
}

fn notes(report: &TaxReport) -> Vec<Note> {
    let unreached = report.unreached();
    let unreached = (!unreached.is_empty()).then(|| {
        Note::new("note", format!("no operation ran a function of {}", listed(&unreached)))
    });
    let not_known =
        report.subjects.iter().flat_map(|SubjectRecord { label, not_known, .. }| {
            not_known.iter().map(move |why| Note::new("not known", format!("{label}: {why}")))
        });
    not_known.chain(unreached).collect()
}

fn figure(value: f64) -> String {
    format!("{value:.1}")
}

fn signed(value: f64) -> String {
    if value.abs() < LEAST { "0".to_owned() } else { format!("{value:+.1}") }
}
