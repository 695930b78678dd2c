//! Which function, called by whom, each instruction belongs to.
//!
//! Blocks arrive in execution order; what the last instruction of one did to the stack is reported before the next. From
//! both this follows the call stack of each task that is inside a watched function. Everything here is safe code without
//! QEMU, so that tests can play any order of events.

use std::collections::HashMap;
use std::ops::{AddAssign, Sub};

use crate::arch::{self, Interrupt, Kind, SLOT};
use crate::symbols::{BlockPlace, Function, Symbols};

/// No parent: a call from outside of all watched functions.
pub(crate) const ROOT: u32 = u32::MAX;

/// No cell: the source lines of this code are not counted.
const NONE: u32 = u32::MAX;

/// The slot of an entry that stays on its level to the end: no call or return uses it.
const OUTERMOST: u64 = u64::MAX;

/// The deepest nesting of calls that is followed: more than fits on a kernel stack. Where calls leave nothing on the stack, code
/// that calls and never returns would fill the host's memory.
const MOST_ENTRIES: usize = 1 << 14;

/// The most that a count keeps in the host's memory: nodes, values of distributions, functions without a symbol, and code by
/// its length. A driver could make any number of them.
const MOST_KEPT: usize = 1 << 20;

/// So many instructions of code count as one kept item.
const CODE_KEPT: usize = 16;

/// The slot of an outermost call, where slots are only numbers.
const FIRST_SLOT: u64 = 1 << 40;

/// Sums over all instructions of the kernel so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Instructions begun.
    pub(crate) instructions: u64,
    /// What costs beside their number.
    pub(crate) beside: Beside,
}

/// What instructions cost beside their number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    /// Halves of iterations of string instructions.
    pub(crate) half_iterations: u64,
    /// Ordering instructions: see [`arch::Arch::orders`].
    pub(crate) ordering: u64,
}

impl AddAssign for Beside {
    fn add_assign(&mut self, more: Self) {
        self.half_iterations += more.half_iterations;
        self.ordering += more.ordering;
    }
}

impl Sub for Beside {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            half_iterations: self.half_iterations - before.half_iterations,
            ordering: self.ordering - before.ordering,
        }
    }
}

/// Instructions that are executed one after the other. There are tens of thousands of blocks, and each execution reads one:
/// it fills a cache line.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) instructions: u32,
    /// Address of the last one.
    pub(crate) last: u64,
    pub(crate) place: Option<BlockPlace>,
    /// What the last one does.
    pub(crate) end: Kind,
    /// It returns from an interrupt.
    pub(crate) ends_interrupt: bool,
    /// The first one is a string instruction that repeats, and thus the only one.
    pub(crate) repeats: bool,
    /// Bytes of each instruction; rarely looked at.
    sizes: Box<Box<[u8]>>,
    /// The count that looked it up; what follows, `place` and `ends_interrupt` are valid for that one alone.
    count: u32,
    /// Index in [`Counter::code`], once it has run in a function of a module: source lines of others are not counted.
    pub(crate) code: Option<u32>,
    /// The node that it last ran in, and its cell there, or [`NONE`].
    cell: (u32, u32),
}

const _: () = assert!(size_of::<Block>() == 64);

impl Block {
    /// A block at `address` that no count knows yet; `sizes` are the bytes of its instructions.
    pub(crate) fn new(address: u64, sizes: Vec<u8>, end: Kind, repeats: bool) -> Self {
        let before: &[u8] = sizes.split_last().map_or(&[], |(_, before)| before);
        Self {
            address,
            instructions: sizes.len() as u32,
            last: address + before.iter().map(|size| u64::from(*size)).sum::<u64>(),
            place: None,
            end,
            ends_interrupt: false,
            repeats,
            sizes: Box::new(sizes.into()),
            count: 0,
            code: None,
            cell: (ROOT, NONE),
        }
    }
}

