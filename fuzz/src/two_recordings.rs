//! Two recordings, or series, with a zero byte between: merged, compared and judged.

use std::path::Path;

use profiler::export::{compare, verdict::CompareReport};
use profiler::recording::{Merge, Series};
use profiler::verdict::{Rule, Run, Sides, gate};

pub fn target(bytes: &[u8]) {
    let mut files =
        bytes.split(|byte| *byte == 0).map(|file| Series::parse(file, Path::new("fuzz")));
    let (Some(Ok(first)), Some(Ok(second))) = (files.next(), files.next()) else { return };
    let mut merge = Merge::new(&[]);
    let runs = first.runs.iter().chain(&second.runs);
    let mut names = 0..;
    let merged = runs
        .clone()
        .all(|run| merge.add(run.clone(), &names.next().unwrap_or(0).to_string()).is_ok());
    if merged && let Ok(sum) = merge.finish() {
        sum.check().expect("a sum of sound recordings is sound");
    }
    let side = |of: Series, name: &str| -> Vec<Run> {
        let run = |recording| Run { name: name.to_owned(), recording };
        of.runs.into_iter().map(run).collect()
    };
    let (base, candidate) = (side(first, "base"), side(second, "candidate"));
    let sides = || Sides::new(&base, &candidate, &[], true);
    if let Ok(sides) = sides() {
        let report = CompareReport::of(&sides);
        let document = compare::document(&report);
        document.markdown();
        assert!(!document.text(Some(80)).contains('\u{1b}'));
    }
    gate(sides(), &Rule::default());
}
