//! Where a handler's slots and histograms lie in its maps, and how they are read there.
//!
//! Programs address one value directly: the slots of all possible CPUs, then two records for each CPU that is online
//! at the start. A CPU that comes online later is counted in a pair of records that such CPUs share. It is in a second
//! map, in which programs look records up; where the kernel takes no value that large, the others are there, too.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

use profiler_common::layout::{LOOKED_UP, PHASES, RecordHead, Slot};

use super::{Precision, sys};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Bytes of a cache line, to which slots and records are aligned in a value, which begins at a page.
const LINE: usize = 64;

const _: () = assert!(size_of::<Slot>() == LINE);

/// The record of one CPU, or of those that came online later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    /// The number of its CPU; `None` if CPUs share it.
    pub(super) cpu: Option<u32>,
    pub(super) words: &'a [AtomicU64],
}

/// The layout of each handler's maps in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Highest possible CPU number, plus one.
    pub(super) possible: u32,
    /// The numbers of the CPUs that have records of their own.
    pub(super) own: Vec<u32>,
    pub(super) precision: Precision,
    /// From one record to the next.
    pub(super) record_bytes: usize,
    /// Whether programs address the records of CPUs that were online at the start, and look up none of them.
    pub(super) is_direct: bool,
}

impl Layout {
    /// For CPUs with numbers below `possible`, of which those in `own` get records of their own.
    pub(super) fn new(possible: u32, own: Vec<u32>, precision: Precision) -> Self {
        let bytes = size_of::<RecordHead>() + precision.counters() * size_of::<u32>();
        let record_bytes = bytes.next_multiple_of(LINE);
        Self { possible, own, precision, record_bytes, is_direct: true }
    }

    /// The one that this kernel takes: before 6.0 a value has 4 MiB at most (`KMALLOC_MAX_SIZE` in
    /// `array_map_alloc_check`, which the patch "bpf: remove obsolete KMALLOC_MAX_SIZE restriction on array map value size"
    /// of July 2022 has taken out).
    pub(super) fn that_fits(self) -> Self {
        // Tried only where it matters: a trial takes the memory.
        const ALWAYS: usize = 4 << 20;
        let is_direct = self.value_bytes() <= ALWAYS || sys::takes_value(self.value_bytes());
        Self { is_direct, ..self }
    }

    /// Slots of a handler.
    pub(super) fn slots(&self) -> usize {
        (self.possible as usize).next_power_of_two()
    }

    fn slots_bytes(&self) -> usize {
        self.slots() * size_of::<Slot>()
    }

    /// Records in the value. The verifier wants one even if none is used.
    fn in_value(&self) -> usize {
        PHASES as usize * if self.is_direct { self.own.len().max(1) } else { 1 }
    }

    /// Elements of the map of records.
    pub(super) fn records(&self) -> usize {
        PHASES as usize * if self.is_direct { 1 } else { self.own.len() + 1 }
    }

    /// Bytes of the value.
    pub(super) fn value_bytes(&self) -> usize {
        self.slots_bytes() + self.in_value() * self.record_bytes
    }

    /// Bytes of both maps.
    pub(super) fn bytes(&self) -> u64 {
        (self.value_bytes() + self.records() * self.record_bytes) as u64
    }

    /// The offset of the last record in the value.
    pub(super) fn last_record(&self) -> usize {
        self.slots_bytes() + (self.in_value() - 1) * self.record_bytes
    }

    /// What the slots of a handler have as their record in a phase, by CPU. The same for all handlers.
    pub(super) fn places(&self, phase: u32) -> Vec<u64> {
        let record = |pair: usize| pair * PHASES as usize + phase as usize;
        let mut places = vec![LOOKED_UP | record(0) as u64; self.slots()];
        for (at, &cpu) in self.own.iter().enumerate() {
            if let Some(place) = places.get_mut(cpu as usize) {
                *place = match self.is_direct {
                    true => (self.slots_bytes() + record(at) * self.record_bytes) as u64,
                    false => LOOKED_UP | record(at + 1) as u64,
                };
            }
        }
        places
    }

    /// Has the programs of a handler count at `places`, which are those of a phase.
    pub(super) fn set_places(value: &[AtomicU64], places: &[u64]) {
        let slots = value.chunks_exact(size_of::<Slot>() / WORD);
        for (place, slot) in places.iter().zip(slots) {
            slot[std::mem::offset_of!(Slot, record) / WORD].store(*place, Relaxed);
        }
    }

