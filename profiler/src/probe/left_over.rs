//! Starts whose exit program the kernel skipped: they stay in the shared maps, and in long runs would fill
//! them.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use profiler_common::layout::{LEVELS_MAX, Level, Nest};

/// Age from which a start counts as left over, once a map is crowded. An older call that is still under way
/// becomes lost, and its exit unpaired.
const OLD_NS: u64 = 10_000_000_000;

/// Words of a nest in its map, and of a level in that.
pub(super) const NEST_WORDS: usize = size_of::<Nest>() / 8;
const LEVEL_WORDS: usize = size_of::<Level>() / 8;

/// Whether a map is so full that left-over starts have to be removed.
pub(super) fn is_crowded(used: usize, capacity: u32) -> bool {
    used > capacity as usize / 2
}

/// Whether a start is left over at the time `now_ns`.
pub(super) fn is_left_over(start_ns: u64, now_ns: u64) -> bool {
    // A call that has not started yet has the largest number.
    now_ns.saturating_sub(start_ns) > OLD_NS
}

/// The handlers of a task's calls under way, if even the newest of these is left over.
pub(super) fn left_over_calls(nest: &[u64; NEST_WORDS], now_ns: u64) -> Option<Vec<u64>> {
    use std::mem::offset_of;
    const HANDLER: usize = offset_of!(Level, handler) / 8;
    const START: usize = offset_of!(Level, start) / 8;
    let (depth, levels) = nest.split_first()?;
    let depth = usize::try_from(*depth).ok().filter(|depth| *depth <= LEVELS_MAX)?;
    let levels = levels.chunks_exact(LEVEL_WORDS).take(depth);
    let newest = levels.clone().next_back()?;
    is_left_over(newest[START], now_ns).then(|| levels.map(|level| level[HANDLER]).collect())
}

/// The time by the clock of starts; 0 where it cannot be read, when nothing is left over.
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
        assert!(!is_left_over(u64::MAX, now), "has not begun");
        assert!(!is_left_over(1, 0), "the clock cannot be read");
        assert!(is_crowded(8_193, 16_384) && !is_crowded(8_192, 16_384));
    }

    #[test]
    fn a_task_is_left_over_with_its_newest_call() {
        let now = 100 * SECOND;
        let calls = |starts: &[u64]| {
            let mut nest = [0; NEST_WORDS];
            nest[0] = starts.len() as u64;
            for (at, start) in starts.iter().enumerate() {
                let level = [0xf0, at as u64 + 7, *start, 0, 0];
                nest[1 + at * LEVEL_WORDS..][..LEVEL_WORDS].copy_from_slice(&level);
            }
            left_over_calls(&nest, now)
        };
        assert_eq!(calls(&[SECOND, 2 * SECOND]), Some(vec![7, 8]));
        assert_eq!(calls(&[SECOND, 95 * SECOND]), None, "the inner one is under way");
        assert_eq!(calls(&[SECOND, u64::MAX]), None, "an inner one begins");
        assert_eq!(calls(&[]), None);
    }
}
