//! The book: docs/ and the pages beside it as HTML, in which every link is followed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::digest;
use crate::paths::Paths;
use crate::process;
use crate::setup::{self, MDBOOK};

/// The pages, and the files that these link to. They keep their places in the checkout, so that relative links hold.
const FILES: [&str; 5] =
    ["*.md", "docs", "action.yml", "profiler/schema", "profiler/tests/data/backends.toml"];

/// Builds the book into `target/book/html`. A broken link is an error.
pub(crate) fn run(paths: &Paths) -> Result<()> {
    setup::ensure(paths, &[setup::BOOK])?;
    let book = paths.target().join("book");
    process::empty_dir(&book)?;
    collect(paths, &book)?;
    process::run(Command::new(MDBOOK.program(paths)).arg("build").arg(&book))?;
    let html = book.join("html");
    let broken = broken_links(&html)?;
    if !broken.is_empty() {
        bail!("the book has broken links:\n{}", broken.join("\n"));
    }
    println!("book: every link leads somewhere: {}", html.join("index.html").display());
    Ok(())
}

/// Copies what the book is made of: mdBook takes pages from below the folder of its summary alone, and ours is in docs/.
fn collect(paths: &Paths, book: &Path) -> Result<()> {
    let sources = book.join("src");
    let mut list = Command::new("git");
    list.args(["ls-files", "--"]).args(FILES).current_dir(paths.root());
    for file in process::stdout(&mut list)?.lines() {
        let copy = sources.join(file);
        process::create_dir(copy.parent().unwrap_or(&sources))?;
        process::copy(&paths.root().join(file), &copy)?;
    }
    let docs = paths.root().join("docs");
    process::write(&book.join("book.toml"), process::read(&docs.join("book.toml"))?)?;
    let summary = process::read(&docs.join("SUMMARY.md"))?;
    process::write(&sources.join("SUMMARY.md"), from_the_root(&summary))
}

/// A summary of docs/ whose links are relative to the checkout's root.
fn from_the_root(summary: &str) -> String {
    summary.replace("](", "](docs/").replace("](docs/../", "](")
}

/// Links of the pages below `folder` that lead to no file or to no heading, one a line.
fn broken_links(folder: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    // The links of the page of errors are those of a server's root.
    let is_page = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "html");
    let pages = digest::files_below(folder)?.into_iter().filter(is_page);
    for page in pages.filter(|page| !page.ends_with("404.html")) {
        let text = process::read(&page)?;
        for link in links(&text) {
            if !leads_somewhere(&page, link) {
                broken.push(format!("{}: {link}", page.strip_prefix(folder)?.display()));
            }
        }
    }
    Ok(broken)
}

/// Links of a page that stay within the book.
fn links(html: &str) -> impl Iterator<Item = &str> {
    let targets = [" href=\"", " src=\""].into_iter().flat_map(|before| html.split(before).skip(1));
    targets.filter_map(|rest| rest.split('"').next()).filter(|link| !link.contains("://"))
}

fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { page.with_file_name(file) };
    let id = format!("id=\"{anchor}\"");
    target.is_file()
        && (anchor.is_empty() || fs::read_to_string(target).is_ok_and(|text| text.contains(&id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_link_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let page = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        page(
            "index.html",
            r##"<a href="docs/gate.html#the-rule">, <a href="https://example.org/x">"##,
        );
        page(
            "docs/gate.html",
            r##"<h2 id="the-rule">, <a href="../index.html">, <a href="#the-rule">"##,
        );
        assert_eq!(broken_links(folder.path()).unwrap(), [""; 0]);
        page(
            "docs/lab.html",
            r##"<a href="gone.html">, <img src="gone.png">, <a href="gate.html#gone">"##,
        );
        let broken = broken_links(folder.path()).unwrap();
        assert_eq!(
            broken,
            ["gone.html", "gate.html#gone", "gone.png"]
                .map(|link| format!("docs/lab.html: {link}"))
        );
    }

    #[test]
    fn the_summary_moves_to_the_root() {
        assert_eq!(
            from_the_root("[README](../README.md)\n- [The gate](gate.md)\n"),
            "[README](README.md)\n- [The gate](docs/gate.md)\n"
        );
    }
}
