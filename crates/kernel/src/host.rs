//! Facts about this machine that a latency depends on, read from procfs and sysfs.
//!
//! The host name is left out on purpose: recordings are attached to bug reports and committed to
//! repositories. The boot id shows whether two runs are of one boot, and identifies nobody.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::text::numbers;

/// Bytes that are read of a pseudo file. Only `/proc/cpuinfo` of large machines is longer, and its first processor is
/// enough.
const MAX_FACT_BYTES: u64 = 64 * 1024;

/// Facts about the kernel and its machine. One that cannot be read is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostFacts {
    /// Kernel release, as `uname -r`.
    pub kernel_release: Option<String>,
    /// Kernel build, as `uname -v`.
    pub kernel_version: Option<String>,
    /// Machine architecture, as `uname -m`.
    pub arch: String,
    /// Model name of the first CPU.
    pub cpu_model: Option<String>,
    /// Flags of the first CPU, separated by blanks: the kernel selects its code by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_flags: Option<String>,
    /// Number of CPUs online.
    pub cpus_online: Option<u32>,
    /// Each CPU vulnerability known to the kernel, with its mitigation.
    pub mitigations: BTreeMap<String, String>,
    /// Clock source in use, such as `tsc` or `kvm-clock`.
    pub clock_source: Option<String>,
    /// Present if the CPU reports a hypervisor.
    pub hypervisor: Option<Hypervisor>,
    /// Preemption model: `none`, `voluntary`, `full`, `lazy` or `rt`.
    pub preemption: Option<String>,
    /// Random id of this boot.
    pub boot_id: Option<String>,
}

/// The hypervisor underneath, as far as the firmware tables name it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hypervisor {
    /// System vendor in the firmware tables, such as `QEMU`.
    pub vendor: Option<String>,
    /// Product name in the firmware tables, such as `Standard PC (Q35 + ICH9, 2009)`.
    pub product: Option<String>,
}

/// Facts about the machine that this process runs on.
pub fn collect() -> HostFacts {
    collect_at(Path::new("/"))
}

/// As [`collect`], from the file tree under `root`.
pub fn collect_at(root: &Path) -> HostFacts {
    let fact = |path: &str| read_fact(&root.join(path));
    let kernel_version = fact("proc/sys/kernel/version");
    let cpuinfo = fact("proc/cpuinfo").unwrap_or_default();
    let of_cpu = |keys: &[&str]| keys.iter().find_map(|key| cpuinfo_value(&cpuinfo, key));
    let debugfs = fact("sys/kernel/debug/sched/preempt");
    let online = fact("sys/devices/system/cpu/online").map(|list| numbers(&list).len() as u32);
    HostFacts {
        kernel_release: fact("proc/sys/kernel/osrelease"),
        arch: fact("proc/sys/kernel/arch").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cpu_model: of_cpu(&["model name", "Model", "cpu model", "uarch"]),
        // x86, arm64, s390.
        cpu_flags: of_cpu(&["flags", "Features", "features"]),
        cpus_online: online.filter(|cpus| *cpus > 0),
        mitigations: read_dir_facts(&root.join("sys/devices/system/cpu/vulnerabilities")),
        clock_source: fact("sys/devices/system/clocksource/clocksource0/current_clocksource"),
        hypervisor: hypervisor(root, &cpuinfo),
        preemption: preemption(debugfs.as_deref(), kernel_version.as_deref()),
        boot_id: fact("proc/sys/kernel/random/boot_id"),
        kernel_version,
    }
}

/// The beginning of a pseudo file.
pub(super) fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_FACT_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The text of a one-line pseudo file, trimmed; `None` if unreadable or empty.
pub fn read_fact(path: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&read_bytes(path)?).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// As [`read_fact`], if all users may read the file: another may be a secret, and a recording is for everybody. To root, who
/// reads it here, the mode is no hindrance.
fn read_public_fact(path: &Path) -> Option<String> {
    let is_public = fs::metadata(path).ok()?.mode() & 0o004 != 0;
    read_fact(path).filter(|_| is_public)
}

/// Every file of a directory that all users may read, by name.
pub(crate) fn read_dir_facts(dir: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(dir) else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name, read_public_fact(&entry.path())?))
        })
        .collect()
}

fn cpuinfo_value(cpuinfo: &str, key: &str) -> Option<String> {
    cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key && !value.trim().is_empty()).then(|| value.trim().to_owned())
    })
}

fn hypervisor(root: &Path, cpuinfo: &str) -> Option<Hypervisor> {
    let flagged = cpuinfo_value(cpuinfo, "flags")
        .is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"));
    // Set by paravirtual Xen guests, whose CPU flag may be masked.
    let xen = read_fact(&root.join("sys/hypervisor/type"));
    if !flagged && xen.is_none() {
        return None;
    }
    let dmi = root.join("sys/class/dmi/id");
    Some(Hypervisor {
        vendor: xen.or_else(|| read_fact(&dmi.join("sys_vendor"))),
        product: read_fact(&dmi.join("product_name")),
    })
}

/// Whether this kernel may preempt a task in kernel code; true also if that is not known.
pub fn may_preempt() -> bool {
    let debugfs = read_fact(Path::new("/sys/kernel/debug/sched/preempt"));
    let build = read_fact(Path::new("/proc/sys/kernel/version"));
    may_preempt_by(debugfs.as_deref(), build.as_deref())
}

