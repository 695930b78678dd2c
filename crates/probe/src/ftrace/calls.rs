//! The calls within a handler, as one tree with durations.
//!
//! The events of each task are put in order, and a call is below the one that its task is in: so tasks that change on a
//! CPU while one sleeps are told apart. The part of a call's duration that is in none of its callees is its own, so the
//! own parts of all calls add up to the handler's durations, to the nanosecond.
//!
//! **A duration** is the time between the two events, and not the tracer's own: an interrupt may fall between these two
//! readings of the clock, and what it calls would then lie below a function within whose time it is not.
//!
//! **Whole calls alone are counted.** The kernel does not trace the callee whose entry it drops, but does trace what that
//! one calls in turn, so a tree cannot show that something is missing. A call of the handler is left out if an exit is
//! missing in it, or if it ran between two looks at the kernel's counters of which the second found dropped events.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use profiler_base::error::Failure;
use profiler_kernel::target::KernelFiles;
use profiler_recording::call_tree::{CallTree, TreeFunction, TreeNode};

use super::filter::CALL_SITE;
use super::page::Event;
use super::pairing::Tally;
use super::stream::{Look, Sink};
use super::waiting::{Seen, Waiting};
use crate::{Drained, Precision, Traced};

/// Most calls that are kept at a time, within all of the handler's that are not counted yet: 128 MiB of them. One of the handler's that
/// makes more is cut, and lost.
const MOST_PARTS: usize = 1 << 22;

/// A function that was called within the handler, or the handler.
#[derive(Debug, Clone, Copy)]
struct Part {
    func: u64,
    /// Index of its caller; the handler's own.
    caller: usize,
    /// When it was entered, and how long it took.
    entered: u64,
    took: u64,
}

/// A call of the handler.
#[derive(Debug)]
struct Call {
    depth: u32,
    entered: u64,
    left: u64,
    /// Callers come before their callees. Empty where the call is cut.
    parts: Vec<Part>,
    /// Those under way, with their depths.
    stack: Vec<(u32, usize)>,
}

impl Call {
    fn is_cut(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether the callee can be below those that are under way. Its depth may be that of the last one: from 4.20 the
    /// tracer takes a call off the task's stack before it writes the exit event, and an interrupt may fall between.
    fn enter(&mut self, event: &Event) -> bool {
        let last = self.stack.last().filter(|(depth, _)| *depth <= event.depth);
        let Some(&(_, caller)) = last else { return false };
        self.push(event, caller);
        true
    }

    fn push(&mut self, event: &Event, caller: usize) {
        self.stack.push((event.depth, self.parts.len()));
        self.parts.push(Part { func: event.func, caller, entered: event.time, took: 0 });
    }

    /// Whether it is the last of those under way that has ended.
    fn leave(&mut self, event: &Event) -> bool {
        let Some((depth, at)) = self.stack.pop() else { return false };
        let part = &mut self.parts[at];
        // Events come in order.
        part.took = event.time.saturating_sub(part.entered);
        (depth, part.func) == (event.depth, event.func)
    }

    /// How long each part took itself. A part lies within its caller, and after those that this one called before.
    fn own(&self) -> Vec<u64> {
        let mut own: Vec<u64> = self.parts.iter().map(|part| part.took).collect();
        for part in self.parts.iter().skip(1) {
            own[part.caller] = own[part.caller].saturating_sub(part.took);
        }
        own
    }
}

/// A function under its caller, in all calls.
#[derive(Debug)]
struct Node {
    caller: Option<u32>,
    func: u64,
    calls: u64,
    own: u64,
}

/// The calls of one handler, and all calls within them.
pub(super) struct Calls {
    /// Address of the handler.
    handler: u64,
    waiting: Waiting,
    /// By task.
    open: HashMap<u64, Call, FixedState>,
    /// Calls that have ended, until it is known whether events were dropped meanwhile.
    ended: Vec<Call>,
    /// Calls that are kept within these, or more: those of calls that went since the round began are still in it.
    held: usize,
    /// When events were dropped.
    gaps: Vec<(u64, u64)>,
    last: Look,
    nodes: Vec<Node>,
    below: HashMap<(Option<u32>, u64), u32, FixedState>,
    tally: Tally,
}

impl Calls {
    /// For the handler at this address.
    pub(super) fn new(handler: u64, precision: Precision) -> Self {
        Self {
            handler,
            waiting: Waiting::default(),
            open: HashMap::default(),
            ended: Vec::new(),
            held: 0,
            gaps: Vec::new(),
            last: Look { lost: 0, from: 0, to: 0 },
            nodes: Vec::new(),
            below: HashMap::default(),
            tally: Tally::new(precision),
        }
    }

    fn is_handler(&self, func: u64) -> bool {
        func.checked_sub(self.handler).is_some_and(|after| after <= CALL_SITE)
    }

