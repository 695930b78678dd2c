//! The view of explained handlers: the tables of each, and what is summed in a row.

use std::collections::BTreeSet;

use itertools::Itertools as _;

use profiler_base::text::{listed, plural};
use profiler_explain::{Exact, Explained, Fate, Figures, Function, Line, Node, SourceFunction};

use super::{ExplainReport, Shown};
use crate::document::{self, Document, Layout, Note, Table};

/// Most lines of the table of source lines.
const MOST_LINES: usize = 20;

/// The view; a function stands below its caller, further to the right.
pub(super) fn document(report: &ExplainReport, shown: Shown) -> Document {
    let sections = report.handlers.iter().map(|of| {
        let mut tables = vec![tree(of, shown), lines(of)];
        if of.is_difference() {
            tables.reverse();
        }
        let title = of.handler.to_string();
        Document { title, lead: summary(report, of), tables, ..Document::default() }
    });
    Document {
        sections: sections.collect(),
        notes: report.notes.iter().map(|note| Note::new("note", note)).collect(),
        ..Document::default()
    }
}

/// A row of the tree: a function, or the sum of several.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) node: Node,
    /// Functions that are summed; 0 for one that is shown.
    pub(super) others: usize,
}

impl Row {
    /// Adds a function that has no row of its own; `top` if its caller has one.
    fn add(&mut self, node: &Node, top: bool) {
        self.others += 1;
        for (sum, more) in self.node.figures.iter_mut().zip(&node.figures) {
            sum.add(more);
            if top {
                sum.inclusive = sum.inclusive.saturating_add(more.inclusive);
            }
        }
        self.node.change.numerator += node.change.numerator;
        self.node.moved.numerator += node.moved.numerator;
    }
}

/// A function by its symbol, if it has one alone.
fn name(node: &Node) -> String {
    let function = &node.function;
    match node.symbols.iter().collect::<Vec<_>>().as_slice() {
        [symbol] => Function { name: (*symbol).clone(), ..function.clone() }.to_string(),
        _ => function.to_string(),
    }
}

/// The rows of the tree; what is not shown is summed below its caller.
pub(super) fn rows(of: &Explained, shown: Shown) -> Vec<Row> {
    let two = of.is_difference();
    // A difference's weight is in instructions times calls of both.
    let calls = if two { of.calls[1] } else { 1 };
    let least = of.total(0) as f64 * calls as f64 * shown.min_share / 100.0;
    let (mut rows, mut open): (Vec<Row>, Vec<Option<Row>>) = (Vec::new(), Vec::new());
    let mut hidden: Option<usize> = None;
    for node in &of.nodes {
        let top = hidden.is_none_or(|depth| node.depth <= depth);
        if top {
            let is_small = (node.weight as f64) < least || (two && node.weight == 0);
            let is_hidden =
                shown.depth.is_some_and(|depth| node.depth > depth) || (node.depth > 0 && is_small);
            hidden = is_hidden.then_some(node.depth);
            while open.len() > node.depth {
                rows.extend(open.pop().flatten());
            }
        }
        if hidden.is_none() {
            rows.push(Row { node: node.clone(), others: 0 });
            open.push(None);
        } else if let Some(sum) = open.last_mut() {
            match sum {
                Some(sum) => sum.add(node, top),
                None => *sum = Some(Row { node: node.clone(), others: 1 }),
            }
        }
    }
    rows.extend(open.into_iter().rev().flatten());
    rows
}

/// An average.
fn figure(value: f64) -> String {
    format!("{value:.2}")
}

/// A difference.
fn signed(value: Exact) -> String {
    match value.numerator {
        0 => "0".to_owned(),
        _ => format!("{:+.2}", value.per_call()),
    }
}

/// An average, and that of the second recording where it differs.
fn both(of: &Explained, total: impl Fn(usize) -> u64) -> String {
    let first = figure(of.per_call(0, total(0)));
    if of.is_difference() && of.change(&total).numerator != 0 {
        return format!("{first} → {}", figure(of.per_call(1, total(1))));
    }
    first
}

