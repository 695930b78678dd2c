//! Paths: nothing is written outside `target/` but what is committed (the BPF object, docs/report.png).

use std::path::{Path, PathBuf};

use crate::series::Series;

/// The checkout this program was built from.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The only folder a guest may write to.
pub(crate) fn target() -> PathBuf {
    root().join("target")
}

/// Programs installed for the project alone.
pub(crate) fn tools() -> PathBuf {
    target().join("tools")
}

/// The unpacked packages of one kernel.
pub(crate) fn kernel(series: Series) -> PathBuf {
    target().join("kernels").join(series.to_string())
}

/// What builds for arm64, and what is built for it.
pub(crate) fn arm64() -> PathBuf {
    target().join("arm64")
}

/// Logs, scripts and verdicts of VM runs.
pub(crate) fn vm() -> PathBuf {
    target().join("vm")
}