    fn enter(&mut self, task: u64, event: &Event) {
        let is_handler = self.is_handler(event.func);
        if let Some(call) = self.open.get_mut(&task)
            && (call.depth < event.depth || call.depth == event.depth && !is_handler)
        {
            if call.is_cut() {
                return;
            }
            if self.held < MOST_PARTS && call.enter(event) {
                self.held += 1;
            } else {
                self.held = self.held.saturating_sub(call.parts.len());
                call.parts = Vec::new();
            }
            return;
        }
        // The end of the one before was not written.
        if self.open.remove(&task).is_some() {
            self.tally.books.lost += 1;
        }
        if is_handler {
            let (depth, entered) = (event.depth, event.time);
            let mut call = Call { depth, entered, left: 0, parts: Vec::new(), stack: Vec::new() };
            call.push(event, 0);
            self.tally.books.entries += 1;
            self.open.insert(task, call);
        }
    }

    fn leave(&mut self, task: u64, event: &Event) {
        let is_handler = self.is_handler(event.func);
        let Some(call) = self.open.get_mut(&task).filter(|call| call.depth <= event.depth) else {
            self.tally.books.unpaired_exits += u64::from(is_handler);
            return;
        };
        if !call.is_cut() && !call.leave(event) {
            call.parts = Vec::new();
        }
        if is_handler
            && call.depth == event.depth
            && let Some(mut call) = self.open.remove(&task)
        {
            call.left = event.time;
            self.ended.push(call);
        }
    }

    fn count(&mut self, call: &Call) {
        self.tally.record(call.parts[0].took);
        let mut nodes: Vec<u32> = Vec::with_capacity(call.parts.len());
        for (part, own) in call.parts.iter().zip(call.own()) {
            // The handler is its own caller, and has no node yet.
            let caller = nodes.get(part.caller).copied();
            let func = part.func;
            let node = *self.below.entry((caller, func)).or_insert_with(|| {
                self.nodes.push(Node { caller, func, calls: 0, own: 0 });
                self.nodes.len() as u32 - 1
            });
            nodes.push(node);
            let node = &mut self.nodes[node as usize];
            node.calls += 1;
            node.own = node.own.saturating_add(own);
        }
    }

    /// The tree of the calls that were counted.
    ///
    /// # Errors
    /// When the kernel's symbols cannot be read.
    pub(super) fn traced(&self, files: &KernelFiles) -> Result<Traced, Failure> {
        let called: Vec<u64> = self.nodes.iter().map(|node| node.func).collect();
        let names = files.names_of(&called, CALL_SITE)?;
        let mut tree = CallTree::default();
        let mut known: HashMap<TreeFunction, u32> = HashMap::new();
        for (node, name) in self.nodes.iter().zip(names) {
            let (name, module) = name.unwrap_or_else(|| (format!("{:#x}", node.func), None));
            let function = TreeFunction { name, module };
            let function = *known.entry(function.clone()).or_insert_with(|| {
                tree.functions.push(function);
                tree.functions.len() as u32 - 1
            });
            tree.nodes.push(TreeNode {
                parent: node.caller,
                function,
                calls: node.calls,
                own: node.own,
                iterations: 0,
                lines: Vec::new(),
            });
        }
        Ok(Traced { tree, too_deep: self.waiting.too_deep() })
    }
}

impl Sink for Calls {
    fn add(&mut self, cpu: usize, event: Event) {
        let seen = Seen { event, cpu: cpu as u32, handler: 0 };
        self.waiting.read(&seen);
        self.waiting.push(seen);
    }

    fn end_round(&mut self, read_to: Option<u64>) {
        self.held = self.open.values().chain(&self.ended).map(|call| call.parts.len()).sum();
        for seen in self.waiting.end_round(read_to) {
            match seen.event.exit {
                None => self.enter(seen.task(), &seen.event),
                Some(_) => self.leave(seen.task(), &seen.event),
            }
        }
    }

    /// Counts the calls of which it is known now that they are whole.
    fn look(&mut self, look: Look) {
        if look.lost > self.last.lost {
            // The clock of counters is in microseconds.
            self.gaps.push((self.last.from, look.to.saturating_add(1000)));
        }
        self.last = look;
        for call in std::mem::take(&mut self.ended) {
            if call.left > look.from {
                self.ended.push(call);
            } else if call.is_cut()
                || self.gaps.iter().any(|&(from, to)| call.entered <= to && call.left >= from)
            {
                self.tally.books.lost += 1;
            } else {
                self.count(&call);
            }
        }
    }

    fn take(&mut self, events_lost: u64) -> Vec<Drained> {
        // Any of them may have been the handler's entry.
        vec![self.tally.take(events_lost)]
    }

    fn call_tree(&self) -> Result<Option<Traced>, Failure> {
        self.traced(&KernelFiles::default()).map(Some)
    }
}

#[cfg(test)]
mod tests;
