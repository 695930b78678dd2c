//! A histogram as it is stored: its buckets that are not empty.

use hdrhistogram::{Counter, Histogram};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_common::bucket::{HIGHEST_NS, LOWEST_NS};

pub use profiler_base::stats::Bucket;

/// Largest count of a bucket: HdrHistogram's interchange form, which logs are written in, holds no larger one.
pub(super) const MAX_COUNT: u64 = i64::MAX as u64;
/// Widest range that is read, in nanoseconds (a day): with five digits a histogram of it has four million counters.
const MAX_HIGHEST_NS: u64 = 86_400_000_000_000;

/// Range and precision of every histogram of a recording: HdrHistogram's log-linear layout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistogramLayout {
    /// Significant decimal digits that are kept of a duration (1 to 5).
    #[schemars(range(min = 1, max = 5))]
    pub precision_digits: u8,
    /// Shortest duration distinguished from zero.
    #[schemars(range(min = 1))]
    #[serde(rename = "lowest")]
    pub lowest_ns: u64,
    /// Longest duration that is kept to that precision; longer ones are in the last bucket.
    #[schemars(range(min = 2))]
    #[serde(rename = "highest")]
    pub highest_ns: u64,
    /// Memory that the kernel held for the histograms of this run, over all CPUs.
    pub kernel_memory_bytes: u64,
    /// Whether BPF programs addressed those of each CPU that was online at the start directly, or looked them up, as they
    /// do where the kernel takes no map value that large: then a hit costs more. Absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
}

impl HistogramLayout {
    /// The layout of the histograms that this program measures, without memory in the kernel.
    pub fn of_digits(precision_digits: u8) -> Self {
        Self {
            precision_digits,
            lowest_ns: LOWEST_NS,
            highest_ns: HIGHEST_NS,
            kernel_memory_bytes: 0,
            direct: None,
        }
    }

    /// An empty histogram of this layout. One of bytes is for looking buckets up.
    ///
    /// # Errors
    /// If there is none, or it is too large to be read.
    pub(super) fn empty<T: Counter>(&self) -> Result<Histogram<T>, String> {
        let Self { precision_digits, lowest_ns, highest_ns, .. } = *self;
        let is_read = precision_digits > 0 && highest_ns <= MAX_HIGHEST_NS;
        let empty = is_read
            .then(|| Histogram::new_with_bounds(lowest_ns, highest_ns, precision_digits).ok());
        empty.flatten().ok_or_else(|| {
            format!(
                "{precision_digits} digits from {lowest_ns} to {highest_ns} are no layout that is read: 1 to 5 digits, at \
                 most a day in nanoseconds, and 4194304 buckets"
            )
        })
    }
}

/// The bucket of a histogram that durations of `ns` are counted in, with `count` of them.
fn bucket<T: Counter>(of: &Histogram<T>, ns: u64, count: u64) -> Bucket {
    Bucket { from_ns: of.lowest_equivalent(ns), to_ns: of.highest_equivalent(ns), count }
}

/// A stored histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// The buckets that are not empty, ascending: `[from, to, count]`.
    pub buckets: Vec<Bucket>,
}

