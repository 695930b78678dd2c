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
use crate::{profile::Backend, target::Target};

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

/// Chooses for each target, in their order.
///
/// # Errors
/// The first target that no backend can measure, or not the one wished for, with all reasons.
pub fn choose(
    targets: &[Target],
    wish: Wish,
    features: &mut Features,
) -> Result<Vec<Choice>, ProbeError> {
    targets.iter().map(|target| choose_one(target, wish, features)).collect()
}

fn choose_one(target: &Target, wish: Wish, features: &mut Features) -> Result<Choice, ProbeError> {
    let mut obstacles = Vec::new();
    for backend in Backend::ALL {
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
    let lines: Vec<String> = obstacles.iter().map(|found| format!("\n  {found}")).collect();
    Err(ProbeError::NoBackend { handler: target.name.clone(), reasons: lines.concat() })
}

fn obstacle(target: &Target, backend: Backend, features: &mut Features) -> Option<String> {
    if needs_btf(backend) && target.twin.is_some() {
        return Some(format!(
            "several functions are called `{}`, and BTF cannot tell them apart",
            target.name
        ));
    }
    if needs_btf(backend) && target.btf_id.is_none() {
        return Some(no_btf(target, Path::new(BTF_FOLDER)));
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
                "without BTF nothing tells whether `{}` runs inside a kprobe, where the kernel skips \
                 every other one: use {} (--force measures it all the same)",
                target.name,
                better_than_kprobe(target)
            )
        });
    };
    let kind = called_by_kprobes(&prototype)?;
    Some(format!(
        "`{}` takes a `{kind}`, so it runs inside a kprobe, where the kernel skips every other kprobe: \
         this one would count nothing; use {} (--force measures it all the same)",
        target.name,
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

fn no_btf(target: &Target, folder: &Path) -> String {
    let Target { name, module, .. } = target;
    if !folder.join("vmlinux").exists() {
        return "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing): use a kernel built with \
                CONFIG_DEBUG_INFO_BTF=y, as those of Debian, Ubuntu, Fedora and RHEL are"
            .to_owned();
    }
    match module {
        Some(module) if !folder.join(module).exists() => format!(
            "module `{module}` has no BTF: add it with `profiler prepare {module}.ko`, or in the \
             file itself with `LLVM_OBJCOPY=objcopy pahole -J --btf_base /sys/kernel/btf/vmlinux \
             {module}.ko`, and load the module anew (a kernel without CONFIG_DEBUG_INFO_BTF_MODULES, \
             before 5.11, cannot use it)"
        ),
        _ => format!(
            "BTF does not describe `{name}`: pahole leaves out functions whose arguments the \
             compiler changed, and those written in assembly; mark it `noinline __used` and rebuild"
        ),
    }
}
