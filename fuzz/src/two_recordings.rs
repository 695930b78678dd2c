//! Two recordings, or series, with a zero byte between: merged, compared and judged.

use std::path::Path;

use profiler_export::{compare, verdict::CompareReport};
use profiler_recording::Series;
use profiler_verdict::{Rule, Run, Sides, gate};

use crate::profile_json::merge;

pub fn target(bytes: &[u8]) {
    let mut files =
        bytes.split(|byte| *byte == 0).map(|file| Series::parse(file, Path::new("fuzz")));
    let (Some(Ok(first)), Some(Ok(second))) = (files.next(), files.next()) else { return };
    merge(first.runs.iter().chain(&second.runs).cloned());
    let (base, candidate) = (side(first, "base"), side(second, "candidate"));
    if let Ok(sides) = Sides::new(&base, &candidate, &[], true) {
        let document = compare::document(&CompareReport::of(&sides));
        document.markdown();
        assert!(!document.text(Some(80)).contains('\u{1b}'));
    }
    gate(Sides::new(&base, &candidate, &[], true), &Rule::default());
}

fn side(of: Series, name: &str) -> Vec<Run> {
    of.runs.into_iter().map(|recording| Run { name: name.to_owned(), recording }).collect()
}