    /// The records of a phase.
    pub(super) fn records_of<'a>(
        &self,
        value: &'a [AtomicU64],
        map: &'a [AtomicU64],
        phase: u32,
    ) -> impl Iterator<Item = Record<'a>> {
        let in_value = value.get(self.slots_bytes() / WORD..).unwrap_or_default();
        let [in_value, mut in_map] = [in_value, map].map(|words| {
            let records = words.chunks_exact(self.record_bytes / WORD);
            records.skip(phase as usize).step_by(PHASES as usize)
        });
        // The first pair in the map is the shared one.
        let shared = in_map.next().map(|words| Record { cpu: None, words });
        let own = if self.is_direct { in_value } else { in_map };
        let own = own.zip(&self.own).map(|(words, &cpu)| Record { cpu: Some(cpu), words });
        shared.into_iter().chain(own)
    }

    /// Whether CPUs that came online later may have counted: `counted` says it of each CPU.
    pub(super) fn may_be_shared(&self, counted: &[bool]) -> bool {
        (0..).zip(counted).any(|(cpu, counted)| *counted && !self.own.contains(&cpu))
    }

    /// The slots of all possible CPUs, in words.
    pub(super) fn slots_of<'a>(
        &self,
        value: &'a [AtomicU64],
    ) -> impl Iterator<Item = &'a [AtomicU64]> {
        value.chunks_exact(size_of::<Slot>() / WORD).take(self.possible as usize)
    }
}

/// What a slot has in it now. The frame is read last: entry programs write it before they count the call, so that a call
/// which is counted here and has not ended has its frame here, too.
pub(super) fn slot(words: &[AtomicU64]) -> Slot {
    let [start, entries, lost, unpaired_exits, displaced, migrated, record, frame] =
        [1, 2, 3, 4, 5, 6, 7, 0].map(|at| words.get(at).map_or(0, |word| word.load(Acquire)));
    Slot { frame, start, entries, lost, unpaired_exits, displaced, migrated, record }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    fn layout(possible: u32, online: u32, precision: Precision, is_direct: bool) -> Layout {
        let all = Layout::new(possible, (0..online).collect(), precision);
        Layout { is_direct, ..all }
    }

    fn empty(bytes: usize) -> Vec<AtomicU64> {
        (0..bytes / WORD).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn slots_and_records_share_no_cache_line() {
        for precision in [Precision::Two, Precision::Three] {
            let layout = layout(240, 16, precision, true);
            assert_eq!(size_of::<Slot>() % LINE, 0);
            let of_phases = [layout.places(0), layout.places(1)];
            let mut places: Vec<u64> =
                (0..16).flat_map(|cpu| [of_phases[0][cpu], of_phases[1][cpu]]).collect();
            assert!(places.iter().all(|place| *place >= 256 * 64 && place % LINE as u64 == 0));
            assert_eq!(places.iter().max().copied(), Some(layout.last_record() as u64));
            places.dedup();
            assert_eq!(places.len(), 32);
            assert_eq!(layout.last_record() + layout.record_bytes, layout.value_bytes());
        }
        assert_eq!(offset_of!(Slot, record), 56);
    }

    #[test]
    fn memory_is_sized_by_the_cpus_that_are_online() {
        let mib = |precision| (60 * layout(240, 16, precision, true).bytes()) >> 20;
        assert_eq!((mib(Precision::Three), mib(Precision::Two)), (216, 31));
    }

    #[test]
    fn a_cpu_that_came_online_later_has_a_shared_record_that_is_read_once() {
        for is_direct in [true, false] {
            let layout = layout(8, 3, Precision::Two, is_direct);
            let (value, map) =
                (empty(layout.value_bytes()), empty(layout.records() * layout.record_bytes));
            for phase in [0, 1] {
                Layout::set_places(&value, &layout.places(phase));
                let places: Vec<u64> =
                    layout.slots_of(&value).map(|words| slot(words).record).collect();
                assert_eq!(places.len(), 8);
                for (cpu, place) in places.iter().enumerate() {
                    let is_own = cpu < 3;
                    assert_eq!(*place <= layout.last_record() as u64, is_own && is_direct);
                    assert_eq!(*place == LOOKED_UP | u64::from(phase), !is_own);
                    // As a program does.
                    let (words, at) = match place & LOOKED_UP {
                        0 => (&value, *place as usize),
                        _ => (&map, (place & !LOOKED_UP) as usize * layout.record_bytes),
                    };
                    words[at / WORD].fetch_add(1 << cpu, Relaxed);
                }
                let read: u64 = layout
                    .records_of(&value, &map, phase)
                    .map(|record| {
                        let found = record.words[0].swap(0, Relaxed);
                        let of_cpu = record.cpu.map_or(0b1111_1000, |cpu| 1 << cpu);
                        assert_eq!(found & !of_cpu, 0, "{:?} has those of {found:b}", record.cpu);
                        found
                    })
                    .sum();
                assert_eq!(read, 0xff, "each CPU's once");
            }
        }
    }
}
