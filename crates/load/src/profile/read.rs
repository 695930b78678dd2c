//! Parses and validates a [`LoadProfile`]. Errors have a line and a column.

use std::collections::HashSet;

use regex::Regex;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use profiler_base::error::Failure;
use profiler_base::toml_file::{self, Mistake};

use super::{Builtin, Hook, LoadProfile, LtpTests, Origin, Wanted};
use crate::Rate;

/// Most threads of a built-in load, as on the command line.
const MAX_WORKERS: u32 = 4096;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(deserialize_with = "title")]
    title: String,
    #[serde(default, deserialize_with = "names")]
    module: Vec<String>,
    #[serde(default)]
    notes: String,
    #[serde(default, deserialize_with = "parameter")]
    parameter: Option<String>,
    #[serde(default, deserialize_with = "parts")]
    parts: Vec<String>,
    #[serde(default, deserialize_with = "handlers")]
    handler: Vec<Wanted>,
    ltp: Option<LtpTests>,
    builtin: Option<Builtin>,
}

impl LoadProfile {
    /// Parses the text of one profile.
    ///
    /// # Errors
    /// The first error: syntax, an unknown or missing key, an invalid value.
    pub fn parse(origin: Origin, text: &str) -> Result<Self, Failure> {
        toml_file::parse(text, &origin.to_string(), |file: File| {
            let File { title, module: modules, notes, parameter, parts, handler, ltp, builtin } =
                file;
            let hook = Hook { handlers: handler, parameter, ltp, builtin };
            check(&hook, &parts)?;
            let (name, text, notes) = (origin.name(), text.to_owned(), notes.trim().to_owned());
            Ok(Self { name, origin, text, title, modules, notes, hook, parts })
        })
    }
}

/// That a profile has handlers and a load, or parts.
fn check(hook: &Hook, parts: &[String]) -> Result<(), Mistake> {
    let text = if !parts.is_empty() && *hook != Hook::default() {
        "a profile with parts cannot have handlers or loads of its own: move them to one of the parts"
    } else if parts.is_empty() && hook.handlers.is_empty() {
        "no handler: add `[[handler]]` with name and least_hits, or `parts`"
    } else if parts.is_empty() && hook.ltp.is_none() && hook.builtin.is_none() {
        "no load: add `[ltp]` or `[builtin]`"
    } else {
        return Ok(());
    };
    Err((0..0, text.to_owned()))
}

/// A value, unless there is a reason against it.
fn unless<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
    reason: impl FnOnce(&T) -> Option<String>,
) -> Result<T, D::Error> {
    let value = T::deserialize(from)?;
    reason(&value).map_or(Ok(value), |reason| Err(D::Error::custom(reason)))
}

fn title<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    unless(from, |title: &String| {
        let is_line = !title.trim().is_empty() && !title.contains('\n');
        (!is_line).then(|| "title must be one line of text".to_owned())
    })
}

fn handlers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Wanted>, D::Error> {
    unless(from, |all: &Vec<Wanted>| twice("handler", all.iter().map(|wanted| &*wanted.name)))
}

fn parts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    unless(from, |parts: &Vec<String>| match parts.as_slice() {
        [] => Some("name at least one part".to_owned()),
        parts => not_plain(parts).or_else(|| twice("part", parts.iter().map(String::as_str))),
    })
}

fn twice<'a>(what: &str, mut names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut seen = HashSet::new();
    let name = names.find(|name| !seen.insert(*name))?;
    Some(format!("{what} `{name}` is named twice"))
}

/// Names become part of a path, so they must not leave its folder.
fn not_plain(names: &[String]) -> Option<String> {
    let name = names.iter().find(|name| name.starts_with('.') || !is_of(name, 255, "_-."))?;
    let why = "not a plain name: write letters, digits, `_`, `-` and `.`";
    Some(format!("`{}` is {why}", name.escape_debug()))
}

pub(super) fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    unless(from, |name: &String| not_plain(std::slice::from_ref(name)))
}

fn parameter<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    name(from).map(Some)
}

fn names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    unless(from, |names: &Vec<String>| not_plain(names))
}

/// The name of a function, with suffixes of the compiler (`.isra.0`), or a glob of such names.
pub(super) fn handler_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    unless(from, |name: &String| {
        let what = match glob::Pattern::new(name) {
            _ if !is_of(name, 512, "_.$*?[]!-") => {
                "neither the name of a function nor a glob".to_owned()
            }
            Err(error) => format!("not a glob: {}", error.msg),
            Ok(_) => return None,
        };
        Some(format!("`{}` is {what}", name.escape_debug()))
    })
}

/// Whether a text has 1 to `most` letters, digits and characters of `others`.
fn is_of(text: &str, most: usize, others: &str) -> bool {
    (1..=most).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

pub(super) fn regex<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    unless(from, |pattern: &String| {
        let error = Regex::new(pattern).err()?.to_string();
        let reason = error.lines().last().unwrap_or_default();
        Some(format!("tests is not a regular expression: {reason}"))
    })
}

