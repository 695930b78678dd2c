//! Parses and validates a [`LoadProfile`]. Errors have a line and a column.

use std::collections::HashSet;

use regex::Regex;
use serde::Deserialize;
use toml::Spanned;

use super::{Builtin, Hook, LoadProfile, LtpTests, Origin, Wanted};
use crate::{BuiltinKind, Rate};
use profiler_base::error::Failure;
use profiler_base::toml_file::{self, Mistake};

/// Most threads of a built-in load, as on the command line.
const MAX_WORKERS: u32 = 4096;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: Spanned<String>,
    #[serde(default)]
    module: Vec<Spanned<String>>,
    #[serde(default)]
    notes: String,
    parameter: Option<Spanned<String>>,
    parts: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    handler: Vec<Spanned<FileHandler>>,
    ltp: Option<Spanned<Ltp>>,
    builtin: Option<Spanned<Load>>,
}

#[derive(Deserialize)]
#[serde(rename = "Handler", deny_unknown_fields)]
struct FileHandler {
    name: Spanned<String>,
    least_hits: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ltp {
    suite: Spanned<String>,
    tests: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    kind: Spanned<String>,
    operations: Spanned<u64>,
    rate: Option<Spanned<String>>,
    workers: Option<Spanned<u32>>,
}

impl LoadProfile {
    /// Parses the text of one profile.
    ///
    /// # Errors
    /// The first error: syntax, an unknown or missing key, an invalid value.
    pub fn parse(name: &str, origin: Origin, text: &str) -> Result<Self, Failure> {
        let file = origin.to_string();
        toml_file::parse(text, &file, |file: File| file.check(name, origin, text.to_owned()))
    }
}

impl File {
    fn check(self, name: &str, origin: Origin, text: String) -> Result<LoadProfile, Mistake> {
        if self.title.get_ref().trim().is_empty() || self.title.get_ref().contains('\n') {
            return Err((self.title.span(), "title must be one line of text".to_owned()));
        }
        for module in &self.module {
            plain_name(module, "a module's name")?;
        }
        let title = self.title.get_ref().clone();
        let modules = self.module.iter().map(|module| module.get_ref().clone()).collect();
        let notes = self.notes.trim().to_owned();
        let (hook, parts) = match &self.parts {
            Some(parts) => (Hook::default(), self.parts(parts)?),
            None => (self.hook()?, Vec::new()),
        };
        Ok(LoadProfile { name: name.to_owned(), origin, text, title, modules, notes, hook, parts })
    }

    fn parts(&self, parts: &Spanned<Vec<Spanned<String>>>) -> Result<Vec<String>, Mistake> {
        let of_a_hook = [
            self.parameter.as_ref().map(Spanned::span),
            self.handler.first().map(Spanned::span),
            self.ltp.as_ref().map(Spanned::span),
            self.builtin.as_ref().map(Spanned::span),
        ];
        if let Some(span) = of_a_hook.into_iter().flatten().next() {
            let text = "a profile with parts cannot have handlers or loads of its own: move them to \
                        one of the parts";
            return Err((span, text.to_owned()));
        }
        if parts.get_ref().is_empty() {
            return Err((parts.span(), "name at least one part".to_owned()));
        }
        let mut seen = HashSet::new();
        for part in parts.get_ref() {
            plain_name(part, "the name of a part (another profile, without `.toml`)")?;
            if !seen.insert(part.get_ref()) {
                return Err((part.span(), format!("part `{}` is named twice", part.get_ref())));
            }
        }
        Ok(parts.get_ref().iter().map(|part| part.get_ref().clone()).collect())
    }

