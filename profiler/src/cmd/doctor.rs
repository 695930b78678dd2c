//! `profiler doctor`: what this machine can measure, and what to do where it cannot.
//!
//! `checks` finds facts, `backends` says which of them each backend needs; the rest follows.

mod backends;
mod checks;
mod table;

use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde::Serialize;

use profiler_base::error::{Failure, bail};
use profiler_kernel::btf::Btf;
use profiler_kernel::hooks::{self, Hook};
use profiler_kernel::host::{self, HostFacts};
use profiler_kernel::target::KernelFiles;
use profiler_probe::feature::{self, Refusal};
use profiler_recording::Backend;

use super::show;
use checks::{Check, CheckId};

const EXAMPLES: &str = "\
Examples:
  profiler doctor
  # can these handlers of a loaded driver be measured, and if not, what is missing?
  profiler doctor --module hids_driver --handler 'bind_*'";

/// Arguments of `profiler doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Kernel module to measure.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Functions to check, by name or glob (repeatable).
    #[arg(
        long = "handler",
        short = 'H',
        value_name = "NAME|GLOB",
        default_value = "*_handler",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub handlers: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Prints the checks and their remedies.
///
/// # Errors
/// With [`exit::CANNOT_MEASURE`](profiler_base::error::exit) when nothing can be measured, after the output.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    super::restore_tracefs();
    let report = examine(&Machine::this(), args.module.as_deref(), &args.handlers);
    show(args.json, &report, |width| table::text(&report, width))?;
    if report.can_measure {
        return Ok(());
    }
    let what = match &report.module {
        Some(module) => format!("functions of module {module}"),
        None => "functions of the kernel".to_owned(),
    };
    bail!(CANNOT_MEASURE, "this machine cannot measure {what}: see the remedies above")
}

/// Tries a backend for real, given the functions that the kernel's BTF describes.
pub type TryBackend = fn(Backend, Option<&Btf>) -> Result<(), Refusal>;

/// The machine to look at: this one, or files made up for a test.
#[derive(Debug, Clone)]
pub struct Machine {
    /// What is `/` on this machine.
    pub root: PathBuf,
    /// Tries a backend.
    pub try_backend: TryBackend,
}

impl Machine {
    /// The machine that this process runs on.
    pub fn this() -> Self {
        Self { root: PathBuf::from("/"), try_backend: feature::try_backend }
    }
}

/// What [`examine`] found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Version of this layout.
    pub version: u32,
    /// Kernel release, as `uname -r`.
    pub kernel: Option<String>,
    /// Machine architecture, as `uname -m`.
    pub arch: String,
    /// The module that was asked about.
    pub module: Option<String>,
    /// Whether anything can be measured: a function of the module if one was named, else one of
    /// the kernel image.
    pub can_measure: bool,
    /// The facts.
    pub checks: Vec<Check>,
    /// Every backend of this program, best first.
    pub backends: Vec<BackendReport>,
    /// The functions looked at.
    pub handlers: Vec<HandlerReport>,
    /// Why there is no function to look at, where one was to be found.
    pub no_handlers: Option<String>,
    /// What the module has registered: kprobes and other hooks.
    pub own_probes: Vec<Hook>,
    /// Why these are not known, where the module is loaded.
    pub no_own_probes: Option<String>,
}

/// Whether a backend works here.
#[derive(Debug, Clone, Serialize)]
pub struct BackendReport {
    /// The backend.
    pub backend: Backend,
    /// On functions of the kernel image.
    pub kernel_functions: Answer,
    /// On functions of modules; of the module asked about, if one was.
    pub module_functions: Answer,
}

/// Yes, or no with the reasons.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// Whether it works.
    pub available: bool,
    /// The checks that stand in the way.
    pub because_of: Vec<CheckId>,
}

/// Which backend will measure a function.
#[derive(Debug, Clone, Serialize)]
pub struct HandlerReport {
    /// The function.
    pub name: String,
    /// The backend that will be used.
    pub backend: Option<Backend>,
    /// Why no backend, or no better one, can be used.
    pub obstacle: Option<String>,
}

/// Looks at a machine, for measuring functions of `module` that match `handlers`.
pub fn examine(machine: &Machine, module: Option<&str>, handlers: &[String]) -> Report {
    let module = module.map(|module| module.replace('-', "_"));
    let HostFacts { kernel_release, arch, .. } = host::collect_at(&machine.root);
    let checks = checks::all(machine, module.as_deref());
    let backends: Vec<BackendReport> =
        Backend::ALL.iter().map(|backend| backends::report(*backend, &checks)).collect();

    let is_loaded = checks.iter().any(|check| check.id == CheckId::Module && check.is_yes());
    let loaded = module.as_deref().filter(|_| is_loaded);
    let files = KernelFiles::below(&machine.root);
    let own_probes = loaded
        .map_or(Ok(Vec::new()), |module| hooks::of_module(&files, module).map(|hooks| hooks.list));
    let found = loaded.map_or(Ok(Vec::new()), |module| files.functions(Some(module), handlers));
    let no_handlers = found.as_ref().err().map(ToString::to_string);
    let functions = found.unwrap_or_default();
    // Not the rest of a function that stands in the list itself.
    let whole = functions.iter().filter(|function| {
        function.variant().is_none()
            || !functions.iter().any(|other| other.name == function.source_name())
    });
    let handlers: Vec<HandlerReport> =
        whole.map(|function| backends::choose(function, &backends, &checks)).collect();
    let works = |report: &BackendReport| match module {
        Some(_) => report.module_functions.available,
        None => report.kernel_functions.available,
    };
    let can_measure = backends.iter().any(works)
        && (handlers.is_empty() || handlers.iter().any(|handler| handler.backend.is_some()));
    Report {
        version: 1,
        kernel: kernel_release,
        arch,
        module,
        can_measure,
        checks,
        backends,
        handlers,
        no_handlers,
        no_own_probes: own_probes.as_ref().err().cloned(),
        own_probes: own_probes.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
