//! LTP's runner until February 2026: the script runltp, which runs the list by `bin/ltp-pan`.

use std::ffi::OsString;
use std::path::Path;

use super::controller::TestController;
use super::external::ExternalRunner;
use super::test_folder::TestFolder;
use crate::recording::loads::LoadStatus;

/// A limit that no load reaches.
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
        return Err(format!("{}, which runltp needs, does not exist; {remedy}", pan.display()));
    }
    Ok(())
}

/// Runs the list by runltp.
pub(super) async fn run(
    controller: &TestController,
    folder: &TestFolder,
) -> Result<LoadStatus, String> {
    if folder.path().to_string_lossy().contains([' ', ',', '\t']) {
        return Err(format!(
            "runltp cannot take the path {}: choose a folder without blanks and commas with TMPDIR or --load-dir",
            folder.path().display()
        ));
    }
    let list = folder.own().join("list");
    let runner = ExternalRunner::new(controller, folder, &list)?;
    let own = folder.own().join("runltp");
    std::fs::create_dir(&own).map_err(|error| format!("{}: {error}", own.display()))?;
    let mut argv: Vec<OsString> = vec![controller.root.join("runltp").into()];
    // Quiet, and with all its files in our folder instead of LTP's.
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
    let iterations = controller.spec.iterations.map(|iterations| iterations.to_string());
    match &iterations {
        Some(iterations) => argv.extend(["-I", iterations].map(OsString::from)),
        None => argv.extend(["-t", FOREVER].map(OsString::from)),
    }
    let workers = controller.spec.workers.to_string();
    if controller.spec.workers > 1 {
        argv.extend(["-x", &workers].map(OsString::from));
    }
    let outcome = runner.run(argv).await?;
    // Its exit code is 1 if any test has failed.
    Ok(runner.status("runltp", outcome.status, true))
}
