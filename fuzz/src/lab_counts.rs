//! Counts of the plugin in QEMU, which a guest can write to, and the recording that is made of them.

use std::path::Path;
use std::sync::LazyLock;

use profiler_explain::{NamedRuns, explain};
use profiler_export::html;
use profiler_lab::plan::CountedHandler;
use profiler_lab::{counts, exact, lines::Lines, symbols::Symbols};
use profiler_recording::Recording;

/// A recording that has no handlers yet.
pub static BARE: LazyLock<Recording> = LazyLock::new(|| {
    let text = include_bytes!("../corpus/profile_json/run.json");
    let mut profile = Recording::parse(text, Path::new("run.json")).expect("a recording");
    profile.handlers = Vec::new();
    profile.sources.clear();
    profile
});

pub fn target(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(counts) = counts::parse(text) else { return };
    // A handler takes large histograms, which few inputs have time for.
    let watched = counts.calls.keys().min().filter(|_| text.len().is_multiple_of(16));
    let handlers = watched.map(|id| &counts.functions[id]).map(|function| CountedHandler {
        name: function.name.clone(),
        module: function.module.clone(),
        by_glob: false,
        address: function.address,
    });
    let mut profile = BARE.clone();
    let lines = Lines::default();
    let handlers = handlers.into_iter().collect();
    if exact::fill(&mut profile, &counts, handlers, &lines, &Symbols::default()).is_err() {
        return;
    }
    let bytes = profile.to_json();
    let back = Recording::parse(&bytes, Path::new("again")).expect("what was counted is read");
    assert_eq!(back, profile);
    let recording = NamedRuns { name: "fuzz".to_owned(), runs: vec![&profile] };
    if let Ok((handlers, _)) = explain(&[recording], None) {
        for of in handlers {
            let own =
                of.nodes.iter().fold(0_u64, |sum, node| sum.saturating_add(node.figures[0].own));
            assert_eq!(own, of.total(0));
        }
    }
    let page = html::page(std::slice::from_ref(&profile));
    let page = String::from_utf8(page).expect("text");
    assert_eq!(page.matches("<details").count(), page.matches("</details>").count());
}
