//! Prometheus and promtool, out of Debian's package. It is unpacked, not installed: installing it starts its server.

use std::path::PathBuf;

use anyhow::Result;
use profiler_vm::debian::Partial;

use super::mirror;
use crate::paths::Paths;
use crate::series::Series;

/// The folder with `prometheus` and `promtool`.
pub(crate) fn programs(paths: &Paths) -> PathBuf {
    paths.tools().join("prometheus/usr/bin")
}

pub(super) fn is_ready(paths: &Paths) -> bool {
    ["prometheus", "promtool"].iter().all(|program| programs(paths).join(program).exists())
}

pub(super) fn install(paths: &Paths) -> Result<()> {
    // Debian 12: its version is the first of a stable release that has native histograms.
    let apt = mirror::apt(paths, &[Series::V6_1])?;
    let partial = Partial::new(&paths.tools().join("prometheus"))?;
    apt.download(&["prometheus".to_owned()], &partial.debs())?;
    partial.extract(1)?;
    Ok(partial.place()?)
}
