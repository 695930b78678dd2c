//! Facts about a machine, each with a remedy where it stands in the way.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use profiler_kernel::btf::Btf;
use profiler_kernel::privileges;
use profiler_kernel::target::KernelFiles;
use profiler_recording::Backend;

use super::Machine;

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
pub enum CheckId {
    /// The capability to find BPF objects by their ids.
    #[strum(serialize = "CAP_SYS_ADMIN")]
    CapSysAdmin,
    /// The capability to load BPF programs.
    #[strum(serialize = "CAP_BPF")]
    CapBpf,
    /// The capability to attach them to kernel functions.
    #[strum(serialize = "CAP_PERFMON")]
    CapPerfmon,
    /// Type information of the kernel image.
    #[strum(serialize = "kernel BTF")]
    KernelBtf,
    /// Whether the kernel takes and attaches tracing programs: tried.
    #[strum(serialize = "BPF tracing programs")]
    BpfTracing,
    /// The same for programs with a cookie between entry and exit.
    #[strum(serialize = "tracing sessions")]
    BpfSession,
    /// Programs on function probes, with such a cookie: tried.
    #[strum(serialize = "function probe sessions")]
    ProbeSession,
    /// The function_graph tracer.
    #[strum(serialize = "function_graph tracer")]
    FunctionGraph,
    /// Programs on kprobes: tried.
    #[strum(serialize = "BPF on kprobes")]
    BpfKprobe,
    /// Whether the kernel keeps BTF of modules.
    #[strum(serialize = "BTF of modules")]
    ModuleBtfSupport,
    /// Whether the module is loaded.
    #[strum(serialize = "module loaded")]
    Module,
    /// Type information of the module.
    #[strum(serialize = "module's own BTF")]
    ModuleBtf,
    /// The list of traceable functions.
    #[strum(serialize = "tracefs")]
    Tracefs,
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Status {
    /// It is there.
    Yes,
    /// It is not.
    No,
    /// It cannot be known, or was not tried.
    #[strum(serialize = "?")]
    Unknown,
}

/// One fact.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// What was checked.
    pub id: CheckId,
    /// The same for people.
    pub title: &'static str,
    /// The answer.
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What to do about a `no`.
    pub remedy: Option<String>,
}

impl Check {
    /// Whether the answer is yes.
    pub fn is_yes(&self) -> bool {
        self.status == Status::Yes
    }
}

impl CheckId {
    fn yes(self, detail: impl Into<String>) -> Check {
        let detail = detail.into();
        Check { id: self, title: self.into(), status: Status::Yes, detail, remedy: None }
    }

    fn no(self, detail: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { status: Status::No, remedy: Some(remedy.into()), ..self.yes(detail) }
    }

    fn unknown(self, detail: impl Into<String>, remedy: Option<String>) -> Check {
        Check { status: Status::Unknown, remedy, ..self.yes(detail) }
    }
}

/// Suggested kernels.
const GOOD_KERNEL: &str = "a kernel of Debian 12, Ubuntu 22.04, Fedora or RHEL 9, or newer, has it; \
                           boot one, in a virtual machine if need be";

/// Makes every check, those of a module only where one is named.
pub(super) fn all(machine: &Machine, module: Option<&str>) -> Vec<Check> {
    let root = &machine.root;
    let folder = KernelFiles::below(root).btf_folder();
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();

    let mut checks = capabilities(&status);
    let functions = Btf::of(None, &folder);
    checks.push(kernel_btf(&folder, &functions));
    let functions = functions.as_deref().ok();
    // The first remedy for BPF is the older kernel that has it.
    let mut backends = Backend::ALL.to_vec();
    backends.sort_by_key(|backend| *backend != Backend::Fentry);
    let tried = backends.into_iter().map(|backend| tried(machine, backend, &checks, functions));
    checks.extend(tried.collect::<Vec<_>>());
    let support = module_btf_support(&folder);
    let supported = support.is_yes();
    checks.push(support);
    if let Some(module) = module {
        checks.extend(module_checks(root, &folder, module, supported));
    }
    checks.push(tracefs(root));
    checks
}

