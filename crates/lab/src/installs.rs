//! What a program installs that has no module.

use std::path::Path;

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, VariantArray};

use profiler_kernel::hooks::BPF;

/// What a program installs, by what begins its subject: its functions are the handlers.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, AsRefStr, VariantArray,
)]
pub(super) enum Installs {
    /// BPF programs.
    #[default]
    #[strum(serialize = "run:")]
    BpfPrograms,
    /// The BPF programs of an object, which the guest loads without a program of the user's.
    #[strum(serialize = "bpf:")]
    BpfObject,
    /// Rules of the kernel's audit: the handlers are the kernel's functions that apply them.
    #[strum(serialize = "audit:")]
    AuditRules,
    /// Arguments that the kernel boots with: the handlers are its functions that call security modules.
    #[strum(serialize = "kernel:")]
    KernelArguments,
}

/// Files whose names end so are BPF objects without a prefix, too. A command has spaces.
const BPF_OBJECT: &str = ".bpf.o";

impl Installs {
    /// What a subject installs, and how it is told what; `None` if it is a module's file.
    pub(super) fn given(given: &str) -> Option<(Self, &str)> {
        let mut kinds = Self::VARIANTS.iter();
        let named = kinds.find_map(|kind| Some((*kind, given.strip_prefix(kind.as_ref())?)));
        let is_object =
            given.ends_with(BPF_OBJECT) && (!given.contains(' ') || Path::new(given).is_file());
        let object = is_object.then_some((Self::BpfObject, given));
        named.or(object).map(|(kind, rest)| (kind, rest.trim()))
    }

    /// The name that stands for it where a driver has that of its module.
    #[must_use]
    pub(super) fn module(self) -> &'static str {
        match self {
            Self::BpfPrograms | Self::BpfObject => BPF,
            Self::AuditRules => "audit",
            Self::KernelArguments => "kernel",
        }
    }

    /// Whether something that no module installs has this name.
    pub(super) fn is_name(name: &str) -> bool {
        Self::VARIANTS.iter().any(|it| it.module() == name)
    }
}
