//! What each backend needs of the machine.

use profiler_kernel::target::Target;
use profiler_probe::Options;
use profiler_probe::select::{Choice, select};
use profiler_recording::Backend;

use super::checks::{needs_kernel_btf, trial};
use super::{Answer, BackendReport, Check, CheckId, HandlerReport};

/// Whether a backend works, given what was found. Checks that were not made do not count.
pub(super) fn report(backend: Backend, checks: &[Check]) -> BackendReport {
    let base = if needs_kernel_btf(backend) { CheckId::KernelBtf } else { CheckId::Tracefs };
    let tried = trial(backend).0;
    let mut needs = vec![CheckId::CapSysAdmin, CheckId::CapBpf, CheckId::CapPerfmon, base, tried];
    let kernel_functions = answer(&needs, checks);
    needs.extend(match backend {
        Backend::KprobeSession | Backend::FunctionGraph => &[CheckId::Module][..],
        // Without BTF nothing shows which functions of a module run inside kprobes.
        _ => &[CheckId::ModuleBtfSupport, CheckId::Module, CheckId::ModuleBtf],
    });
    BackendReport { backend, kernel_functions, module_functions: answer(&needs, checks) }
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
