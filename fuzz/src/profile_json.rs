//! Profiles and series as JSON: what is read is written again as it was, and in every format.

use std::path::Path;

use profiler_export::{Format, Unit};
use profiler_recording::{Merge, Recording, Series};

pub fn target(text: &[u8]) {
    let Ok(series) = Series::parse(text, Path::new("fuzz")) else { return };
    for profile in &series.runs {
        let bytes = profile.to_json();
        let back = Recording::parse(&bytes, Path::new("again")).expect("what was written is read");
        assert_eq!(&back, profile);
        let one = Series::new("", vec![profile.clone()]);
        for &format in Format::ALL {
            let _ = format.render(&one, Unit::Auto, Some(80));
        }
    }
    merge(series.runs);
}

/// A sum of sound recordings is sound.
pub fn merge(runs: impl IntoIterator<Item = Recording>) {
    let mut merge = Merge::new(&[]);
    let mut runs = (0..).zip(runs);
    let merged = runs.all(|(name, run): (u32, _)| merge.add(run, &name.to_string()).is_ok());
    if merged && let Ok(sum) = merge.finish() {
        sum.check().expect("a sum of sound recordings is sound");
    }
}
