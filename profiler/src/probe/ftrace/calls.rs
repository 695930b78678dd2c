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

use super::filter::CALL_SITE;
use super::page::{Event, Exit};
use super::pairing::task_of;
use super::waiting::{Timed, Waiting};
use crate::kernel::target::{KernelFiles, ResolveError};
use crate::probe::{Books, Drained, Precision, Traced};
use crate::recording::call_tree::{CallTree, TreeFunction, TreeNode};
use crate::stats::Durations;

/// Most calls that are kept until they are counted, 128 MiB of them. A call of the handler that would need more is cut.
const MOST_PARTS: usize = 1 << 22;

/// An event that waits for those of other CPUs.
#[derive(Debug, Clone, Copy)]
struct Seen {
    time: u64,
    task: u64,
    func: u64,
    depth: u32,
    /// `None` is an entry.
    exit: Option<Exit>,
}

impl Timed for Seen {
    fn time(&self) -> u64 {
        self.time
    }
}

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
    fn enter(&mut self, seen: &Seen) -> bool {
        let Some(&(_, caller)) = self.stack.last().filter(|(depth, _)| *depth <= seen.depth) else {
            return false;
        };
        self.push(seen, caller);
        true
    }

    fn push(&mut self, seen: &Seen, caller: usize) {
        self.stack.push((seen.depth, self.parts.len()));
        self.parts.push(Part { func: seen.func, caller, entered: seen.time, took: 0 });
    }

    /// Whether it is the last of those under way that has ended.
    fn leave(&mut self, seen: &Seen) -> bool {
        let Some((depth, at)) = self.stack.pop() else { return false };
        let part = &mut self.parts[at];
        // Events come in order.
        part.took = seen.time.saturating_sub(part.entered);
        (depth, part.func) == (seen.depth, seen.func)
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

/// What the kernel's counters said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Events that were dropped so far.
    pub(super) lost: u64,
    /// When the first counter was read, and when the last one was.
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The calls of one handler, and all calls within them.
pub(super) struct Calls {
    /// Address of the handler.
    handler: u64,
    precision: Precision,
    waiting: Waiting<Seen>,
    /// By task.
    open: HashMap<u64, Call, FixedState>,
    /// Calls that have ended, until it is known whether events were dropped meanwhile.
    ended: Vec<Call>,
    /// Parts of all these.
    held: usize,
    /// When events were dropped.
    gaps: Vec<(u64, u64)>,
    /// The last look.
    last: Look,
    nodes: Vec<Node>,
    below: HashMap<(Option<u32>, u64), u32, FixedState>,
    durations: Durations,
    books: Books,
    paired: u64,
    /// Calls too deep to be traced, by task.
    too_deep: HashMap<u64, u64, FixedState>,
}

impl Calls {
    /// For the handler at this address.
    pub(super) fn new(handler: u64, precision: Precision) -> Self {
        Self {
            handler,
            precision,
            waiting: Waiting::new(),
            open: HashMap::default(),
            ended: Vec::new(),
            held: 0,
            gaps: Vec::new(),
            last: Look { lost: 0, from: 0, to: 0 },
            nodes: Vec::new(),
            below: HashMap::default(),
            durations: precision.durations(),
            books: Books::default(),
            paired: 0,
            too_deep: HashMap::default(),
        }
    }

    /// Takes an event; the caller keeps the order of each CPU's events.
    #[inline]
    pub(super) fn add(&mut self, cpu: usize, event: Event) {
        let Event { time, func, depth, exit, .. } = event;
        self.waiting.read(time);
        self.waiting.push(Seen { time, task: task_of(&event, cpu), func, depth, exit });
    }

    /// Ends a round in which all CPUs were read, each at least to the time `read_to`.
    pub(super) fn end_round(&mut self, read_to: u64) {
        let ready = self.waiting.end_round(read_to);
        self.sort_in(ready);
    }

    /// Nothing more will come.
    pub(super) fn finish(&mut self) {
        let ready = self.waiting.finish();
        self.sort_in(ready);
    }

    fn sort_in(&mut self, ready: Vec<Seen>) {
        for seen in ready {
            match seen.exit {
                None => self.enter(&seen),
                Some(exit) => self.leave(&seen, exit),
            }
        }
    }

    fn is_handler(&self, func: u64) -> bool {
        func.checked_sub(self.handler).is_some_and(|after| after <= CALL_SITE)
    }

    fn enter(&mut self, seen: &Seen) {
        let is_handler = self.is_handler(seen.func);
        if let Some(call) = self.open.get_mut(&seen.task)
            && (call.depth < seen.depth || call.depth == seen.depth && !is_handler)
        {
            if call.is_cut() {
                return;
            }
            let held = call.parts.len();
            if self.held < MOST_PARTS && call.enter(seen) {
                self.held += 1;
            } else {
                call.parts = Vec::new();
                self.held -= held;
            }
            return;
        }
        // The end of the one before was not written.
        if let Some(call) = self.open.remove(&seen.task) {
            self.lose(&call);
        }
        if is_handler {
            let Seen { time, depth, .. } = *seen;
            let mut call =
                Call { depth, entered: time, left: 0, parts: Vec::new(), stack: Vec::new() };
            call.push(seen, 0);
            self.held += 1;
            self.books.entries += 1;
            self.open.insert(seen.task, call);
        }
    }

    fn leave(&mut self, seen: &Seen, exit: Exit) {
        if exit.too_deep != 0 {
            self.too_deep.insert(seen.task, exit.too_deep);
        }
        let is_handler = self.is_handler(seen.func);
        let Some(call) = self.open.get_mut(&seen.task).filter(|call| call.depth <= seen.depth)
        else {
            self.books.unpaired_exits += u64::from(is_handler);
            return;
        };
        if !call.is_cut() && !call.leave(seen) {
            self.held -= call.parts.len();
            call.parts = Vec::new();
        }
        if is_handler
            && call.depth == seen.depth
            && let Some(mut call) = self.open.remove(&seen.task)
        {
            call.left = seen.time;
            self.ended.push(call);
        }
    }

    /// A call that is not counted.
    fn lose(&mut self, call: &Call) {
        self.held -= call.parts.len();
        self.books.lost += 1;
    }

    /// Counts the calls of which it is known now that they are whole.
    pub(super) fn look(&mut self, look: Look) {
        if look.lost > self.last.lost {
            // The clock of counters is in microseconds.
            self.gaps.push((self.last.from, look.to.saturating_add(1000)));
        }
        self.last = look;
        let ended = std::mem::take(&mut self.ended);
        let (sure, waiting) = ended.into_iter().partition(|call| call.left <= look.from);
        self.ended = waiting;
        let sure: Vec<Call> = sure;
        for call in sure {
            let is_in = |gap: &(u64, u64)| call.entered <= gap.1 && call.left >= gap.0;
            if call.is_cut() || self.gaps.iter().any(is_in) {
                self.lose(&call);
            } else {
                self.count(&call);
            }
        }
    }

    fn count(&mut self, call: &Call) {
        self.held -= call.parts.len();
        self.paired += 1;
        self.durations.record(call.parts[0].took);
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

    /// Takes the handler's durations since the last time.
    pub(super) fn take(&mut self) -> Drained {
        let mut books = self.books;
        // Any of them may have been the handler's entry.
        books.overrun = self.last.lost;
        books.in_flight = books.entries.saturating_sub(self.paired + books.lost);
        let durations = std::mem::replace(&mut self.durations, self.precision.durations());
        Drained { durations, books }
    }

    /// The tree of the calls that were counted.
    ///
    /// # Errors
    /// When the kernel's symbols cannot be read.
    pub(super) fn traced(&self, files: &KernelFiles) -> Result<Traced, ResolveError> {
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
        let too_deep = self.too_deep.values().fold(0, |sum: u64, calls| sum.saturating_add(*calls));
        Ok(Traced { tree, too_deep })
    }
}

#[cfg(test)]
mod tests;