fn capabilities(status: &str) -> Vec<Check> {
    let ids = [CheckId::CapSysAdmin, CheckId::CapBpf, CheckId::CapPerfmon];
    let Some(held) = privileges::capabilities(status) else {
        let remedy = Some("mount /proc: `mount -t proc proc /proc`".to_owned());
        let what = "/proc/self/status does not show it";
        return ids.map(|id| id.unknown(what, remedy.clone())).to_vec();
    };
    let checks = ids.into_iter().zip(held).map(|(id, (_, held, why))| match held {
        true => id.yes(why),
        false => id.no(format!("needed {why}"), "run as root, or give the process the capability"),
    });
    checks.collect()
}

fn kernel_btf<E: std::fmt::Display>(folder: &Path, functions: &Result<Arc<Btf>, E>) -> Check {
    let id = CheckId::KernelBtf;
    match functions {
        Ok(functions) => id.yes(format!("functions that it describes: {}", functions.count())),
        Err(_) if !folder.join("vmlinux").exists() => id.no(
            "/sys/kernel/btf/vmlinux is missing",
            format!("use a kernel built with CONFIG_DEBUG_INFO_BTF=y: {GOOD_KERNEL}"),
        ),
        Err(error) => id.no(error.to_string(), format!("use another kernel: {GOOD_KERNEL}")),
    }
}

/// Tries a backend, unless what it needs is missing `before`.
fn tried(machine: &Machine, backend: Backend, before: &[Check], functions: Option<&Btf>) -> Check {
    let (id, yes, kernel) = trial(backend);
    let mut missing = before.to_vec();
    missing.retain(|check| {
        !check.is_yes() && (check.id != CheckId::KernelBtf || needs_kernel_btf(backend))
    });
    if !missing.is_empty() {
        let titles: Vec<&str> = missing.iter().map(|check| check.title).collect();
        return id.unknown(format!("not tried without {}", titles.join(", ")), None);
    }
    match (machine.try_backend)(backend, functions) {
        Ok(()) => id.yes(yes),
        // Several lines of the verifier do not fit in a table.
        Err(refusal) => id.no(
            refusal.what.split_whitespace().collect::<Vec<_>>().join(" "),
            if refusal.forbidden { FORBIDDEN.to_owned() } else { format!("use {kernel}") },
        ),
    }
}

/// Whether a backend's own programs use it, whatever function they are put on.
pub(super) fn needs_kernel_btf(backend: Backend) -> bool {
    !matches!(backend, Backend::FunctionGraph | Backend::Kprobe)
}

const FORBIDDEN: &str = "the capabilities are there and the kernel still forbids it: a container, a \
                         seccomp filter, a security module, lockdown=confidentiality or, before 5.11, \
                         `ulimit -l` does so; measure outside it, or in a virtual machine";

/// Which kernels run tracing programs on functions. Direct calls came to arm64 with 6.4 (commit 2aa6ac03516d).
const FENTRY_KERNEL: &str = "a kernel of 5.5 or later (on arm64 of 6.4 or later) built with CONFIG_BPF_JIT, \
     CONFIG_BPF_EVENTS and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, such as Debian's 6.12; boot one, in a virtual \
     machine if need be";

const ATTACHED: &str = "an empty program was loaded and attached";

/// The check that tries a backend, what its yes means, and which kernel has it.
pub(super) fn trial(backend: Backend) -> (CheckId, &'static str, &'static str) {
    match backend {
        Backend::Fsession => (CheckId::BpfSession, ATTACHED, "a kernel of 7.0 or later"),
        Backend::Fentry => {
            let yes = "a pair of empty programs was loaded and attached";
            (CheckId::BpfTracing, yes, FENTRY_KERNEL)
        }
        Backend::KprobeSession => (
            CheckId::ProbeSession,
            ATTACHED,
            "a kernel of 6.10 or later built with CONFIG_FPROBE, such as Debian's from 6.12",
        ),
        Backend::FunctionGraph => (
            CheckId::FunctionGraph,
            "the kernel has it, and nobody uses it",
            "a kernel built with CONFIG_FUNCTION_GRAPH_TRACER and CONFIG_DYNAMIC_FTRACE, with tracefs \
             mounted and no other tool tracing",
        ),
        Backend::Kprobe => (
            CheckId::BpfKprobe,
            "an empty program was loaded; the last resort, as it counts nothing inside kprobes",
            "a kernel of 5.10 or later built with CONFIG_BPF_EVENTS and CONFIG_KPROBE_EVENTS, with \
             tracefs mounted",
        ),
    }
}

