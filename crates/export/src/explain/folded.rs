//! Folded stacks: a line for each function under its callers, with its own figure.

use itertools::Itertools as _;

use profiler_explain::{Explained, Function};

use super::ExplainReport;
use crate::cell::clean;

/// All stacks. Of two recordings the baseline's figures are scaled to the candidate's calls, so that the two of a line
/// can be compared; with equal calls they are what was counted.
pub(super) fn folded(report: &ExplainReport) -> String {
    report.handlers.iter().map(stacks).collect()
}

fn stacks(of: &Explained) -> String {
    let mut text = String::new();
    let mut stack: Vec<String> = Vec::new();
    // Sums are rounded and not parts, so that the parts add up.
    let (mut before, mut scaled) = (0_u128, 0_u128);
    for node in &of.nodes {
        stack.truncate(node.depth);
        stack.push(frame(&node.function));
        let mut counts = node.figures.iter().map(|of| u128::from(of.own)).collect_vec();
        if let &[base, candidate] = of.calls.as_slice() {
            before += counts[0];
            let sum = before * u128::from(candidate) / u128::from(base.max(1));
            counts[0] = sum - scaled;
            scaled = sum;
        }
        if counts.iter().any(|count| *count > 0) {
            text += &format!("{} {}\n", stack.join(";"), counts.iter().format(" "));
        }
    }
    text
}

/// A function's name as one word without a semicolon.
fn frame(function: &Function) -> String {
    let name = function.to_string().replace(" [", "_[");
    clean(&name).replace(|c: char| c == ';' || c.is_whitespace(), "_")
}
