//! The same of arm64, whose calls have no place on the stack.

use super::*;
use crate::arm64::ARCH;

const KALLSYMS: &str = "module driver\n\
    ffff800008010000 T __entry_text_start\n\
    ffff800008010000 T vectors\n\
    ffff800008010800 t el1h_64_sync\n\
    ffff800008010900 t el1h_64_irq\n\
    ffff800008010a00 t ret_to_kernel\n\
    ffff800008011000 T __entry_text_end\n\
    ffff800008011100 T ret_from_fork\n\
    ffff800008012000 T cpu_switch_to\n\
    ffff800008013000 T __switch_to\n\
    ffff800008014000 T memcpy\n\
    ffff800008015000 T __kretprobe_trampoline\n\
    ffff800008016000 T do_el0_svc\n\
    ffff800008017000 T __sys_connect\n\
    ffff800000000000 t $x\t[driver]\n\
    ffff800000000000 t handler\t[driver]\n\
    ffff800000000100 t helper\t[driver]\n";

const VECTORS: u64 = 0xffff_8000_0801_0000;
const SYNC: u64 = VECTORS + 0x200;
const IRQ: u64 = VECTORS + 0x280;
const ERET: u64 = VECTORS + 0xa00;
const FORKED: u64 = VECTORS + 0x1100;
const SWITCH: u64 = VECTORS + 0x2000;
const SWITCH_C: u64 = VECTORS + 0x3000;
const MEMCPY: u64 = VECTORS + 0x4000;
const TRAMPOLINE: u64 = VECTORS + 0x5000;
const SYSTEM_CALL: u64 = VECTORS + 0x6000;
const CONNECT: u64 = VECTORS + 0x7000;
const OUTSIDE: u64 = VECTORS + 0x9000;
const HANDLER: u64 = 0xffff_8000_0000_0000;
const HELPER: u64 = HANDLER + 0x100;

/// Where the registers of two tasks are kept.
const A: u64 = 0xffff_0000_0100_0b40;
const B: u64 = 0xffff_0000_0200_0b40;

struct Player {
    counter: Counter,
    sums: Sums,
    executing: u64,
}

impl Player {
    fn new() -> Self {
        let symbols = symbols::parse(KALLSYMS, &ARCH).unwrap();
        Self { counter: Counter::new(symbols, 1), sums: Sums::default(), executing: 0 }
    }

    /// A block whose last instruction is of this kind; a call goes behind it when it returns.
    fn run(&mut self, address: u64, instructions: usize, end: Kind) -> &mut Self {
        self.part(address, instructions, instructions, end)
    }

    /// Of whose instructions only `executed` are begun.
    fn part(&mut self, address: u64, instructions: usize, executed: usize, end: Kind) -> &mut Self {
        self.sums.instructions += std::mem::take(&mut self.executing);
        let mut block = Block::new(address, vec![4; instructions], end, false);
        let sums = self.sums;
        self.counter.begin(&mut block, || sums);
        self.executing = executed as u64;
        self
    }

    /// One task takes the place of another, and goes on behind its own exchange.
    fn exchange(&mut self, from: u64, to: u64) -> &mut Self {
        self.run(SWITCH_C, 3, Kind::Link).run(SWITCH, 10, Kind::Back);
        // Each has a second register.
        self.counter.suspend(from);
        self.counter.suspend(from + 8);
        self.counter.resume(to);
        self.counter.resume(to + 8);
        self.run(SWITCH_C + 12, 2, Kind::Back)
    }

    fn calls(&self, address: u64) -> &Calls {
        &self.counter.calls[&self.counter.symbols.place(address).unwrap().function]
    }

    /// Instructions of each call, ascending.
    fn inclusive(&self, address: u64) -> Vec<(u64, u64)> {
        let mut values: Vec<_> = self.calls(address).inclusive.clone().into_iter().collect();
        values.sort_unstable();
        values
    }
}

#[test]
fn a_call_ends_where_it_came_from() {
    let mut player = Player::new();
    player
        .run(OUTSIDE, 5, Kind::Link)
        .run(HANDLER, 3, Kind::Link)
        .run(MEMCPY, 10, Kind::Back)
        .run(HANDLER + 12, 4, Kind::Back)
        .run(OUTSIDE + 20, 5, Kind::Other);
    assert_eq!(player.inclusive(HANDLER), [(17, 1)]);
    assert_eq!(player.calls(HANDLER).own, HashMap::from([(7, 1)]));
    let of = |node: &Node| (node.parent, node.calls, node.sums.instructions);
    assert_eq!(player.counter.nodes.iter().map(of).collect::<Vec<_>>(), [(ROOT, 1, 7), (0, 1, 10)]);
}

/// From one place: the return addresses of the inner calls are the same.
#[test]
fn a_function_that_calls_itself_returns_once_for_each_call() {
    let mut player = Player::new();
    player.run(OUTSIDE, 1, Kind::Link);
    for _ in 0..3 {
        player.run(HANDLER, 4, Kind::Link);
    }
    player.run(HANDLER, 2, Kind::Back);
    for _ in 0..3 {
        player.run(HANDLER + 16, 1, Kind::Back);
    }
    player.run(OUTSIDE + 4, 1, Kind::Other);
    assert_eq!(player.inclusive(HANDLER), [(2, 1), (7, 1), (12, 1), (17, 1)]);
}

