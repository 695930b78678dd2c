//! Pairs the events of all CPUs: each exit with the entry of its own call.
//!
//! An entry followed by its exit on the same CPU is paired at once. All other events wait until everything
//! that the other CPUs wrote before them has been read, and are then paired in order of time, by task and
//! depth: so calls that sleep, nest, are interrupted or end on another CPU are paired, too.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::filter::CALL_SITE;
use super::page::{Event, Exit};
use super::waiting::{Timed, Waiting};
use crate::probe::{Books, Drained, Precision};
use crate::stats::Durations;

/// Idle tasks of all CPUs have number 0: each gets one of its own.
const IDLE: u64 = 1 << 31;

/// A task's number, which an idle task shares with no other.
#[inline]
pub(super) fn task_of(event: &Event, cpu: usize) -> u64 {
    if event.pid == 0 { IDLE | cpu as u64 } else { u64::from(event.pid) }
}

/// An event that waits to be paired.
#[derive(Debug, Clone, Copy)]
struct Seen {
    time: u64,
    /// Task and depth.
    key: u64,
    handler: u32,
    cpu: u32,
    /// `None` is an entry.
    exit: Option<Exit>,
}

impl Timed for Seen {
    fn time(&self) -> u64 {
        self.time
    }
}

/// A call under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    time: u64,
    handler: u32,
    cpu: u32,
}

/// One handler.
struct Tally {
    durations: Durations,
    books: Books,
    paired: u64,
}

