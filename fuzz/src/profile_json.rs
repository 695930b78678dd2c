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
    let mut merge = Merge::new(&[]);
    let merged = series.runs.into_iter().all(|run| merge.add(run, "fuzz").is_ok());
    if merged && let Ok(sum) = merge.finish() {
        sum.check().expect("a sum of sound profiles is sound");
    }
}
