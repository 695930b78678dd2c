//! Load profiles as TOML.
#![no_main]

use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use profiler::load_profile::{LoadProfile, Origin};

fuzz_target!(|text: &[u8]| {
    let Ok(text) = std::str::from_utf8(text) else { return };
    if let Err(error) = LoadProfile::parse("fuzz", Origin::File(PathBuf::from("fuzz.toml")), text) {
        // A mistake has a place in the text.
        assert!(error.line >= 1 && error.line <= text.matches('\n').count() + 1);
        assert!(error.column >= 1 && !error.message.is_empty());
    }
});
