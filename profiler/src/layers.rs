//! The layers of this crate, and the test that keeps them: a module uses only modules of rows below its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
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
    &["atomic_file", "bytes", "emulator", "error", "limits", "progress", "stats", "stop", "text"],
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
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
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