/// What the last instruction of a block did to the stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing.
    #[default]
    None,
    /// Wrote a return address here.
    Call(u64),
    /// Read its return address from here.
    Return(u64),
    /// Left this return address in a register.
    Link(u64),
    /// Went to this return address, which was in a register.
    Back(u64),
}

/// A function as it was called from its parent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    pub(crate) parent: u32,
    pub(crate) function: u32,
    pub(crate) calls: u64,
    pub(crate) sums: Sums,
}

/// Instructions one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Code {
    pub(crate) address: u64,
    /// Bytes of each.
    pub(crate) sizes: Box<[u8]>,
}

/// How often code ran in a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) node: u32,
    pub(crate) code: u32,
    pub(crate) times: u64,
}

/// Calls of a watched function.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    pub(crate) entered: u64,
    pub(crate) ended: u64,
    /// Calls whose stack was left without a return.
    pub(crate) abandoned: u64,
    /// Calls that an interrupt fell into.
    pub(crate) interrupted: u64,
    /// Instructions of these interrupts, which are in no other figure.
    pub(crate) interrupts: u64,
    /// Of the calls that ended and of what they called.
    pub(crate) beside: Beside,
    /// Calls by their instructions, those of what they called among them.
    pub(crate) inclusive: HashMap<u64, u64>,
    /// Calls by the instructions of the function itself.
    pub(crate) own: HashMap<u64, u64>,
}

#[derive(Debug)]
struct Frame {
    node: u32,
    function: u32,
    watched: bool,
    own: u64,
    clock_before: u64,
    beside_before: Beside,
    interrupts_before: u64,
}

/// A return address that is on the stack.
#[derive(Debug)]
struct Entry {
    slot: u64,
    /// The address, if a register has it.
    back: u64,
    /// False if `slot` is only its lower bound.
    sure: bool,
    /// None if the call did not lead to a function's beginning.
    frame: Option<Frame>,
}

/// What runs on a task's stacks between two interrupts.
#[derive(Debug, Default)]
struct Level {
    entries: Vec<Entry>,
    /// Instructions executed on this level.
    clock: u64,
    /// On this level.
    beside: Beside,
    /// Those of interrupts of this level.
    interrupts: u64,
    /// Address of the instruction before the interrupt.
    interrupted: u64,
    /// It is a system call, or an exception in one.
    system_call: bool,
    /// It is an exception that a call on the level below caused, whose part it is.
    caused: bool,
    /// It came between a return by register and the first instruction there: where that goes is known at its end.
    returns: bool,
}

#[derive(Debug)]
struct Task {
    stack: u64,
    levels: Vec<Level>,
}

impl Task {
    fn level_mut(&mut self) -> Option<&mut Level> {
        self.levels.last_mut()
    }
}

/// What the instructions of a block count for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Running {
    /// No task that is inside a watched function.
    Nothing,
    /// An interrupt, or a system call outside of watched functions.
    Level,
    /// And for this node.
    Node(u32),
}

#[derive(Debug, Clone, Copy, Default)]
struct Previous {
    instructions: u32,
    last: u64,
    ends_interrupt: bool,
    interrupt: bool,
    /// It continued a string instruction that was counted before.
    goes_on: bool,
    /// Its last instruction causes an exception, after which it is not executed again.
    breaks: bool,
    code: Option<u32>,
    cell: Option<u32>,
}

/// Instructions of all system calls since the load began its operation.
#[derive(Debug, Clone, Copy, Default)]
struct Operation {
    instructions: u64,
    /// Those of watched functions and of what they call.
    within: u64,
}

