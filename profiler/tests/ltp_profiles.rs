//! The files in `ltp-profiles` say what they mean, in keys that are known.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use profiler::load::BuiltinKind;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LtpProfile {
    handlers: Vec<String>,
    builtin: String,
    least_hits: u64,
    notes: String,
    ltp: Ltp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ltp {
    suite: String,
    tests: String,
}

#[test]
fn every_file_is_whole_and_every_builtin_load_has_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ltp-profiles");
    let mut loads = BTreeSet::new();
    let mut handlers = BTreeSet::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let profile: LtpProfile =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let kind: BuiltinKind = profile.builtin.parse().unwrap();
        assert!(loads.insert(kind.name()), "{}: a second one for {kind}", path.display());
        assert!(!profile.handlers.is_empty(), "{}", path.display());
        for handler in profile.handlers {
            assert!(handlers.insert(handler.clone()), "{}: {handler} again", path.display());
        }
        assert!(profile.least_hits >= 100, "{}", path.display());
        assert!(!profile.notes.trim().is_empty() && profile.ltp.suite == "syscalls");
        assert!(profile.ltp.tests.starts_with('^') && profile.ltp.tests.ends_with('$'));
    }
    let all: BTreeSet<&str> = BuiltinKind::ALL.iter().map(|kind| kind.name()).collect();
    assert!(loads.is_subset(&all), "{loads:?}");
    assert_eq!(handlers.len(), 10, "the ten handlers of Elkeid's table: {handlers:?}");
}
