//! The table of expected backends is sound, and the README shows it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

#[path = "common/backends.rs"]
mod backends;

use backends::{Expected, Kernel, table};
use profiler::profile::Backend;

#[test]
fn the_table_is_in_order_of_preference() {
    let table = table();
    let series: Vec<&str> = table.iter().map(|(series, _)| series.as_str()).collect();
    assert_eq!(series, ["5.10", "6.1", "6.12", "7.2"]);
    for (series, kernel) in &table {
        for expected in [&kernel.handler, &kernel.core] {
            assert!(expected.works.is_sorted_by(|a, b| a < b), "{series}: {expected:?}");
            assert_eq!(expected.chosen, expected.works.first().copied(), "{series}");
        }
        assert!(kernel.doctor_no.is_sorted(), "{series}: {:?}", kernel.doctor_no);
        let few_returns = &kernel.few_returns;
        let works = |backend| kernel.handler.works.contains(backend);
        assert!(few_returns.iter().all(works), "{series}: {few_returns:?}");
        // It counts nothing there: see the README.
        assert!(!kernel.handler.works.contains(&Backend::Kprobe), "{series}");
    }
}

#[test]
fn the_readme_shows_the_table() {
    let readme = include_str!("../../README.md");
    let table = as_markdown();
    assert!(readme.contains(&table), "the README has to show\n{table}");
}

/// The table as the README shows it.
fn as_markdown() -> String {
    let mut text = String::from(
        "| kernel | handlers in kprobes | chosen | functions of the kernel | chosen |\n\
         |---|---|---|---|---|\n",
    );
    for (series, Kernel { handler, core, .. }) in table() {
        let cells = [works(&handler), chosen(&handler), works(&core), chosen(&core)];
        text.push_str(&format!("| {series} | {} |\n", cells.join(" | ")));
    }
    text
}

fn works(expected: &Expected) -> String {
    let names: Vec<&str> = expected.works.iter().map(|backend| backend.name()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn chosen(expected: &Expected) -> String {
    expected.chosen.map_or("-", Backend::name).to_owned()
}
