//! Starts the role of a subprocess: see [`Role`].

use strum::VariantArray as _;

use super::sandbox::{Role, remove_directory_main, supervisor};
use super::{builtin, sandboxed};

/// Takes the role of a subprocess and exits, if this process was started for one; returns otherwise.
///
/// Call it first in `main`, before arguments are parsed and before any thread is started.
pub fn run_subprocess_if_asked() {
    let mut args = std::env::args_os().skip(1);
    let Some(first) = args.next() else { return };
    let Some(role) = Role::VARIANTS.iter().find(|role| first == role.argument()) else { return };
    let code = match role {
        Role::ExecNoop => 0,
        Role::PtraceChild => builtin::ptrace_child_main(),
        Role::RemoveDirectory => remove_directory_main(),
        Role::Supervisor => supervisor::main(),
        Role::Load => sandboxed::main(args),
    };
    std::process::exit(code);
}
