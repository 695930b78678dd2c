//! What a loaded module has registered with the kernel: kprobes, kretprobes, tracepoints, ftrace, netfilter, LSM, notifiers, and
//! entries of system call tables; and where BPF programs are attached, which are taken for functions of the module [`BPF`].
//!
//! The kernel shows hardly any of it: `/sys/kernel/debug/kprobes/list` has neither `nmissed` nor `maxactive` nor who is called
//! (`report_probe()` in kernel/kprobes.c), and for tracepoints and notifiers there is no list at all. So all are read where they
//! are, in the kernel's memory, at the offsets that its BTF gives: by `/proc/kcore`, or out of a guest that is stopped. A hook is
//! the module's if the kernel calls an address in the module's code.

mod bpf;
mod kcore;
mod walk;

use std::fmt;
use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::btf::Btf;
use super::names::{Names, lines_of};
use super::target::KernelFiles;
use kcore::Kcore;

pub use super::names::BPF;
pub use walk::Reader;
use walk::{Found, Walk};

/// The kernel's page tables, of arm64.
pub const PAGE_TABLES: &str = "swapper_pg_dir";

/// Reads a word of the kernel's memory.
pub type Read<'a> = &'a dyn Fn(u64) -> io::Result<u64>;

/// What a module has registered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hooks {
    /// By kind, place and handlers.
    pub list: Vec<Hook>,
    /// What could not be read, in words: hooks of these kinds may be missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

impl Hooks {
    /// Whether some of it could be read.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.list.is_empty() || self.unknown.is_empty()
    }
}

/// A place in the kernel that calls a module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hook {
    /// By which interface it was registered.
    pub kind: HookKind,
    /// What it is on: a function, for kprobes with the offset in bytes, or the name of a tracepoint, list or table.
    pub place: String,
    /// Functions of the module that are called there: of a kretprobe at the entry and at the return.
    pub handlers: Vec<String>,
    /// Calls that a kretprobe follows at a time; `None` of other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxactive: Option<u32>,
    /// How the kernel gets from the place to the handler; kprobes and kretprobes alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ProbeState>,
    /// Hits without a call of the handlers, since it was registered, because another kprobe was being handled on that CPU.
    #[serde(default)]
    pub missed: u64,
    /// The same because `maxactive` calls were under way.
    #[serde(default)]
    pub beyond_maxactive: u64,
    /// Of its structure in the kernel.
    #[serde(skip)]
    address: u64,
}

/// Interfaces by which a module is called.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum HookKind {
    /// `register_kprobe()`.
    #[default]
    Kprobe,
    /// `register_kretprobe()`.
    Kretprobe,
    /// `tracepoint_probe_register()`.
    Tracepoint,
    /// `register_ftrace_function()`.
    Ftrace,
    /// `nf_register_net_hook()`, in the first network namespace.
    Netfilter,
    /// A hook of the Linux Security Modules.
    Lsm,
    /// A chain of notifiers, such as `register_module_notifier()`.
    Notifier,
    /// A changed entry of a table of system calls.
    SystemCall,
    /// A BPF program on a tracepoint itself (`raw_tp`, `tp_btf`).
    RawTracepoint,
    /// A BPF program at a function's entry, by a trampoline.
    Fentry,
    /// The same at its return.
    Fexit,
    /// The same at its entry, which may return in its place.
    FmodRet,
    /// A rule of the kernel's audit.
    AuditRule,
}

/// How a kprobe's hit is noticed.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ProbeState {
    /// By ftrace's call at the function's entry.
    Ftrace,
    /// By a jump, which the kernel puts in the place of the breakpoint some time after the registration.
    Optimized,
    /// By a breakpoint: an exception for each hit.
    Breakpoint,
    /// Not at all, until it is enabled.
    Disabled,
    /// Not at all: the code that it was on is gone.
    Gone,
}

impl HookKind {
    /// Its name, as in a file.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl ProbeState {
    /// Its name, as in a file.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.kind.name(), self.place, self.handlers.join(", "))
    }
}

impl Hook {
    /// A hook of which only the place and the handlers are known.
    pub fn new(kind: HookKind, place: impl Into<String>, handlers: Vec<String>) -> Self {
        Self { kind, place: place.into(), handlers, ..Self::default() }
    }

    /// Whether a pattern is that of its place or of a handler.
    pub fn matches(&self, pattern: &glob::Pattern) -> bool {
        pattern.matches(&self.place) || self.handlers.iter().any(|name| pattern.matches(name))
    }

