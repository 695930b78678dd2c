//! Which backend measures which handler, and why not a better one.
//!
//! A backend is used if this kernel takes its programs, which is tried and never guessed from a
//! version number, and if it can reach the function.

use std::{cell::OnceCell, collections::BTreeMap, fmt, path::Path};

use super::{
    ProbeError,
    btf::{BTF_FOLDER, Functions},
    feature::{self, Refusal},
    prototype::Types,
};
use crate::{
    profile::Backend,
    target::{Target, by_name_alone},
};

/// What one handler will be measured with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The backend.
    pub backend: Backend,
    /// Why no better one: in order of preference.
    pub obstacles: Vec<Obstacle>,
}

/// Why a backend cannot measure a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The backend.
    pub backend: Backend,
    /// The reason, with the remedy if there is one.
    pub reason: String,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.reason)
    }
}

/// What the user wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// Only this backend.
    pub backend: Option<Backend>,
    /// Use it even where it is known to count nothing.
    pub force: bool,
}

/// What this kernel can do: each backend is tried once, when first asked for.
#[derive(Default)]
pub struct Features {
    functions: OnceCell<Option<Functions>>,
    tried: BTreeMap<Backend, Result<(), Refusal>>,
}

impl Features {
    /// Nothing has been tried yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Why the kernel does not take a backend's programs.
    fn refusal(&mut self, backend: Backend) -> Option<&Refusal> {
        let functions =
            self.functions.get_or_init(|| Functions::of(None, Path::new(BTF_FOLDER)).ok());
        let tried = self.tried.entry(backend);
        tried.or_insert_with(|| feature::try_backend(backend, functions.as_ref())).as_ref().err()
    }
}

/// The best backend for a target among those after the ones in `obstacles`.
///
/// # Errors
/// All obstacles, where there is none.
pub fn choose(
    target: &Target,
    wish: Wish,
    features: &mut Features,
    mut obstacles: Vec<Obstacle>,
) -> Result<Choice, Vec<Obstacle>> {
    let tried = obstacles.last().map(|obstacle| obstacle.backend);
    for backend in Backend::ALL.into_iter().filter(|&backend| Some(backend) > tried) {
        if wish.backend.is_some_and(|wanted| wanted != backend) {
            continue;
        }
        let found = obstacle(target, backend, features).or_else(|| {
            (backend == Backend::Kprobe && !wish.force).then(|| inside_kprobe(target)).flatten()
        });
        match found {
            None => return Ok(Choice { backend, obstacles }),
            Some(reason) => obstacles.push(Obstacle { backend, reason }),
        }
    }
    Err(obstacles)
}

/// The error of a target that no backend measures.
pub(super) fn no_backend(target: &Target, obstacles: &[Obstacle]) -> ProbeError {
    let lines: Vec<String> = obstacles.iter().map(|found| format!("\n  {found}")).collect();
    ProbeError::NoBackend { handler: target.label(), reasons: lines.concat() }
}

fn obstacle(target: &Target, backend: Backend, features: &mut Features) -> Option<String> {
    if needs_btf(backend) && target.twin.is_some() {
        let reason = "several functions have this name, and BTF cannot tell them apart";
        return Some(reason.to_owned());
    }
    if needs_btf(backend) && target.btf_id.is_none() {
        return Some(no_btf(target, Path::new(BTF_FOLDER)));
    }
    if let Some(namesake) = &target.namesake {
        if needs_btf(backend) && namesake.taken_by_btf {
            return Some(by_name_alone(&namesake.place));
        }
        if needs_an_address(backend) && target.address == 0 {
            return Some(format!(
                "its address is hidden, and {} has this name, too: sysctl kernel.kptr_restrict=1",
                namesake.place
            ));
        }
    }
    features.refusal(backend).map(|refusal| refusal.what.clone())
}

/// Why a kprobe would count nothing there, as far as the function's prototype tells: a handler of a
/// kprobe or kretprobe is called while that is being handled, and then the kernel skips every other
/// kprobe on the CPU (`kprobe_running()`; Documentation/trace/kprobes.rst). What such a handler calls in
/// turn does not show this way: there [`ProbeError::InsideKprobe`] ends the run.
fn inside_kprobe(target: &Target) -> Option<String> {
    let types = Types::of(target.module.as_deref(), Path::new(BTF_FOLDER)).ok();
    let Some(prototype) = types.zip(target.btf_id).and_then(|(types, id)| types.prototype(id))
    else {
        // Functions of the kernel are no handlers.
        return target.module.as_ref().map(|_| {
            format!(
                "without BTF nothing tells whether it runs inside a kprobe, where the kernel skips every \
                 other one: use {} (--force measures it all the same)",
                better_than_kprobe(target)
            )
        });
    };
    let kind = called_by_kprobes(&prototype)?;
    Some(format!(
        "it takes a `{kind}`, so it runs inside a kprobe, where the kernel skips every other kprobe: \
         this one would count nothing; use {} (--force measures it all the same)",
        better_than_kprobe(target)
    ))
}

/// What a handler of a kprobe or kretprobe is given first, if a prototype is that of one.
#[must_use]
pub fn called_by_kprobes(prototype: &str) -> Option<&'static str> {
    let first = prototype.split_once('(')?.1;
    ["struct kretprobe_instance *", "struct kprobe *"]
        .into_iter()
        .find(|kind| first.starts_with(kind))
}

/// What to use instead of a kprobe, as far as is known without trying.
pub(super) fn better_than_kprobe(target: &Target) -> &'static str {
    if target.btf_id.is_some() { "fentry" } else { "function-graph" }
}

/// Whether a backend names a function by its id in BTF.
#[must_use]
pub fn needs_btf(backend: Backend) -> bool {
    matches!(backend, Backend::Fsession | Backend::Fentry)
}

/// Whether a backend would otherwise name a function by its name alone.
fn needs_an_address(backend: Backend) -> bool {
    matches!(backend, Backend::KprobeSession | Backend::KprobeMulti)
}

fn no_btf(target: &Target, folder: &Path) -> String {
    if !folder.join("vmlinux").exists() {
        return "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing): use a kernel built with \
                CONFIG_DEBUG_INFO_BTF=y, as those of Debian, Ubuntu, Fedora and RHEL are"
            .to_owned();
    }
    match &target.module {
        Some(module) if !folder.join(module).exists() => format!(
            "module `{module}` has no BTF: add it with `profiler prepare {module}.ko`, or in the \
             file itself with `LLVM_OBJCOPY=objcopy pahole -J --btf_base /sys/kernel/btf/vmlinux \
             {module}.ko`, and load the module anew (a kernel without CONFIG_DEBUG_INFO_BTF_MODULES, \
             before 5.11, cannot use it)"
        ),
        _ => "BTF does not describe it: pahole leaves out functions whose arguments the compiler changed, \
              and those written in assembly; mark it `noinline __used` and rebuild"
            .to_owned(),
    }
}