    fn hook(self) -> Result<Hook, Mistake> {
        if self.handler.is_empty() {
            let text = "no handler: add `[[handler]]` with name and least_hits, or `parts`";
            return Err((0..0, text.to_owned()));
        }
        if let (None, None) = (&self.ltp, &self.builtin) {
            return Err((0..0, "no load: add `[ltp]` or `[builtin]`".to_owned()));
        }
        let mut handlers: Vec<Wanted> = Vec::new();
        for handler in self.handler {
            let FileHandler { name, least_hits } = handler.into_inner();
            handler_name(&name)?;
            if handlers.iter().any(|other| other.name == *name.get_ref()) {
                return Err((name.span(), format!("handler `{}` is named twice", name.get_ref())));
            }
            handlers.push(Wanted { name: name.into_inner(), least_hits });
        }
        if let Some(parameter) = &self.parameter {
            plain_name(parameter, "the name of a module's parameter")?;
        }
        Ok(Hook {
            handlers,
            parameter: self.parameter.map(Spanned::into_inner),
            ltp: self.ltp.map(|ltp| ltp.into_inner().check()).transpose()?,
            builtin: self.builtin.map(|load| load.into_inner().check()).transpose()?,
        })
    }
}

impl Ltp {
    fn check(self) -> Result<LtpTests, Mistake> {
        plain_name(&self.suite, "the name of a file in LTP's runtest folder")?;
        Regex::new(self.tests.get_ref()).map_err(|error| {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            (self.tests.span(), format!("tests is not a regular expression: {reason}"))
        })?;
        Ok(LtpTests { suite: self.suite.into_inner(), tests: self.tests.into_inner() })
    }
}

impl Load {
    fn check(self) -> Result<Builtin, Mistake> {
        let kind = self.kind.get_ref().parse::<BuiltinKind>();
        let kind = kind.map_err(|error| (self.kind.span(), error.to_string()))?;
        if *self.operations.get_ref() == 0 {
            return Err((self.operations.span(), "operations must be 1 or more".to_owned()));
        }
        let rate = self.rate.map(|rate| {
            rate.get_ref().parse::<Rate>().map_err(|error| (rate.span(), error.to_string()))
        });
        if let Some(workers) = &self.workers
            && !(1..=MAX_WORKERS).contains(workers.get_ref())
        {
            return Err((workers.span(), format!("workers must be 1 to {MAX_WORKERS}")));
        }
        Ok(Builtin {
            kind,
            workers: self.workers.map_or(1, Spanned::into_inner),
            rate: rate.transpose()?,
            operations: self.operations.into_inner(),
        })
    }
}

/// Names become part of a path, so they must not leave its folder.
fn plain_name(name: &Spanned<String>, what: &str) -> Result<(), Mistake> {
    let text = name.get_ref();
    if text.starts_with('.') || !is_of(text, 255, "_-.") {
        return Err((name.span(), format!("`{}` is not {what}", text.escape_debug())));
    }
    Ok(())
}

/// The name of a function, with suffixes of the compiler (`.isra.0`), or a glob of such names.
fn handler_name(name: &Spanned<String>) -> Result<(), Mistake> {
    let text = name.get_ref();
    let shown = text.escape_debug();
    let what = match glob::Pattern::new(text) {
        _ if !is_of(text, 512, "_.$*?[]!-") => {
            "neither the name of a function nor a glob".to_owned()
        }
        Err(error) => format!("not a glob: {}", error.msg),
        Ok(_) => return Ok(()),
    };
    Err((name.span(), format!("`{shown}` is {what}")))
}

/// Whether a text has 1 to `most` letters, digits and characters of `others`.
fn is_of(text: &str, most: usize, others: &str) -> bool {
    (1..=most).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        LoadProfile::parse("mine", Origin::File("mine.toml".into()), text)
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
            (replaced("a_first", "bind_*"), 10, 8, "twice"),
            (replaced("a_first", "a b"), 10, 8, "a b"),
            (replaced("a_first", "a[b"), 10, 8, "glob"),
            (replaced("\"syscalls\"", "\"../../etc/passwd\""), 14, 9, "runtest"),
            (replaced("\"bind(2)\"", "\"\""), 1, 9, "one line"),
            (replaced("[\"driver\"]", "[\"/x\"]"), 2, 11, "module"),
            (replaced("[ltp]", "[ltp"), 13, 5, ""),
            (GOOD.replace("module =", "parts = [\"a\"]\nmodule ="), 6, 1, "parts"),
            ("title = \"é\" x".to_owned(), 1, 13, ""),
            ("title = \"t\"\nparts = []".to_owned(), 2, 9, "at least one"),
            ("title = \"t\"\nparts = [\"a\", \"a\"]".to_owned(), 2, 15, "twice"),
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
