//! Messages between the host and a guest, as JSON.
//!
//! The guest reads its jobs from QEMU's fw_cfg device and answers through its own memory, see
//! [`channel`](super::guest). Neither takes a driver, an interrupt or time on the guest's clock, so that a guest restored from
//! a snapshot runs the same instructions whatever the host does meanwhile.

use serde::{Deserialize, Serialize};

use profiler_base::error::Failure;
use profiler_kernel::host::HostFacts;
use profiler_kernel::module::ModuleFacts;
use profiler_load::LoadRun;

use super::installs::Installs;
use super::plan::RunSpec;

/// The item of fw_cfg that holds the jobs.
pub(super) const JOBS: &str = "opt/profiler/jobs";

/// The item that holds the files of the jobs, one behind the other.
pub(super) const FILES: &str = "opt/profiler/files";

/// Address of the [`Header`] in the guest's first process.
pub(super) const HEADER: u64 = 0x10_0000_0000;

/// The first field of a [`Header`].
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"profiler");

/// Most bytes of an answer, and of what comes with it: the symbols of a kernel are 4 to 16 MiB.
pub(super) const MAX_ANSWER: u64 = 64 << 20;

/// Separates the symbols of modules from the source lines of BPF programs that follow.
pub(super) const BPF_LINES: char = '\0';

/// Lines of a report of the kernel that an error carries.
pub(super) const REPORT_LINES: usize = 30;

/// Where an answer lies in the memory of the guest's first process: [`MAGIC`], address and size of an [`Answer`] as JSON, and
/// address and size of what is attached to it.
pub(super) type Header = [u64; 5];

/// What the guest is to do; it answers each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Job {
    /// Loads modules, after the history of a placement. Attached to the answer are the modules' symbols, and behind [`BPF_LINES`] the
    /// source lines of BPF programs.
    Install(Install),
    /// Makes the history of a placement, in a guest in which an agent runs already.
    Place(u32),
    /// Makes the operations of loads, which the plugin counts, one run after the other, for the first so many runs above
    /// [`THREE_DIGITS`]. With a program they are its runs.
    Count(Vec<RunSpec>, Option<Agent>, usize),
    /// Loads modules, measures with probes as `profiler run`, and unloads the last; attached to the answer is the recording.
    Measure {
        /// What is loaded.
        install: Install,
        /// What is measured.
        run: RunSpec,
    },
}

/// Added to a number of runs: which it is changes neither the length of the text nor the instructions of the guest that reads it.
pub(super) const THREE_DIGITS: usize = 100;

/// Modules to load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Install {
    /// Number of the placement.
    pub(super) placement: u32,
    /// In this order; the last is the one that is measured.
    pub(super) modules: Vec<ModuleFile>,
    /// What is started then.
    pub(super) agent: Option<Agent>,
}

/// A program to start, with its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Agent {
    /// The program's path and its arguments.
    pub(super) arguments: Vec<String>,
    pub(super) files: Vec<AgentFile>,
    /// What is measured, if no module is.
    pub(super) installs: Installs,
}

/// A file in the item [`FILES`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentFile {
    /// Where the guest has it.
    pub(super) path: String,
    /// Its rights.
    pub(super) mode: u32,
    /// First byte in the item, and the number of bytes.
    pub(super) bytes: [u64; 2],
}

/// A module in the item [`FILES`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModuleFile {
    /// Its name once it is loaded.
    pub(super) name: String,
    /// Parameters, as insmod takes them.
    pub(super) params: String,
    /// First byte in the item, and the number of bytes.
    pub(super) bytes: [u64; 2],
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, strum::EnumTryAs)]
pub(super) enum Answer {
    /// The guest is up. Attached are the kernel's symbols.
    Booted(Box<HostFacts>),
    /// The modules are loaded.
    Installed(Box<ModuleFacts>),
    /// The history is made.
    Placed,
    /// The loads of each run have ended.
    Counted(Vec<Vec<LoadRun>>),
    /// The recording is attached.
    Measured,
    /// The kernel has reported a fault in its code meanwhile, in these lines.
    Warned(Vec<String>),
    /// It failed.
    Failed(Failure),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_one_length_whatever_is_left_out_of_it() {
        let text = |runs| serde_json::to_string(&Job::Count(Vec::new(), None, THREE_DIGITS + runs));
        assert_eq!(text(3).unwrap().len(), text(14).unwrap().len());
    }
}