impl Distribution {
    /// The stored form of `histogram`.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let recorded = histogram.iter_recorded();
        let buckets =
            recorded.map(|step| bucket(histogram, step.value_iterated_to(), step.count_at_value()));
        Self { buckets: buckets.collect() }
    }

    /// The stored form of a histogram of `layout` in which each duration was recorded so many times; what is beyond the range is in
    /// the last bucket. That takes memory and time for the durations, not for the counters that the layout has.
    pub fn of_durations(durations: &[(u64, u64)], layout: &HistogramLayout) -> Self {
        let mut all = Self::default();
        if let Ok(empty) = layout.empty::<u8>() {
            let recorded = durations.iter().filter(|(_, times)| *times > 0);
            all.add(
                recorded.map(|(ns, times)| bucket(&empty, (*ns).min(layout.highest_ns), *times)),
            );
        }
        all
    }

    /// Adds more buckets of the same layout. Memory is explained by theirs, whatever the layout declares.
    pub(super) fn add(&mut self, more: impl IntoIterator<Item = Bucket>) {
        self.buckets.extend(more);
        self.buckets.sort_by_key(|bucket| bucket.from_ns);
        self.buckets.dedup_by(|next, kept| {
            let is_same = next.from_ns == kept.from_ns;
            if is_same {
                kept.count = kept.count.saturating_add(next.count);
            }
            is_same
        });
    }

    /// Whether its buckets are some of `empty`, ascending, none of them without durations.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub(super) fn check(&self, empty: &Histogram<u8>) -> Result<(), String> {
        let mut next = 0;
        for (at, stored) in self.buckets.iter().enumerate() {
            let Bucket { from_ns, to_ns, count } = *stored;
            let is_sound = (next..=empty.high()).contains(&from_ns)
                && (1..=MAX_COUNT).contains(&count)
                && *stored == bucket(empty, from_ns, count);
            if !is_sound {
                return Err(format!(
                    "bucket {at} of its histogram, [{from_ns}, {to_ns}, {count}], is not one of the \
                     layout, is empty, or does not come after the one before it"
                ));
            }
            next = to_ns + 1;
        }
        Ok(())
    }

    /// The histogram, if it is of `layout`.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn decode(&self, layout: &HistogramLayout) -> Result<Histogram<u64>, String> {
        let mut histogram = layout.empty()?;
        for bucket in &self.buckets {
            let added = histogram.record_n(bucket.from_ns, bucket.count);
            added.map_err(|error| error.to_string())?;
        }
        Ok(histogram)
    }

    /// Number of durations in the buckets; `None` if that is beyond 2^64.
    pub(super) fn count(&self) -> Option<u64> {
        self.buckets.iter().try_fold(0_u64, |sum, bucket| sum.checked_add(bucket.count))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAYOUT: HistogramLayout = HistogramLayout {
        precision_digits: 3,
        lowest_ns: 1,
        highest_ns: 60_000_000_000,
        kernel_memory_bytes: 0,
        direct: None,
    };

    fn histogram(layout: &HistogramLayout, values: &[u64]) -> Histogram<u64> {
        let mut histogram = layout.empty().expect("layout is sound");
        for &value in values {
            histogram.record(value).expect("in range");
        }
        histogram
    }

    #[test]
    fn the_largest_histogram_that_is_read_has_four_million_counters() {
        let layout = HistogramLayout { precision_digits: 5, highest_ns: MAX_HIGHEST_NS, ..LAYOUT };
        assert_eq!(layout.empty::<u8>().unwrap().distinct_values(), 31 << 17);
    }

    #[test]
    fn a_range_of_a_hostile_size_is_refused_before_it_is_allocated() {
        let stored = Distribution::of(&histogram(&LAYOUT, &[1]));
        let layout = HistogramLayout { highest_ns: u64::MAX, precision_digits: 5, ..LAYOUT };
        assert!(stored.decode(&layout).expect_err("too wide").contains("a day"));
        for (digits, lowest_ns, highest_ns) in [(0, 1, 100), (6, 1, 100), (3, 0, 100), (3, 9, 10)] {
            let layout =
                HistogramLayout { precision_digits: digits, lowest_ns, highest_ns, ..LAYOUT };
            assert!(stored.decode(&layout).is_err());
        }
    }

    #[test]
    fn buckets_that_are_not_of_the_layout_are_refused() {
        let sound = Distribution::of(&histogram(&LAYOUT, &[5, 5, 100_000]));
        let refusal = |at: usize, bucket: [u64; 3]| {
            let mut edited = sound.clone();
            edited.buckets[at] = Bucket::from(bucket);
            edited.check(&LAYOUT.empty().expect("layout is sound")).expect_err("refused")
        };
        let [from, to, count] = <[u64; 3]>::from(sound.buckets[1]);
        for (at, bucket) in [
            (1, [from + 1, to, count]),
            (1, [from, to + 1, count]),
            (1, [from, to, 0]),
            (1, [from, to, u64::MAX]),
            (1, [5, 5, 1]),
            (1, [4, 4, 1]),
            (1, [u64::MAX, u64::MAX, 1]),
            (1, [1 << 37, (1 << 37) + 1, 1]),
            (0, [from, to, count]),
        ] {
            let error = refusal(at, bucket);
            assert!(error.starts_with("bucket ") && error.contains("of its histogram"), "{error}");
        }
    }

    proptest! {
        /// Of all layouts, with durations beyond their range, and with those of one bucket apart.
        #[test]
        fn durations_are_stored_as_the_crate_stores_them(
            durations in prop::collection::vec(
                (prop_oneof![0..5_000_u64, 0..=u64::MAX], 1..1_u64 << 40), 0..50),
            digits in 1..=5_u8,
            lowest_ns in 1..3_000_u64,
        ) {
            let layout = HistogramLayout {
                precision_digits: digits, lowest_ns, highest_ns: 1 << 28, ..LAYOUT
            };
            let mut histogram = layout.empty().expect("layout is sound");
            for (ns, times) in &durations {
                histogram.saturating_record_n((*ns).min(layout.highest_ns), *times);
            }
            let stored = Distribution::of_durations(&durations, &layout);
            prop_assert_eq!(&stored, &Distribution::of(&histogram));
            prop_assert_eq!(stored.check(&layout.empty().expect("layout is sound")), Ok(()));
        }

        #[test]
        fn round_trip(values in prop::collection::vec(
            prop_oneof![0..5_000_u64, 0..=60_000_000_000_u64], 0..300),
        ) {
            let histogram = histogram(&LAYOUT, &values);
            let distribution = Distribution::of(&histogram);
            let json = serde_json::to_string(&distribution).expect("serialises");
            let back: Distribution = serde_json::from_str(&json).expect("parses");
            prop_assert_eq!(&back, &distribution);
            prop_assert!(back.decode(&LAYOUT).expect("decodes") == histogram);
        }

        #[test]
        fn hostile_buckets_never_panic(
            buckets in prop::collection::vec(any::<[u64; 3]>(), 0..8),
            digits in 1..=5_u8,
            lowest_ns in 1..3_000_u64,
        ) {
            let layout = HistogramLayout { precision_digits: digits, lowest_ns, ..LAYOUT };
            let buckets = buckets.into_iter().map(Bucket::from).collect();
            let stored = Distribution { buckets };
            if stored.check(&layout.empty().expect("layout is sound")).is_ok() {
                stored.decode(&layout).expect("decodes");
            }
        }
    }
}
