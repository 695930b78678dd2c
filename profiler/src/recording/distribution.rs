//! A histogram as it is stored: the interchange form that other tools read, and sparse buckets
//! that people and this program read. Each holds everything; on reading they must agree.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
use profiler_common::bucket::{HIGHEST_NS, LOWEST_NS};
use serde::{Deserialize, Serialize};

use crate::bytes::array;
pub use crate::stats::Bucket;

/// Cookie of the uncompressed V2 form, with the bits that say its words are LEB128.
const V2_COOKIE: u32 = 0x1c84_9303 | 0x10;
/// Cookie of the compressed V2 form.
const V2_DEFLATE_COOKIE: u32 = 0x1c84_9304 | 0x10;
/// Cookie and length of the compressed form.
const DEFLATE_HEADER_BYTES: usize = 8;
/// Cookie, length, offset, digits, lowest, highest and ratio of the uncompressed form.
const V2_HEADER_BYTES: usize = 40;
/// Longest varint of the V2 form.
const MAX_VARINT_BYTES: u64 = 9;
/// Largest histogram that is read, in counters (32 MiB of memory for one). Three digits over a
/// minute take 28,672; five digits over an hour take 3.5 million.
const MAX_COUNTERS: u64 = 4 << 20;
/// Widest range that is read, in nanoseconds (a day).
const MAX_HIGHEST_NS: u64 = 86_400_000_000_000;

/// Range and precision of every histogram of a recording: HdrHistogram's log-linear layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistogramLayout {
    /// Significant decimal digits that are kept of a duration (1 to 5).
    #[cfg_attr(test, schemars(range(min = 1, max = 5)))]
    pub precision_digits: u8,
    /// Shortest duration told apart from zero.
    #[cfg_attr(test, schemars(range(min = 1)))]
    #[serde(alias = "lowest_instructions")]
    pub lowest_ns: u64,
    /// Longest duration that is kept to that precision; longer ones are in the last bucket.
    #[cfg_attr(test, schemars(range(min = 2)))]
    #[serde(alias = "highest_instructions")]
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
    pub(crate) fn of_digits(precision_digits: u8) -> Self {
        Self {
            precision_digits,
            lowest_ns: LOWEST_NS,
            highest_ns: HIGHEST_NS,
            kernel_memory_bytes: 0,
            direct: None,
        }
    }

    /// Whether histograms of this layout exist and are small enough to be read.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(1..=5).contains(&self.precision_digits) {
            return Err(format!("precision_digits is {}, not 1 to 5", self.precision_digits));
        }
        if self.lowest_ns == 0 {
            return Err("lowest_ns is 0".to_owned());
        }
        if self.highest_ns / 2 < self.lowest_ns {
            return Err(format!(
                "highest_ns ({}) is less than twice lowest_ns ({})",
                self.highest_ns, self.lowest_ns
            ));
        }
        if self.highest_ns > MAX_HIGHEST_NS {
            return Err(format!("highest_ns ({}) is more than a day", self.highest_ns));
        }
        let counters = self.counters();
        if counters > MAX_COUNTERS {
            return Err(format!(
                "its histograms have {counters} buckets each, and {MAX_COUNTERS} is the most that is read"
            ));
        }
        Ok(())
    }

    /// Counters of the first power of two, each of which is half as fine as the one before. For layouts with 1 to 5 digits.
    fn sub_buckets(&self) -> u64 {
        (2 * 10_u64.pow(u32::from(self.precision_digits))).next_power_of_two()
    }

    /// Number of counters of one histogram.
    pub(super) fn counters(&self) -> u64 {
        let mut untrackable = self.sub_buckets() << self.lowest_ns.ilog2().min(40);
        let mut halves = 2_u64;
        while untrackable <= self.highest_ns {
            halves += 1;
            match untrackable.checked_mul(2) {
                Some(doubled) => untrackable = doubled,
                None => break,
            }
        }
        halves * (self.sub_buckets() / 2)
    }

    /// The bucket of the counter `index`, with `count` durations.
    fn bucket(&self, index: u64, count: u64) -> Bucket {
        let half = self.sub_buckets() / 2;
        let doublings = (index / half).saturating_sub(1);
        let shift = doublings + u64::from(self.lowest_ns.ilog2());
        let from_ns = (index - doublings * half) << shift;
        Bucket { from_ns, to_ns: from_ns + ((1 << shift) - 1), count }
    }

    /// The counter that durations of `ns` are counted by.
    fn index(&self, ns: u64) -> u64 {
        let (sub_buckets, lowest) = (self.sub_buckets(), self.lowest_ns.ilog2());
        let bits = (ns | ((sub_buckets << lowest) - 1)).ilog2() + 1;
        let doublings = bits - sub_buckets.ilog2() - lowest;
        u64::from(doublings) * (sub_buckets / 2) + (ns >> (doublings + lowest))
    }

    /// An empty histogram of this layout.
    pub(crate) fn empty(&self) -> Result<Histogram<u64>, String> {
        Histogram::new_with_bounds(self.lowest_ns, self.highest_ns, self.precision_digits)
            .map_err(|error| error.to_string())
    }
}

