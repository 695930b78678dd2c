//! Whether two boots under virtual time measured the same: a test that measures writes values by their names, as JSON, to a file in
//! its output folder.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::process;

/// The file in each boot's output folder.
const FILE: &str = "values.json";

/// Largest difference between two boots: one percent.
const TOLERANCE: f64 = 0.01;

/// Fails if a value of one boot differs too much from the other's, or is missing there.
pub(super) fn check(first: &Path, second: &Path) -> Result<()> {
    compare(&process::read(&first.join(FILE))?, &process::read(&second.join(FILE))?)
}

fn compare(first: &str, second: &str) -> Result<()> {
    type Values = BTreeMap<String, f64>;
    let first: Values = serde_json::from_str(first).context("the first boot's values")?;
    let second: Values = serde_json::from_str(second).context("the second boot's values")?;
    ensure!(!first.is_empty() && first.keys().eq(second.keys()), "two boots wrote other values");
    let pairs = first.iter().zip(second.values());
    let apart: Vec<String> = pairs
        .filter(|((_, a), b)| (*a - *b).abs() > TOLERANCE * a.abs().max(b.abs()))
        .map(|((name, a), b)| format!("\n  {name}: {a} and {b}"))
        .collect();
    ensure!(apart.is_empty(), "two boots are more than 1 % apart:{}", apart.concat());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_percent_is_the_limit() {
        assert!(compare(r#"{"a": 1000, "b": 5}"#, r#"{"b": 5, "a": 1009}"#).is_ok());
        let error = compare(r#"{"a": 1000, "b": 5}"#, r#"{"a": 1011, "b": 5}"#);
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("\n  a: 1000 and 1011"), "{error}");
    }

    #[test]
    fn missing_and_broken_values_fail() {
        assert!(compare("{}", "{}").is_err());
        assert!(compare(r#"{"a": 1}"#, "{}").is_err());
        assert!(compare(r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#).is_err());
        assert!(compare(r#"{"a": null}"#, r#"{"a": null}"#).is_err());
        assert!(compare("a 1", "a 1").is_err());
    }
}
