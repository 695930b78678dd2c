//! The books: what became of every call.

use super::document::Table;
use super::style::by_handler;
use profiler_recording::measure::Losses;
use profiler_recording::{Backend, Recording};

/// What is below the table on a page.
const NOTE: &str = "carried in + entries = count + in flight + lost. Calls that the kernel missed were never seen by the probes.";

/// The books of each handler of each run.
pub(super) fn table(runs: &[Recording]) -> Table {
    let shown = runs.iter().flat_map(Recording::shown);
    let further = Losses::rare_names(shown.map(|handler| &handler.losses));
    let head = ["handler", "backend"].into_iter().chain(heads(&further)).map(str::to_owned);
    let table = by_handler(runs, head.collect(), |run, handler| {
        let backends = run.handlers.iter().map(|of| of.backend);
        let traced = backends.filter(|it| *it == Some(Backend::FunctionGraph)).count();
        // The kernel counts overruns of all functions together, so the sum bounds each handler's.
        let counts = counts(&handler.losses, &further, traced > 1);
        Some([handler.way()].into_iter().chain(counts).collect())
    });
    Table { note: NOTE.to_owned(), ..table }
}

/// Heads of [`counts`].
pub(super) fn heads<'a>(further: &[&'a str]) -> Vec<&'a str> {
    let usual =
        ["carried in", "entries", "exits", "in flight", "lost", "unpaired", "missed", "overrun"];
    [&usual, further].concat()
}

/// Counts of all losses, `further` of those that most runs have none of.
pub(super) fn counts(losses: &Losses, further: &[&str], is_bound: bool) -> Vec<String> {
    // Some backends do not learn of every skipped program.
    let unknown = if losses.missed_unknown { "+?" } else { "" };
    let most = if is_bound && losses.overrun > 0 { "<=" } else { "" };
    let usual = [
        losses.carried_in,
        losses.entries,
        losses.exits,
        losses.in_flight,
        losses.lost,
        losses.unpaired_exits,
    ];
    let mut counts: Vec<String> = usual.iter().map(u64::to_string).collect();
    counts.push(format!("{}{unknown}", losses.missed));
    counts.push(format!("{most}{}", losses.overrun));
    counts.extend(further.iter().map(|name| losses.rare_count(name).to_string()));
    counts
}
