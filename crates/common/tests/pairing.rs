//! The BPF programs' pairing of entries and exits, run on the host: before each access to memory that is shared, a call in an
//! interrupt may come in.
//!
//! `pairing.rs` of the BPF side is included as it is; the modules below stand for what it uses there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use profiler_common::layout::{Displaced, Slot};

#[path = "../../../profiler-ebpf/src/pairing.rs"]
mod pairing;

const CPUS: usize = 2;
/// Longer than all calls of a scenario together.
const PAUSE: u64 = 1_000_000;

/// A task's calls have the same place on its stack.
const TASK: u64 = 0x2000;
const OTHER_TASK: u64 = 0x3000;
/// That of calls in interrupts: each CPU has a stack for them, on which they lie on top of one another.
const INTERRUPTS: u64 = 0x10_0000;

#[derive(Clone, Copy)]
enum Program {
    Entry,
    Exit,
}

#[derive(Default)]
struct Machine {
    now: u64,
    /// Whether the programs are those for kernels that preempt tasks within them.
    preempts: bool,
    cpu: usize,
    displaced: HashMap<(u64, u64), Displaced>,
    /// The programs that each CPU runs: the kernel skips them on top of themselves.
    active: [[bool; 2]; CPUS],
    /// Steps at which an interrupt comes in, the earliest first.
    planned: Vec<u64>,
    steps: u64,
    /// Interrupts on top of one another.
    depth: u64,
    /// When the calls began whose exit programs run, the innermost last.
    begins: Vec<u64>,
    /// Runs, by program.
    skipped: [u64; 2],
    measured: u64,
    backwards: u64,
    /// Measured durations that are longer than their calls.
    too_long: Vec<String>,
}

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::default();
    static SLOTS: *mut Slot = Box::leak(Box::new([Slot::default(); CPUS])).as_mut_ptr();
}

fn machine<T>(work: impl FnOnce(&mut Machine) -> T) -> T {
    MACHINE.with_borrow_mut(work)
}

/// Time for one access; a planned interrupt comes in before it.
fn step() {
    let interrupt = machine(|machine| {
        machine.now += 1;
        machine.steps += 1;
        if machine.planned.first() != Some(&machine.steps) {
            return None;
        }
        machine.planned.remove(0);
        machine.depth += 1;
        Some(INTERRUPTS + machine.cpu as u64 * 0x1000 - machine.depth * 0x100)
    });
    if let Some(frame) = interrupt {
        call(frame);
        machine(|machine| machine.depth -= 1);
    }
}

/// What `end` leaves a program by.
struct Ended;

/// Runs a program to its end, unless its CPU runs it already.
fn run(program: Program, work: impl FnOnce()) {
    let cpu = machine(|machine| machine.cpu);
    let set = |is_active| {
        machine(|machine| std::mem::replace(&mut machine.active[cpu][program as usize], is_active))
    };
    if set(true) {
        machine(|machine| machine.skipped[program as usize] += 1);
        return;
    }
    if let Err(cause) = catch_unwind(AssertUnwindSafe(work))
        && !(*cause).is::<Ended>()
    {
        resume_unwind(cause);
    }
    set(false);
}

/// A call enters on the current CPU; returns when.
fn enter(frame: u64) -> u64 {
    let begin = machine(|machine| machine.now);
    run(Program::Entry, || pairing::enter(frame));
    begin
}

/// A call that began at `begin` leaves on the current CPU.
fn leave(frame: u64, begin: u64) {
    machine(|machine| machine.begins.push(begin));
    run(Program::Exit, || {
        let now = memory::clock();
        if state::preempts() {
            pairing::leave_preempted::<2, 8>(frame, now);
        } else {
            pairing::leave::<2, 8>(frame, now);
        }
    });
    machine(|machine| machine.begins.pop());
}

fn call(frame: u64) {
    let begin = enter(frame);
    step();
    leave(frame, begin);
}

fn on(cpu: usize) {
    machine(|machine| machine.cpu = cpu);
}

fn pass(time: u64) {
    machine(|machine| machine.now += time);
}