    /// Hits that it has missed, for whatever reason.
    pub fn all_missed(&self) -> u64 {
        self.missed.saturating_add(self.beyond_maxactive)
    }
}

impl Reader {
    /// What `module` has registered; `names` has the functions of the kernel and of all modules, `kallsyms` the symbols of
    /// modules, which may have tracepoints and chains, too.
    pub fn hooks(&self, module: &str, names: &Names<'_>, kallsyms: &str, read: Read<'_>) -> Hooks {
        let (found, unknown) = Walk { reader: self, module, names, kallsyms, read }.all();
        Hooks { list: named(found, module, names), unknown }
    }
}

/// The lines of `/proc/kallsyms` that [`Reader`] needs beside those of functions.
pub fn needed(kallsyms: &str) -> String {
    lines_of(kallsyms)
        .filter(|(_, kind, name, _)| walk::is_needed(kind, name))
        .map(|(address, kind, name, _)| format!("{address} {kind} {name}\n"))
        .collect()
}

/// The hooks that call functions of `module`, named and sorted.
fn named(found: Vec<Found>, module: &str, names: &Names<'_>) -> Vec<Hook> {
    let hooks = found.into_iter().filter_map(|found| {
        let own = found.calls.iter().filter(|address| names.is_in(module, **address));
        let handlers: Vec<String> = own.map(|address| names.handler(module, *address)).collect();
        let place = found.at.map_or(found.hook.place, |address| names.place(address));
        (!handlers.is_empty()).then_some(Hook { place, handlers, ..found.hook })
    });
    let mut list: Vec<Hook> = hooks.collect();
    list.sort_by(|a, b| (a.kind, &a.place, &a.handlers).cmp(&(b.kind, &b.place, &b.handlers)));
    list
}

/// The kernel of this machine.
struct Machine<'a> {
    reader: Reader,
    kallsyms: &'a str,
    modules: String,
    kcore: Kcore,
}

impl<'a> Machine<'a> {
    fn of(files: &'a KernelFiles) -> Result<Self, String> {
        let btf = Btf::of(None, &files.btf_folder()).map_err(|error| error.to_string())?;
        let kallsyms = files.kallsyms().map_err(|error| error.to_string())?;
        let reader = Reader::new(btf, kallsyms)?;
        let kcore = Kcore::open(files).map_err(|error| format!("/proc/kcore: {error}"))?;
        let modules = files.read("proc/modules").map_err(|error| error.to_string())?;
        Ok(Self { reader, kallsyms, modules, kcore })
    }

    fn names(&self) -> Names<'_> {
        Names::of(&[self.kallsyms, &self.modules])
    }
}

/// The hooks of `module` on this machine.
///
/// # Errors
/// Why they cannot be read.
pub fn of_module(files: &KernelFiles, module: &str) -> Result<Hooks, String> {
    let machine = Machine::of(files)?;
    let Machine { reader, kallsyms, kcore, .. } = &machine;
    Ok(reader.hooks(module, &machine.names(), kallsyms, &|address| kcore.word(address)))
}

/// The kprobes and kretprobes of a module on this machine, whose misses can be read again: those alone are a hundredth of
/// all that is read for [`of_module`].
pub struct OwnProbes {
    /// As they were.
    pub list: Vec<Hook>,
    reader: Reader,
    kcore: Kcore,
}

impl OwnProbes {
    /// Those of `module` now.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub fn of(files: &KernelFiles, module: &str) -> Result<Self, String> {
        let machine = Machine::of(files)?;
        let (names, read) = (&machine.names(), &|address| machine.kcore.word(address));
        let Machine { reader, kallsyms, .. } = &machine;
        let found = Walk { reader, module, names, kallsyms, read }.kprobes();
        let list = named(found.map_err(|error| error.to_string())?, module, names);
        let Machine { reader, kcore, .. } = machine;
        Ok(Self { list, reader, kcore })
    }

    /// Probes that have missed hits since, and how many. Only while the module stays loaded.
    pub fn missed(&self) -> impl Iterator<Item = (&Hook, u64)> {
        self.list.iter().filter_map(|hook| {
            let read = |at| self.kcore.word(at);
            let now = self.reader.misses(hook.kind, hook.address, &read).ok()?;
            let since = now[0].saturating_add(now[1]).saturating_sub(hook.all_missed());
            (since > 0).then_some((hook, since))
        })
    }
}

#[cfg(test)]
mod tests;
