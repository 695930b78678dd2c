//! What this process may do: found out before anything is tried, so that the error names it.

use std::fs;

use crate::error::{Failure, exit};

/// Capabilities that measuring takes, with their bits (include/uapi/linux/capability.h).
const NEEDED: [(&str, u32, &str); 2] = [
    ("CAP_BPF", 39, "to load BPF programs and make maps"),
    ("CAP_PERFMON", 38, "to attach them to kernel functions"),
];

/// Before Linux 5.8 this one stood for both, and it still does.
const SYS_ADMIN: u32 = 21;

/// Checks that this process may measure.
///
/// # Errors
/// Names the capability that is missing.
pub fn check() -> Result<(), Failure> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    match effective(&status) {
        Some(bits) => {
            missing(bits).map_or(Ok(()), |text| Err(Failure::new(exit::CANNOT_MEASURE, text)))
        }
        // No /proc: let the kernel say no.
        None => Ok(()),
    }
}

fn effective(status: &str) -> Option<u64> {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(bits.trim(), 16).ok()
}

fn missing(bits: u64) -> Option<String> {
    let has = |bit: u32| bits & (1 << bit) != 0;
    if has(SYS_ADMIN) {
        return None;
    }
    let missing: Vec<String> = NEEDED
        .iter()
        .filter(|(_, bit, _)| !has(*bit))
        .map(|(name, _, why)| format!("{name} ({why})"))
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "this process lacks {}: run as root, or give it the capability",
            missing.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_two_capabilities_suffice() {
        assert_eq!(missing(u64::MAX), None);
        assert_eq!(missing(1 << SYS_ADMIN), None);
        assert_eq!(missing(1 << 38 | 1 << 39), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = missing(1 << 39).unwrap();
        assert!(text.contains("CAP_PERFMON") && !text.contains("CAP_BPF"), "{text}");
        let text = missing(0).unwrap();
        assert!(text.contains("CAP_PERFMON") && text.contains("CAP_BPF"), "{text}");
    }

    #[test]
    fn the_status_file_is_read() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(effective("nothing"), None);
    }
}
