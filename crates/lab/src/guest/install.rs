//! Loads and unloads the driver.

use std::ffi::CString;
use std::fs;
use std::time::Duration;

use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, delete_module, init_module};

use profiler_base::error::{Failure, exit};
use profiler_base::text::last_lines;
use profiler_kernel::module::{self, ModuleFacts};

use super::channel::Channel;
use super::kallsyms::Kallsyms;
use super::log::Log;
use super::{agent, arguments, audit, bpf, internal, load_module, object, placement};
use crate::installs::Installs;
use crate::wire::{Agent, Answer, Install, ModuleFile};

/// Attempts to unload a module that is still in use.
const REMOVE_ATTEMPTS: u32 = 50;

/// In this time the kernel does what it defers when probes are registered, such as kprobes that become jumps after some ticks
/// and a grace period of RCU (`kprobe_optimizer` in kernel/kprobes.c). It is skipped where the guest has nothing to do.
const SETTLED: Duration = Duration::from_secs(2);

/// Lines of the kernel's log that an error carries.
const LOG_LINES: usize = 5;

/// Loads the modules and starts the agent; gives the facts of the last module, or of the agent's BPF programs if there is none, and
/// the symbols of all modules.
pub(super) fn install(
    install: &Install,
    channel: &Channel,
    kallsyms: &mut Kallsyms,
) -> Result<(Answer, Vec<u8>), Failure> {
    let files = &channel.files().map_err(|error| internal(error.to_string()))?;
    place(install.placement)?;
    for module in &install.modules {
        let file = agent::part(files, module.bytes);
        let file = file.ok_or_else(|| internal("the modules' files are cut off"))?;
        insert(module, file)?;
        load_module::write(file, &module.name);
    }
    let mut has_ended = false;
    if let Some(agent) = &install.agent {
        match agent.installs {
            Installs::BpfPrograms => has_ended = agent::start(agent, files)?,
            Installs::BpfObject => object::load(agent, files)?,
            Installs::AuditRules => drop(
                agent::start(agent, files).map_err(|failure| audit::explained(agent, failure))?,
            ),
            Installs::KernelArguments => arguments::check(agent)?,
        }
    }
    std::thread::sleep(SETTLED);
    let unreadable = |error| internal(format!("cannot read the symbols of modules: {error}"));
    let text = fs::read_to_string("/proc/modules").map_err(unreadable)?;
    let symbols = kallsyms.of_modules().map_err(unreadable)?;
    let (facts, symbols) = match (install.modules.last(), &install.agent) {
        (None, Some(agent)) if agent.installs == Installs::AuditRules => audit::installed(agent)?,
        (None, Some(agent)) if agent.installs == Installs::KernelArguments => {
            arguments::installed()?
        }
        (None, Some(agent)) => programs_of(agent, has_ended, &symbols)?,
        (module, _) => (module::collect(module.map_or("", |it| &it.name))?, symbols),
    };
    Ok((Answer::Installed(Box::new(facts)), [text, symbols].join("\n").into_bytes()))
}

/// Makes the history of a placement.
pub(super) fn place(number: u32) -> Result<(), Failure> {
    placement::make(number)
        .map_err(|error| internal(format!("cannot make placement {number}: {error}")))
}

/// The facts of the BPF programs that an agent has loaded, and `symbols` with their names.
fn programs_of(
    agent: &Agent,
    has_ended: bool,
    symbols: &str,
) -> Result<(ModuleFacts, String), Failure> {
    let found = bpf::installed(symbols).map_err(|error| {
        Failure::new(exit::LAB_FAILED, format!("the agent's BPF programs: {error}"))
    })?;
    found.ok_or_else(|| {
        let how = match has_ended {
            true => "it ended and left no BPF program: it has to keep running, or pin its links",
            false => "it waits and has loaded no BPF program",
        };
        agent::failed(agent, exit::NO_TARGET, &format!("{how}; {}", agent::said(agent::OUTPUT)))
    })
}

fn insert(module: &ModuleFile, file: &[u8]) -> Result<(), Failure> {
    let params = CString::new(module.params.as_str()).map_err(|error| error.to_string());
    let inserted = params
        .and_then(|params| init_module(file, &params).map_err(|errno| errno.desc().to_owned()));
    inserted.map_err(|what| {
        let name = &module.name;
        let params = match module.params.as_str() {
            "" => String::new(),
            params => format!(" with `{params}`"),
        };
        let log = kernel_log(name);
        let text = format!("the kernel did not load {name}{params}: {what}; it said:\n{log}");
        Failure::new(exit::LAB_FAILED, text)
    })
}

/// Unloads it. A probe that is still being removed may hold it for a moment.
pub(super) fn remove(name: &str) -> Result<(), Failure> {
    let c_name = CString::new(name).map_err(|error| not_unloaded(name, &error.to_string()))?;
    let mut attempts = 1;
    loop {
        match delete_module(&c_name, DeleteModuleFlags::O_NONBLOCK) {
            Err(Errno::EAGAIN | Errno::EBUSY) if attempts < REMOVE_ATTEMPTS => attempts += 1,
            done => return done.map_err(|errno| not_unloaded(name, errno.desc())),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn not_unloaded(name: &str, what: &str) -> Failure {
    Failure::new(exit::LAB_FAILED, format!("the kernel did not unload {name}: {what}"))
}

/// The last lines of the kernel's log that name the module.
fn kernel_log(module: &str) -> String {
    let mut lines = Log::all().lines();
    lines.retain(|line| line.contains(module));
    last_lines(&lines.join("\n"), LOG_LINES)
}
