//! Arguments that the kernel has booted with, and its functions that call security modules.

use profiler_base::error::{Failure, exit};
use profiler_kernel::hooks::Hooks;
use profiler_kernel::module::ModuleFacts;

use super::audit;
use super::log::Log;
use crate::installs::Installs;
use crate::wire::Agent;

/// What names of these functions begin with (security/security.c).
const PREFIX: &str = "security_";

/// How the kernel says that it does not know some of its arguments, from 5.14 on (`print_unknown_bootoptions` in init/main.c).
const UNKNOWN: &str = "Unknown kernel command line parameters";

/// Refuses arguments that the kernel did not know.
pub(super) fn check(agent: &Agent) -> Result<(), Failure> {
    let lines = Log::all().lines();
    let refused = lines.iter().find(|line| line.contains(UNKNOWN));
    refused.map_or(Ok(()), |line| {
        let given = agent.arguments.join(" ");
        let text = format!("the kernel does not know all of `{given}`; it says: {line}");
        Err(Failure::new(exit::LAB_FAILED, text))
    })
}

/// The facts, and lines of `/proc/kallsyms` in which these functions are those of a module.
pub(super) fn installed() -> Result<(ModuleFacts, String), Failure> {
    let name = Installs::KernelArguments.module();
    let functions = audit::functions_of_kernel(&[PREFIX], name)?;
    let unknown = "which functions the kernel's arguments hook".to_owned();
    let hooks = Some(Hooks { list: Vec::new(), unknown: vec![unknown] });
    Ok((ModuleFacts { name: name.to_owned(), hooks, ..ModuleFacts::default() }, functions))
}
