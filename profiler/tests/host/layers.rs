//! The layers of the program, by the paths in its sources: a module uses only modules of rows below its own, modules of a
//! folder do not use each other in a circle, and only `cli` names the library that parses command lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;

/// Top-level modules, from the top row down. Modules of one row do not use each other.
const ROWS: &[&[&str]] = &[
    &["cmd"],
    &["cli"],
    &["serve"],
    &["cost", "doctor", "lab"],
    &["kernels", "prepare", "run", "trace_cmd"],
    &["args"],
    &["export"],
    &["explain", "verdict"],
    &["load_profile"],
    &["load", "probe"],
    &["recording"],
    &["kernel"],
    &[
        "atomic_file",
        "bytes",
        "emulator",
        "limits",
        "progress",
        "stats",
        "stop",
        "text",
        "toml_file",
    ],
    &["error", "terminal"],
];

/// A path from the crate's root.
type Steps = Vec<String>;

/// A module's code without comments and tests, and what it imports, by the name that this has here.
struct Source {
    code: String,
    imports: Vec<(String, Steps)>,
}

/// Every module but those for tests.
type Sources = BTreeMap<Steps, Source>;

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap()
}

fn steps(path: &str) -> Steps {
    path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Adds the files in `folder`, whose module is `path`.
fn read(folder: &Path, path: &[String], texts: &mut BTreeMap<Steps, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut module = path.to_vec();
        if !matches!(stem.as_str(), "lib" | "mod") {
            module.push(stem);
        }
        if file.is_dir() {
            read(&file, &module, texts);
        } else if file.extension().is_some_and(|ending| ending == "rs") && module != ["main"] {
            texts.insert(module, fs::read_to_string(file).unwrap());
        }
    }
}

/// Takes comments and what is only for tests out of each text.
fn sources(texts: &BTreeMap<Steps, String>) -> Sources {
    let comment = regex(r"(?m)(?:^|[\s,;{])//.*$");
    let tests =
        regex(r"(?sm)#\[cfg\((?:test|fuzzing)\)\]\s+(?:pub(?:\(\w+\))? )?mod \w+ \{.*?(?:^\}|\z)");
    let for_tests = regex(r"#\[cfg\((?:test|fuzzing)\)\]\s+(?:pub(?:\(\w+\))? )?mod (\w+);");
    let mut left_out: BTreeSet<Steps> = BTreeSet::new();
    for (module, text) in texts {
        for found in for_tests.captures_iter(text) {
            left_out.insert([module.as_slice(), &[found[1].to_owned()]].concat());
        }
    }
    let is_in = |module: &Steps| !left_out.iter().any(|out| module.starts_with(out));
    let code: BTreeMap<&Steps, String> = texts
        .iter()
        .filter(|(module, _)| is_in(module))
        .map(|(module, text)| {
            let text = comment.replace_all(text, "");
            (module, tests.replace_all(&text, "").into_owned())
        })
        .collect();
    let import = regex(r"(?m)^\s*(?:pub(?:\([\w: ]+\))? )?use ([\w:{}*,\s]+);");
    let mut all = Sources::new();
    for (module, text) in &code {
        let mut imports = Vec::new();
        for found in import.captures_iter(text) {
            for (used, name) in flat("", &found[1]) {
                let is_child = code.contains_key(&[module.as_slice(), &used[..1]].concat());
                if let Some(whole) = absolute(module, &used, is_child) {
                    imports.push((name, whole));
                }
            }
        }
        all.insert((*module).clone(), Source { code: text.clone(), imports });
    }
    all
}

/// The paths of a tree of imports, each with the name that it has after `as`.
fn flat(prefix: &str, tree: &str) -> Vec<(Steps, String)> {
    let tree = tree.trim();
    if let Some((before, inner)) = tree.split_once('{') {
        let inner = &inner[..inner.rfind('}').unwrap()];
        let prefix = format!("{prefix}{before}");
        let mut depth = 0;
        let parts = inner.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        return parts.flat_map(|part| flat(&prefix, part)).collect();
    }
    let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
    let mut path = steps(&format!("{prefix}{path}"));
    path.pop_if(|last| last == "self");
    let name = if name.is_empty() { path.last().cloned() } else { Some(name.to_owned()) };
    name.map(|name| (path, name)).into_iter().filter(|_| !tree.is_empty()).collect()
}

/// `path` from the crate's root, as the module `from` means it; `None` is of another crate.
fn absolute(from: &[String], path: &[String], is_child: bool) -> Option<Steps> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let (start, rest) = match path.first()?.as_str() {
        "crate" => (&from[..0], &path[1..]),
        "self" => (from, &path[1..]),
        "super" => (&from[..from.len().checked_sub(supers)?], &path[supers..]),
        _ if is_child => (from, path),
        _ => return None,
    };
    Some([start, rest].concat())
}

/// The module that has what is at `path`, wherever it is exported again.
fn home(sources: &Sources, path: &[String]) -> Steps {
    let mut path = path.to_vec();
    // Longer chains of exports than that are circles.
    for _ in 0..8 {
        let is_known = |length: &usize| sources.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(is_known).unwrap_or_default();
        let exported = sources.get(&path[..length]).zip(path.get(length));
        match exported.and_then(|(module, name)| module.imports.iter().find(|(it, _)| it == name)) {
            Some((_, import)) => path = [import, &path[length + 1..]].concat(),
            None => return path[..length].to_vec(),
        }
    }
    path
}

