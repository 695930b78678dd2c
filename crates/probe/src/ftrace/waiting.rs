//! Events in the order in which all CPUs wrote them.
//!
//! An event waits until everything that the other CPUs wrote before it has been read.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::page::Event;

/// Idle tasks of all CPUs have number 0: each gets one of its own.
pub(super) const IDLE: u64 = 1 << 31;

/// An event, and where it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) event: Event,
    pub(super) cpu: u32,
    /// Index of the handler that was called; 0 in a call tree, which has one.
    pub(super) handler: u32,
}

impl Seen {
    /// The task's number, which an idle task shares with no other.
    #[inline]
    pub(super) fn task(&self) -> u64 {
        match self.event.pid {
            0 => IDLE | u64::from(self.cpu),
            pid => u64::from(pid),
        }
    }

    /// Task and depth: the same for entry and exit of a call, and for no other call under way.
    #[inline]
    pub(super) fn key(&self) -> u64 {
        (self.task() << 32) | u64::from(self.event.depth)
    }
}

/// Events that wait for those of other CPUs.
#[derive(Default)]
pub(super) struct Waiting {
    events: Vec<Seen>,
    /// Latest event that was read before this round.
    read_before: u64,
    /// Latest event that was read.
    read_until: u64,
    /// Calls too deep to be traced, by task.
    too_deep: HashMap<u64, u64, FixedState>,
}

impl Waiting {
    /// Notes an event that was read, whether it has to wait or not.
    #[inline]
    pub(super) fn read(&mut self, seen: &Seen) {
        self.read_until = self.read_until.max(seen.event.time);
        if let Some(exit) = seen.event.exit
            && exit.too_deep != 0
        {
            // CPUs are read one after the other, and a task may have been on several.
            let calls = self.too_deep.entry(seen.task()).or_default();
            *calls = (*calls).max(exit.too_deep);
        }
    }

    /// Adds an event that was read; the caller keeps the order of each CPU's events.
    #[inline]
    pub(super) fn push(&mut self, seen: Seen) {
        self.events.push(seen);
    }

    /// Ends a round in which all CPUs were read, each at least to the time `read_to`: what was read in the rounds
    /// before, in order, because whatever happened before that has been read by now. All of it if nothing more will come.
    pub(super) fn end_round(&mut self, read_to: Option<u64>) -> Vec<Seen> {
        let until = read_to.map_or(u64::MAX, |read_to| self.read_before.min(read_to));
        self.read_before = self.read_until;
        // Of events with one time, those of a CPU stay in order.
        self.events.sort_by_key(|seen| seen.event.time);
        let later = self.events.partition_point(|seen| seen.event.time <= until);
        let later = self.events.split_off(later);
        std::mem::replace(&mut self.events, later)
    }

    /// Calls of all tasks that were too deep to be traced.
    pub(super) fn too_deep(&self) -> u64 {
        self.too_deep.values().fold(0, |sum, calls| sum.saturating_add(*calls))
    }
}