/// Calls of all handlers.
pub(super) struct Pairing {
    /// Addresses of the handlers, ascending, with their numbers.
    addresses: Vec<(u64, u32)>,
    handlers: Vec<Tally>,
    precision: Precision,
    /// Per CPU: an entry whose exit may come next.
    slots: Vec<Option<Seen>>,
    waiting: Waiting<Seen>,
    open: HashMap<u64, Open, FixedState>,
    /// Calls and events are timed by one clock, the same on all CPUs.
    coherent: bool,
    /// Events were lost: an entry is not paired with the next exit unchecked.
    lossy: bool,
    /// Missing exits of all handlers.
    exits_missing: u64,
    /// Calls too deep to be traced, by task.
    too_deep: HashMap<u32, u64, FixedState>,
    /// Events of functions that are no handlers.
    pub(super) foreign: u64,
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
        let empty =
            || Tally { durations: precision.durations(), books: Books::default(), paired: 0 };
        Self {
            addresses: sorted,
            handlers: addresses.iter().map(|_| empty()).collect(),
            precision,
            slots: vec![None; cpus],
            waiting: Waiting::new(),
            open: HashMap::default(),
            coherent,
            lossy: false,
            exits_missing: 0,
            too_deep: HashMap::default(),
            foreign: 0,
        }
    }

    /// The number of the handler whose symbol is at or shortly before an address.
    #[inline]
    fn handler_of(&self, func: u64) -> Option<u32> {
        let next = self.addresses.partition_point(|(address, _)| *address <= func);
        let (address, handler) = *self.addresses.get(next.checked_sub(1)?)?;
        (func - address <= CALL_SITE).then_some(handler)
    }

    /// Takes an event; the caller keeps the order of each CPU's events.
    #[inline]
    pub(super) fn add(&mut self, cpu: usize, event: Event) {
        let Some(handler) = self.handler_of(event.func) else {
            self.foreign += 1;
            return;
        };
        let task = task_of(&event, cpu);
        let seen = Seen {
            time: event.time,
            key: (task << 32) | u64::from(event.depth),
            handler,
            cpu: cpu as u32,
            exit: event.exit,
        };
        self.waiting.read(seen.time);
        let slot = self.slots[cpu].take();
        let Some(exit) = seen.exit else {
            self.displace(slot);
            self.slots[cpu] = Some(seen);
            return;
        };
        if exit.too_deep != 0 {
            self.too_deep.insert(event.pid, exit.too_deep);
        }
        if let (Some(entry), Some((call, ret))) = (slot, exit.times)
            && (entry.key, entry.handler) == (seen.key, handler)
            // Otherwise the task was on another CPU in between, and this exit is of a later call.
            && (self.coherent && !self.lossy && call <= entry.time && call <= ret)
        {
            let tally = &mut self.handlers[handler as usize];
            tally.books.entries += 1;
            tally.record(ret - call);
            return;
        }
        if slot.is_some_and(|entry| (entry.key, entry.handler) == (seen.key, handler)) {
            slot.into_iter().for_each(|entry| self.waiting.push(entry));
        } else {
            self.displace(slot);
        }
        self.waiting.push(seen);
    }

    fn displace(&mut self, slot: Option<Seen>) {
        if let Some(entry) = slot {
            self.handlers[entry.handler as usize].books.displaced += 1;
            self.waiting.push(entry);
        }
    }

    /// Ends a round in which all CPUs were read, each at least to the time `read_to`, and pairs what was read in the
    /// rounds before.
    pub(super) fn end_round(&mut self, read_to: u64) {
        self.empty_slots();
        let ready = self.waiting.end_round(read_to);
        self.pair(ready);
    }

    /// Pairs all that waits: nothing more will come.
    pub(super) fn finish(&mut self) {
        self.empty_slots();
        let ready = self.waiting.finish();
        self.pair(ready);
    }

    fn empty_slots(&mut self) {
        self.slots.iter_mut().filter_map(Option::take).for_each(|entry| self.waiting.push(entry));
    }

    fn pair(&mut self, ready: Vec<Seen>) {
        for seen in ready {
            match seen.exit {
                None => self.enter(seen),
                Some(exit) => self.leave(seen, exit),
            }
        }
    }

    fn enter(&mut self, seen: Seen) {
        let Seen { time, key, handler, cpu, .. } = seen;
        self.handlers[handler as usize].books.entries += 1;
        if let Some(before) = self.open.insert(key, Open { time, handler, cpu }) {
            self.lose(before);
        }
        self.lose_deeper(key);
    }

    fn leave(&mut self, seen: Seen, exit: Exit) {
        self.lose_deeper(seen.key);
        let entry = match self.open.remove(&seen.key) {
            Some(open) if open.handler == seen.handler => Some(open),
            Some(open) => {
                self.lose(open);
                None
            }
            None => None,
        };
        let tally = &mut self.handlers[seen.handler as usize];
        let Some(entry) = entry else {
            match exit.times.and_then(|(call, ret)| ret.checked_sub(call)) {
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
        let by_events = seen.time.checked_sub(entry.time);
        let by_calls = exit.times.and_then(|(call, ret)| ret.checked_sub(call));
        // Two CPUs' own clocks may differ.
        let trusted = if migrated && !self.coherent { None } else { by_calls };
        match trusted.or(by_events).or(by_calls) {
            Some(duration) => tally.record(duration),
            None => tally.books.lost += 1,
        }
    }

    /// A call whose exit was never written.
    fn lose(&mut self, open: Open) {
        self.handlers[open.handler as usize].books.lost += 1;
        self.exits_missing += 1;
    }

    /// Calls within this one have ended, whether their exits were written or not.
    fn lose_deeper(&mut self, key: u64) {
        if !self.lossy {
            return;
        }
        let mut deeper = key.wrapping_add(1);
        while let Some(open) = self.open.remove(&deeper) {
            self.lose(open);
            deeper = deeper.wrapping_add(1);
        }
    }

    /// Events are being lost: calls of tasks that no longer exist are lost, too.
    pub(super) fn lossy(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.lossy = true;
        let gone: Vec<u64> = self
            .open
            .keys()
            .filter(|key| {
                let task = **key >> 32;
                task & IDLE == 0 && !is_alive(task as u32)
            })
            .copied()
            .collect();
        for key in gone {
            if let Some(open) = self.open.remove(&key) {
                self.lose(open);
            }
        }
    }

    /// Takes the durations paired since the last time; `events_lost` were dropped by the kernel so far.
    pub(super) fn take(&mut self, events_lost: u64) -> Vec<Drained> {
        let too_deep = self.too_deep.values().fold(0, |sum: u64, calls| sum.saturating_add(*calls));
        // A lost exit is one call and known; a lost entry keeps the kernel from writing the exit.
        let unseen = events_lost.saturating_sub(self.exits_missing).saturating_add(too_deep);
        self.handlers.iter_mut().map(|tally| tally.take(unseen, self.precision)).collect()
    }
}

impl Tally {
    #[inline]
    fn record(&mut self, duration: u64) {
        self.paired += 1;
        self.durations.record(duration);
    }

    fn take(&mut self, overrun: u64, precision: Precision) -> Drained {
        let in_flight = self.books.entries.saturating_sub(self.paired + self.books.lost);
        let durations = std::mem::replace(&mut self.durations, precision.durations());
        Drained { durations, books: Books { overrun, in_flight, ..self.books } }
    }
}
