//! Whether two boots under virtual time measured the same: a test that measures writes values by their names, as JSON, to a file in
//! its output folder.

use std::collections::{BTreeMap, BTreeSet};
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
    ensure!(!first.is_empty(), "the first boot wrote no values");
    let mut apart = String::new();
    for name in first.keys().chain(second.keys()).collect::<BTreeSet<_>>() {
        let (a, b) = (first.get(name), second.get(name));
        if !a.zip(b).is_some_and(|(a, b)| (a - b).abs() <= TOLERANCE * a.abs().max(b.abs())) {
            let [a, b] = [a, b].map(|it| it.map_or("nothing".to_owned(), f64::to_string));
            apart += &format!("\n  {name}: {a} and {b}");
        }
    }
    ensure!(apart.is_empty(), "two boots are more than 1 % apart:{apart}");
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
        let error = compare(r#"{"a": 1, "b": 2}"#, r#"{"b": 2, "c": 3}"#).unwrap_err().to_string();
        assert!(error.ends_with(":\n  a: 1 and nothing\n  c: nothing and 3"), "{error}");
        assert!(compare(r#"{"a": null}"#, r#"{"a": null}"#).is_err());
        assert!(compare("a 1", "a 1").is_err());
    }
}
