//! Facts of machines and modules: kept where all agree. What differs becomes `various`, or unknown.

use std::collections::BTreeMap;

use profiler_kernel::host::{HostFacts, Hypervisor};
use profiler_kernel::module::ModuleFacts;

/// Stands where sources do not agree.
const VARIOUS: &str = "various";

fn text(a: Option<String>, b: Option<String>) -> Option<String> {
    if a == b { a } else { Some(VARIOUS.to_owned()) }
}

/// What both agree on.
fn same<T: PartialEq>(a: Option<T>, b: Option<T>) -> Option<T> {
    a.filter(|a| b.as_ref() == Some(a))
}

/// The entries that both have and agree on.
fn map(mut a: BTreeMap<String, String>, b: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    a.retain(|key, value| b.get(key) == Some(value));
    a
}

pub(super) fn of_hosts(a: HostFacts, b: HostFacts) -> HostFacts {
    // Also where one of them has none: that all are real machines would not be true.
    let various = Some(VARIOUS.to_owned());
    let hypervisors = Some(Hypervisor { vendor: various.clone(), product: various });
    HostFacts {
        kernel_release: text(a.kernel_release, b.kernel_release),
        kernel_version: text(a.kernel_version, b.kernel_version),
        arch: if a.arch == b.arch { a.arch } else { VARIOUS.to_owned() },
        cpu_model: text(a.cpu_model, b.cpu_model),
        cpu_flags: same(a.cpu_flags, b.cpu_flags),
        cpus_online: same(a.cpus_online, b.cpus_online),
        mitigations: map(a.mitigations, &b.mitigations),
        clock_source: text(a.clock_source, b.clock_source),
        hypervisor: if a.hypervisor == b.hypervisor { a.hypervisor } else { hypervisors },
        preemption: text(a.preemption, b.preemption),
        boot_id: same(a.boot_id, b.boot_id),
    }
}

/// Of one module.
#[expect(clippy::unnecessary_wraps, reason = "other sums may fail")]
pub(super) fn of_modules(a: ModuleFacts, b: ModuleFacts) -> Result<ModuleFacts, String> {
    Ok(ModuleFacts {
        name: a.name,
        version: text(a.version, b.version),
        srcversion: text(a.srcversion, b.srcversion),
        build_id: text(a.build_id, b.build_id),
        taint: text(a.taint, b.taint),
        size_bytes: same(a.size_bytes, b.size_bytes),
        parameters: map(a.parameters, &b.parameters),
        given: same(a.given, b.given),
        command: text(a.command, b.command),
        hooks: same(a.hooks, b.hooks),
    })
}