/// The kernel has it since 5.11 (commit 36e68442d1af), with which came `btf_data` in
/// `struct module`.
fn module_btf_support(folder: &Path) -> Check {
    let id = CheckId::ModuleBtfSupport;
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let modules = files.filter(|file| file.file_name() != "vmlinux").count();
    if modules > 0 {
        return id.yes(format!("loaded modules that have it: {modules}"));
    }
    let remedy = format!(
        "use a kernel of 5.11 or later built with CONFIG_DEBUG_INFO_BTF_MODULES=y: {GOOD_KERNEL}"
    );
    match Btf::of(None, folder).ok().and_then(|types| types.has_member("module", "btf_data")) {
        Some(true) => id.yes("the kernel keeps it, and no loaded module has any"),
        Some(false) => id.no("this kernel does not keep BTF of modules", remedy),
        None if folder.join("vmlinux").exists() => {
            id.no("this kernel knows no modules, or its BTF does not describe them", remedy)
        }
        None => id.unknown("only the kernel's own BTF could show it", Some(remedy)),
    }
}

fn module_checks(root: &Path, folder: &Path, module: &str, supported: bool) -> [Check; 2] {
    let loaded = match KernelFiles::below(root).require_loaded(module) {
        Ok(()) => CheckId::Module.yes(format!("{module} is loaded")),
        Err(error) => {
            let text = error.to_string();
            let (what, remedy) = text.split_once(": ").unwrap_or((&text, "load it"));
            CheckId::Module.no(what, remedy)
        }
    };
    let id = CheckId::ModuleBtf;
    let prepare = format!("`profiler prepare {module}.ko`");
    let remedy = match supported {
        true => format!("{prepare}, then unload the module and insmod the file that it writes"),
        false => "nothing helps on a kernel that keeps no BTF of modules: see there".to_owned(),
    };
    // Only the name of a loaded module is surely no path.
    let btf = match loaded.is_yes().then(|| Btf::of(Some(module), folder)) {
        None => id.unknown("known when the module is loaded", None),
        Some(Ok(btf)) => id.yes(format!("functions that it describes: {}", btf.count())),
        Some(Err(error)) if folder.join(module).exists() => {
            id.no(error.to_string(), format!("rebuild it, or run {prepare}, and reload the module"))
        }
        Some(Err(_)) => id.no(format!("/sys/kernel/btf/{module} is missing"), remedy),
    };
    [loaded, btf]
}

fn tracefs(root: &Path) -> Check {
    let id = CheckId::Tracefs;
    for place in ["sys/kernel/tracing", "sys/kernel/debug/tracing"] {
        let list = fs::File::open(root.join(place).join("available_filter_functions"));
        // Rights to files end in EACCES; EPERM is lockdown or a security module.
        let remedy = match list.map_err(|error| error.raw_os_error()) {
            Ok(_) => return id.yes(format!("at /{place}: names that cannot be traced are known")),
            Err(Some(libc::EPERM)) => FORBIDDEN,
            Err(Some(libc::EACCES)) => "run as root",
            Err(_) => continue,
        };
        return id.no(format!("/{place} cannot be read"), remedy);
    }
    id.no(
        "it is not mounted, or lists no functions",
        format!(
            "mount -t tracefs nodev /sys/kernel/tracing, or use a kernel built with CONFIG_DYNAMIC_FTRACE=y: {GOOD_KERNEL}"
        ),
    )
}