#[test]
fn a_tail_call_returns_for_the_one_that_jumped() {
    let mut player = Player::new();
    player.run(OUTSIDE, 1, Kind::Link).run(HANDLER, 3, Kind::Other).run(HELPER, 4, Kind::Back).run(
        OUTSIDE + 4,
        9,
        Kind::Other,
    );
    assert_eq!((player.inclusive(HANDLER), player.inclusive(HELPER)), (vec![(7, 1)], vec![(4, 1)]));
}

#[test]
fn an_interrupt_is_apart_and_may_call_the_handler_itself() {
    let mut player = Player::new();
    player
        .run(OUTSIDE, 1, Kind::Link)
        .part(HANDLER, 5, 2, Kind::Back)
        .run(IRQ, 8, Kind::Other)
        .run(VECTORS + 0x900, 2, Kind::Link)
        .run(HANDLER, 5, Kind::Back)
        .run(VECTORS + 0x908, 6, Kind::Other)
        .run(ERET, 3, Kind::InterruptReturn)
        .run(HANDLER + 8, 3, Kind::Back)
        .run(OUTSIDE + 4, 1, Kind::Other);
    assert_eq!(player.inclusive(HANDLER), [(5, 2)]);
    assert_eq!((player.calls(HANDLER).interrupted, player.calls(HANDLER).interrupts), (1, 24));
}

/// And another one at once behind the first.
#[test]
fn an_interrupt_before_a_return_has_arrived_is_apart() {
    let mut player = Player::new();
    player.run(OUTSIDE, 1, Kind::Link).run(HANDLER, 3, Kind::Link).run(MEMCPY, 10, Kind::Back);
    for _ in 0..2 {
        player.run(IRQ, 8, Kind::Other).run(ERET, 3, Kind::InterruptReturn);
    }
    player.run(HANDLER + 12, 4, Kind::Back).run(IRQ, 8, Kind::Other);
    player.run(ERET, 3, Kind::InterruptReturn).run(OUTSIDE + 4, 5, Kind::Other);
    assert_eq!(player.inclusive(HANDLER), [(17, 1)]);
    assert_eq!(player.calls(HANDLER).own, HashMap::from([(7, 1)]));
}

#[test]
fn a_fault_is_begun_again_and_a_breakpoint_is_not() {
    let play = |end: Kind, after: u64, left: usize| {
        let mut player = Player::new();
        player
            .run(OUTSIDE, 1, Kind::Link)
            .run(HANDLER, 5, end)
            .run(SYNC, 8, Kind::Other)
            .run(ERET, 3, Kind::InterruptReturn)
            .run(HANDLER + after, left, Kind::Back)
            .run(OUTSIDE + 4, 1, Kind::Other);
        (player.inclusive(HANDLER), player.calls(HANDLER).own.clone())
    };
    let own = |count| HashMap::from([(count, 1)]);
    assert_eq!(play(Kind::Other, 16, 3), (vec![(4 + 11 + 3, 1)], own(7)));
    assert_eq!(play(Kind::Breakpoint, 20, 2), (vec![(5 + 11 + 2, 1)], own(7)));
}

#[test]
fn a_handler_that_sleeps_has_its_own_instructions_alone() {
    let mut player = Player::new();
    player.run(OUTSIDE, 1, Kind::Link).run(HANDLER, 2, Kind::Link);
    player.exchange(A, B);
    // The other task comes to the same place.
    player.run(OUTSIDE, 1, Kind::Link).run(HANDLER, 2, Kind::Link);
    player.exchange(B, A).run(HANDLER + 8, 3, Kind::Back).run(OUTSIDE + 4, 1, Kind::Link);
    player.exchange(A, B).run(HANDLER + 8, 4, Kind::Back).run(OUTSIDE + 4, 1, Kind::Other);
    assert_eq!(player.inclusive(HANDLER), [(2 + 13 + 2 + 3, 1), (2 + 13 + 2 + 4, 1)]);
    assert_eq!(player.calls(HANDLER).abandoned, 0);
}

#[test]
fn a_task_that_ends_within_a_call_leaves_nothing_to_a_new_one() {
    let mut player = Player::new();
    player.run(OUTSIDE, 1, Kind::Link).run(HANDLER, 2, Kind::Link);
    player.exchange(A, B).run(OUTSIDE, 1, Kind::Link);
    player.run(SWITCH_C, 3, Kind::Link).run(SWITCH, 10, Kind::Back);
    player.counter.suspend(B);
    player.counter.resume(A);
    player.run(FORKED, 6, Kind::Link).run(HANDLER, 2, Kind::Back).run(FORKED + 24, 1, Kind::Other);
    assert_eq!(player.inclusive(HANDLER), [(2, 1)]);
    assert_eq!(player.calls(HANDLER).abandoned, 1);
}

#[test]
fn a_probe_of_a_return_is_a_part_of_the_call_that_it_follows() {
    let mut player = Player::new();
    player.counter.operation(true);
    player
        .run(OUTSIDE, 1, Kind::Link)
        .run(SYSTEM_CALL, 5, Kind::Link)
        .run(CONNECT, 4, Kind::Back)
        .run(TRAMPOLINE, 6, Kind::Link)
        .run(HANDLER, 7, Kind::Back)
        .run(TRAMPOLINE + 24, 3, Kind::Back)
        .run(SYSTEM_CALL + 20, 2, Kind::Back)
        .run(OUTSIDE + 4, 1, Kind::Other);
    player.counter.operation(false);
    assert_eq!(player.inclusive(HANDLER), [(7, 1)]);
    assert_eq!(player.counter.operations, HashMap::from([(5 + 4 + 6 + 7 + 3 + 2, 1)]));
}
