//! Paths: nothing is written outside `target/` but what is committed (the BPF object, docs/report.png).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::series::Series;

/// The root of the checkout and the folders below its `target/`.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    root: PathBuf,
}

impl Paths {
    /// Finds the checkout this program was built from.
    pub(crate) fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().context("xtask lies in no workspace")?;
        Ok(Self { root: root.to_path_buf() })
    }

    /// The checkout.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The only folder a guest may write to.
    pub(crate) fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// Programs installed for the project alone.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target().join("tools")
    }

    /// The unpacked packages of one kernel.
    pub(crate) fn kernel(&self, series: Series) -> PathBuf {
        self.target().join("kernels").join(series.as_str())
    }

    /// What builds for arm64, and what is built for it.
    pub(crate) fn arm64(&self) -> PathBuf {
        self.target().join("arm64")
    }

    /// The fuzz targets with their corpora: a crate and workspace of its own.
    pub(crate) fn fuzz(&self) -> PathBuf {
        self.root.join("fuzz")
    }

    /// Logs, scripts and verdicts of VM runs.
    pub(crate) fn vm(&self) -> PathBuf {
        self.target().join("vm")
    }
}
