//! LTP's runner until February 2026: the script runltp, which has `bin/ltp-pan` run the list.

use std::ffi::OsString;
use std::path::Path;

use super::LtpLoad;
use super::conduct::Conduct;
use super::external::Outside;
use super::work::WorkFolder;
use crate::load::{LoadFailure, LoadStatus};

/// As long as the load may last.
const FOREVER: &str = "8760h";

/// Checks that this LTP still has the script.
pub(super) fn check(root: &Path) -> Result<(), String> {
    let script = root.join("runltp");
    let remedy = "use --ltp-runner kirk or --ltp-runner direct";
    let text = std::fs::read(&script)
        .map_err(|error| format!("{}: {error}; {remedy}", script.display()))?;
    if String::from_utf8_lossy(&text).contains("was removed") {
        return Err(format!("{} has been removed from this LTP; {remedy}", script.display()));
    }
    let pan = root.join("bin/ltp-pan");
    if !pan.is_file() {
        return Err(format!("{}, which runltp needs, is not there; {remedy}", pan.display()));
    }
    Ok(())
}

/// Runs the list by runltp.
pub(super) async fn run(load: &LtpLoad, conduct: &Conduct, work: &WorkFolder) -> LoadStatus {
    match try_run(load, conduct, work).await {
        Ok(status) => status,
        Err(text) => LoadStatus::Failed(LoadFailure::BrokeOff { text }),
    }
}

async fn try_run(
    load: &LtpLoad,
    conduct: &Conduct,
    work: &WorkFolder,
) -> Result<LoadStatus, String> {
    if work.path().to_string_lossy().contains([' ', ',', '\t']) {
        return Err(format!(
            "runltp cannot take the path {}: choose a folder without blanks and commas with TMPDIR or --load-dir",
            work.path().display()
        ));
    }
    let list = work.own().join("list");
    let outside = Outside::new(load, conduct, work, &list)?;
    let own = work.own().join("runltp");
    std::fs::create_dir(&own).map_err(|error| format!("{}: {error}", own.display()))?;
    let mut argv: Vec<OsString> = vec![load.root.join("runltp").into()];
    // Quiet, and with every file that it writes in our folder instead of LTP's.
    argv.extend(["-q", "-p"].map(OsString::from));
    for (option, path) in [
        ("-f", list),
        ("-d", own.clone()),
        ("-l", own.join("log")),
        ("-C", own.join("failed")),
        ("-T", own.join("not-configured")),
    ] {
        argv.extend([option.into(), path.into()]);
    }
    let iterations = load.spec.iterations.map(|iterations| iterations.to_string());
    match &iterations {
        Some(iterations) => argv.extend(["-I", iterations].map(OsString::from)),
        None => argv.extend(["-t", FOREVER].map(OsString::from)),
    }
    let workers = load.spec.workers.to_string();
    if load.spec.workers > 1 {
        argv.extend(["-x", &workers].map(OsString::from));
    }
    let outcome = outside.run(argv).await?;
    // Its code is 1 as soon as one test has failed.
    Ok(outside.status("runltp", outcome.status, true))
}
