//! Loads: what makes the kernel call the handlers while they are measured.
//!
//! A load is started after the probes are attached and ends by itself or by a
//! [`StopSignal`](profiler_base::stop::StopSignal). It knows nothing of probes.
//!
//! | load | does | ends |
//! |---|---|---|
//! | [`SandboxedLoad`] | repeats one system call, counted exactly, as an unprivileged user | after its operations, or when stopped |
//! | [`BuiltinLoad`] | the same in this process | the same |
//! | [`CommandLoad`] | runs a command of the user | when the command ends, or when stopped |
//! | [`ltp::LtpLoad`] | runs tests of the Linux Test Project | after its rounds, or when stopped |
//! | [`Load::Idle`] | nothing: measures what the machine does by itself | when stopped |
//!
//! [`recording::loads`](profiler_recording::loads) has what a recording stores of a load, `sandbox` what keeps its processes together. Loads
//! start this program again as a subprocess: its `main` has to call [`run_subprocess_if_asked`].

pub mod builtin;
mod command;
mod hits;
pub mod ltp;
pub mod profile;
mod run;
mod sandbox;
mod sandboxed;
mod subprocess;
mod syscalls;

pub use builtin::BuiltinLoad;
pub use command::CommandLoad;
pub use hits::{HitCount, HitCounter, HitQuestion};
pub use run::{Load, RunningLoads};
pub use sandbox::{LoadUser, PrivateFolder, ProfilerProgram, SandboxOptions};
pub use sandbox::{make_private, refuse_changeable, user_cache};
pub use sandboxed::SandboxedLoad;
pub use subprocess::run_subprocess_if_asked;
pub use syscalls::{dying_with_parent, set_loopback, setsid_in_child};

pub use profiler_base::stop::{StopReason, StopSignal};
pub use profiler_recording::loads::{
    BuiltinKind, CpuTime, Dimensions, Latency, LoadFailure, LoadOutcome, LoadRun, LoadSpec,
    LoadStatus, OperationErrors, OperationTimes, Points, Rate,
};