/// A stored histogram.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Distribution {
    /// HdrHistogram's V2 encoding, deflated, in base64: any HdrHistogram implementation reads it.
    #[cfg_attr(test, schemars(extend("contentEncoding" = "base64")))]
    pub v2_deflate_base64: String,
    /// The buckets that are not empty, ascending: `[from_ns, to_ns, count]`.
    pub buckets: Vec<Bucket>,
}

/// A histogram that its format cannot hold.
#[derive(Debug, thiserror::Error)]
#[error("cannot encode a histogram: {0}")]
pub struct EncodeError(pub(crate) String);

impl Distribution {
    /// The stored form of `histogram`.
    ///
    /// # Errors
    /// If a bucket's count is beyond the format (2^63).
    pub fn encode(histogram: &Histogram<u64>) -> Result<Self, EncodeError> {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(histogram, &mut bytes)
            .map_err(|error| EncodeError(error.to_string()))?;
        Ok(Self { v2_deflate_base64: STANDARD.encode(bytes), buckets: buckets_of(histogram) })
    }

    /// The stored form of a histogram of `layout` in which each duration was recorded so many times; what is beyond the range is in
    /// the last bucket. That takes memory and time for the durations, not for the counters that the layout has.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub(crate) fn of_durations(
        durations: &[(u64, u64)],
        layout: &HistogramLayout,
    ) -> Result<Self, EncodeError> {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for (ns, times) in durations.iter().filter(|(_, times)| *times > 0) {
            let count = counts.entry(layout.index((*ns).min(layout.highest_ns))).or_default();
            *count = count.saturating_add(*times);
        }
        let (mut words, mut next) = (Vec::new(), 0);
        for (&index, &count) in &counts {
            match index - next {
                0 => {}
                // One empty bucket is its count.
                1 => put_zig_zag_leb128(0, &mut words),
                empty => put_zig_zag_leb128(-empty.cast_signed(), &mut words),
            }
            let word = i64::try_from(count).map_err(|error| EncodeError(error.to_string()))?;
            put_zig_zag_leb128(word, &mut words);
            next = index + 1;
        }
        if words.is_empty() {
            put_zig_zag_leb128(0, &mut words);
        }
        let packed = deflated(&words, layout).map_err(|error| EncodeError(error.to_string()))?;
        let buckets = counts.into_iter().map(|(index, count)| layout.bucket(index, count));
        Ok(Self { v2_deflate_base64: STANDARD.encode(packed), buckets: buckets.collect() })
    }

    /// Checks that both forms are of `layout` and agree with each other. That takes memory and time for what is stored, not
    /// for the counters that the layout has.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub(super) fn check(&self, layout: &HistogramLayout) -> Result<(), String> {
        layout.check()?;
        let stored = buckets_of_v2(&self.inflate(layout)?, layout)?;
        let Some(at) = first_difference(&stored, &self.buckets) else { return Ok(()) };
        let show = |bucket: Option<&Bucket>| match bucket {
            Some(bucket) => {
                format!("{} calls of {} to {} ns", bucket.count, bucket.from_ns, bucket.to_ns)
            }
            None => "none".to_owned(),
        };
        Err(format!(
            "buckets and v2_deflate_base64 disagree: at place {at} the first has {}, the second {}",
            show(self.buckets.get(at)),
            show(stored.get(at)),
        ))
    }

    /// The histogram, after checking that both forms are of `layout` and agree with each other.
    /// Memory is bounded by the layout, whatever the encoded form claims to hold.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn decode(&self, layout: &HistogramLayout) -> Result<Histogram<u64>, String> {
        self.check(layout)?;
        let mut histogram = layout.empty()?;
        self.add_to(&mut histogram)?;
        Ok(histogram)
    }

    /// Adds its durations to `sum`, of the same layout.
    ///
    /// # Errors
    /// If one is beyond its range.
    pub(super) fn add_to(&self, sum: &mut Histogram<u64>) -> Result<(), String> {
        let mut buckets = self.buckets.iter();
        let added = buckets.try_for_each(|bucket| sum.record_n(bucket.from_ns, bucket.count));
        added.map_err(|error| error.to_string())
    }

    /// Number of durations in the buckets; `None` if that is beyond 2^64.
    pub(super) fn count(&self) -> Option<u64> {
        self.buckets.iter().try_fold(0_u64, |sum, bucket| sum.checked_add(bucket.count))
    }

    /// Decodes base64 and inflates to no more than a histogram of `layout` can take.
    fn inflate(&self, layout: &HistogramLayout) -> Result<Vec<u8>, String> {
        let packed = STANDARD
            .decode(&self.v2_deflate_base64)
            .map_err(|error| format!("v2_deflate_base64 is not base64: {error}"))?;
        let (header, body) = packed
            .split_at_checked(DEFLATE_HEADER_BYTES)
            .ok_or("v2_deflate_base64 is too short for a histogram")?;
        if be_u32(header, 0) != Some(V2_DEFLATE_COOKIE) {
            return Err("v2_deflate_base64 is not a deflated V2 histogram".to_owned());
        }
        if be_u32(header, 4).map(|length| length as usize) != Some(body.len()) {
            return Err("v2_deflate_base64 is shorter or longer than it says".to_owned());
        }
        let limit = V2_HEADER_BYTES as u64 + layout.counters() * MAX_VARINT_BYTES;
        let mut plain = Vec::new();
        ZlibDecoder::new(body)
            .take(limit + 1)
            .read_to_end(&mut plain)
            .map_err(|error| format!("v2_deflate_base64 does not inflate: {error}"))?;
        if plain.len() as u64 > limit {
            return Err("v2_deflate_base64 inflates to more than its layout can hold".to_owned());
        }
        Ok(plain)
    }
}

