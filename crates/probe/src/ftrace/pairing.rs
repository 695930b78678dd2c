//! Pairs the events of all CPUs: each exit with the entry of its own call.
//!
//! An entry followed by its exit on the same CPU is paired at once. All other events wait until everything
//! that the other CPUs wrote before them has been read, and are then paired in order of time, by task and
//! depth: so calls that sleep, nest, are interrupted or end on another CPU are paired, too.

use std::collections::HashMap;
use std::fs;

use foldhash::fast::FixedState;

use profiler_base::stats::Durations;

use super::filter::CALL_SITE;
use super::page::{Event, Exit};
use super::stream::{Look, Sink};
use super::waiting::{IDLE, Seen, Waiting};
use crate::{Books, Drained, Precision};

/// What was counted of one handler.
pub(super) struct Tally {
    precision: Precision,
    pub(super) durations: Durations,
    pub(super) books: Books,
    pub(super) paired: u64,
}

impl Tally {
    pub(super) fn new(precision: Precision) -> Self {
        Self { precision, durations: precision.durations(), books: Books::default(), paired: 0 }
    }

    #[inline]
    pub(super) fn record(&mut self, duration: u64) {
        self.paired += 1;
        self.durations.record(duration);
    }

    /// Takes the durations since the last time.
    pub(super) fn take(&mut self, overrun: u64) -> Drained {
        let in_flight = self.books.entries.saturating_sub(self.paired + self.books.lost);
        let durations = std::mem::replace(&mut self.durations, self.precision.durations());
        Drained { durations, books: Books { overrun, in_flight, ..self.books } }
    }
}

/// Calls of all handlers.
pub(super) struct Pairing {
    /// Addresses of the handlers, ascending, with their numbers.
    addresses: Vec<(u64, u32)>,
    handlers: Vec<Tally>,
    /// Per CPU: an entry whose exit may come next.
    slots: Vec<Option<Seen>>,
    waiting: Waiting,
    /// Entries of calls under way, by task and depth.
    open: HashMap<u64, Seen, FixedState>,
    /// Calls and events are timed by one clock, the same on all CPUs.
    coherent: bool,
    /// Events were lost: an entry is not paired with the next exit unchecked.
    lossy: bool,
    /// Missing exits of all handlers.
    exits_missing: u64,
}

impl Pairing {
    /// For handlers at these addresses. `coherent`: calls are timed by the clock of the events.
    pub(super) fn new(
        addresses: &[u64],
        cpus: usize,
        precision: Precision,
        coherent: bool,
    ) -> Self {
        let mut sorted: Vec<(u64, u32)> = addresses.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        Self {
            addresses: sorted,
            handlers: addresses.iter().map(|_| Tally::new(precision)).collect(),
            slots: vec![None; cpus],
            waiting: Waiting::default(),
            open: HashMap::default(),
            coherent,
            lossy: false,
            exits_missing: 0,
        }
    }

    /// The number of the handler whose symbol is at or shortly before an address.
    #[inline]
    fn handler_of(&self, func: u64) -> Option<u32> {
        let next = self.addresses.partition_point(|(address, _)| *address <= func);
        let (address, handler) = *self.addresses.get(next.checked_sub(1)?)?;
        (func - address <= CALL_SITE).then_some(handler)
    }

    fn tally(&mut self, seen: &Seen) -> &mut Tally {
        &mut self.handlers[seen.handler as usize]
    }

    fn displace(&mut self, slot: Option<Seen>) {
        if let Some(entry) = slot {
            self.tally(&entry).books.displaced += 1;
            self.waiting.push(entry);
        }
    }

    fn enter(&mut self, seen: Seen) {
        self.tally(&seen).books.entries += 1;
        if let Some(before) = self.open.insert(seen.key(), seen) {
            self.lose(&before);
        }
        self.lose_deeper(seen.key());
    }

