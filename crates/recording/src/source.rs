//! What a merged recording is the sum of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One of the recordings that a merged one is the sum of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// When its window began.
    #[schemars(with = "String", extend("pattern" = crate::TIMESTAMP))]
    pub started: jiff::Timestamp,
    /// SHA-256 of the recording as this program writes it, in hexadecimal: equal for
    /// a source that is there twice, and for no other.
    #[schemars(length(min = 64, max = 64))]
    pub sha256: String,
    /// Name of its file when it was merged, without folders; with the number of the run for one
    /// of a series.
    pub name: String,
    /// Length of its window.
    pub window_ns: u64,
    /// Calls in its histograms, over all handlers.
    pub calls: u64,
    /// Kernel release of its machine.
    pub kernel_release: Option<String>,
    /// CPU model of its machine.
    pub cpu_model: Option<String>,
    /// Id of the boot that it was measured in.
    pub boot_id: Option<String>,
}
