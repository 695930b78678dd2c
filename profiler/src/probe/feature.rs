//! Whether this kernel takes the programs of a backend: found out by loading one.

use std::{fmt, io, os::fd::AsFd as _};

use aya_obj::generated::bpf_insn;

use super::{
    btf::Functions,
    ftrace,
    sys::{self, AttachType, TracingProgram},
};
use crate::profile::Backend;

/// Functions of the kernel image to try on, first choice first: the kernel's own test function is
/// called by nobody else, and the others are in every kernel.
const TRIED_ON: [&str; 4] = ["bpf_fentry_test1", "vfs_open", "vfs_fstat", "schedule"];

/// `r0 = 0; exit`
const NOTHING: [(u8, u8); 2] = [(0xb7, 0), (0x95, 0)];

/// Why a try failed.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Which step, and what the kernel said.
    pub what: String,
    /// The kernel forbids it, rather than not being able to.
    pub forbidden: bool,
}

impl Refusal {
    fn new(doing: &str, error: &io::Error, said: impl fmt::Display) -> Self {
        let forbidden = error.kind() == io::ErrorKind::PermissionDenied;
        Self { what: format!("{doing}: {said}"), forbidden }
    }
}

/// Whether this kernel takes a backend's programs: loads and attaches some that do nothing, and takes
/// them off at once. `functions` are those that the kernel's BTF describes, if it has any.
///
/// # Errors
/// Which step the kernel refused, and what it said.
pub fn try_backend(backend: Backend, functions: Option<&Functions>) -> Result<(), Refusal> {
    let no_btf = || Refusal { what: "the kernel has no BTF".to_owned(), forbidden: false };
    match backend {
        Backend::Fentry => try_fentry(functions.ok_or_else(no_btf)?),
        Backend::FunctionGraph => ftrace::try_tracer()
            .map_err(|error| Refusal { what: error.to_string(), forbidden: false }),
        _ => Err(Refusal { what: "this program does not have it".to_owned(), forbidden: false }),
    }
}

/// Loads and attaches a pair of programs that do nothing, and takes them off at once.
///
/// # Errors
/// Which step the kernel refused, and what it said. A kernel may take a program and have no
/// trampolines to attach it with.
pub fn try_fentry(functions: &Functions) -> Result<(), Refusal> {
    let (name, btf_id) = TRIED_ON
        .iter()
        .find_map(|name| match functions.ids(name) {
            [id] => Some((*name, *id)),
            _ => None,
        })
        .ok_or_else(|| Refusal {
            what: format!("the kernel's BTF describes none of {}", TRIED_ON.join(", ")),
            forbidden: false,
        })?;
    let instructions = NOTHING.map(|(code, register)| bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(register, 0),
        off: 0,
        imm: 0,
    });
    // A session finds BTF objects by their names, which the kernel tells since 5.11.
    let finding = "finding the kernel's BTF by its name";
    let named =
        sys::kernel_btf("vmlinux").map_err(|error| Refusal::new(finding, &error, &error))?;
    if named.is_none() {
        return Err(Refusal {
            what: format!("{finding}: this kernel does not tell the names of BTF objects"),
            forbidden: false,
        });
    }
    for (what, attach_type) in [("fexit", AttachType::Fexit), ("fentry", AttachType::Fentry)] {
        let program = sys::load_tracing(&TracingProgram {
            name: "profiler_try",
            license: c"GPL",
            instructions: &instructions,
            attach_type,
            btf_id,
            btf_object: None,
        })
        .map_err(|refused| {
            let doing = format!("loading an empty {what} program for {name}");
            Refusal::new(&doing, &refused.error, &refused)
        })?;
        sys::attach_tracing(program.as_fd()).map_err(|error| {
            Refusal::new(&format!("attaching an empty {what} program to {name}"), &error, &error)
        })?;
    }
    Ok(())
}
