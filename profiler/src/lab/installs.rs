//! What a program installs that has no module.

use serde::{Deserialize, Serialize};

use crate::kernel::hooks::BPF;

/// What a program installs: its functions are the handlers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Installs {
    /// BPF programs.
    #[default]
    BpfPrograms,
    /// The BPF programs of an object, which the guest loads without a program of the user's.
    BpfObject,
    /// Rules of the kernel's audit: the handlers are the kernel's functions that apply them.
    AuditRules,
    /// Arguments that the kernel boots with: the handlers are its functions that call security modules.
    KernelArguments,
}

impl Installs {
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
    #[must_use]
    pub(super) fn is_name(name: &str) -> bool {
        [Self::BpfPrograms, Self::AuditRules, Self::KernelArguments]
            .iter()
            .any(|it| it.module() == name)
    }
}
