//! The layers of this crate, and the tests that keep them: a module uses only modules of rows below its own, modules of
//! a folder do not use each other in a circle, and only `cli` knows the library that parses command lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Attribute, Item, ItemMod};

/// Top-level modules, from the top row down. Modules of one row do not use each other.
const ROWS: &[&[&str]] = &[
    &["cmd"],
    &["cli"],
    &["serve"],
    &["bisect", "cost", "doctor", "lab", "sweep"],
    &["kernels", "prepare", "run", "trace_cmd"],
    &["export"],
    &["explain", "verdict"],
    &["load_profile"],
    &["load", "probe", "watch"],
    &["recording"],
    &["kernel"],
    &[
        "atomic_file",
        "bytes",
        "emulator",
        "error",
        "limits",
        "progress",
        "stats",
        "stop",
        "text",
        "toml_file",
    ],
    &["terminal"],
];

/// Modules used, by the module that uses them: where, and which.
type Uses = BTreeMap<String, BTreeSet<(PathBuf, String)>>;

fn row(module: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&module))
}

/// Each use that does not go down, as a line.
fn violations(uses: &Uses) -> Vec<String> {
    let mut lines = Vec::new();
    for (from, used) in uses {
        for (file, to) in used {
            let line = match (row(from), row(to)) {
                (Some(from), Some(to)) if from < to => continue,
                (None, _) => format!("{from} stands in no row of {}", file!()),
                (_, None) => format!("{to} stands in no row of {}", file!()),
                (Some(_), Some(_)) => format!("{}: {from} uses {to}", file.display()),
            };
            lines.push(line);
        }
    }
    lines.dedup();
    lines
}

/// Reads the module in `file` and those that it declares; the latter's files are looked for in `folder`.
/// `path` is the module's path from the crate's root. What is compiled for tests alone may use anything.
fn collect(file: &Path, folder: &Path, path: &[String], top: &BTreeSet<String>, uses: &mut Uses) {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let source =
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for item in &source.items {
        if attributes(item).iter().any(is_for_tests) {
            continue;
        }
        if let Item::Mod(ItemMod { ident, content: None, .. }) = item {
            let name = ident.to_string();
            let inner = folder.join(&name);
            let flat = folder.join(format!("{name}.rs"));
            let file = if flat.exists() { flat } else { inner.join("mod.rs") };
            let path: Vec<String> = path.iter().cloned().chain([name]).collect();
            collect(&file, &inner, &path, top, uses);
        } else if let Some(module) = path.first() {
            let used = uses.entry(module.clone()).or_default();
            let mut add = |name: String| {
                if name != *module && top.contains(&name) {
                    used.insert((file.to_owned(), name));
                }
            };
            roots(item.to_token_stream(), path.len(), &mut add);
        }
    }
}

/// The first names of all paths in `tokens` that start at the crate's root: `crate::NAME`, `crate::{NAME, ..}`, or
/// as many `super` as the module is deep.
fn roots(tokens: TokenStream, depth: usize, add: &mut impl FnMut(String)) {
    let mut supers = 0;
    let mut at_root = false;
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if ident == "crate" => at_root = true,
            TokenTree::Ident(ident) if ident == "super" => {
                supers += 1;
                at_root = supers >= depth;
            }
            TokenTree::Ident(ident) => {
                if at_root {
                    add(ident.to_string());
                }
                (supers, at_root) = (0, false);
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => {}
            TokenTree::Group(group) if at_root => {
                first_names(group.stream(), add);
                (supers, at_root) = (0, false);
            }
            TokenTree::Group(group) => {
                roots(group.stream(), depth, add);
                (supers, at_root) = (0, false);
            }
            _ => (supers, at_root) = (0, false),
        }
    }
}

/// `a`, `b` and `c` of `{a::x, b::{y, z}, c}`.
fn first_names(tokens: TokenStream, add: &mut impl FnMut(String)) {
    let mut first = true;
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if first => {
                add(ident.to_string());
                first = false;
            }
            TokenTree::Punct(punct) if punct.as_char() == ',' => first = true,
            _ => {}
        }
    }
}

/// A module's path from the crate's root, or that of something in it.
type Steps = Vec<String>;

/// What a module's file says.
#[derive(Default)]
struct Source {
    /// Modules that it declares.
    children: BTreeSet<String>,
    /// What it imports, by the name that this has here.
    imports: BTreeMap<String, Steps>,
    /// All paths in it, as they are written.
    paths: Vec<Steps>,
    /// It names `clap`, or a crate around it.
    names_clap: bool,
}

/// Every module of the crate but those for tests.
type Sources = BTreeMap<Steps, Source>;