/// What becomes of a scenario with interrupts at these steps.
fn play(planned: &[u64], preempts: bool, scenario: fn()) -> Machine {
    MACHINE.set(Machine { planned: planned.to_vec(), preempts, ..Machine::default() });
    // SAFETY: no program runs.
    SLOTS.with(|slots| unsafe { slots.cast::<[Slot; CPUS]>().write([Slot::default(); CPUS]) });
    scenario();
    MACHINE.take()
}

/// Of both slots: calls entered, starts that wait, and calls lost.
fn slots() -> [u64; 3] {
    // SAFETY: no program runs.
    let slots = SLOTS.with(|slots| unsafe { slots.cast::<[Slot; CPUS]>().read() });
    let sum = |of: fn(&Slot) -> u64| slots.iter().map(of).sum();
    [sum(|slot| slot.entries), sum(|slot| u64::from(slot.frame != 0)), sum(|slot| slot.lost)]
}

/// Plays a scenario without interrupts, with one at each step, and with two at each pair of steps.
fn assert_none_too_long(scenario: fn()) {
    for preempts in [false, true] {
        let quiet = play(&[], preempts, scenario);
        assert_eq!((quiet.too_long, quiet.backwards, quiet.skipped), (vec![], 0, [0; 2]));
        // With interrupts there are more steps.
        let last = play(&[1, 2], preempts, scenario).steps;
        let pairs = (1..=last).flat_map(|first| (first..=last).map(move |second| [first, second]));
        for pair in pairs {
            let planned = if pair[0] == pair[1] { &pair[..1] } else { &pair };
            let end = play(planned, preempts, scenario);
            let text = format!("interrupts at {planned:?}: {}", end.too_long.join(", "));
            // As many of the longest are withheld, see `Durations::withhold`.
            let [entries, exits] = end.skipped;
            assert!(end.too_long.len() as u64 <= entries.min(exits), "{text}");
            // Of a call whose start an interrupt's call overwrites, and of that one.
            assert!(end.backwards <= planned.len() as u64, "{text}");
            assert!(end.measured + 2 * planned.len() as u64 >= quiet.measured, "{text}");
            let [entries, waiting, lost] = slots();
            let waiting = waiting + end.displaced.len() as u64;
            assert_eq!(entries, end.measured + end.backwards + lost + waiting, "{text}");
        }
    }
}

#[test]
fn a_call_that_migrates_after_an_interrupted_one() {
    assert_none_too_long(|| {
        call(TASK);
        pass(PAUSE);
        let begin = enter(TASK);
        on(1);
        leave(TASK, begin);
    });
}

#[test]
fn calls_of_two_tasks_that_sleep() {
    assert_none_too_long(|| {
        let begin = enter(TASK);
        let other = enter(OTHER_TASK);
        step();
        leave(TASK, begin);
        leave(OTHER_TASK, other);
        pass(PAUSE);
        on(1);
        let begin = enter(TASK);
        let other = enter(OTHER_TASK);
        on(0);
        leave(OTHER_TASK, other);
        leave(TASK, begin);
    });
}

#[test]
fn calls_within_calls() {
    assert_none_too_long(|| {
        const OUTER: u64 = TASK + 0x100;
        let outer = enter(OUTER);
        call(TASK);
        leave(OUTER, outer);
        pass(PAUSE);
        let outer = enter(OUTER);
        let begin = enter(TASK);
        on(1);
        leave(TASK, begin);
        leave(OUTER, outer);
    });
}

/// Accesses to memory, a step each.
mod memory {
    use std::ptr;

    use profiler_common::layout::Slot;

    use super::{machine, step};

    pub(crate) const BPF_ANY: u32 = 0;
    pub(crate) const BPF_NOEXIST: u32 = 1;

    pub(crate) unsafe fn load(place: *const u64) -> u64 {
        step();
        // SAFETY: the caller's.
        unsafe { ptr::read_volatile(place) }
    }

    pub(crate) unsafe fn store(place: *mut u64, value: u64) {
        step();
        // SAFETY: the caller's.
        unsafe { ptr::write_volatile(place, value) }
    }

