//! What each backend needs of the machine.

use profiler_kernel::target::Target;
use profiler_probe::Options;
use profiler_probe::select::{Choice, select};
use profiler_recording::Backend;

use super::{Answer, BackendReport, Check, CheckId, HandlerReport};

/// What a run needs with any backend.
const RUN: [CheckId; 3] = [CheckId::CapSysAdmin, CheckId::CapBpf, CheckId::CapPerfmon];
const OF_MODULE: [CheckId; 1] = [CheckId::Module];
const BTF_OF_MODULE: [CheckId; 3] =
    [CheckId::ModuleBtfSupport, CheckId::Module, CheckId::ModuleBtf];

/// Whether a backend works, given what was found. Checks that were not made do not count.
pub(super) fn report(backend: Backend, checks: &[Check]) -> BackendReport {
    let (own, in_modules) = match backend {
        Backend::Fsession => ([CheckId::KernelBtf, CheckId::BpfSession], &BTF_OF_MODULE[..]),
        Backend::Fentry => ([CheckId::KernelBtf, CheckId::BpfTracing], &BTF_OF_MODULE[..]),
        Backend::KprobeSession => ([CheckId::KernelBtf, CheckId::ProbeSession], &OF_MODULE[..]),
        Backend::FunctionGraph => ([CheckId::Tracefs, CheckId::FunctionGraph], &OF_MODULE[..]),
        // Without BTF nothing shows which functions of a module run inside kprobes.
        Backend::Kprobe => ([CheckId::Tracefs, CheckId::BpfKprobe], &BTF_OF_MODULE[..]),
    };
    let kernel_functions = answer(&[&RUN[..], &own].concat(), checks);
    let module_functions = answer(&[&RUN[..], &own, in_modules].concat(), checks);
    BackendReport { backend, kernel_functions, module_functions }
}

fn answer(needs: &[CheckId], checks: &[Check]) -> Answer {
    let mut because_of = needs.to_vec();
    because_of.retain(|need| checks.iter().any(|check| check.id == *need && !check.is_yes()));
    Answer { available: because_of.is_empty(), because_of }
}

impl Answer {
    /// Titles of the checks that stand in the way.
    pub(super) fn titles(&self, checks: &[Check]) -> Vec<&'static str> {
        let blocking = checks.iter().filter(|check| self.because_of.contains(&check.id));
        blocking.map(|check| check.title).collect()
    }
}

/// The best backend for a function of a module, and why not a better one.
pub(super) fn choose(
    function: &Target,
    reports: &[BackendReport],
    checks: &[Check],
) -> HandlerReport {
    let name = function.name.clone();
    if let Some(obstacle) = function.obstacle() {
        return HandlerReport { name, backend: None, obstacle: Some(obstacle.to_owned()) };
    }
    let refusal = |backend| {
        let report = reports.iter().find(|report| report.backend == backend)?;
        let missing = report.module_functions.titles(checks);
        (!missing.is_empty()).then(|| format!("needs {}", missing.join(" and ")))
    };
    let Choice { backend, obstacles } = select(function, Options::default(), refusal);
    let obstacles: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
    HandlerReport { name, backend, obstacle: (!obstacles.is_empty()).then(|| obstacles.join("; ")) }
}
