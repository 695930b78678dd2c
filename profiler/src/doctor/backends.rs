//! What each backend needs. A new backend is a line in [`ALL`].

use super::{Answer, BackendReport, Check, CheckId, HandlerReport};
use crate::kernel::target::Function;
use crate::probe::choice::called_by_kprobes;
use crate::profile::Backend;

/// A backend with the checks that must hold for it.
pub(super) struct Needs {
    backend: Backend,
    /// For any function.
    always: &'static [CheckId],
    /// For a function of a module, besides.
    in_modules: &'static [CheckId],
    /// Why it cannot measure this one function, on which probes can be placed; `None` if it can.
    obstacle: fn(&Function) -> Option<String>,
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
        obstacle: Function::fentry_obstacle,
    },
    Needs {
        backend: Backend::Fentry,
        always: &[LOADER[0], LOADER[1], LOADER[2], CheckId::KernelBtf, CheckId::BpfTracing],
        in_modules: MODULE_BTF,
        obstacle: Function::fentry_obstacle,
    },
    Needs {
        backend: Backend::KprobeSession,
        always: &[LOADER[0], LOADER[1], LOADER[2], CheckId::KernelBtf, CheckId::ProbeSession],
        in_modules: &[CheckId::Module],
        obstacle: |_| None,
    },
    Needs {
        backend: Backend::KprobeMulti,
        always: &[LOADER[0], LOADER[1], LOADER[2], CheckId::ProbeMulti],
        in_modules: &[CheckId::Module],
        obstacle: |_| None,
    },
    Needs {
        backend: Backend::FunctionGraph,
        always: &[CheckId::Tracefs, CheckId::FunctionGraph],
        in_modules: &[CheckId::Module],
        obstacle: |_| None,
    },
    Needs {
        backend: Backend::Kprobe,
        always: &[LOADER[0], LOADER[1], LOADER[2], CheckId::Tracefs, CheckId::BpfKprobe],
        // Without it nothing tells which functions run inside kprobes.
        in_modules: MODULE_BTF,
        obstacle: kprobe_obstacle,
    },
];

fn kprobe_obstacle(function: &Function) -> Option<String> {
    let Some(prototype) = function.prototype.as_deref() else {
        return function.module.as_ref().map(|_| {
            "without BTF nothing tells whether it runs inside a kprobe, where the kernel skips every \
             other one"
                .to_owned()
        });
    };
    let kind = called_by_kprobes(prototype)?;
    Some(format!("it takes a `{kind}`: inside a kprobe the kernel skips every other one"))
}

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

/// The best backend for a function, and why not a better one.
pub(super) fn choose(
    function: &Function,
    reports: &[BackendReport],
    checks: &[Check],
) -> HandlerReport {
    if let Some(obstacle) = function.obstacle() {
        return HandlerReport {
            name: function.name.clone(),
            backend: None,
            obstacle: Some(obstacle),
        };
    }
    let mut obstacles = Vec::new();
    for needs in ALL {
        let answer = reports
            .iter()
            .find(|report| report.backend == needs.backend)
            .map(|report| &report.module_functions);
        let obstacle = match answer {
            Some(answer) if answer.available => (needs.obstacle)(function),
            Some(answer) => {
                let missing: Vec<&str> = checks
                    .iter()
                    .filter(|check| answer.because_of.contains(&check.id))
                    .map(|check| check.title)
                    .collect();
                Some(format!("needs {}", missing.join(" and ")))
            }
            None => None,
        };
        match obstacle {
            None => {
                return HandlerReport {
                    name: function.name.clone(),
                    backend: Some(needs.backend),
                    obstacle: (!obstacles.is_empty()).then(|| obstacles.join("; ")),
                };
            }
            Some(obstacle) => obstacles.push(format!("{}: {obstacle}", needs.backend)),
        }
    }
    HandlerReport {
        name: function.name.clone(),
        backend: None,
        obstacle: Some(obstacles.join("; ")),
    }
}