/// The buckets of an uncompressed V2 histogram that have calls, ascending.
fn buckets_of_v2(plain: &[u8], layout: &HistogramLayout) -> Result<Vec<Bucket>, String> {
    let (header, counts) = plain
        .split_at_checked(V2_HEADER_BYTES)
        .ok_or("v2_deflate_base64 is too short for a histogram")?;
    if be_u32(header, 0) != Some(V2_COOKIE) {
        return Err("v2_deflate_base64 is not a V2 histogram".to_owned());
    }
    if be_u32(header, 4).map(|length| length as usize) != Some(counts.len()) {
        return Err("v2_deflate_base64 holds fewer or more counts than it says".to_owned());
    }
    let found = (be_u32(header, 12), be_u64(header, 16), be_u64(header, 24));
    let declared =
        (Some(layout.precision_digits.into()), Some(layout.lowest_ns), Some(layout.highest_ns));
    if found != declared {
        return Err("v2_deflate_base64 has another range or precision than the recording declares"
            .to_owned());
    }
    let (mut index, mut buckets) = (0_u64, Vec::new());
    let mut rest = counts;
    while !rest.is_empty() {
        let (word, after) =
            zig_zag_leb128(rest).ok_or("v2_deflate_base64 ends in the middle of a count")?;
        rest = after;
        // A negative word is a run of so many empty buckets.
        let after = index.saturating_add(if word < 0 { word.unsigned_abs() } else { 1 });
        if after > layout.counters() {
            return Err("v2_deflate_base64 has more counts than its range has buckets".to_owned());
        }
        if word > 0 {
            buckets.push(layout.bucket(index, word.unsigned_abs()));
        }
        index = after;
    }
    Ok(buckets)
}

/// One word of the V2 form: LEB128 of at most nine bytes, the ninth taken whole, zig-zag signed.
fn zig_zag_leb128(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let mut value = 0_u64;
    for (at, &byte) in bytes.iter().enumerate().take(MAX_VARINT_BYTES as usize) {
        let last = at + 1 == MAX_VARINT_BYTES as usize;
        let low = if last { byte } else { byte & 0x7f };
        value |= u64::from(low) << (7 * at);
        if last || byte & 0x80 == 0 {
            let signed = ((value >> 1) as i64) ^ -((value & 1) as i64);
            return Some((signed, bytes.get(at + 1..)?));
        }
    }
    None
}

