//! The table of backends that have to work on each kernel.

use std::collections::BTreeMap;

use profiler_recording::Backend;
use serde::Deserialize;

/// What has to work on one kernel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kernel {
    /// Checks of `profiler doctor --module` that the kernel itself makes fail.
    pub(crate) doctor_no: Vec<String>,
    /// Backends for which the kernel keeps the returns of a few calls of one function alone.
    #[serde(default)]
    pub(crate) few_returns: Vec<Backend>,
    /// For a handler of the test module, inside a kprobe.
    pub(crate) handler: Expected,
    /// For a function of the kernel image, outside of kprobes.
    pub(crate) core: Expected,
}

/// What has to work for one kind of function.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expected {
    /// In order of preference.
    pub(crate) works: Vec<Backend>,
    /// The one that is taken; none where none works.
    pub(crate) chosen: Option<Backend>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    kernel: BTreeMap<String, Kernel>,
}

/// The table, by kernel series, oldest first.
pub(crate) fn table() -> Vec<(String, Kernel)> {
    let table: Table = toml::from_str(include_str!("../data/backends.toml")).expect("the table");
    let mut kernels: Vec<(String, Kernel)> = table.kernel.into_iter().collect();
    kernels.sort_by_key(|(series, _)| {
        series.split('.').map(|part| part.parse().expect("a series")).collect::<Vec<u32>>()
    });
    kernels
}
