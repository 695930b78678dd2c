//! What each backend needs of the machine. A new backend is a line in [`ALL`].

use super::{Answer, BackendReport, Check, CheckId, HandlerReport};
use crate::kernel::target::Function;
use crate::probe::select::{Wish, select};
use crate::recording::Backend;

/// A backend with the checks that must hold for it.
pub(super) struct Needs {
    backend: Backend,
    /// For any function.
    always: &'static [CheckId],
    /// For a function of a module, besides.
    in_modules: &'static [CheckId],
}

/// Capabilities of whoever loads BPF programs.
const LOADER: [CheckId; 3] = [CheckId::CapSysAdmin, CheckId::CapBpf, CheckId::CapPerfmon];

/// What a trampoline in a module needs.
const MODULE_BTF: &[CheckId] = &[CheckId::ModuleBtfSupport, CheckId::Module, CheckId::ModuleBtf];

/// The backends of this program, in order of preference.
pub(super) const ALL: &[Needs] = &[
    Needs {
        backend: Backend::Fsession,
        always: &[LOADER[0], LOADER[1], LOADER[2], CheckId::KernelBtf, CheckId::BpfSession],
        in_modules: MODULE_BTF,
    },
    Needs {
        backend: Backend::Fentry,
        always: &[LOADER[0], LOADER[1], LOADER[2], CheckId::KernelBtf, CheckId::BpfTracing],
        in_modules: MODULE_BTF,
    },
    Needs {
        backend: Backend::KprobeSession,
        always: &[LOADER[0], LOADER[1], LOADER[2], CheckId::KernelBtf, CheckId::ProbeSession],
        in_modules: &[CheckId::Module],
    },
    Needs {
        backend: Backend::FunctionGraph,
        always: &[CheckId::Tracefs, CheckId::FunctionGraph],
        in_modules: &[CheckId::Module],
    },
    Needs {
        backend: Backend::Kprobe,
        always: &[LOADER[0], LOADER[1], LOADER[2], CheckId::Tracefs, CheckId::BpfKprobe],
        // Without it nothing shows which functions run inside kprobes.
        in_modules: MODULE_BTF,
    },
];

impl Needs {
    /// Whether it works, given what was found. Checks that were not made do not count.
    pub(super) fn report(&self, checks: &[Check]) -> BackendReport {
        let answer = |needs: &mut dyn Iterator<Item = &CheckId>| {
            let because_of: Vec<CheckId> = needs
                .filter(|&&need| checks.iter().any(|check| check.id == need && !check.is_yes()))
                .copied()
                .collect();
            Answer { available: because_of.is_empty(), because_of }
        };
        BackendReport {
            backend: self.backend,
            kernel_functions: answer(&mut self.always.iter()),
            module_functions: answer(&mut self.always.iter().chain(self.in_modules)),
        }
    }
}

/// The best backend for a function of a module, and why not a better one.
pub(super) fn choose(
    function: &Function,
    reports: &[BackendReport],
    checks: &[Check],
) -> HandlerReport {
    let name = function.name.clone();
    if let Some(obstacle) = function.obstacle() {
        return HandlerReport { name, backend: None, obstacle: Some(obstacle) };
    }
    let refusal = |backend| {
        let report = reports.iter().find(|report| report.backend == backend)?;
        let needs = &report.module_functions.because_of;
        let missing: Vec<&str> = checks
            .iter()
            .filter(|check| needs.contains(&check.id))
            .map(|check| check.title)
            .collect();
        (!missing.is_empty()).then(|| format!("needs {}", missing.join(" and ")))
    };
    let (backend, obstacles) = match select(function, Wish::default(), refusal, Vec::new()) {
        Ok(choice) => (Some(choice.backend), choice.obstacles),
        Err(obstacles) => (None, obstacles),
    };
    let obstacles: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
    HandlerReport { name, backend, obstacle: (!obstacles.is_empty()).then(|| obstacles.join("; ")) }
}
