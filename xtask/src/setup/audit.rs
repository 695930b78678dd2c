//! auditctl, out of Debian's package. It is unpacked, not installed: installing it starts a daemon that audits this machine.

use std::path::PathBuf;

use anyhow::Result;

use super::mirror;
use crate::paths::Paths;

/// The folder with `auditctl`.
pub(crate) fn programs(paths: &Paths) -> PathBuf {
    paths.tools().join("audit/sbin")
}

pub(super) fn is_ready(paths: &Paths) -> bool {
    programs(paths).join("auditctl").exists()
}

pub(super) fn install(paths: &Paths) -> Result<()> {
    mirror::unpack(paths, "auditd", &paths.tools().join("audit"))
}
