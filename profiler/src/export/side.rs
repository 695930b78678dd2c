//! What views of recordings have in common: the recordings, the names of their handlers, and how figures are shown.

use super::cell::{Unit, clean};
use super::document::{Table, or_dash};
use crate::recording::{HandlerRecording, Meter, Recording};

/// One recording of a view.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    /// `A` or `B`; empty if there is only one recording.
    pub(super) mark: &'static str,
    /// 0 for the first, 1 for the second.
    pub(super) number: usize,
    /// Its file; may be empty.
    pub(super) name: &'a str,
    pub(super) recording: &'a Recording,
}

impl<'a> Side<'a> {
    /// The only recording of a view.
    pub(super) fn only(recording: &'a Recording) -> Self {
        Self { mark: "", number: 0, name: "", recording }
    }
}

/// How figures are shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// Unit of durations.
    pub(super) unit: Unit,
    /// Whether there is room for further percentiles, and for the unit in the heads of columns.
    pub(super) wide: bool,
}

const QUANTILES: [(&str, f64); 5] =
    [("TP50", 0.50), ("TP90", 0.90), ("TP95", 0.95), ("TP99", 0.99), ("TP99.9", 0.999)];

impl Style {
    pub(super) fn quantiles(self) -> &'static [(&'static str, f64)] {
        if self.wide { &QUANTILES } else { &QUANTILES[1..4] }
    }

    /// The head of a column of durations.
    pub(super) fn head(self, name: &str) -> String {
        if self.wide { format!("{name}, {}", self.unit) } else { name.to_owned() }
    }

    /// Heads of the average, of the percentiles and of the maximum.
    pub(super) fn heads(self) -> impl Iterator<Item = String> {
        let quantiles = self.quantiles().iter().map(|(name, _)| *name);
        ["average"].into_iter().chain(quantiles).chain(["max"]).map(move |name| self.head(name))
    }

    /// The cells below [`heads`](Self::heads).
    pub(super) fn cells(
        self,
        mean: Option<f64>,
        quantile: impl Fn(f64) -> Option<u64>,
        max: Option<u64>,
    ) -> Vec<String> {
        let quantiles = self.quantiles().iter().map(|(_, share)| self.exact(quantile(*share)));
        let average = [self.average(mean)].into_iter();
        average.chain(quantiles).chain([self.exact(max)]).collect()
    }

    pub(super) fn average(self, mean: Option<f64>) -> String {
        or_dash(mean.map(|mean| self.unit.average(mean)))
    }

    pub(super) fn exact(self, value: Option<u64>) -> String {
        or_dash(value.map(|value| self.unit.exact(value)))
    }
}

/// A handler, matched between recordings by name and module.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) module: Option<String>,
    /// With its module where the name alone would be ambiguous.
    pub(super) shown: String,
}

/// All handlers, each once, in the order of the recordings.
pub(super) fn names(sides: &[Side<'_>]) -> Vec<Name> {
    let all = || sides.iter().flat_map(|side| &side.recording.handlers);
    let first = all().next().map(|handler| &handler.module);
    let one_module = all().all(|handler| Some(&handler.module) == first);
    let mut names: Vec<Name> = Vec::new();
    for handler in sides.iter().flat_map(|side| side.recording.shown()) {
        let shown = match &handler.module {
            Some(module) if !one_module => format!("{} [{module}]", handler.name),
            _ => handler.name.clone(),
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
    let is = |of: &&HandlerRecording| of.name == name.name && of.module == name.module;
    let of_side = |side: &Side<'a>| Some((*side, side.recording.handlers.iter().find(is)?));
    sides.iter().filter_map(of_side).collect()
}

/// A row for each handler in each recording, with what `cells` makes of it; `None` is left out. Of two recordings the second column
/// says which it is.
pub(super) fn by_handler(
    sides: &[Side<'_>],
    head: Vec<String>,
    cells: impl Fn(&Side<'_>, &HandlerRecording) -> Option<Vec<String>>,
) -> Table {
    let names = names(sides);
    let all = names.iter().flat_map(|name| {
        find(sides, name).into_iter().map(move |(side, handler)| (name, side, handler))
    });
    by_side(
        sides,
        head,
        all.filter_map(|(name, side, handler)| {
            Some((side, name.shown.clone(), cells(&side, handler)?))
        }),
    )
}

/// Rows with their recordings and names.
pub(super) fn by_side<'a>(
    sides: &[Side<'_>],
    mut head: Vec<String>,
    rows: impl Iterator<Item = (Side<'a>, String, Vec<String>)>,
) -> Table {
    let both = sides.len() > 1;
    if both {
        head.insert(1, "recording".to_owned());
    }
    let row = |(side, name, cells): (Side<'_>, String, Vec<String>)| {
        let mark = both.then(|| side.mark.to_owned());
        [name].into_iter().chain(mark).chain(cells).collect()
    };
    Table::figures(head, rows.map(row))
}

/// What figures of this meter are, in titles and in plots' names.
pub(super) const fn subject_of(meter: Meter) -> [&'static str; 2] {
    match meter {
        Meter::Probes => ["Handler latencies", "Latency"],
        Meter::Exact => ["Instructions of handlers", "Instructions"],
    }
}

/// The part of a load profile that a run is of.
pub(super) fn part(run: &Recording) -> Option<&str> {
    run.place.as_ref()?.part.as_deref()
}
