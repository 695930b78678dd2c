//! The page's tables. Every cell has a text and the number to sort by.

use serde::Serialize;

use super::Side;
use crate::export::cell::{Unit, clean};
use crate::recording::HandlerRecording;
use crate::recording::measure::Losses;

/// Percentiles of the summary, with their column headers.
pub(super) const QUANTILES: [(&str, f64); 5] =
    [("TP50", 0.5), ("TP90", 0.9), ("TP95", 0.95), ("TP99", 0.99), ("TP99.9", 0.999)];

/// A handler, matched between the recordings by name and module.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) module: Option<String>,
    pub(super) shown: String,
}

/// A table of the page.
#[derive(Serialize)]
pub(super) struct Grid {
    headers: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Grid {
    pub(super) fn new<H: Into<String>>(headers: Vec<H>, rows: Vec<Vec<Cell>>) -> Self {
        Self { headers: headers.into_iter().map(Into::into).collect(), rows }
    }
}

/// A cell.
#[derive(Serialize)]
pub(super) struct Cell {
    text: String,
    /// `None` sorts by the text.
    value: Option<f64>,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), value: None }
    }

    pub(super) fn count(count: u64) -> Self {
        Self { text: count.to_string(), value: Some(count as f64) }
    }

    pub(super) fn figure(text: String, value: f64) -> Self {
        Self { text, value: Some(value) }
    }

    /// Sorts behind every number.
    pub(super) fn none() -> Self {
        Self { text: "-".to_owned(), value: Some(-1.0) }
    }
}

/// All handlers, each once, in the order of the recordings.
pub(super) fn names(sides: &[Side<'_>]) -> Vec<Name> {
    let mut names: Vec<Name> = Vec::new();
    for handler in sides.iter().flat_map(|side| &side.recording.handlers) {
        let shown = match &handler.module {
            Some(module) => format!("{} [{module}]", handler.name),
            None => handler.name.clone(),
        };
        let shown = clean(&shown).into_owned();
        let name = Name { name: handler.name.clone(), module: handler.module.clone(), shown };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The handler of that name in each recording that has it.
pub(super) fn find<'a>(sides: &[Side<'a>], name: &Name) -> Vec<(Side<'a>, &'a HandlerRecording)> {
    let is =
        |handler: &&HandlerRecording| handler.name == name.name && handler.module == name.module;
    sides
        .iter()
        .filter_map(|side| Some((*side, side.recording.handlers.iter().find(is)?)))
        .collect()
}

/// Latencies, one row per handler and recording; with two recordings also the change from A to B.
pub(super) fn summary(sides: &[Side<'_>]) -> Grid {
    let both = sides.len() > 1;
    let unit =
        sides.iter().map(|side| Unit::Auto.resolve(side.recording)).max().unwrap_or(Unit::Ns);
    let mut headers = vec!["handler".to_owned()];
    if both {
        headers.push("recording".to_owned());
    }
    headers.extend(["backend".to_owned(), "calls".to_owned(), "calls/s".to_owned()]);
    headers.push(format!("average [{unit}]"));
    headers.extend(QUANTILES.iter().map(|(name, _)| format!("{name} [{unit}]")));
    headers.push(format!("max [{unit}]"));
    if both {
        headers.extend(["average, change".to_owned(), "TP99, change".to_owned()]);
    }
    headers.push("lost".to_owned());
    let mut rows = Vec::new();
    for name in names(sides) {
        let handlers = find(sides, &name);
        for (side, handler) in &handlers {
            let mut row = vec![Cell::text(&name.shown)];
            if both {
                row.push(Cell::text(side.mark));
            }
            let per_second = handler.count as f64 / (side.recording.window_ns as f64 / 1e9);
            row.push(Cell::text(handler.way()));
            row.push(Cell::count(handler.count));
            row.push(Cell { text: format!("{per_second:.1}"), value: Some(per_second) });
            let mean = handler.mean_ns();
            row.push(
                mean.map_or_else(Cell::none, |ns| Cell { text: unit.average(ns), value: Some(ns) }),
            );
            let quantiles = QUANTILES.iter().map(|(_, quantile)| handler.quantile_ns(*quantile));
            row.extend(quantiles.chain([handler.max_ns]).map(|ns| {
                ns.map_or_else(Cell::none, |ns| Cell {
                    text: unit.exact(ns),
                    value: Some(ns as f64),
                })
            }));
            if both {
                let first = handlers.first().filter(|(first, _)| first.mark != side.mark);
                row.push(change(first.and_then(|(_, first)| first.mean_ns()), mean));
                let tp99 =
                    |handler: &HandlerRecording| handler.quantile_ns(0.99).map(|ns| ns as f64);
                row.push(change(first.and_then(|(_, first)| tp99(first)), tp99(handler)));
            }
            row.push(Cell::count(handler.losses.unmeasured()));
            rows.push(row);
        }
    }
    Grid { headers, rows }
}

fn change(from: Option<f64>, to: Option<f64>) -> Cell {
    match (from, to) {
        (Some(from), Some(to)) if from > 0.0 => {
            let percent = (to - from) / from * 100.0;
            Cell { text: format!("{percent:+.2} %"), value: Some(percent) }
        }
        _ => Cell { text: String::new(), value: Some(f64::MIN) },
    }
}

/// What the note below the table of latencies says of its figures.
pub(super) const SUMMARY_NOTE: &str = "Average and max are exact. TPn is what n percent of the calls did not \
                                       exceed, to the histogram's precision.";

/// The account of a handler, in a recording or over several.
pub(super) struct Account {
    /// The cells that say whose it is.
    pub(super) of: Vec<Cell>,
    pub(super) measured: u64,
    pub(super) losses: Losses,
}

/// The books of each handler.
pub(super) fn books(sides: &[Side<'_>]) -> Grid {
    let both = sides.len() > 1;
    let account = |(side, handler): (Side<'_>, &HandlerRecording), name: &Name| Account {
        of: match both {
            true => vec![Cell::text(&name.shown), Cell::text(side.mark)],
            false => vec![Cell::text(&name.shown)],
        },
        measured: handler.count,
        losses: handler.losses,
    };
    let accounts = names(sides).into_iter().flat_map(|name| {
        let found = find(sides, &name);
        found.into_iter().map(move |of| account(of, &name)).collect::<Vec<_>>()
    });
    let heads: &[&str] = if both { &["handler", "recording"] } else { &["handler"] };
    books_of(heads, accounts.collect())
}

/// The books of these accounts, below `heads` of their first cells.
pub(super) fn books_of(heads: &[&str], accounts: Vec<Account>) -> Grid {
    let mut headers: Vec<String> = heads.iter().map(|&head| head.to_owned()).collect();
    let counted = [
        "carried in",
        "entries",
        "exits",
        "measured",
        "in flight",
        "lost",
        "unpaired exits",
        "missed by the kernel",
        "over range",
    ];
    headers.extend(counted.map(str::to_owned));
    let further = Losses::rare_names(accounts.iter().map(|account| &account.losses));
    headers.extend(further.iter().map(|&rare| rare.to_owned()));
    let row = |Account { of, measured, losses }: Account| {
        let counts = [
            losses.carried_in,
            losses.entries,
            losses.exits,
            measured,
            losses.in_flight,
            losses.lost,
            losses.unpaired_exits,
            losses.missed,
            losses.over_range,
        ];
        let rare = further.iter().map(|name| losses.rare_count(name));
        of.into_iter().chain(counts.into_iter().chain(rare).map(Cell::count)).collect()
    };
    Grid { rows: accounts.into_iter().map(row).collect(), headers }
}
