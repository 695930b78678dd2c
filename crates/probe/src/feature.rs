//! Whether this kernel takes the programs of a backend: found out by loading and attaching some that do nothing.

use std::{
    fmt, io,
    os::fd::{AsFd as _, OwnedFd},
};

use profiler_base::limits;
use profiler_kernel::btf::Btf;
use profiler_recording::Backend;

use super::{
    errno::in_words,
    ftrace, kprobe_event, object,
    sys::{self, AttachType, Program},
};

/// Functions of the kernel image to try on, first choice first: the kernel's own test function is
/// called by nothing else, and the others are in every kernel.
const TRIED_ON: [&str; 4] = ["bpf_fentry_test1", "vfs_open", "vfs_fstat", "schedule"];

/// Why loading or attaching failed.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Which step, and what the kernel said.
    pub what: String,
    /// The kernel forbids it, rather than not being able to.
    pub forbidden: bool,
}

impl Refusal {
    fn lacking(what: impl fmt::Display) -> Self {
        Self { what: what.to_string(), forbidden: false }
    }

    fn new(doing: &str, error: &io::Error, said: impl fmt::Display) -> Self {
        let forbidden = error.kind() == io::ErrorKind::PermissionDenied;
        Self { what: format!("{doing}: {said}"), forbidden }
    }
}

/// Whether this kernel takes a backend's programs: loads and attaches some that do nothing, and takes
/// them off at once. `functions` are those that the kernel's BTF describes, if it has any.
///
/// | backend | came with |
/// |---|---|
/// | fsession | 7.0, commit 2d419c44658f |
/// | fentry | 5.5, commit fec56f5890d9 |
/// | kprobe-session | 6.10, commit 535a3692ba72; cookies, commit 5c919acef851 |
/// | function-graph | 2.6.29 |
/// | kprobe | BPF on kprobes: 4.1, commit 2541517c32be; a run of the program that tells this process's number: 5.10, commit 1b4d60ec162f |
///
/// # Errors
/// Which step the kernel refused, and what it said.
pub fn try_backend(backend: Backend, functions: Option<&Btf>) -> Result<(), Refusal> {
    let functions = functions.ok_or_else(|| {
        Refusal::lacking(
            "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing): use a kernel built with \
             CONFIG_DEBUG_INFO_BTF=y, as those of Debian, Ubuntu, Fedora and RHEL are",
        )
    });
    match backend {
        Backend::Fsession => {
            let functions = functions?;
            try_tracing(functions, &[("fsession", AttachType::Fsession)])?;
            object::require_kernel_calls(functions).map_err(Refusal::lacking)
        }
        // A kernel may take a program and have no trampolines to attach it with.
        Backend::Fentry => {
            try_tracing(functions?, &[("fexit", AttachType::Fexit), ("fentry", AttachType::Fentry)])
        }
        Backend::KprobeSession => {
            let functions = functions?;
            try_session()?;
            object::require_kernel_calls(functions).map_err(Refusal::lacking)
        }
        Backend::FunctionGraph => ftrace::try_tracer().map_err(Refusal::lacking),
        Backend::Kprobe => {
            known_outside()?;
            load("kprobe", AttachType::Kprobe, 0)?;
            kprobe_event::tracefs().map(drop).map_err(Refusal::lacking)
        }
    }
}

/// Programs that are given registers are calibrated by calls of this process, which they have to
/// distinguish from others.
fn known_outside() -> Result<(), Refusal> {
    limits::raise_locked_memory();
    sys::pid_outside().map(drop).map_err(|error| {
        let doing = "asking the kernel for the number of this process outside of PID namespaces, by which the \
                     programs know it";
        Refusal::new(doing, &error, in_words(&error))
    })
}

fn try_tracing(functions: &Btf, programs: &[(&str, AttachType)]) -> Result<(), Refusal> {
    let (name, btf_id) = TRIED_ON
        .iter()
        .find_map(|name| match functions.ids(name) {
            [id] => Some((*name, *id)),
            _ => None,
        })
        .ok_or_else(|| {
            let tried = TRIED_ON.join(", ");
            Refusal::lacking(format!("the kernel's BTF describes none of {tried}"))
        })?;
    for (what, attach_type) in programs {
        let program = load(what, *attach_type, btf_id)?;
        sys::attach_tracing(program.as_fd()).map_err(|error| {
            Refusal::new(
                &format!("attaching an empty {what} program to {name}"),
                &error,
                in_words(&error),
            )
        })?;
    }
    Ok(())
}

fn try_session() -> Result<(), Refusal> {
    const WHAT: &str = "kprobe.session";
    let program = load(WHAT, AttachType::KprobeSession, 0)?;
    for name in TRIED_ON {
        let Err(error) = sys::attach_session(program.as_fd(), name, 0) else { return Ok(()) };
        let hint = match error.raw_os_error() {
            // Another function helps only where this one is missing.
            Some(libc::ESRCH | libc::ENOENT) => continue,
            Some(libc::EOPNOTSUPP) => " (it was built without CONFIG_FPROBE)",
            Some(libc::EINVAL) => " (it is older than such programs)",
            _ => "",
        };
        let doing = format!("attaching an empty {WHAT} program to {name}");
        return Err(Refusal::new(&doing, &error, format!("{}{hint}", in_words(&error))));
    }
    Err(Refusal::lacking(format!("the kernel has none of {}", TRIED_ON.join(", "))))
}

/// Loads a program that does nothing. Before 5.11 it is charged to the user, as is what agents have loaded.
pub(super) fn load(what: &str, attach_type: AttachType, btf_id: u32) -> Result<OwnedFd, Refusal> {
    let nothing = [
        sys::instruction(0xb7, 0, 0, 0, 0), // r0 = 0
        sys::instruction(0x95, 0, 0, 0, 0), // exit
    ];
    limits::raise_locked_memory();
    sys::load_program(&Program {
        name: "profiler_try",
        instructions: &nothing,
        attach_type,
        btf_id,
        traced: None,
    })
    .map_err(|refused| {
        let doing = format!("loading an empty {what} program");
        Refusal::new(&doing, &refused.error, refused.short())
    })
}
