//! The book: docs/ as HTML. `profiler/tests/host/docs.rs` follows the links of the pages.

use std::process::Command;

use anyhow::Result;

use crate::paths;
use crate::process;
use crate::setup::{self, MDBOOK};

/// Builds the book into `target/book/html`.
pub(crate) fn run() -> Result<()> {
    setup::ensure(&[setup::BOOK])?;
    let book = paths::target().join("book");
    let sources = book.join("src");
    process::remove_dir(&book)?;
    process::create_dir(&sources)?;
    // mdBook takes pages from below the folder of its summary alone, and ours is in docs/. All files keep their places
    // in the checkout, so that relative links hold.
    let mut list = Command::new("git");
    list.args(["ls-files", "--", ":!fuzz/corpus"]).current_dir(paths::root());
    let files = process::stdout(&mut list)?;
    let mut copy = Command::new("cp");
    copy.args(["--parents", "-t"]).arg(&sources).args(files.lines()).current_dir(paths::root());
    process::run(&mut copy)?;
    let docs = paths::root().join("docs");
    process::copy(&docs.join("book.toml"), &book.join("book.toml"))?;
    let summary = process::read(&docs.join("SUMMARY.md"))?;
    process::write(&sources.join("SUMMARY.md"), from_the_root(&summary))?;
    process::run(Command::new(MDBOOK.program()).arg("build").arg(&book))?;
    println!("book: {}", book.join("html/index.html").display());
    Ok(())
}

/// A summary of docs/ whose links are relative to the checkout's root.
fn from_the_root(summary: &str) -> String {
    summary.replace("](", "](docs/").replace("](docs/../", "](")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_moves_to_the_root() {
        assert_eq!(
            from_the_root("[README](../README.md)\n- [The gate](gate.md)\n"),
            "[README](README.md)\n- [The gate](docs/gate.md)\n"
        );
    }
}
