//! The table in docs.

use std::fmt::Write as _;

use super::{Function, Measured, Row};
use crate::series::Series;

const HEAD: &str = "\
# Beside other tools

What a hit costs under this program and under others that measure how long a function takes, all in one VM with one
CPU under virtual time, where each instruction takes a nanosecond. A load of 20,000 `connect` calls reaches the
function once a call. What an operation takes more than without any tool is what the tool *adds a hit*. *To the limit*
is the ratio of that to the kernel's trampoline with a pair of programs that only read the clock. *Hits seen* are
those of the tool's own report. What it *says* is its average, or the bucket of its histogram that has the median.
That includes what the tool itself adds between its two readings of the clock, and each tool reads it at another
place: an fentry pair has only the function, while a kretprobe and the graph tracer also have what other probes on the
function do, such as the driver's handlers.
";

const COLUMNS: &str = "\
| tool | version | adds a hit | to the limit | hits seen | says |
|---|---|---|---|---|---|
";

/// The document.
pub(super) fn render(measured: &Measured, series: Series, date: &str) -> String {
    let mut text = HEAD.to_owned();
    let _ = writeln!(
        text,
        "\nWritten on {date} by `cargo xtask bench --peers --kernel {series}`, on Linux {},\nwith the tools of Debian's packages.",
        measured.release
    );
    let [first, last] = measured.bare;
    let _ = writeln!(
        text,
        "An operation took {first:.0} instructions before all tools, from which they are counted, and {last:.0} after them."
    );
    for Function { function, limit, rows } in &measured.functions {
        let what = if function.ends_with("_handler") {
            ", a handler that runs inside a kprobe, where the kernel skips every other kprobe"
        } else {
            ", a function of the kernel with a kretprobe of the driver"
        };
        let _ = writeln!(text, "\n`{function}`{what};\nthe limit is {limit:.1} instructions:\n");
        text.push_str(COLUMNS);
        for row in rows {
            let _ = writeln!(text, "| {} | {} | {} |", row.tool, row.version, figures(row, *limit));
        }
    }
    text
}

fn figures(row: &Row, limit: f64) -> String {
    let Row { added, made, seen, says, why_not, .. } = row;
    let (Some(added), Some(made)) = (added, made) else {
        let why = why_not.as_deref().unwrap_or("it did not attach").replace('|', "\\|");
        return format!("did not attach | | | {why}");
    };
    let says = says.as_deref().unwrap_or("nothing");
    format!("{added:.0} | {:.2} | {seen} of {made} | {says}", added / limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_sees_nothing_or_does_not_attach_has_its_row() {
        let row = |added, seen, says: Option<&str>, why: Option<&str>| Row {
            tool: "t".to_owned(),
            version: "1".to_owned(),
            added,
            made: added.map(|_| 5_000),
            seen,
            says: says.map(str::to_owned),
            why_not: why.map(str::to_owned),
        };
        let says = |row: &Row| figures(row, 400.0);
        assert_eq!(
            says(&row(Some(460.0), 5_000, Some("average 420 ns"), None)),
            "460 | 1.15 | 5000 of 5000 | average 420 ns"
        );
        assert_eq!(says(&row(Some(160.0), 0, None, None)), "160 | 0.40 | 0 of 5000 | nothing");
        assert_eq!(says(&row(None, 0, None, Some("no a|b"))), "did not attach | | | no a\\|b");
    }
}
