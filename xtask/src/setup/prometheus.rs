//! Prometheus and promtool, out of Debian's package. It is unpacked, not installed: installing it starts its server.

use std::path::PathBuf;

use anyhow::Result;

use super::mirror;
use crate::paths::Paths;

/// The folder with `prometheus` and `promtool`.
pub(crate) fn programs(paths: &Paths) -> PathBuf {
    paths.tools().join("prometheus/usr/bin")
}

pub(super) fn is_ready(paths: &Paths) -> bool {
    ["prometheus", "promtool"].iter().all(|program| programs(paths).join(program).exists())
}

pub(super) fn install(paths: &Paths) -> Result<()> {
    // Of Debian 12: its version is the first of a stable release that has native histograms.
    mirror::unpack(paths, "prometheus", &paths.tools().join("prometheus"))
}
