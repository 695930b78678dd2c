//! Facts of machines and modules: kept where all agree. What differs becomes `various`, or unknown.

use std::collections::BTreeMap;

use crate::kernel::host::{HostFacts, Hypervisor};
use crate::kernel::module::ModuleFacts;

/// Stands where sources do not agree.
const VARIOUS: &str = "various";

fn text(fact: &mut Option<String>, other: Option<String>) {
    if *fact != other {
        *fact = Some(VARIOUS.to_owned());
    }
}

fn number<T: PartialEq>(fact: &mut Option<T>, other: Option<T>) {
    if *fact != other {
        *fact = None;
    }
}

/// Keeps the entries that both have and agree on.
fn map(facts: &mut BTreeMap<String, String>, other: &BTreeMap<String, String>) {
    facts.retain(|key, value| other.get(key) == Some(value));
}

pub(super) fn add_host(sum: &mut HostFacts, more: HostFacts) {
    let HostFacts {
        kernel_release,
        kernel_version,
        arch,
        cpu_model,
        cpu_flags,
        cpus_online,
        mitigations,
        clock_source,
        hypervisor,
        preemption,
        boot_id,
    } = more;
    text(&mut sum.kernel_release, kernel_release);
    text(&mut sum.kernel_version, kernel_version);
    if sum.arch != arch {
        sum.arch = VARIOUS.to_owned();
    }
    text(&mut sum.cpu_model, cpu_model);
    number(&mut sum.cpu_flags, cpu_flags);
    number(&mut sum.cpus_online, cpus_online);
    map(&mut sum.mitigations, &mitigations);
    text(&mut sum.clock_source, clock_source);
    if sum.hypervisor != hypervisor {
        // Also where one of them has none: that all are real machines would not be true.
        let various = Some(VARIOUS.to_owned());
        sum.hypervisor = Some(Hypervisor { vendor: various.clone(), product: various });
    }
    text(&mut sum.preemption, preemption);
    number(&mut sum.boot_id, boot_id);
}

pub(super) fn add_modules(sum: &mut Vec<ModuleFacts>, more: Vec<ModuleFacts>) {
    for module in more {
        let Some(known) = sum.iter_mut().find(|known| known.name == module.name) else {
            sum.push(module);
            continue;
        };
        let ModuleFacts {
            name: _,
            version,
            srcversion,
            build_id,
            taint,
            size_bytes,
            parameters,
            given,
            command,
            hooks,
        } = module;
        text(&mut known.version, version);
        text(&mut known.srcversion, srcversion);
        text(&mut known.build_id, build_id);
        text(&mut known.taint, taint);
        number(&mut known.size_bytes, size_bytes);
        text(&mut known.command, command);
        map(&mut known.parameters, &parameters);
        if known.given != given {
            known.given = None;
        }
        if known.hooks != hooks {
            known.hooks = None;
        }
    }
}