pub(crate) fn tree(of: &Explained, shown: Shown) -> Table {
    let rows = rows(of, shown);
    let mut all = of.nodes.iter().flat_map(|node| &node.figures);
    let repeats = all.any(|figures| figures.iterations > Some(0));
    let mut header = if of.is_difference() {
        vec!["function", "calls", "inclusive", "change", "self", "change", "moved"]
    } else {
        vec!["function", "calls", "inclusive", "share", "self"]
    };
    if repeats {
        header.push("rep");
    }
    let rows = rows.into_iter().map(|Row { node, others }| {
        let average =
            |what: fn(&Figures) -> u64| both(of, |recording| what(&node.figures[recording]));
        let name = match others {
            // One that would be the only other is named.
            0 | 1 => name(&node),
            more => format!("({more} others)"),
        };
        let mut cells = vec![name, average(|f| f.calls), average(|f| f.inclusive)];
        if of.is_difference() {
            cells.push(signed(of.change(|recording| node.figures[recording].inclusive)));
            cells.push(average(|f| f.own));
            cells.extend([signed(node.change), signed(node.moved)]);
        } else {
            cells.push(share(node.figures[0].inclusive, of.total(0)));
            cells.push(average(|f| f.own));
        }
        if repeats {
            cells.push(average(|f| f.iterations.unwrap_or_default()));
        }
        document::Row { depth: node.depth, cells }
    });
    Table { layout: Layout::Tree, rows: rows.collect(), ..Table::figures(header, []) }
}

fn share(part: u64, of: u64) -> String {
    format!("{:.1} %", part as f64 / of.max(1) as f64 * 100.0)
}

/// The source lines that take most, or differ most.
fn lines(of: &Explained) -> Table {
    let two = of.is_difference();
    let (mut shown, mut others): (Vec<&Line>, Vec<&Line>) = (Vec::new(), Vec::new());
    for line in &of.lines {
        let is_shown = if two { line.change.numerator != 0 } else { line.at[0].is_some() };
        if is_shown && shown.len() < MOST_LINES { &mut shown } else { &mut others }.push(line);
    }
    if shown.is_empty() {
        return Table::default();
    }
    let mut rows: Vec<_> = shown.iter().map(|line| row(of, place(of, line), &[line])).collect();
    if (0..of.calls.len()).any(|recording| total(&others, recording) > 0) {
        rows.push(row(of, "(all others)".to_owned(), &others));
    }
    let head: &[&str] = match two {
        true => &["line or function", "self", "change", "moved"],
        false => &["source line", "self", "share"],
    };
    Table::figures(head.iter().copied(), rows)
}

/// A row of what these lines take together.
fn row(of: &Explained, name: String, lines: &[&Line]) -> Vec<String> {
    let mut cells = vec![name, both(of, |recording| total(lines, recording))];
    if of.is_difference() {
        let parts: [fn(&Line) -> Exact; 2] = [|line| line.change, |line| line.moved];
        cells.extend(parts.map(|part| {
            let numerator = lines.iter().map(|line| part(line).numerator).sum();
            signed(Exact { numerator, ..of.change(|_| 0) })
        }));
    } else {
        cells.push(share(total(lines, 0), of.total(0)));
    }
    cells
}

fn total(lines: &[&Line], recording: usize) -> u64 {
    lines.iter().map(|line| line.instructions[recording]).sum()
}

/// Most characters of a line's text in a table.
const MOST_TEXT: usize = 48;