    pub(crate) fn exchange(place: *mut u64, old: u64, new: u64) -> u64 {
        step();
        // SAFETY: a field of a slot.
        unsafe {
            let found = ptr::read_volatile(place);
            if found == old {
                ptr::write_volatile(place, new);
            }
            found
        }
    }

    pub(crate) fn vacate(slot: *mut Slot) {
        // SAFETY: a slot.
        unsafe { store(ptr::addr_of_mut!((*slot).frame), 0) }
    }

    pub(crate) fn same(slot: *mut Slot) -> *mut Slot {
        slot
    }

    pub(crate) fn clock() -> u64 {
        step();
        machine(|machine| machine.now)
    }
}

mod place {
    use profiler_common::layout::Slot;

    pub(crate) unsafe fn place_of(_: *mut Slot) -> u64 {
        0
    }

    pub(crate) const fn is_backwards(duration: u64) -> bool {
        duration > i64::MAX as u64
    }
}

mod record {
    use super::{machine, place, state};

    pub(crate) fn record<const MAGNITUDE: u32, const COUNTERS: usize, const SHARED: bool>(
        _: u64,
        duration: u64,
    ) {
        machine(|machine| {
            if place::is_backwards(duration) {
                machine.backwards += 1;
                return;
            }
            machine.measured += 1;
            let (now, begin) = (machine.now, machine.begins.last().copied().unwrap_or_default());
            if duration > now - begin {
                machine.too_long.push(format!("{duration} of a call from {begin} to {now}"));
            }
        });
    }

    pub(crate) fn record_last<const MAGNITUDE: u32, const COUNTERS: usize>(
        place: u64,
        duration: u64,
    ) {
        record::<MAGNITUDE, COUNTERS, false>(place, duration);
        state::end();
    }

    pub(crate) fn record_fast<const MAGNITUDE: u32, const COUNTERS: usize>(
        place: u64,
        duration: u64,
    ) -> bool {
        let is_fast = !place::is_backwards(duration);
        if is_fast {
            record::<MAGNITUDE, COUNTERS, false>(place, duration);
        }
        is_fast
    }
}

mod shared {
    pub(crate) fn add_one(counter: *mut u64) {
        super::step();
        // SAFETY: the caller's.
        unsafe { *counter += 1 }
    }
}

mod state {
    use std::panic::resume_unwind;

    use profiler_common::layout::{Displaced, Frame, Slot};

    use super::memory::BPF_NOEXIST;
    use super::{CPUS, Ended, SLOTS, machine, step};

    pub(crate) struct Map;

    pub(crate) static DISPLACED: Map = Map;

    impl Map {
        pub(crate) unsafe fn get(&self, key: Frame) -> Option<Displaced> {
            step();
            machine(|machine| machine.displaced.get(&(key.frame, key.handler)).copied())
        }

        pub(crate) fn insert(&self, key: Frame, value: Displaced, flags: u64) -> Result<(), ()> {
            step();
            machine(|machine| {
                let key = (key.frame, key.handler);
                if flags == u64::from(BPF_NOEXIST) && machine.displaced.contains_key(&key) {
                    return Err(());
                }
                machine.displaced.insert(key, value);
                Ok(())
            })
        }

        pub(crate) fn remove(&self, key: Frame) -> Result<(), ()> {
            step();
            let key = (key.frame, key.handler);
            machine(|machine| machine.displaced.remove(&key).map(drop).ok_or(()))
        }
    }

    pub(crate) fn cpus() -> u64 {
        CPUS as u64
    }

    pub(crate) fn this_cpu() -> u64 {
        machine(|machine| machine.cpu as u64)
    }

    pub(crate) fn slot_of(cpu: u64) -> *mut Slot {
        SLOTS.with(|slots| slots.wrapping_add(cpu as usize))
    }

    pub(crate) fn handler() -> u64 {
        7
    }

    pub(crate) fn preempts() -> bool {
        machine(|machine| machine.preempts)
    }

    pub(crate) fn end() -> ! {
        resume_unwind(Box::new(Ended))
    }
}
