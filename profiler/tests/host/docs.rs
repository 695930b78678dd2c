//! The documents are true: tables of backends, commands, links, paths. The table of exit codes is in `shell.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use profiler::cli::Cli;
use profiler_recording::Backend;

use crate::common::backends::{Expected, Kernel, table};

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
        // It counts nothing there: see docs/backends.md.
        assert!(!kernel.handler.works.contains(&Backend::Kprobe), "{series}");
    }
}

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The pages of docs/.
fn pages() -> Vec<PathBuf> {
    let folder = root().join("docs");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = entries.filter(|path| has_ending(path, "md")).collect();
    pages.sort();
    pages
}

/// Everything that is written for people: the pages of docs/, and what they link to.
fn documents() -> Vec<PathBuf> {
    let mut all = pages();
    let others = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "ltp-profiles/README.md",
        "testbed/README.md",
        "fuzz/README.md",
    ];
    all.extend(others.map(|path| root().join(path)));
    all
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|extension| extension == ending)
}

/// The lines of a document that are not between fences.
fn prose(path: &Path) -> String {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let outside = text.split("```").step_by(2);
    outside.collect()
}

/// Where the links of a document lead.
fn links(path: &Path) -> Vec<String> {
    let text = prose(path);
    let targets = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned());
    targets.filter(|target| !target.starts_with("https://")).collect()
}

/// The anchors of a document's headings, as Git hosts make them.
fn anchors(path: &Path) -> Vec<String> {
    let text = prose(path);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut followed = 0;
    for document in documents() {
        for link in links(&document) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            let name = document.strip_prefix(root()).unwrap().display();
            assert!(target.exists(), "{name} links to `{link}`: no such file");
            let known = anchor.is_empty() || anchors(&target).iter().any(|known| known == anchor);
            assert!(known, "{name} links to `{link}`: no such heading in {:?}", anchors(&target));
            followed += 1;
        }
    }
    assert!(followed > 30, "only {followed} links were found");
}

/// What stands between backticks and starts with a tracked folder of this repository exists.
#[test]
fn paths_lead_to_files() {
    const FOLDERS: [&str; 6] =
        ["docs/", "ltp-profiles/", "profiler/", "crates/", "profiler-ebpf/", "xtask/"];
    let mut found = 0;
    for document in documents() {
        for quoted in prose(&document).split('`').skip(1).step_by(2) {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            if FOLDERS.iter().any(|folder| quoted.starts_with(folder))
                && quoted.chars().all(is_plain)
            {
                let name = document.strip_prefix(root()).unwrap().display();
                assert!(root().join(quoted).exists(), "{name} names `{quoted}`: no such file");
                found += 1;
            }
        }
    }
    assert!(found > 15, "only {found} paths were found");
}

#[test]
fn the_readme_is_a_screen_and_the_pages_are_listed() {
    let lines = fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= 70, "README.md has {lines} lines: reference text goes to docs/");
    let links = links(&root().join("docs/SUMMARY.md"));
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(
            name == "SUMMARY.md" || links.iter().any(|link| link == name),
            "docs/SUMMARY.md does not link {name}"
        );
    }
}

/// Text is wrapped; tables, commands and output are not, nor CHANGELOG.md, which is none of these documents.
#[test]
fn lines_are_short() {
    const LONGEST: usize = 120;
    for document in documents() {
        for line in prose(&document).lines() {
            let is_text = !line.starts_with(['|', '!']) && !line.starts_with("    ");
            let name = document.strip_prefix(root()).unwrap().display();
            assert!(
                !is_text || line.chars().count() <= LONGEST,
                "{name} has a line of more than {LONGEST} characters: {line}"
            );
        }
    }
}

/// Commands in indented blocks are command lines that the program takes.
#[test]
fn commands_parse() {
    let mut parsed = 0;
    for document in documents() {
        let text = prose(&document).replace("\\\n", " ");
        for line in text.lines().filter_map(|line| line.strip_prefix("    profiler ")) {
            let words = shlex::split(line).unwrap_or_else(|| panic!("no words: {line}"));
            let words = std::iter::once("profiler".to_owned()).chain(words);
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{} shows `profiler {line}`: {error}", document.display());
            }
            parsed += 1;
        }
    }
    assert!(parsed > 15, "only {parsed} commands were found");
}

#[test]
fn the_page_on_backends_shows_what_works() {
    let page = include_str!("../../../docs/backends.md");
    let mut text = String::from(
        "| kernel | handlers in kprobes | chosen | functions of the kernel | chosen |\n\
         |---|---|---|---|---|\n",
    );
    for (series, Kernel { handler, core, .. }) in table() {
        let cells = [works(&handler), chosen(&handler), works(&core), chosen(&core)];
        text.push_str(&format!("| {series} | {} |\n", cells.join(" | ")));
    }
    assert!(page.contains(&text), "docs/backends.md has to show\n{text}");
}

fn works(expected: &Expected) -> String {
    let names: Vec<&str> = expected.works.iter().map(|backend| backend.name()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn chosen(expected: &Expected) -> String {
    expected.chosen.map_or("-", Backend::name).to_owned()
}