    fn leave(&mut self, seen: &Seen, exit: Exit) {
        self.lose_deeper(seen.key());
        let open = self.open.remove(&seen.key());
        if let Some(other) = open.filter(|open| open.handler != seen.handler) {
            self.lose(&other);
        }
        let by_calls = exit.times.and_then(|(call, ret)| ret.checked_sub(call));
        let coherent = self.coherent;
        let tally = self.tally(seen);
        let Some(entry) = open.filter(|open| open.handler == seen.handler) else {
            match by_calls {
                // The exit event has both times: the entry is not needed.
                Some(duration) => {
                    tally.books.entries += 1;
                    tally.record(duration);
                }
                None => tally.books.unpaired_exits += 1,
            }
            return;
        };
        let migrated = entry.cpu != seen.cpu;
        tally.books.migrated += u64::from(migrated);
        let by_events = seen.event.time.checked_sub(entry.event.time);
        // Two CPUs' own clocks may differ.
        let trusted = by_calls.filter(|_| coherent || !migrated);
        match trusted.or(by_events).or(by_calls) {
            Some(duration) => tally.record(duration),
            None => tally.books.lost += 1,
        }
    }

    /// A call whose exit was never written.
    fn lose(&mut self, open: &Seen) {
        self.tally(open).books.lost += 1;
        self.exits_missing += 1;
    }

    /// Calls within this one have ended, whether their exits were written or not.
    fn lose_deeper(&mut self, key: u64) {
        if !self.lossy {
            return;
        }
        let mut deeper = key.wrapping_add(1);
        while let Some(open) = self.open.remove(&deeper) {
            self.lose(&open);
            deeper = deeper.wrapping_add(1);
        }
    }

    /// Events are being lost: calls of tasks that no longer exist are lost, too.
    pub(super) fn lossy(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.lossy = true;
        let gone =
            self.open.extract_if(|_, open| open.task() & IDLE == 0 && !is_alive(open.event.pid));
        let gone: Vec<Seen> = gone.map(|(_, open)| open).collect();
        gone.iter().for_each(|open| self.lose(open));
    }
}

impl Sink for Pairing {
    fn add(&mut self, cpu: usize, event: Event) {
        let Some(handler) = self.handler_of(event.func) else { return };
        let seen = Seen { event, cpu: cpu as u32, handler };
        self.waiting.read(&seen);
        let slot = self.slots[cpu].take();
        let Some(exit) = event.exit else {
            self.displace(slot);
            self.slots[cpu] = Some(seen);
            return;
        };
        let Some(entry) = slot.filter(|it| (it.key(), it.handler) == (seen.key(), handler)) else {
            self.displace(slot);
            self.waiting.push(seen);
            return;
        };
        match exit.times {
            // Otherwise the task was on another CPU in between, and this exit is of a later call.
            Some((call, ret))
                if self.coherent && !self.lossy && call <= entry.event.time && call <= ret =>
            {
                let tally = self.tally(&seen);
                tally.books.entries += 1;
                tally.record(ret - call);
            }
            _ => {
                self.waiting.push(entry);
                self.waiting.push(seen);
            }
        }
    }

    fn end_round(&mut self, read_to: Option<u64>) {
        self.slots.iter_mut().filter_map(Option::take).for_each(|entry| self.waiting.push(entry));
        for seen in self.waiting.end_round(read_to) {
            match seen.event.exit {
                None => self.enter(seen),
                Some(exit) => self.leave(&seen, exit),
            }
        }
    }

    fn look(&mut self, look: Look) {
        if look.lost > 0 {
            self.lossy(|task| fs::exists(format!("/proc/{task}")).unwrap_or(true));
        }
    }

    fn take(&mut self, events_lost: u64) -> Vec<Drained> {
        // A lost exit is one call and known; a lost entry keeps the kernel from writing the exit.
        let unseen = events_lost.saturating_sub(self.exits_missing);
        let unseen = unseen.saturating_add(self.waiting.too_deep());
        self.handlers.iter_mut().map(|tally| tally.take(unseen)).collect()
    }
}
