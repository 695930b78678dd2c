//! Capabilities of this process, checked first so that the error names the missing one.

use std::fs;

use profiler_base::error::{Failure, bail};

/// Capabilities needed to measure, with their bits (include/uapi/linux/capability.h).
const NEEDED: [(&str, u32, &str); 3] = [
    ("CAP_SYS_ADMIN", SYS_ADMIN, "to find the BTF of modules and other tools' probes by their ids"),
    ("CAP_BPF", 39, "to load BPF programs and make maps"),
    ("CAP_PERFMON", 38, "to attach them to kernel functions"),
];

/// Implies the other two: before Linux 5.8 they did not exist.
const SYS_ADMIN: u32 = 21;

/// Checks that this process may measure.
///
/// # Errors
/// Names the missing capabilities.
pub fn check() -> Result<(), Failure> {
    check_status(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

fn check_status(status: &str) -> Result<(), Failure> {
    // Without /proc the kernel decides.
    let all = capabilities(status).unwrap_or_default();
    let missing = all.iter().filter(|(_, held, _)| !held);
    let missing: Vec<String> = missing.map(|(name, _, why)| format!("{name} ({why})")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" and ");
    bail!(CANNOT_MEASURE, "this process lacks {missing}: run as root, or give it the capability")
}

/// The capabilities needed to measure: name, whether `status` (a `/proc/PID/status`) has it, purpose; `None`
/// without a line of capabilities.
pub fn capabilities(status: &str) -> Option<Vec<(&'static str, bool, &'static str)>> {
    let bits = effective(status)?;
    let held = NEEDED.map(|(name, bit, why)| (name, bits & (1 << bit | 1 << SYS_ADMIN) != 0, why));
    Some(held.to_vec())
}

fn effective(status: &str) -> Option<u64> {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(bits.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(bits: u64) -> Option<Failure> {
        check_status(&format!("CapEff:\t{bits:016x}\n")).err()
    }

    #[test]
    fn root_and_its_capability_suffice() {
        assert!(missing(u64::MAX).is_none());
        assert!(missing(1 << SYS_ADMIN).is_none());
    }

    #[test]
    fn what_is_missing_is_named() {
        // The kernel lists objects by id for CAP_SYS_ADMIN alone.
        let text = missing(1 << 38 | 1 << 39).unwrap().to_string();
        assert!(text.contains("CAP_SYS_ADMIN") && !text.contains("CAP_BPF"), "{text}");
        let text = missing(1 << 39).unwrap().to_string();
        assert!(text.contains("CAP_PERFMON") && !text.contains("CAP_BPF"), "{text}");
        let text = missing(0).unwrap().to_string();
        assert!(text.contains("CAP_PERFMON") && text.contains("CAP_BPF"), "{text}");
    }

    #[test]
    fn capabilities_are_listed_one_by_one() {
        let status = "CapEff:\t0000008000000000\n";
        let held: Vec<(&str, bool)> =
            capabilities(status).unwrap().into_iter().map(|(name, held, _)| (name, held)).collect();
        assert_eq!(held, [("CAP_SYS_ADMIN", false), ("CAP_BPF", true), ("CAP_PERFMON", false)]);
        assert_eq!(capabilities("nothing"), None);
    }

    #[test]
    fn the_status_file_is_read() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(effective("nothing"), None);
    }
}