/// Reads the module `path` in `file`, and those that it declares, from `folder`.
fn read(file: &Path, folder: &Path, path: &[String], sources: &mut Sources) {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let parsed =
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut source = Source::default();
    let items = parsed.items.iter().filter(|item| !attributes(item).iter().any(is_for_tests));
    let mut uses = Vec::new();
    for item in items {
        if let Item::Mod(ItemMod { ident, content: None, .. }) = item {
            source.children.insert(ident.to_string());
            continue;
        }
        let mut found = Vec::new();
        paths(item.to_token_stream(), &[], &mut found);
        source.names_clap |= names_clap(item.to_token_stream());
        if matches!(item, Item::Use(_)) {
            uses.extend(found.iter().cloned());
        }
        source.paths.extend(found.into_iter().map(|(path, _)| path));
    }
    for (used, name) in uses {
        if let Some(of) = absolute(path, &source, &used) {
            source.imports.insert(name, of);
        }
    }
    for name in &source.children {
        let inner = folder.join(name);
        let flat = folder.join(format!("{name}.rs"));
        let file = if flat.exists() { flat } else { inner.join("mod.rs") };
        let path: Steps = path.iter().chain([name]).cloned().collect();
        read(&file, &inner, &path, sources);
    }
    sources.insert(path.to_vec(), source);
}

fn names_clap(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident.to_string().split('_').next() == Some("clap"),
        TokenTree::Group(group) => names_clap(group.stream()),
        _ => false,
    })
}

/// Every path of two names or more in `tokens`, with the name that its last has after `as`. All of them begin with
/// `prefix`, which stands before the braces of a tree of imports.
fn paths(tokens: TokenStream, prefix: &[String], found: &mut Vec<(Steps, String)>) {
    let mut path = prefix.to_vec();
    let (mut colons, mut renames) = (if prefix.is_empty() { 0 } else { 2 }, false);
    let mut finish = |path: &mut Steps, name: Option<String>| {
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let whole = std::mem::take(path);
        if let ([_, .., last], true) = (whole.as_slice(), whole.len() > prefix.len()) {
            let name = name.unwrap_or_else(|| last.clone());
            found.push((whole, name));
        }
    };
    let mut groups = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if ident == "as" && colons == 0 => renames = true,
            TokenTree::Ident(ident) if renames => {
                finish(&mut path, Some(ident.to_string()));
                renames = false;
            }
            TokenTree::Ident(ident) => {
                if colons != 2 {
                    finish(&mut path, None);
                }
                path.push(ident.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Group(group) => {
                let is_tree = colons == 2 && group.delimiter() == Delimiter::Brace;
                let before = if is_tree { std::mem::take(&mut path) } else { Vec::new() };
                finish(&mut path, None);
                groups.push((group.stream(), before));
                colons = 0;
            }
            _ => {
                finish(&mut path, None);
                path = prefix.to_vec();
                (colons, renames) = (if prefix.is_empty() { 0 } else { 2 }, false);
            }
        }
    }
    finish(&mut path, None);
    for (tokens, before) in groups {
        paths(tokens, &before, found);
    }
}

/// `path` from the crate's root, as the module `from` means it; `None` is of another crate.
fn absolute(from: &[String], source: &Source, path: &[String]) -> Option<Steps> {
    let (first, rest) = path.split_first()?;
    let start = match first.as_str() {
        "crate" => Vec::new(),
        "self" => from.to_vec(),
        "super" => {
            let supers = path.iter().take_while(|name| *name == "super").count();
            let start = &from[..from.len().checked_sub(supers)?];
            return Some(start.iter().chain(&path[supers..]).cloned().collect());
        }
        name if source.children.contains(name) => from.iter().chain([first]).cloned().collect(),
        name => source.imports.get(name)?.clone(),
    };
    Some(start.iter().chain(rest).cloned().collect())
}

/// The module that has what is at `path`, wherever it is exported again.
fn home(sources: &Sources, path: &[String]) -> Steps {
    let mut path = path.to_vec();
    // Longer chains of exports than that are circles.
    for _ in 0..8 {
        let known = (0..=path.len()).rev().find(|length| sources.contains_key(&path[..*length]));
        let length = known.unwrap_or_default();
        let module = &path[..length];
        let import = path.get(length).and_then(|name| sources[module].imports.get(name));
        match import {
            Some(import) => path = import.iter().chain(&path[length + 1..]).cloned().collect(),
            None => return module.to_vec(),
        }
    }
    path
}

/// For each folder, which of its modules use which, with what is inside of them.
fn uses_in_folders(sources: &Sources) -> BTreeMap<Steps, BTreeSet<(String, String)>> {
    let mut folders: BTreeMap<Steps, BTreeSet<(String, String)>> = BTreeMap::new();
    for (from, source) in sources {
        for path in source.paths.iter().filter_map(|path| absolute(from, source, path)) {
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
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for (_, used) in uses.iter().filter(|(user, _)| user == module) {
                if used == to {
                    return true;
                }
                if seen.insert(used) {
                    next.push(used);
                }
            }
        }
        false
    };
    uses.iter().filter(|(from, to)| reaches(to, from)).collect()
}

fn sources_of_this_crate() -> Sources {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Sources::new();
    read(&root.join("lib.rs"), &root, &[], &mut sources);
    sources
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let is_other = |path: syn::Path| path.is_ident("test") || path.is_ident("fuzzing");
    attribute.path().is_ident("cfg") && attribute.parse_args().is_ok_and(is_other)
}

