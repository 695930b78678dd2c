//! Starts whose exit program the kernel skipped: they stay in the shared maps, and in long runs would fill
//! them.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Age from which a start counts as left over, once a map is crowded. An older call that is still under way
/// becomes lost, and its exit unpaired.
const OLD_NS: u64 = 10_000_000_000;

/// Whether a map is so full that left-over starts have to be removed.
pub(super) fn is_crowded(used: usize, capacity: u32) -> bool {
    used > capacity as usize / 2
}

/// Whether a start is left over at the time `now_ns`.
pub(super) fn is_left_over(start_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(start_ns) > OLD_NS
}

/// The time by the clock of starts. 0 if it cannot be read: then no start counts as left over.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn starts_older_than_ten_seconds_are_left_over() {
        let now = 100 * SECOND;
        assert!(is_left_over(89 * SECOND, now));
        assert!(!is_left_over(91 * SECOND, now));
        assert!(!is_left_over(101 * SECOND, now), "entered after the clock was read");
        assert!(!is_left_over(1, 0), "the clock cannot be read");
        assert!(is_crowded(8_193, 16_384) && !is_crowded(8_192, 16_384));
    }
}
