//! A disk that is full, for `report`, `merge` and `import` (the daemon: `serve/store.rs`, tests/vm/serve.rs): the file that
//! was there is still whole. A limit on the size of files makes the system refuse the write; no privileges are needed for that.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::{names, sample};

/// Runs the program where no file may be larger than 1 KiB.
fn limited(args: &[&str]) -> Output {
    // The signal ignored, the write fails as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    Command::new("bash")
        .args(["-c", script, "bash", env!("CARGO_BIN_EXE_profiler")])
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn the_old_file_stays_whole() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run.json");
    sample().write(&run).unwrap();
    let run = run.to_str().unwrap();
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/trace_cmd_hundred.txt");
    let old = folder.path().join("old");
    std::fs::write(&old, "what was there before").unwrap();
    let old_name = old.to_str().unwrap();
    let all = [
        vec!["report", run, "--format", "json", "--output", old_name],
        vec!["report", run, "--format", "html", "--output", old_name],
        vec!["merge", run, "-o", old_name],
        vec!["import", "trace-cmd", trace.to_str().unwrap(), "--json", old_name],
    ];
    for args in all {
        let output = limited(&args);
        assert_eq!(output.status.code(), Some(8), "{args:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("an older file of that name is left as it was"), "{said}");
        assert_eq!(std::fs::read(&old).unwrap(), b"what was there before", "{args:?}");
        assert_eq!(names(folder.path()), ["old", "run.json"], "{args:?}");
    }
}
