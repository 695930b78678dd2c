//! The table that a terminal shows while a run goes on.

use std::time::Duration;

use profiler_export::Unit;
use profiler_export::document::{Table, or_dash};
use profiler_probe::Drained;
use profiler_probe::recorder::{HandlerStats, Recorder};

/// How often it is drawn anew; each time the records are drained.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// What was measured so far, `drained` of it in the last `seconds`, in `lines` lines at most: handlers that have no room are
/// counted in the last one.
pub(super) fn table(
    recorder: &Recorder,
    drained: &[Drained],
    seconds: f64,
    lines: usize,
) -> String {
    let header = ["handler", "calls/s", "calls", "TP50 [us]", "TP99 [us]", "max [us]", "lost"];
    // Its head, the rule below it, and the line that counts the rest.
    let room = lines.saturating_sub(3).max(1);
    let handlers = recorder.handlers();
    let rows = handlers.iter().zip(drained).take(room);
    let rows = rows.map(|(of, drained)| row(of, drained.durations.len() as f64 / seconds));
    let mut text = Table::figures(header, rows).text(None);
    if handlers.len() > room {
        text.push_str(&format!("and {} more handlers", handlers.len() - room));
    }
    text.trim_end().to_owned()
}

fn row(of: &HandlerStats, rate: f64) -> Vec<String> {
    let losses = of.losses();
    let (durations, _) = of.measure.durations.without(losses.doubtful);
    vec![
        of.measure.target.label(),
        format!("{rate:.0}"),
        durations.len().to_string(),
        micros(durations.quantile_ns(0.5)),
        micros(durations.quantile_ns(0.99)),
        micros(durations.max_ns()),
        losses.unmeasured().to_string(),
    ]
}

fn micros(ns: Option<u64>) -> String {
    or_dash(ns.map(|ns| Unit::Us.exact(ns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_probe::Books;

    fn drained(durations: &[u64], lost: u64) -> Drained {
        profiler_tests::drained(durations, Books { lost, ..Books::default() })
    }

    /// The table after these drains, one a second.
    fn text_of(names: &[&str], at_begin: &[Drained], drains: &[&[Drained]]) -> String {
        let mut recorder = profiler_tests::recorder(names, at_begin);
        drains.iter().for_each(|drained| recorder.add(drained));
        table(&recorder, drains.last().copied().unwrap_or(at_begin), 1.0, 12)
    }

    #[test]
    fn the_table_adds_up_and_its_rates_do_not() {
        let none = || drained(&[], 0);
        let first = [drained(&[1500; 40], 0), none()];
        let second = [drained(&[2500; 10], 3), none()];
        let text = text_of(&["busy", "idle"], &[none(), none()], &[&first, &second]);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["busy", "10", "50", "1.500", "2.500", "2.500", "3"]);
        assert_eq!(rows[1], ["idle", "0", "0", "-", "-", "-", "0"]);
    }

    #[test]
    fn what_is_lost_is_what_a_recording_calls_so_since_the_window_began() {
        let books = |lost, overrun| Books { lost, overrun, backwards: 1, ..Books::default() };
        let drained = |lost, overrun| profiler_tests::drained(&[], books(lost, overrun));
        let at_begin = [drained(2, 10), drained(0, 10)];
        let text = text_of(&["one", "other"], &at_begin, &[&[drained(3, 17), drained(0, 17)]]);
        let lost: Vec<_> =
            text.lines().skip(2).filter_map(|row| row.split_whitespace().next_back()).collect();
        assert_eq!(lost, ["8", "7"], "each may have lost all 7 of the session");
    }

    #[test]
    fn a_low_terminal_shows_the_first_handlers() {
        let names: Vec<String> = (0..60).map(|n| format!("h{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let none: Vec<Drained> = names.iter().map(|_| drained(&[], 0)).collect();
        let text = text_of(&names, &none, &[]);
        assert_eq!(text.lines().count(), 12);
        assert!(text.ends_with("and 51 more handlers"), "{text}");
        assert!(text.contains("h8") && !text.contains("h9"), "{text}");
    }
}