fn may_preempt_by(debugfs: Option<&str>, build: Option<&str>) -> bool {
    match (preemption(debugfs, build), build) {
        (Some(model), _) => !matches!(model.as_str(), "none" | "voluntary"),
        // The build line of a kernel without preemption lacks the word.
        (None, Some(build)) => {
            build.split_ascii_whitespace().any(|word| word.starts_with("PREEMPT"))
        }
        (None, None) => true,
    }
}

/// `debugfs` marks the active model with brackets. Without debugfs, the build line names the configured
/// model, unless that is `PREEMPT_DYNAMIC`, which is set at boot.
fn preemption(debugfs: Option<&str>, build: Option<&str>) -> Option<String> {
    let active = debugfs.and_then(|text| Some(text.split_once('(')?.1.split_once(')')?.0.trim()));
    if let Some(active) = active.filter(|model| !model.is_empty()) {
        return Some(active.to_owned());
    }
    let words: Vec<&str> = build?.split_ascii_whitespace().collect();
    let models = [("PREEMPT_RT", "rt"), ("PREEMPT", "full")];
    models.into_iter().find(|(word, _)| words.contains(word)).map(|(_, model)| model.to_owned())
}

/// The numbers of the CPUs in a state, such as `online` or `possible`.
///
/// # Errors
/// If the kernel does not say.
pub fn cpus(state: &str) -> io::Result<Vec<u32>> {
    let list = fs::read_to_string(Path::new("/sys/devices/system/cpu").join(state))?;
    Ok(numbers(&list))
}

/// Mount point of control groups version 2, if mounted.
pub fn cgroup2_mount() -> Option<std::path::PathBuf> {
    let mounts = procfs::process::Process::myself().and_then(|this| this.mountinfo()).ok()?;
    mounts.into_iter().find(|mount| mount.fs_type == "cgroup2").map(|mount| mount.mount_point)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("create directory");
            fs::write(path, text).expect("write file");
        }
        root
    }

    #[test]
    fn reads_a_virtual_machine() {
        let root = tree(&[
            ("proc/sys/kernel/osrelease", "6.1.0-56-amd64\n"),
            ("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.1-1\n"),
            ("proc/sys/kernel/arch", "x86_64\n"),
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: QEMU Virtual CPU\nflags\t\t: fpu hypervisor lm\n",
            ),
            ("sys/devices/system/cpu/online", "0-3,8\n"),
            ("sys/devices/system/cpu/vulnerabilities/meltdown", "Mitigation: PTI\n"),
            ("sys/devices/system/cpu/vulnerabilities/l1tf", "Not affected\n"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
            ("sys/class/dmi/id/product_name", "Standard PC\n"),
            ("sys/kernel/debug/sched/preempt", "none (voluntary) full \n"),
            ("proc/sys/kernel/random/boot_id", "3f0c\n"),
        ]);
        let facts = collect_at(root.path());
        assert_eq!(facts.kernel_release.as_deref(), Some("6.1.0-56-amd64"));
        assert_eq!(facts.arch, "x86_64");
        assert_eq!(facts.cpu_model.as_deref(), Some("QEMU Virtual CPU"));
        assert_eq!(facts.cpu_flags.as_deref(), Some("fpu hypervisor lm"));
        assert_eq!(facts.cpus_online, Some(5));
        assert_eq!(facts.mitigations["meltdown"], "Mitigation: PTI");
        assert_eq!(facts.mitigations.len(), 2);
        assert_eq!(facts.clock_source.as_deref(), Some("tsc"));
        assert_eq!(facts.preemption.as_deref(), Some("voluntary"));
        assert_eq!(facts.boot_id.as_deref(), Some("3f0c"));
        let hypervisor = facts.hypervisor.expect("flag is set");
        assert_eq!(hypervisor.vendor.as_deref(), Some("QEMU"));
        assert_eq!(hypervisor.product.as_deref(), Some("Standard PC"));
    }

    #[test]
    fn an_empty_tree_gives_empty_facts() {
        let root = tree(&[]);
        let facts = collect_at(root.path());
        assert_eq!(
            facts,
            HostFacts { arch: std::env::consts::ARCH.to_owned(), ..HostFacts::default() }
        );
    }

    #[test]
    fn bare_metal_has_no_hypervisor_though_firmware_names_a_vendor() {
        let root = tree(&[
            ("proc/cpuinfo", "flags : fpu lm\n"),
            ("sys/class/dmi/id/sys_vendor", "Dell Inc.\n"),
        ]);
        assert_eq!(collect_at(root.path()).hypervisor, None);
    }

    #[test]
    fn a_kernel_preempts_unless_it_says_that_it_does_not() {
        assert!(!may_preempt_by(Some("none (voluntary) full"), Some("#1 SMP PREEMPT_DYNAMIC x")));
        assert!(may_preempt_by(Some("full (lazy)"), Some("#1 SMP PREEMPT_DYNAMIC x")));
        assert!(!may_preempt_by(None, Some("#1 SMP Debian 5.10.1 x")));
        assert!(may_preempt_by(None, Some("#1 SMP PREEMPT_DYNAMIC x")), "debugfs is not mounted");
        assert!(may_preempt_by(None, None));
    }

    #[test]
    fn preemption_models() {
        assert_eq!(preemption(Some("none voluntary (full)"), None).as_deref(), Some("full"));
        assert_eq!(preemption(None, Some("#1 SMP PREEMPT_RT x")).as_deref(), Some("rt"));
        assert_eq!(preemption(None, Some("#1 SMP PREEMPT x")).as_deref(), Some("full"));
        assert_eq!(preemption(None, Some("#1 SMP PREEMPT_DYNAMIC x")), None);
        assert_eq!(preemption(None, None), None);
    }
}