/// A line's function, file and number; both numbers where they differ, what it was inlined into, and its text where that is known.
fn place(of: &Explained, line: &Line) -> String {
    let mut text = short(of, &line.function);
    if let Some(at) = line.at.iter().flatten().next() {
        text += &match line.file.as_deref() {
            Some(file) => format!(" {}:{at}", file.rsplit('/').next().unwrap_or(file)),
            None => format!(" +{at:#x}"),
        };
    }
    if let [Some(before), Some(after)] = line.at.as_slice()
        && before != after
    {
        text += &format!(" → {after}");
    }
    let fate = match line.at.as_slice() {
        [None, Some(_)] => ", new",
        [Some(_), None] => ", gone",
        _ => "",
    };
    let within: BTreeSet<&Function> = match line.within.as_slice() {
        // Where it came to, or left.
        [before, after] if before != after => before.symmetric_difference(after).collect(),
        within => within.iter().flatten().collect(),
    };
    let within: BTreeSet<&Function> =
        within.into_iter().filter(|function| **function != line.function).collect();
    if !within.is_empty() {
        text.push_str(&format!(" in {}", names(of, &within)));
    }
    text.push_str(fate);
    if let Some(source) = &line.text {
        let cut = if source.chars().nth(MOST_TEXT).is_some() { "..." } else { "" };
        text.extend([": ", &source.chars().take(MOST_TEXT).collect::<String>(), cut]);
    }
    text
}

/// A function, with its module if that is not the handler's.
fn short(of: &Explained, function: &Function) -> String {
    if function.module == of.handler.module { function.name.clone() } else { function.to_string() }
}

/// The first functions, and how many more there are.
fn names(of: &Explained, functions: &BTreeSet<&Function>) -> String {
    const MOST: usize = 2;
    let first: Vec<String> = functions.iter().take(MOST).map(|f| short(of, f)).collect();
    match functions.len().saturating_sub(MOST) {
        0 => first.join(" and "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// What is said of a handler above its tables: the whole, and the functions that came, went or moved.
fn summary(report: &ExplainReport, of: &Explained) -> Vec<String> {
    let wholes = report.recordings.iter().enumerate().map(|(recording, named)| {
        let (calls, runs) = (of.calls[recording], named.runs);
        format!(
            "{}{} in {} ({calls} call{}, {runs} run{})",
            figure(of.per_call(recording, of.total(recording))),
            if recording == 0 { format!(" {} a call", report.unit) } else { String::new() },
            named.name,
            plural(calls),
            plural(runs as u64)
        )
    });
    let mut lines = vec![format!("{}: {}", of.handler, wholes.format(", "))];
    if !of.is_difference() {
        return lines;
    }
    let change = of.change(|recording| of.total(recording));
    lines[0].push_str(&format!(": {}", signed(change)));
    for fate in [Fate::Added, Fate::Gone] {
        let functions = of.functions.iter().filter(|function| function.fate == fate);
        let names: Vec<String> =
            functions.map(|f| format!("{} {}", f.function, signed(f.change))).collect();
        if !names.is_empty() {
            lines.push(format!("{fate}: {}", listed(&names)));
        }
    }
    lines.extend(of.functions.iter().filter(|f| f.fate == Fate::Moved).map(|f| moved(of, f)));
    lines
}

/// Where the code of a function went.
fn moved(of: &Explained, function: &SourceFunction) -> String {
    let [before, after] = [0, 1].map(|recording| -> BTreeSet<&Function> {
        function.within[recording].iter().filter(|it| **it != function.function).collect()
    });
    let [left, came] = [&before - &after, &after - &before];
    let words = match (left.is_empty(), came.is_empty()) {
        (true, false) => format!("inlined into {}", names(of, &came)),
        (false, true) => format!("no longer inlined into {}", names(of, &left)),
        (false, false) => format!("from {} to {}", names(of, &left), names(of, &came)),
        // It lay in itself and in others, and now in one of these alone, or the reverse.
        (true, true) if function.within[1].contains(&function.function) => {
            format!("no longer inlined into {} alone", names(of, &before))
        }
        (true, true) => format!("inlined into {}", names(of, &after)),
    };
    let (name, by) = (short(of, &function.function), signed(function.change));
    let amount = figure(function.moved.per_call());
    format!("moved: {amount} of {name}, {words}; changed by {by}")
}
