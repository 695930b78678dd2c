//! docs/metrics.md and docs/fleet.md say what the daemon exposes.

use std::collections::BTreeSet;

use profiler::serve::expose::{BOUNDS_NS, FAMILIES, Format, metrics};
use profiler::serve::state::MAX_BUILDS;

use crate::serve_state::state;

const PAGE: &str = include_str!("../../../docs/metrics.md");

/// The lines of the table, as the families have them.
fn rows() -> String {
    let row = |family: &profiler::serve::expose::Family| {
        let labels = family.labels.join(", ");
        let unit = family.unit().unwrap_or("");
        let otlp = family.otlp.map_or("-".to_owned(), |(name, unit)| format!("`{name}` {unit}"));
        format!(
            "| `{}` | {} | {unit} | {labels} | {} | {} |\n",
            family.name,
            family.kind,
            otlp.trim(),
            family.help.trim_end_matches('.')
        )
    };
    FAMILIES.iter().map(row).collect()
}

#[test]
fn the_table_of_metrics_is_that_of_the_code() {
    let head =
        "| metric | type | unit | labels | OpenTelemetry | what |\n|---|---|---|---|---|---|\n";
    let table = format!("{head}{}\n", rows());
    assert!(PAGE.contains(&table), "docs/metrics.md has to show\n{table}");
}

#[test]
fn every_family_of_the_table_is_exposed() {
    let body = String::from_utf8(metrics(&state(), Format::Text)).unwrap();
    let exposed: BTreeSet<&str> =
        body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let known: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
    assert_eq!(exposed, known);
}

/// The numbers that the page states, as the state of the other tests has them.
#[test]
fn the_bound_on_series_is_that_of_the_code() {
    let body = String::from_utf8(metrics(&state(), Format::Text)).unwrap();
    let of_handler = |line: &&str| {
        line.contains("handler=\"connect_syscall_handler\"") && line.contains("build=\"new\"")
    };
    let series = body.lines().filter(of_handler).count();
    let buckets = BOUNDS_NS.len() + 1;
    let text = format!(
        "**{series} series** a handler and build, {buckets} of them buckets, and at most {MAX_BUILDS} builds of a module"
    );
    assert!(PAGE.contains(&text), "docs/metrics.md has to say\n{text}");
}