fn uses_of_this_crate() -> Uses {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let top = ROWS.iter().flat_map(|row| row.iter().map(|name| (*name).to_owned()));
    let mut top: BTreeSet<String> = top.collect();
    let text = fs::read_to_string(root.join("lib.rs")).expect("lib.rs is there");
    for item in syn::parse_file(&text).expect("lib.rs is Rust").items {
        if let Item::Mod(item) = item
            && !item.attrs.iter().any(is_for_tests)
        {
            top.insert(item.ident.to_string());
        }
    }
    let mut uses = Uses::new();
    collect(&root.join("lib.rs"), &root, &[], &top, &mut uses);
    uses
}

#[test]
fn modules_use_only_those_below_them() {
    let uses = uses_of_this_crate();
    let known: Vec<&str> = ROWS.iter().flat_map(|row| row.iter().copied()).collect();
    for module in &known {
        assert!(uses.contains_key(*module), "there is no module {module}: take it out of the rows");
    }
    let violations = violations(&uses);
    assert!(
        violations.is_empty(),
        "imports that do not go down; move what is used to a lower module, or its user up:\n{}",
        violations.join("\n")
    );
}

#[test]
fn modules_of_a_folder_form_no_circle() {
    let mut circles = Vec::new();
    for (folder, uses) in uses_in_folders(&sources_of_this_crate()) {
        let line = |(from, to): &(String, String)| format!("{}: {from} -> {to}", folder.join("::"));
        circles.extend(in_circles(&uses).into_iter().map(line));
    }
    assert!(
        circles.is_empty(),
        "circles; move what both need to a module that uses neither:\n{}",
        circles.join("\n")
    );
}

#[test]
fn a_circle_is_found_through_exports_and_inner_modules() {
    let source = |children: &[&str], text: &str| {
        let mut source = Source {
            children: children.iter().map(|name| (*name).to_owned()).collect(),
            ..Source::default()
        };
        let mut found = Vec::new();
        paths(text.parse().expect("tokens"), &[], &mut found);
        for (path, name) in &found {
            if let Some(of) = absolute(&["f".to_owned()], &source, path) {
                source.imports.insert(name.clone(), of);
            }
        }
        source.paths = found.into_iter().map(|(path, _)| path).collect();
        source
    };
    let path =
        |text: &str| text.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let mut sources = Sources::from([
        (path(""), source(&["f"], "")),
        (path("f"), source(&["a", "b", "c"], "pub use b::{self as other, B as Named, C};")),
        (path("f::a"), source(&[], "fn f(x: super::Named) {}")),
        (path("f::b"), source(&["d"], "")),
        (path("f::b::d"), source(&[], "fn f() -> crate::f::c::T<u8> { todo!() }")),
        (path("f::c"), source(&[], "")),
    ]);
    let uses = |sources: &Sources| uses_in_folders(sources)[&path("f") as &Steps].clone();
    let edge = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(uses(&sources), BTreeSet::from([edge("a", "b"), edge("b", "c")]));
    assert!(in_circles(&uses(&sources)).is_empty());
    sources.insert(path("f::c"), source(&[], "fn f() { crate::f::a::f() }"));
    assert_eq!(in_circles(&uses(&sources)).len(), 3);
}

#[test]
fn only_the_command_line_names_its_parser() {
    let sources = sources_of_this_crate();
    let names = |path: &Steps| path.first().is_some_and(|top| top == "cli");
    let users: Vec<String> = sources
        .iter()
        .filter(|(path, source)| source.names_clap && !names(path))
        .map(|(path, _)| path.join("::"))
        .collect();
    assert!(
        users.is_empty(),
        "arguments become typed options in cli, and these name clap: {users:?}"
    );
}

#[test]
fn every_way_to_name_a_module_is_seen() {
    let names = |text: &str, depth| {
        let mut names = Vec::new();
        roots(text.parse().expect("tokens"), depth, &mut |name| names.push(name));
        names
    };
    assert_eq!(names("use crate::a::b; fn f(x: crate::c::D) {}", 1), ["a", "c"]);
    assert_eq!(names("use crate::{a::{b, c}, d, e::f};", 2), ["a", "d", "e"]);
    assert_eq!(names("use super::super::a::b; use super::c::d;", 2), ["a"]);
    assert_eq!(names("m!(if crate::a::b() { $crate::c::d() });", 2), ["a", "c"]);
    assert!(names("use self::a; use std::b; fn crate_a() {}", 1).is_empty());
}

#[test]
fn an_import_that_goes_up_or_sideways_is_found() {
    let uses = |from: &str, to: &str| {
        let used = BTreeSet::from([(PathBuf::from("x.rs"), to.to_owned())]);
        violations(&BTreeMap::from([(from.to_owned(), used)]))
    };
    assert!(uses("cmd", "recording").is_empty());
    assert_eq!(uses("stats", "recording"), ["x.rs: stats uses recording"]);
    assert_eq!(uses("load", "probe"), ["x.rs: load uses probe"]);
    assert_eq!(uses("novel", "stats").len(), 1);
}
