//! Kernels from Debian's packages, verified by apt, or from any that the user has; unpacked and never installed.
//!
//! The kind of an error says what is at fault: `Unsupported`, a program that is missing; `StorageFull`; `InvalidInput`, what the
//! user gave is no kernel that boots here; `InvalidData`, it cannot be unpacked; `NetworkDown`, a program that failed, apt as a rule.

mod apt;
mod command;
mod own;
mod partial;
mod unpacked;

pub use apt::Apt;
pub use own::add;
pub use partial::{Partial, remove};
pub use unpacked::{Unpacked, place};

/// Whether `version` is the release or its beginning: `6.1` is of `6.1.0-56-amd64`, but not of `6.12.9-amd64`.
pub fn is_of(release: &str, version: &str) -> bool {
    let rest = release.strip_prefix(version).filter(|_| !version.is_empty());
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The numbers in a release, by which releases are in order.
pub fn numbers(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_beginning_of_a_release() {
        for version in ["6", "6.1", "6.1.0", "6.1.0-56", "6.1.0-56-amd64"] {
            assert!(is_of("6.1.0-56-amd64", version), "{version}");
        }
        for version in ["", "6.12", "6.1.0-5", "6.1.0-56-amd64-dbg", "amd64"] {
            assert!(!is_of("6.1.0-56-amd64", version), "{version}");
        }
        assert!(!is_of("6.12.107+deb12-amd64", "6.1"));
    }

    #[test]
    fn releases_are_in_order_by_their_numbers() {
        let mut releases = ["6.12.9+deb12-amd64", "6.1.0-56-amd64", "6.1.0-9-amd64"];
        releases.sort_by_key(|release| numbers(release));
        assert_eq!(releases, ["6.1.0-9-amd64", "6.1.0-56-amd64", "6.12.9+deb12-amd64"]);
    }
}