/// Adds such a word.
fn put_zig_zag_leb128(word: i64, to: &mut Vec<u8>) {
    let mut value = ((word << 1) ^ (word >> 63)).cast_unsigned();
    for _ in 1..MAX_VARINT_BYTES {
        if value < 0x80 {
            break;
        }
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// The deflated V2 form with these words.
fn deflated(words: &[u8], layout: &HistogramLayout) -> io::Result<Vec<u8>> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
    let mut plain = V2_COOKIE.to_be_bytes().to_vec();
    plain.extend(length(words)?.to_be_bytes());
    // Normalizing offset, and the ratio of values to integers at the end.
    plain.extend(0_u32.to_be_bytes());
    plain.extend(u32::from(layout.precision_digits).to_be_bytes());
    plain.extend(layout.lowest_ns.to_be_bytes());
    plain.extend(layout.highest_ns.to_be_bytes());
    plain.extend(1.0_f64.to_be_bytes());
    plain.extend(words);
    let mut body = ZlibEncoder::new(Vec::new(), Compression::default());
    body.write_all(&plain)?;
    let body = body.finish()?;
    let mut packed = V2_DEFLATE_COOKIE.to_be_bytes().to_vec();
    packed.extend(length(&body)?.to_be_bytes());
    packed.extend(body);
    Ok(packed)
}

fn be_u32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

fn be_u64(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

/// The buckets with calls in them, ascending.
fn buckets_of(histogram: &Histogram<u64>) -> Vec<Bucket> {
    histogram
        .iter_recorded()
        .map(|step| Bucket {
            from_ns: histogram.lowest_equivalent(step.value_iterated_to()),
            to_ns: histogram.highest_equivalent(step.value_iterated_to()),
            count: step.count_at_value(),
        })
        .collect()
}

fn first_difference(a: &[Bucket], b: &[Bucket]) -> Option<usize> {
    let common = a.iter().zip(b).position(|(a, b)| a != b);
    common.or((a.len() != b.len()).then(|| a.len().min(b.len())))
}

impl HistogramLayout {
    /// Bounds of the bucket that durations beyond the range are put into.
    pub(super) fn last_bucket_holds(&self, bucket: &Bucket) -> bool {
        bucket.from_ns <= self.highest_ns && self.highest_ns <= bucket.to_ns
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

    fn stored(values: &[u64]) -> Distribution {
        let mut histogram = LAYOUT.empty().expect("layout is sound");
        for &value in values {
            histogram.record(value).expect("in range");
        }
        Distribution::encode(&histogram).expect("encodes")
    }

    fn packed(plain: &[u8]) -> String {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).expect("deflates");
        let body = encoder.finish().expect("deflates");
        let mut bytes = V2_DEFLATE_COOKIE.to_be_bytes().to_vec();
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend(body);
        STANDARD.encode(bytes)
    }

    fn v2(digits: u32, highest: u64, counts: &[u8]) -> Vec<u8> {
        let mut bytes = V2_COOKIE.to_be_bytes().to_vec();
        bytes.extend((counts.len() as u32).to_be_bytes());
        bytes.extend(0_u32.to_be_bytes());
        bytes.extend(digits.to_be_bytes());
        bytes.extend(1_u64.to_be_bytes());
        bytes.extend(highest.to_be_bytes());
        bytes.extend(1.0_f64.to_be_bytes());
        bytes.extend(counts);
        bytes
    }

    fn refusal(plain: &[u8]) -> String {
        Distribution { v2_deflate_base64: packed(plain), buckets: vec![] }
            .decode(&LAYOUT)
            .expect_err("hostile histogram is refused")
    }

    #[test]
    fn the_number_of_counters_is_the_crates() {
        for digits in 1..=5 {
            for lowest_ns in [1, 2, 3, 1000] {
                for highest_ns in [2000, 2047, 2048, 4_294_967_296, 60_000_000_000] {
                    let layout = HistogramLayout {
                        precision_digits: digits,
                        lowest_ns,
                        highest_ns,
                        ..LAYOUT
                    };
                    let histogram = layout.empty().expect("layout is sound");
                    assert_eq!(layout.counters(), histogram.distinct_values() as u64, "{layout:?}");
                }
            }
        }
    }

    #[test]
    fn the_buckets_are_the_crates() {
        for (digits, lowest_ns, highest_ns) in
            [(1, 1, 100_000), (2, 3, 9_000_000), (3, 1000, 1 << 40)]
        {
            let layout =
                HistogramLayout { precision_digits: digits, lowest_ns, highest_ns, ..LAYOUT };
            let mut histogram = layout.empty().expect("layout is sound");
            for index in 0..layout.counters() {
                histogram.record(layout.bucket(index, 1).from_ns).expect("in range");
            }
            let own: Vec<Bucket> = (0..layout.counters()).map(|at| layout.bucket(at, 1)).collect();
            assert_eq!(buckets_of(&histogram), own, "{layout:?}");
        }
    }

    #[test]
    fn a_range_of_a_hostile_size_is_refused_before_it_is_allocated() {
        assert!(refusal(&v2(5, u64::MAX, &[])).contains("another range"));
        let layout = HistogramLayout { highest_ns: u64::MAX, precision_digits: 5, ..LAYOUT };
        assert!(stored(&[1]).decode(&layout).expect_err("too wide").contains("a day"));
        for (digits, lowest_ns, highest_ns) in [(0, 1, 100), (6, 1, 100), (3, 0, 100), (3, 9, 10)] {
            let layout =
                HistogramLayout { precision_digits: digits, lowest_ns, highest_ns, ..LAYOUT };
            assert!(stored(&[1]).decode(&layout).is_err());
        }
    }

    #[test]
    fn a_bomb_is_refused() {
        let bomb = vec![0_u8; 64 << 20];
        let text = packed(&bomb);
        assert!(text.len() < 128 << 10);
        assert!(refusal(&bomb).contains("more than its layout"));
    }

    #[test]
    fn hostile_counts_are_refused() {
        let highest = LAYOUT.highest_ns;
        // i64::MIN as a run of zeros.
        assert!(refusal(&v2(3, highest, &[0xff; 9])).contains("more counts"));
        // Two runs whose sum wraps around.
        assert!(refusal(&v2(3, highest, &[0xfd; 18])).contains("more counts"));
        assert!(refusal(&v2(3, highest, &[0x80])).contains("middle"));
        assert!(refusal(&v2(3, highest, &[2; 60_000])).contains("more counts"));
        let mut short = v2(3, highest, &[2, 2]);
        short.pop();
        assert!(refusal(&short).contains("fewer or more"));
    }

    #[test]
    fn two_forms_that_disagree_are_refused() {
        let mut distribution = stored(&[5, 5, 100_000]);
        distribution.buckets[1].count += 1;
        let error = distribution.decode(&LAYOUT).expect_err("refused");
        assert_eq!(
            error,
            "buckets and v2_deflate_base64 disagree: at place 1 the first has 2 calls of 99968 to \
             100031 ns, the second 1 calls of 99968 to 100031 ns"
        );
        distribution.buckets.clear();
        assert!(distribution.decode(&LAYOUT).is_err());
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
            let stored = Distribution::of_durations(&durations, &layout).expect("encodes");
            prop_assert_eq!(stored, Distribution::encode(&histogram).expect("encodes"));
        }

        #[test]
        fn round_trip(values in prop::collection::vec(
            prop_oneof![0..5_000_u64, 0..=60_000_000_000_u64], 0..300),
        ) {
            let mut histogram = LAYOUT.empty().expect("layout is sound");
            for value in values {
                histogram.record(value).expect("in range");
            }
            let distribution = Distribution::encode(&histogram).expect("encodes");
            let json = serde_json::to_string(&distribution).expect("serialises");
            let back: Distribution = serde_json::from_str(&json).expect("parses");
            prop_assert_eq!(&back, &distribution);
            let decoded = back.decode(&LAYOUT).expect("decodes");
            prop_assert_eq!(decoded.len(), histogram.len());
            prop_assert_eq!(buckets_of(&decoded), buckets_of(&histogram));
            prop_assert!(decoded == histogram);
        }

        #[test]
        fn hostile_words_never_panic(counts in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = packed(&v2(3, LAYOUT.highest_ns, &counts));
            let _ = Distribution { v2_deflate_base64: text, buckets: vec![] }.decode(&LAYOUT);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = STANDARD.encode(bytes);
            let _ = Distribution { v2_deflate_base64: text, buckets: vec![] }.decode(&LAYOUT);
        }
    }
}
