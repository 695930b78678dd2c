//! Facts of machines and modules: kept where all agree. What differs becomes `various`, or unknown.

use std::collections::BTreeMap;

use profiler_kernel::host::{HostFacts, Hypervisor};
use profiler_kernel::module::ModuleFacts;

/// Stands where sources do not agree.
const VARIOUS: &str = "various";

/// Keeps what both agree on.
pub(super) fn agree<T: PartialEq>(sum: &mut Option<T>, more: &Option<T>) {
    if sum != more {
        *sum = None;
    }
}

fn various<const N: usize>(facts: [(&mut Option<String>, Option<String>); N]) {
    for (sum, more) in facts {
        if *sum != more {
            *sum = Some(VARIOUS.to_owned());
        }
    }
}

/// Keeps the entries that both have and agree on.
fn entries(sum: &mut BTreeMap<String, String>, more: &BTreeMap<String, String>) {
    sum.retain(|key, value| more.get(key) == Some(value));
}

pub(super) fn add_host(sum: &mut HostFacts, more: HostFacts) {
    various([
        (&mut sum.kernel_release, more.kernel_release),
        (&mut sum.kernel_version, more.kernel_version),
        (&mut sum.cpu_model, more.cpu_model),
        (&mut sum.clock_source, more.clock_source),
        (&mut sum.preemption, more.preemption),
    ]);
    if sum.arch != more.arch {
        VARIOUS.clone_into(&mut sum.arch);
    }
    agree(&mut sum.cpu_flags, &more.cpu_flags);
    agree(&mut sum.cpus_online, &more.cpus_online);
    agree(&mut sum.boot_id, &more.boot_id);
    entries(&mut sum.mitigations, &more.mitigations);
    if sum.hypervisor != more.hypervisor {
        // Also where one of them has none: that all are real machines would not be true.
        let various = Some(VARIOUS.to_owned());
        sum.hypervisor = Some(Hypervisor { vendor: various.clone(), product: various });
    }
}

/// Of one module.
pub(super) fn add_module(sum: &mut ModuleFacts, more: ModuleFacts) {
    various([
        (&mut sum.version, more.version),
        (&mut sum.srcversion, more.srcversion),
        (&mut sum.build_id, more.build_id),
        (&mut sum.taint, more.taint),
        (&mut sum.command, more.command),
    ]);
    agree(&mut sum.size_bytes, &more.size_bytes);
    agree(&mut sum.given, &more.given);
    agree(&mut sum.hooks, &more.hooks);
    entries(&mut sum.parameters, &more.parameters);
}