pub(super) fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Rate>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(D::Error::custom)
}

pub(super) fn operations<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    unless(from, |count: &u64| (*count == 0).then(|| "operations must be 1 or more".to_owned()))
}

pub(super) fn one() -> u32 {
    1
}

pub(super) fn workers<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    unless(from, |count: &u32| {
        let is_usual = (1..=MAX_WORKERS).contains(count);
        (!is_usual).then(|| format!("workers must be 1 to {MAX_WORKERS}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BuiltinKind;

    const GOOD: &str = r#"title = "bind(2)"
module = ["driver"]
notes = "two lines\nof notes"

[[handler]]
name = "bind_*"
least_hits = 1000

[[handler]]
name = "a_first"
least_hits = 7

[ltp]
suite = "syscalls"
tests = '^bind0[1-6]$'

[builtin]
kind = "bind"
operations = 2000
rate = "200/s"
"#;

    fn parse(text: &str) -> Result<LoadProfile, Failure> {
        LoadProfile::parse(Origin::File("mine.toml".into()), text)
    }

    #[test]
    fn a_profile_keeps_the_order_of_its_handlers() {
        let profile = parse(GOOD).unwrap();
        let hook = profile.hook;
        let names: Vec<_> = hook.handlers.iter().map(|h| (h.name.as_str(), h.least_hits)).collect();
        assert_eq!(names, [("bind_*", 1000), ("a_first", 7)]);
        let builtin = hook.builtin.unwrap();
        assert_eq!(
            (builtin.kind, builtin.workers, builtin.operations),
            (BuiltinKind::Bind, 1, 2000)
        );
        assert_eq!(builtin.rate.map(Rate::get), Some(200.0));
        assert_eq!(
            (profile.name.as_str(), profile.modules.as_slice()),
            ("mine", &["driver".to_owned()][..])
        );
    }

    #[test]
    fn each_error_has_its_place() {
        let replaced = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            GOOD.replacen(from, to, 1)
        };
        for (text, line, column, words) in [
            (replaced("least_hits = 1000", "lest_hits = 1000"), 7, 1, "lest_hits"),
            (replaced("[ltp]", "[ltb]"), 13, 2, "ltb"),
            (replaced("suite =", "suit ="), 14, 1, "suit"),
            (replaced("least_hits = 7\n", ""), 9, 1, "least_hits"),
            (replaced("= 1000", "= -1"), 7, 14, "-1"),
            (replaced("= 1000", "= \"many\""), 7, 14, "many"),
            (replaced("^bind0[1-6]$", "bind0[1-6"), 15, 9, "regular expression"),
            (replaced("\"bind\"", "\"bnid\""), 18, 8, "bnid"),
            (replaced("= 2000", "= 0"), 19, 14, "1 or more"),
            (replaced("200/s", "fast"), 20, 8, "rate"),
            (replaced("\"200/s\"", "\"1/s\"\nworkers = 0"), 21, 11, "workers"),
            (replaced("a_first", "bind_*"), 5, 1, "twice"),
            (replaced("a_first", "a b"), 10, 8, "a b"),
            (replaced("a_first", "a[b"), 10, 8, "glob"),
            (replaced("\"syscalls\"", "\"../../etc/passwd\""), 14, 9, "plain name"),
            (replaced("\"bind(2)\"", "\"\""), 1, 9, "one line"),
            (replaced("[\"driver\"]", "[\"/x\"]"), 2, 10, "plain name"),
            (replaced("[ltp]", "[ltp"), 13, 5, ""),
            (GOOD.replace("module =", "parts = [\"a\"]\nmodule ="), 1, 1, "parts"),
            ("title = \"é\" x".to_owned(), 1, 13, ""),
            ("title = \"t\"\nparts = []".to_owned(), 2, 9, "at least one"),
            ("title = \"t\"\nparts = [\"a\", \"a\"]".to_owned(), 2, 9, "twice"),
            ("title = \"t\"".to_owned(), 1, 1, "no handler"),
            (
                "title = \"t\"\n[[handler]]\nname = \"x\"\nleast_hits = 1".to_owned(),
                1,
                1,
                "no load",
            ),
        ] {
            let bad = parse(&text).unwrap_err();
            let place = format!("mine.toml:{line}:{column}: ");
            assert!(bad.message.starts_with(&place), "{bad}\n{text}");
            assert!(bad.message.contains(words), "{bad}: no {words}");
            assert!(!bad.to_string().contains('\n'), "{bad:?}");
        }
    }

    #[test]
    fn a_profile_of_parts_names_them_in_order() {
        let profile = parse("title = \"all\"\nparts = [\"connect\", \"bind\"]").unwrap();
        assert_eq!(profile.parts, ["connect", "bind"]);
        assert_eq!(profile.hook, Hook::default());
    }
}