/// For each folder, which of its modules use which, with what is inside of them.
fn uses(sources: &Sources) -> BTreeMap<Steps, BTreeSet<(String, String)>> {
    let written = regex(r"\b(?:crate|self|super)(?:::\w+)+");
    let mut folders: BTreeMap<Steps, BTreeSet<(String, String)>> = BTreeMap::new();
    for (from, source) in sources {
        let paths = written.find_iter(&source.code).map(|found| steps(found.as_str()));
        let paths = paths.filter_map(|path| absolute(from, &path, false));
        for path in paths.chain(source.imports.iter().map(|(_, path)| path.clone())) {
            let to = home(sources, &path);
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                let folder = folders.entry(from[..common].to_vec()).or_default();
                folder.insert((a.clone(), b.clone()));
            }
        }
    }
    folders
}

/// The uses among `uses` that are part of a circle.
fn in_circles(uses: &BTreeSet<(String, String)>) -> Vec<&(String, String)> {
    // All that is reached, by ever longer ways.
    let mut reached = uses.clone();
    loop {
        let ways = reached.iter().flat_map(|(a, b)| {
            let next = uses.iter().filter(move |(from, _)| from == b);
            next.map(move |(_, c)| (a.clone(), c.clone()))
        });
        let longer: BTreeSet<_> = reached.iter().cloned().chain(ways).collect();
        if longer.len() == reached.len() {
            break;
        }
        reached = longer;
    }
    uses.iter().filter(|(a, b)| reached.contains(&(b.clone(), a.clone()))).collect()
}

/// Uses of top-level modules that do not go down.
fn upward(uses: &BTreeSet<(String, String)>) -> Vec<String> {
    let row = |module: &str| ROWS.iter().position(|row| row.contains(&module));
    let is_up = |(from, to): &&(String, String)| row(from).zip(row(to)).is_none_or(|(a, b)| a >= b);
    uses.iter().filter(is_up).map(|(from, to)| format!("{from} uses {to}")).collect()
}

fn of_the_program() -> Sources {
    let mut texts = BTreeMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &[], &mut texts);
    sources(&texts)
}

#[test]
fn modules_use_only_those_below_them() {
    let sources = of_the_program();
    let top: BTreeSet<&str> =
        sources.keys().filter_map(|path| path.first()).map(|s| &**s).collect();
    let known: BTreeSet<&str> = ROWS.iter().flat_map(|row| row.iter().copied()).collect();
    assert_eq!(top, known, "the rows have each module once");
    let upward = upward(&uses(&sources)[&Steps::new()]);
    assert!(
        upward.is_empty(),
        "imports that do not go down; move what is used to a lower module, or its user up: {upward:?}"
    );
}

#[test]
fn modules_of_a_folder_form_no_circle() {
    let folders = uses(&of_the_program());
    let circles = folders.iter().map(|(folder, uses)| (folder.join("::"), in_circles(uses)));
    let circles: Vec<_> = circles.filter(|(_, circle)| !circle.is_empty()).collect();
    assert!(circles.is_empty(), "move what both need to a module that uses neither: {circles:#?}");
}

#[test]
fn only_the_command_line_names_its_parser() {
    let clap = regex(r"\bclap(_\w+)?\b");
    for (path, source) in of_the_program() {
        let is_cli = path.first().is_some_and(|top| top == "cli" || top == "args");
        assert!(is_cli || !clap.is_match(&source.code), "{} names clap", path.join("::"));
    }
}

#[test]
fn a_circle_is_found_through_exports_and_inner_modules() {
    let mut texts = BTreeMap::from([
        (steps("f"), "mod a;\npub use b::{self as other, B as Named, C};".to_owned()),
        (steps("f::a"), "fn f(x: super::Named) {}".to_owned()),
        (
            steps("f::b"),
            "mod d;\n// crate::f::a\n#[cfg(test)]\nmod tests { use super::super::a; }".to_owned(),
        ),
        (steps("f::b::d"), "fn f() -> crate::f::c::T<u8> { todo!() }".to_owned()),
        (steps("f::c"), String::new()),
    ]);
    let in_f = |texts: &BTreeMap<Steps, String>| uses(&sources(texts))[&steps("f")].clone();
    let edge = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(in_f(&texts), BTreeSet::from([edge("a", "b"), edge("b", "c")]));
    assert!(in_circles(&in_f(&texts)).is_empty());
    texts.insert(steps("f::c"), "use crate::f::{other::d, a::{f, self}};".to_owned());
    assert_eq!(in_circles(&in_f(&texts)).len(), 4);
    let hidden = "#[cfg(test)]\nmod tests {\n    use crate::f::b;\n}\nuse crate::f::{\n    a::X as _, // why\n    b::Y as _,\n};";
    texts.insert(steps("f::c"), hidden.to_owned());
    let both = [edge("c", "a"), edge("c", "b")];
    assert!(both.iter().all(|edge| in_f(&texts).contains(edge)), "{:?}", in_f(&texts));
}

#[test]
fn an_import_that_goes_up_or_sideways_is_found() {
    let upward = |from: &str, to: &str| upward(&BTreeSet::from([(from.to_owned(), to.to_owned())]));
    assert!(upward("cmd", "recording").is_empty());
    assert_eq!(upward("stats", "recording"), ["stats uses recording"]);
    assert_eq!(upward("load", "probe"), ["load uses probe"]);
    assert_eq!(upward("novel", "stats").len(), 1);
}
