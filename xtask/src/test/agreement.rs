//! Whether two boots under virtual time measured the same.
//!
//! A test that measures writes lines `name<TAB>value` to `values.tsv` in its output folder.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::process;

/// The file in each boot's output folder.
pub(crate) const FILE: &str = "values.tsv";

/// Largest difference between two boots: one percent.
const TOLERANCE: f64 = 0.01;

/// Fails if a value of one boot differs too much from the other's, or is missing there.
pub(crate) fn check(first: &Path, second: &Path) -> Result<()> {
    compare(&read(first)?, &read(second)?)
}

fn read(folder: &Path) -> Result<Values> {
    let path = folder.join(FILE);
    let text = process::read(&path)?;
    parse(&text).with_context(|| format!("{} is broken", path.display()))
}

type Values = BTreeMap<String, f64>;

fn parse(text: &str) -> Result<Values> {
    let values = text.lines().map(|line| {
        let (name, value) = line.split_once('\t').with_context(|| format!("line `{line}`"))?;
        Ok((name.to_owned(), value.parse().with_context(|| format!("line `{line}`"))?))
    });
    values.collect()
}

fn compare(first: &Values, second: &Values) -> Result<()> {
    ensure!(!first.is_empty(), "the first boot wrote no values");
    let mut apart = Vec::new();
    for name in first.keys().chain(second.keys().filter(|name| !first.contains_key(*name))) {
        let (a, b) = (first.get(name), second.get(name));
        // A NaN fails, too.
        if !a.zip(b).is_some_and(|(a, b)| (a - b).abs() <= TOLERANCE * a.abs().max(b.abs())) {
            let [a, b] = [a, b].map(|it| it.map_or("nothing".to_owned(), f64::to_string));
            apart.push(format!("{name}: {a} and {b}"));
        }
    }
    ensure!(apart.is_empty(), "two boots are more than 1 % apart:\n  {}", apart.join("\n  "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agree(first: &str, second: &str) -> Result<()> {
        compare(&parse(first)?, &parse(second)?)
    }

    #[test]
    fn one_percent_is_the_limit() {
        assert!(agree("a\t1000\nb\t5", "b\t5\na\t1009").is_ok());
        let error = agree("a\t1000\nb\t5", "a\t1011\nb\t5").unwrap_err().to_string();
        assert!(error.ends_with("\n  a: 1000 and 1011"), "{error}");
    }

    #[test]
    fn missing_and_broken_values_fail() {
        assert!(agree("", "").is_err());
        assert!(agree("a\t1", "").unwrap_err().to_string().contains("a: 1 and nothing"));
        assert!(agree("a\t1", "a\t1\nb\t2").unwrap_err().to_string().contains("b: nothing and 2"));
        assert!(agree("a\tNaN", "a\tNaN").is_err());
        assert!(agree("a 1", "a 1").is_err());
    }
}