/// All that is counted between two requests.
#[derive(Debug)]
pub(crate) struct Counter {
    /// Which count this is, from 1.
    number: u32,
    pub(crate) symbols: Symbols,
    pub(crate) nodes: Vec<Node>,
    children: HashMap<(u32, u32), u32>,
    pub(crate) cells: Vec<Cell>,
    cell_of: HashMap<(u32, u32), u32>,
    pub(crate) code: Vec<Code>,
    parts: HashMap<(u32, u32), u32>,
    pub(crate) calls: HashMap<u32, Calls>,
    /// Of the load's operation, if it makes one.
    operation: Option<Operation>,
    /// Operations by the instructions of their system calls.
    pub(crate) operations: HashMap<u64, u64>,
    /// Operations by those of these that watched functions and what they call took.
    pub(crate) within: HashMap<u64, u64>,
    /// Of system calls during all operations.
    pub(crate) beside: Beside,
    /// Instructions of watched functions during all operations that are in no system call: in threads of the kernel,
    /// interrupts and faults of user space.
    pub(crate) elsewhere: u64,
    tasks: HashMap<u64, Task>,
    current: Option<Task>,
    event: Event,
    /// What the last instruction of the block that is executed does.
    end: Kind,
    /// Where that one lies.
    last: u64,
    last_slot: u64,
    /// The kernel was entered by a system call: what the entry code calls is part of it.
    by_system_call: bool,
    /// Return address of the call that is entered.
    back: u64,
    switching: Option<u64>,
    /// The task that is switched out; that task and the one that is switched in.
    suspended: Option<u64>,
    exchanged: Option<(u64, u64)>,
    running: Running,
    started: Sums,
    previous: Previous,
    /// At most [`MOST_KEPT`], or it [is full](Self::is_full).
    kept: usize,
}

impl Counter {
    pub(crate) fn new(symbols: Symbols, number: u32) -> Self {
        Self {
            number,
            symbols,
            nodes: Vec::new(),
            children: HashMap::new(),
            cells: Vec::new(),
            cell_of: HashMap::new(),
            code: Vec::new(),
            parts: HashMap::new(),
            calls: HashMap::new(),
            operation: None,
            operations: HashMap::new(),
            within: HashMap::new(),
            beside: Beside::default(),
            elsewhere: 0,
            tasks: HashMap::new(),
            current: None,
            event: Event::None,
            end: Kind::Other,
            last: 0,
            last_slot: FIRST_SLOT,
            by_system_call: false,
            back: 0,
            switching: None,
            suspended: None,
            exchanged: None,
            running: Running::Nothing,
            started: Sums::default(),
            previous: Previous::default(),
            kept: 0,
        }
    }

    /// The symbols as they were given.
    pub(crate) fn into_symbols(self) -> Symbols {
        self.symbols.without_added()
    }

    /// Looks a block up that this count has not met.
    #[cold]
    fn meet(&mut self, block: &mut Block) {
        let place = self.symbols.place(block.address);
        block.count = self.number;
        block.place = place;
        block.ends_interrupt =
            block.end == Kind::InterruptReturn && self.symbols.is_entry_text(block.last);
        block.code = None;
        block.cell = (ROOT, NONE);
    }

    fn new_code(&mut self, address: u64, sizes: &[u8]) -> u32 {
        self.kept += 1 + sizes.len() / CODE_KEPT;
        self.code.push(Code { address, sizes: sizes.into() });
        self.code.len() as u32 - 1
    }

    /// Reports what the last instruction of the block does. Other accesses are the processor's own, such as those of an
    /// interrupt after it: QEMU 7.2 reports them as if the last call or return had made them.
    #[inline]
    pub(crate) fn record_event(&mut self, event: Event) {
        let (expected, slot) = match event {
            Event::Call(slot) => (Kind::Call, slot),
            Event::Return(slot) => (Kind::Return, slot.wrapping_add(SLOT)),
            Event::None | Event::Link(_) | Event::Back(_) => return,
        };
        if self.event == Event::None && self.end == expected {
            self.event = event;
            self.last_slot = slot;
        }
    }

    /// The task whose registers are stored here is switched out. QEMU may report two registers one by one: the first counts.
    pub(crate) fn suspend(&mut self, registers: u64) {
        self.suspended.get_or_insert(registers);
    }

