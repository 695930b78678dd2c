//! Who else has ftrace call something at the entry of a handler.

use std::cell::LazyCell;
use std::fs;

use profiler_kernel::target::Target;

use super::filter::{CALL_SITE, name, name_of};
use super::tracefs::Folder;
use crate::ProbeError;

/// Functions that have users now, and how many.
const ENABLED: &str = "enabled_functions";
const KPROBES: &str = "/sys/kernel/debug/kprobes/list";
/// What ftrace calls for kprobes at the entry of a function (`CONFIG_KPROBES_ON_FTRACE`).
const KPROBE_USER: &str = "kprobe_ftrace_handler";

/// Refuses handlers that another tool traces.
///
/// A tracer or a BPF program does there what we do, and its time would be counted as the handler's.
/// Kprobes are no such users: with a HIDS driver they are what the machine does, with us and without,
/// and any other backend measures the function with them as well.
///
/// # Errors
/// For the first such handler, or when the list cannot be read.
pub(super) fn refuse_foreign(top: &Folder, targets: &[Target]) -> Result<(), ProbeError> {
    let Some(list) = top.read_if_there(ENABLED)? else { return Ok(()) };
    let kprobes = LazyCell::new(|| fs::read_to_string(KPROBES).unwrap_or_default());
    for line in list.lines() {
        let used = targets.iter().find(|target| name(line) == Some(name_of(target)));
        if let Some(target) = used
            && tracers(line, target, &kprobes) > 0
        {
            return Err(ProbeError::NotAllowed(format!(
                "handler {} is traced by somebody else ({}): that time would be counted as the handler's; \
                 stop the other tool or allow it with --allow-shared",
                target.name,
                line.split_whitespace().collect::<Vec<_>>().join(" ")
            )));
        }
    }
    Ok(())
}

/// How many users of a line of `enabled_functions` are no kprobes. All kprobes of one function are
/// one user, which the line names only where it is the only one.
fn tracers(line: &str, target: &Target, kprobes: &str) -> u64 {
    let mut words = line.split_whitespace();
    let users = words.find_map(|word| word.strip_prefix('(')?.strip_suffix(')')?.parse().ok());
    // A list that does not count them has a line because of at least one.
    let users: u64 = users.unwrap_or(1);
    let by_ftrace = line.contains(KPROBE_USER)
        || kprobes.lines().any(|kprobe| is_armed_at(kprobe, target.address));
    users.saturating_sub(u64::from(by_ftrace))
}

/// `ffffffff81a4b2c0  r  __sys_connect+0x0    [FTRACE]`
fn is_armed_at(kprobe: &str, address: u64) -> bool {
    let mut words = kprobe.split_whitespace();
    let at = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
    at.and_then(|at| at.checked_sub(address)).is_some_and(|after| after <= CALL_SITE)
        && kprobe.contains("[FTRACE]")
        && !kprobe.contains("[DISABLED]")
        && !kprobe.contains("[GONE]")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KPROBES: &str = "ffffffff81a4b2c4  r  __sys_connect+0x4    [FTRACE]\n\
                           ffffffff81a4c000  k  __sys_bind+0x0    [DISABLED][FTRACE]\n\
                           ffffffff81a4d010  k  __sys_listen+0x10    [OPTIMIZED]\n";

    fn tracers_at(address: u64, line: &str, kprobes: &str) -> u64 {
        let name = "f".to_owned();
        tracers(line, &Target { name, module: None, address, ..Target::default() }, kprobes)
    }

    #[test]
    fn kprobes_are_no_tracers() {
        let connect = 0xffff_ffff_81a4_b2c0;
        let alone =
            "f (1) R             tramp: 0xffffffffc0315000 (kprobe_ftrace_handler+0x0/0x1b0)";
        assert_eq!(tracers_at(connect, alone, ""), 0);
        assert_eq!(tracers_at(connect, "f (1) R", KPROBES), 0);
        assert_eq!(
            tracers_at(connect, "f (2) R ->arch_ftrace_ops_list_func+0x0/0x280", KPROBES),
            1
        );
        assert_eq!(tracers_at(connect, "f (1)         D tramp: 0xffffffffc0316000", ""), 1);
        assert_eq!(tracers_at(connect, "f [m]", ""), 1);
    }

    #[test]
    fn a_kprobe_that_ftrace_does_not_call_is_no_user_of_it() {
        for address in [0xffff_ffff_81a4_c000, 0xffff_ffff_81a4_d000, 0xffff_ffff_81a4_b000] {
            assert_eq!(tracers_at(address, "f (1) R", KPROBES), 1, "{address:x}");
        }
    }
}
