//! What to run, and on what machine.

use std::path::PathBuf;
use std::time::Duration;

use crate::image::KernelImage;

/// What the guest's clock shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// Time as it passes on the host.
    Wall,
    /// One nanosecond an instruction, on one CPU, by QEMU's translator (`-icount`).
    Virtual,
}

/// A VM and the command that is to run in it.
#[derive(Debug, Clone)]
pub struct VmSpec {
    /// The kernel.
    pub kernel: KernelImage,
    /// Virtual CPUs; virtual time needs one.
    pub cpus: u32,
    /// Memory as QEMU takes it, such as `2G`.
    pub memory: String,
    /// What the clock shows.
    pub time: Time,
    /// The VM is stopped after this time on the host's clock.
    pub timeout: Duration,
    /// Variables for the command.
    pub env: Vec<(String, String)>,
    /// The command and its arguments; it runs as root.
    pub command: Vec<String>,
    /// Where the command runs: a folder that the guest sees under the same path.
    pub directory: PathBuf,
    /// The folder whose changes reach the host. It holds the VM's script as well, so it has to
    /// be writable here. The rest of the file tree is read-only below an overlay.
    pub shared: PathBuf,
    /// Where the output and the kernel's messages are written.
    pub log: PathBuf,
    /// The program `vng`: a path, or a name to be searched for.
    pub vng: PathBuf,
    /// A home for virtme-ng, which keeps files there.
    pub home: PathBuf,
    /// More words for the kernel's command line.
    pub kernel_args: Vec<String>,
    /// More words for QEMU's command line.
    pub qemu_args: Vec<String>,
}

/// How the guest's instructions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// By the hardware.
    Kvm,
    /// By QEMU's translator.
    Tcg,
}

/// A command that ran to its end.
#[derive(Debug)]
pub struct VmOutcome {
    /// Exit code of the command.
    pub code: i32,
    /// Lines the command wrote, to either output.
    pub lines: Vec<String>,
    /// These lines and the kernel's.
    pub log: PathBuf,
}