    /// The task whose registers are loaded from here is switched in.
    pub(crate) fn resume(&mut self, registers: u64) {
        let follows = self.current.is_some() || !self.tasks.is_empty();
        if let Some(from) = self.suspended.take().filter(|_| follows) {
            self.exchanged = Some((from, registers));
        }
    }

    /// Whether the count has to end, as it has reached [`MOST_KEPT`].
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.kept > MOST_KEPT
    }

    /// A block begins.
    #[inline]
    pub(crate) fn begin(&mut self, block: &mut Block, sums: impl FnOnce() -> Sums) {
        if block.count != self.number {
            self.meet(block);
        }
        let event = match std::mem::replace(&mut self.end, block.end) {
            // All instructions of arm64 have four bytes.
            Kind::Link => Event::Link(self.last + 4),
            Kind::Back => Event::Back(block.address),
            _ => std::mem::take(&mut self.event),
        };
        let from = std::mem::replace(&mut self.last, block.last);
        let mut place = block.place.unwrap_or_default();
        self.by_system_call &= place.interrupt.is_none();
        place.system_call |= place.entry
            && self.by_system_call
            && matches!(event, Event::Call(_))
            && self.symbols.is_entry_text(from);
        if self.current.is_none() && self.switching.is_none() && self.exchanged.is_none() {
            if place.switch && !self.tasks.is_empty() {
                self.switching = Some(self.symbols.arch.stack_of(self.last_slot));
            }
            if !self.is_root(place) {
                return;
            }
        }
        self.begin_inside(block, place, event, sums());
    }

    /// Whether a function that begins here is followed wherever it is called.
    fn is_root(&self, place: BlockPlace) -> bool {
        place.watched || (place.system_call && self.operation.is_some())
    }

    /// A program makes a system call.
    pub(crate) fn system_call(&mut self) {
        self.by_system_call = true;
    }

    /// The load has ended its operation, and begins the next if there is one.
    pub(crate) fn operation(&mut self, next: bool) {
        let begun = next.then(Operation::default);
        if let Some(ended) = std::mem::replace(&mut self.operation, begun) {
            let values = self.operations.len() + self.within.len();
            *self.operations.entry(ended.instructions).or_default() += 1;
            *self.within.entry(ended.within).or_default() += 1;
            self.kept += self.operations.len() + self.within.len() - values;
        }
    }

    fn begin_inside(&mut self, block: &mut Block, place: BlockPlace, event: Event, now: Sums) {
        // A block that was cut short did not come to its last instruction.
        let event = if self.settle(now, place) { event } else { Event::None };
        self.finish_switch(event);
        let ended = std::mem::take(&mut self.previous.ends_interrupt) && self.end_interrupt();
        let returns = ended || matches!(event, Event::Back(_));
        let event = match returns {
            true if place.interrupt.is_some() => Event::None,
            true => Event::Back(block.address),
            false => event,
        };
        let event = self.with_slot(event, place);
        match event {
            Event::None | Event::Link(_) | Event::Back(_) => {}
            Event::Call(slot) => self.call(slot),
            Event::Return(slot) => self.ret(slot),
        }
        if place.interrupt.is_some() && !(self.previous.interrupt && event == Event::None) {
            self.interrupt(place, returns);
        }
        let place = match self.unnamed(block.address, place, event) {
            Some(unnamed) => *block.place.insert(unnamed),
            None => place,
        };
        if place.entry {
            self.enter(place, event);
        }
        if place.switch {
            self.switching = Some(self.symbols.arch.stack_of(self.last_slot));
        }
        self.start(block, place, now);
    }

    /// Counts the block before this one; whether it was executed as a whole, as far as is known.
    fn settle(&mut self, now: Sums, place: BlockPlace) -> bool {
        let previous = self.previous;
        if self.running == Running::Nothing {
            return true;
        }
        let begun = now.instructions - self.started.instructions;
        let whole = begun == u64::from(previous.instructions);
        // A fault's instruction is begun again afterwards.
        let executed = begun - u64::from(previous.goes_on && begun > 0);
        let fault = place.interrupt == Some(Interrupt::Fault) && !(whole && previous.breaks);
        let executed = executed - u64::from(fault && executed > 0);
        let whole = whole && !fault;
        if !whole {
            self.previous.ends_interrupt = false;
        }
        if fault && !previous.goes_on {
            self.previous.last = 0;
        }
        let Some(level) = self.current.as_mut().and_then(Task::level_mut) else { return whole };
        let beside = now.beside - self.started.beside;
        level.clock += executed;
        level.beside += beside;
        let within = if matches!(self.running, Running::Node(_)) { executed } else { 0 };
        match &mut self.operation {
            Some(operation) if level.system_call => {
                operation.instructions += executed;
                operation.within += within;
                self.beside += beside;
            }
            Some(_) => self.elsewhere += within,
            None => {}
        }
        let Running::Node(node) = self.running else { return whole };
        if let Some(frame) = level.entries.iter_mut().rev().find_map(|entry| entry.frame.as_mut()) {
            frame.own += executed;
        }
        let sums = &mut self.nodes[node as usize].sums;
        sums.instructions += executed;
        sums.beside += beside;
        if executed == u64::from(previous.instructions) {
            if let Some(cell) = previous.cell {
                self.cells[cell as usize].times += 1;
            }
        } else if let (Some(code), 1..) = (previous.code, executed) {
            let part = self.part(code, executed as u32);
            let cell = self.cell(node, part);
            self.cells[cell as usize].times += 1;
        }
        whole
    }

    /// The first instructions of `code`.
    fn part(&mut self, code: u32, instructions: u32) -> u32 {
        let next = self.code.len() as u32;
        let part = *self.parts.entry((code, instructions)).or_insert(next);
        if part == next {
            let Code { address, sizes } = self.code[code as usize].clone();
            self.new_code(address, &sizes[..instructions as usize]);
        }
        part
    }

    /// After `__switch_to_asm` the first access to another stack shows which task runs.
    fn finish_switch(&mut self, event: Event) {
        if let Some((from, to)) = self.exchanged.take() {
            return self.exchange(from, to);
        }
        let (Some(from), Event::Call(slot) | Event::Return(slot)) = (self.switching, event) else {
            return;
        };
        let stack = self.symbols.arch.stack_of(slot);
        if stack == from {
            return;
        }
        self.switching = None;
        let from = self.current.as_ref().map_or(0, |task| task.stack);
        self.exchange(from, stack);
    }

    fn exchange(&mut self, from: u64, to: u64) {
        if let Some(task) = self.current.take() {
            self.tasks.insert(from, task);
        }
        self.current = self.tasks.remove(&to);
        // What the entry code calls next is what a new task begins with, unless a system call returns first.
        self.by_system_call = false;
    }

    /// Gives calls and returns by a register slots of a stack that grows by one with each call. A return to where no call is from is a
    /// jump, but for what takes the place of a return, and for the beginning of a new task where one was that has ended inside calls.
    fn with_slot(&mut self, event: Event, place: BlockPlace) -> Event {
        self.back = 0;
        let (to, is_call) = match event {
            Event::Link(to) => (to, true),
            Event::Back(to) => (to, false),
            event => return event,
        };
        if is_call {
            self.back = to;
            return Event::Call(self.top().map_or(FIRST_SLOT, |top| top.slot - SLOT));
        }
        let mut entries = self.level().into_iter().flat_map(|level| level.entries.iter().rev());
        if let Some(entry) = entries.find(|entry| entry.sure && entry.back == to) {
            return Event::Return(entry.slot);
        }
        let replaces = place.entry && arch::is_return_trampoline(self.name(place.function));
        let Some(top) = self.top() else { return Event::None };
        let (slot, back, sure) = (top.slot, top.back, top.sure);
        if replaces || !sure {
            self.back = back;
            return Event::Return(slot);
        }
        if place.entry {
            self.abandon();
        }
        Event::None
    }

    fn call(&mut self, slot: u64) {
        let (arch, back) = (self.symbols.arch, self.back);
        while let Some(top) = self.top() {
            if arch.stack_of(top.slot) != arch.stack_of(slot) || slot < top.slot {
                break;
            }
            if !top.sure {
                top.slot = slot + SLOT;
                break;
            }
            self.pop(false);
        }
        if let Some(level) = self.level_mut()
            && !level.entries.is_empty()
        {
            if level.entries.len() >= MOST_ENTRIES {
                return self.abandon();
            }
            level.entries.push(Entry { slot, back, sure: true, frame: None });
        }
        self.leave_if_empty();
    }

    fn ret(&mut self, slot: u64) {
        let arch = self.symbols.arch;
        let known = self.level().is_some_and(|level| {
            level.entries.iter().any(|entry| entry.sure && entry.slot == slot)
        });
        let mut left = false;
        while let Some(top) = self.top() {
            let (at, sure) = (top.slot, top.sure);
            if sure && at == slot {
                // A function that was jumped to returns for the one that jumped.
                while self.top().is_some_and(|top| top.sure && top.slot == slot) {
                    self.pop(true);
                }
                break;
            }
            if known {
                self.pop(false);
                left = true;
                continue;
            }
            if arch.stack_of(at) != arch.stack_of(slot) || slot < at {
                break;
            }
            if !sure {
                while self.top().is_some_and(|top| !top.sure && top.slot == at) {
                    self.pop(true);
                }
                break;
            }
            self.pop(false);
        }
        // A new task begins on the stack of one that ended in a system call.
        self.by_system_call &= !left;
        self.leave_if_empty();
    }

    fn level(&self) -> Option<&Level> {
        self.current.as_ref()?.levels.last()
    }

    fn level_mut(&mut self) -> Option<&mut Level> {
        self.current.as_mut()?.level_mut()
    }

    fn top(&mut self) -> Option<&mut Entry> {
        self.level_mut()?.entries.last_mut()
    }

    /// The name of one of the kernel's own functions.
    fn name(&self, function: u32) -> &str {
        self.symbols.functions.get(function as usize).map_or("", Function::own_name)
    }

    fn is_thunk(&self, function: u32) -> bool {
        (self.symbols.arch.is_thunk)(self.name(function))
    }

    /// The innermost call is over: it returned, or its stack was left otherwise.
    fn pop(&mut self, returned: bool) {
        let Some(level) = self.current.as_mut().and_then(Task::level_mut) else { return };
        let popped = level.entries.pop();
        self.by_system_call |= returned && level.system_call && level.entries.is_empty();
        let Some(Some(frame)) = popped.map(|entry| entry.frame) else { return };
        if !frame.watched {
            return;
        }
        let calls = self.calls.entry(frame.function).or_default();
        if !returned {
            calls.abandoned += 1;
            return;
        }
        calls.ended += 1;
        let before = calls.inclusive.len() + calls.own.len();
        *calls.inclusive.entry(level.clock - frame.clock_before).or_default() += 1;
        *calls.own.entry(frame.own).or_default() += 1;
        self.kept += calls.inclusive.len() + calls.own.len() - before;
        let interrupts = level.interrupts - frame.interrupts_before;
        calls.interrupted += u64::from(interrupts > 0);
        calls.interrupts += interrupts;
        calls.beside += level.beside - frame.beside_before;
    }

    /// All calls of the innermost level are over without a return.
    fn leave_level(&mut self) {
        while self.level().is_some_and(|level| !level.entries.is_empty()) {
            self.pop(false);
        }
    }

    fn leave_if_empty(&mut self) {
        if let Some(Task { levels, .. }) = &self.current
            && let [level] = &levels[..]
            && level.entries.is_empty()
        {
            self.current = None;
        }
    }

    fn interrupt(&mut self, place: BlockPlace, returns: bool) {
        let (interrupted, by) = (self.previous.last, self.node());
        if let Some(task) = &mut self.current {
            let within = task.levels.last().is_some_and(|level| level.system_call);
            let exception = place.interrupt != Some(Interrupt::Asynchronous);
            let system_call = within && exception;
            let caused = exception && by.is_some_and(|node| node != ROOT);
            let level = Level { interrupted, system_call, caused, returns, ..Level::default() };
            task.levels.push(level);
            self.back = 0;
            if let (Some(by), true) = (by, caused) {
                self.push_below(by, place, OUTERMOST, true);
            }
        }
    }

    /// Whether a return was under way when it came.
    fn end_interrupt(&mut self) -> bool {
        if self.current.as_ref().is_none_or(|task| task.levels.len() < 2) {
            return false;
        }
        self.leave_level();
        let Some(task) = &mut self.current else { return false };
        let Some(ended) = task.levels.pop() else { return false };
        self.previous.last = ended.interrupted;
        if let Some(level) = task.levels.last_mut() {
            level.interrupts += ended.interrupts;
            if ended.caused {
                level.clock += ended.clock;
                level.beside += ended.beside;
            } else {
                level.interrupts += ended.clock;
            }
        }
        ended.returns
    }

    /// The function that begins here without a symbol: a call of a function that is watched has led here.
    fn unnamed(&mut self, address: u64, place: BlockPlace, event: Event) -> Option<BlockPlace> {
        if place.entry || !self.symbols.is_watched(address) || self.node()? == ROOT {
            return None;
        }
        let called = match self.top()?.frame.as_ref().map(|frame| frame.function) {
            None => matches!(event, Event::Call(_)),
            Some(function) => place.function != function && self.is_thunk(function),
        };
        self.kept += usize::from(called);
        if called { self.symbols.add(address) } else { None }
    }

    /// A function begins.
    fn enter(&mut self, place: BlockPlace, event: Event) {
        let outside = self.level().is_none_or(|level| level.entries.is_empty());
        if outside {
            if self.is_root(place) {
                self.enter_root(place, event);
            }
            return;
        }
        let function = &self.symbols.functions[place.function as usize];
        let is_return_trampoline = arch::is_return_trampoline(function.own_name());
        match event {
            Event::Return(slot) if is_return_trampoline => {
                return self.push(place, slot, true);
            }
            // Without the slot, after an interrupt, it is its caller's.
            Event::None if is_return_trampoline || arch::is_kprobe_page(&function.name) => return,
            _ => {}
        }
        let Some(top) = self.top() else { return };
        let (slot, sure, back) = (top.slot, top.sure, top.back);
        match top.frame.as_ref().map(|frame| frame.function) {
            None => {
                self.level_mut().and_then(|level| level.entries.pop());
            }
            // A loop whose first instruction is the function's.
            Some(function) if function == place.function => return,
            Some(function) if self.is_thunk(function) => self.pop(true),
            Some(_) => {}
        }
        self.back = back;
        self.push(place, slot, sure);
    }

    fn enter_root(&mut self, place: BlockPlace, event: Event) {
        let (slot, sure) = match event {
            Event::Call(slot) => (slot, true),
            Event::Return(slot) => (slot + SLOT, true),
            Event::None | Event::Link(_) | Event::Back(_) => (self.last_slot, false),
        };
        if self.current.is_none() {
            let stack = self.symbols.arch.stack_of(slot);
            // Left over from a task that ended inside a call.
            if let Some(stale) = self.tasks.remove(&stack) {
                self.current = Some(stale);
                self.abandon();
            }
            let level = Level { system_call: place.system_call, ..Level::default() };
            self.current = Some(Task { stack, levels: vec![level] });
        }
        self.push(place, slot, sure);
    }

    fn abandon(&mut self) {
        while self.current.as_ref().is_some_and(|task| !task.levels.is_empty()) {
            self.leave_level();
            if let Some(task) = &mut self.current {
                task.levels.pop();
            }
        }
        self.current = None;
    }

    fn push(&mut self, place: BlockPlace, slot: u64, sure: bool) {
        self.push_below(self.node().unwrap_or(ROOT), place, slot, sure);
    }

    fn push_below(&mut self, parent: u32, place: BlockPlace, slot: u64, sure: bool) {
        let Some(level) = self.current.as_mut().and_then(Task::level_mut) else { return };
        let next = self.nodes.len() as u32;
        let node = match (parent, place.watched) {
            // In a system call only the work of watched functions is broken down.
            (ROOT, false) => ROOT,
            _ => *self.children.entry((parent, place.function)).or_insert(next),
        };
        if node == next {
            self.kept += 1;
            self.nodes.push(Node { parent, function: place.function, ..Node::default() });
        }
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.calls += 1;
        }
        let frame = Frame {
            node,
            function: place.function,
            watched: place.watched,
            own: 0,
            clock_before: level.clock,
            beside_before: level.beside,
            interrupts_before: level.interrupts,
        };
        level.entries.push(Entry { slot, back: self.back, sure, frame: Some(frame) });
        if place.watched {
            self.calls.entry(place.function).or_default().entered += 1;
        }
    }

    /// The node of the innermost function, [`ROOT`] in a system call outside of watched ones.
    fn node(&self) -> Option<u32> {
        let mut entries = self.level()?.entries.iter().rev();
        entries.find_map(|entry| entry.frame.as_ref()).map(|frame| frame.node)
    }

    /// Remembers what the block's instructions are for.
    fn start(&mut self, block: &mut Block, place: BlockPlace, now: Sums) {
        let node = self.node();
        self.running = match (&self.current, node) {
            (None, _) => Running::Nothing,
            (Some(_), None | Some(ROOT)) => Running::Level,
            (Some(_), Some(node)) => Running::Node(node),
        };
        let cell = node.filter(|node| *node != ROOT).and_then(|node| {
            if block.cell.0 != node {
                block.cell = (node, self.cell_of_module(node, block).unwrap_or(NONE));
            }
            Some(block.cell.1).filter(|cell| *cell != NONE)
        });
        self.started = now;
        self.previous = Previous {
            instructions: block.instructions,
            last: block.last,
            ends_interrupt: block.ends_interrupt,
            interrupt: place.interrupt.is_some(),
            goes_on: block.repeats && self.previous.last == block.address,
            breaks: block.end == Kind::Breakpoint,
            code: cell.and(block.code),
            cell,
        };
    }

    /// The cell of a block in a node of a module, whatever the block is of: a node's lines add up to its instructions, or it has
    /// none, as the kernel's source lines are not asked for.
    fn cell_of_module(&mut self, node: u32, block: &mut Block) -> Option<u32> {
        let function = self.nodes[node as usize].function;
        if self.symbols.functions[function as usize].module.is_empty() {
            return None;
        }
        let code = match block.code {
            Some(code) => code,
            None => *block.code.insert(self.new_code(block.address, &block.sizes)),
        };
        Some(self.cell(node, code))
    }

    fn cell(&mut self, node: u32, code: u32) -> u32 {
        let next = self.cells.len() as u32;
        let cell = *self.cell_of.entry((node, code)).or_insert(next);
        if cell == next {
            self.kept += 1 + self.code[code as usize].sizes.len() / CODE_KEPT;
            self.cells.push(Cell { node, code, times: 0 });
        }
        cell
    }
}

#[cfg(test)]
mod tests;
