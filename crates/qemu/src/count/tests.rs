//! Orders of events as a kernel makes them, played without QEMU.

mod arm64;

use super::*;
use crate::{symbols, x86};

/// Two functions of the driver, functions of the kernel, and the entries of interrupts.
const KALLSYMS: &str = "module driver\n\
    vector 236 ffffffff81000000\n\
    vector 14 ffffffff81000100\n\
    vector 3 ffffffff81000180\n\
    ffffffff81000000 T __entry_text_start\n\
    ffffffff81000000 t apic_timer_interrupt\n\
    ffffffff81000100 t page_fault\n\
    ffffffff81000180 t int3\n\
    ffffffff81000200 t common_interrupt_return\n\
    ffffffff81000300 T entry_SYSCALL_64\n\
    ffffffff81001000 T __entry_text_end\n\
    ffffffff81002000 T __switch_to_asm\n\
    ffffffff81002100 T __switch_to\n\
    ffffffff81003000 T schedule\n\
    ffffffff81004000 T memcpy\n\
    ffffffff81005000 T __x86_indirect_thunk_rax\n\
    ffffffff81006000 t do_syscall\n\
    ffffffff81007000 T do_syscall_64\n\
    ffffffffc0000000 t handler\t[driver]\n\
    ffffffffc0000100 t helper\t[driver]\n\
    ffffffffc0000200 t helper.cold\t[driver]\n";

const TIMER: u64 = 0xffff_ffff_8100_0000;
const FAULT: u64 = TIMER + 0x100;
const BREAKPOINT: u64 = TIMER + 0x180;
const INTERRUPT_RETURN: u64 = TIMER + 0x200;
const ENTRY: u64 = TIMER + 0x300;
const SWITCH: u64 = 0xffff_ffff_8100_2000;
const SWITCH_C: u64 = SWITCH + 0x100;
const SCHEDULE: u64 = 0xffff_ffff_8100_3000;
const MEMCPY: u64 = 0xffff_ffff_8100_4000;
const THUNK: u64 = 0xffff_ffff_8100_5000;
const SYSCALL: u64 = 0xffff_ffff_8100_6010;
const SYSTEM_CALL: u64 = 0xffff_ffff_8100_7000;
const HANDLER: u64 = 0xffff_ffff_c000_0000;
const HELPER: u64 = HANDLER + 0x100;
const COLD: u64 = HANDLER + 0x200;

/// Tops of two tasks' stacks and of the stack of interrupts.
const A: u64 = 0xffff_c900_0000_4000 - 0x100;
const B: u64 = 0xffff_c900_0001_4000 - 0x100;
const IRQ: u64 = 0xffff_c900_0010_4000 - 0x100;

/// Plays blocks: each is executed as a whole when the next begins.
struct Player {
    counter: Counter,
    sums: Sums,
    executing: u64,
}

impl Player {
    fn new() -> Self {
        Self::of(KALLSYMS)
    }

    /// With a request's text.
    fn of(text: &str) -> Self {
        let symbols = symbols::parse(text, &x86::ARCH).unwrap();
        Self { counter: Counter::new(symbols, 1), sums: Sums::default(), executing: 0 }
    }

    /// A block of `instructions` at `address`, whose last does `event`.
    fn run(&mut self, address: u64, instructions: usize, event: Event) -> &mut Self {
        self.part(address, instructions, instructions, event)
    }

    /// Of whose instructions only `executed` are begun.
    fn part(
        &mut self,
        address: u64,
        instructions: usize,
        executed: usize,
        event: Event,
    ) -> &mut Self {
        self.block(address, instructions, executed, event, false)
    }

    fn block(
        &mut self,
        address: u64,
        instructions: usize,
        executed: usize,
        event: Event,
        repeats: bool,
    ) -> &mut Self {
        self.sums.instructions += std::mem::take(&mut self.executing);
        let end = match event {
            _ if address == INTERRUPT_RETURN => Kind::InterruptReturn,
            Event::None => Kind::Other,
            Event::Call(_) => Kind::Call,
            Event::Return(_) => Kind::Return,
            Event::Link(_) | Event::Back(_) => unreachable!("of arm64"),
        };
        let mut block = Block::new(address, vec![1; instructions], end, repeats);
        let sums = self.sums;
        self.counter.begin(&mut block, || sums);
        self.counter.record_event(event);
        self.executing = executed as u64;
        self
    }

    /// A system call, to where the entry code calls a function with its return address at `slot`.
    fn system_call(&mut self, slot: u64) -> &mut Self {
        self.counter.system_call();
        self.run(ENTRY, 30, Event::Call(slot))
    }

    /// Leaves the handler that was entered with its return address at `slot`, and goes on outside.
    fn end(&mut self, address: u64, slot: u64) -> &mut Self {
        self.run(address, 1, Event::Return(slot)).run(SYSCALL, 1, Event::None)
    }

    fn calls(&self, address: u64) -> &Calls {
        let at = self.counter.symbols.place(address).unwrap().function;
        &self.counter.calls[&at]
    }

    /// Instructions of each call, ascending.
    fn inclusive(&self, address: u64) -> Vec<(u64, u64)> {
        let mut values: Vec<_> = self.calls(address).inclusive.clone().into_iter().collect();
        values.sort_unstable();
        values
    }
}

#[test]
fn a_part_that_is_called_is_a_function_from_then_on() {
    let text = KALLSYMS.replace("module driver", "module driver ffffffffc0000000 4096");
    let mut symbols = symbols::parse(&text, &x86::ARCH).unwrap();
    assert!(!symbols.place(COLD).unwrap().entry);
    symbols.add(COLD).unwrap();
    assert!(symbols.place(COLD).unwrap().entry, "it would be added with each new translation");
}

/// The detour of an optimised kprobe lies behind a module, whose last symbol is the one before it: in a function of the kernel
/// it has no lines, as that has none, and in one of the driver it has.
#[test]
fn lines_are_those_of_the_function_whatever_the_code_is_of() {
    let text = KALLSYMS.replace("module driver", "module driver ffffffffc0000000 4096");
    let mut player = Player::of(&text);
    player
        .run(SYSCALL, 1, Event::Call(A))
        .run(HANDLER, 3, Event::Call(A - 0x40))
        .run(MEMCPY, 2, Event::None)
        .run(HANDLER + 0x2000, 5, Event::None)
        .run(MEMCPY + 0x10, 1, Event::Return(A - 0x40))
        .run(HANDLER + 0x20, 2, Event::None)
        .run(HANDLER + 0x2000, 4, Event::None)
        .end(HANDLER + 0x30, A);
    let counter = player.counter;
    let of = |node: &Node| node.sums.instructions;
    assert_eq!(counter.nodes.iter().map(of).collect::<Vec<_>>(), [10, 8]);
    assert!(counter.cells.iter().all(|cell| cell.node == 0));
    let lines = |cell: &Cell| cell.times * counter.code[cell.code as usize].sizes.len() as u64;
    assert_eq!(counter.cells.iter().map(lines).sum::<u64>(), 10);
}

#[test]
fn a_call_has_its_own_instructions_and_those_of_what_it_called() {
    let mut player = Player::new();
    player
        .run(SYSCALL, 5, Event::Call(A))
        .run(HANDLER, 3, Event::Call(A - 0x40))
        .run(MEMCPY, 10, Event::Return(A - 0x40))
        .run(HANDLER + 0x20, 4, Event::Return(A))
        .run(SYSCALL + 0x20, 5, Event::None);
    assert_eq!(player.inclusive(HANDLER), [(17, 1)]);
    assert_eq!(player.calls(HANDLER).own, HashMap::from([(7, 1)]));
    let of = |node: &Node| (node.parent, node.calls, node.sums.instructions);
    assert_eq!(player.counter.nodes.iter().map(of).collect::<Vec<_>>(), [(ROOT, 1, 7), (0, 1, 10)]);
}

/// A handler, a breakpoint and a timer interrupt in a system call: the interrupt alone is not the operation's.
#[test]
fn an_operation_has_what_its_system_calls_execute() {
    let system_call = |player: &mut Player| {
        player
            .system_call(A)
            .run(SYSTEM_CALL, 5, Event::Call(A - 0x40))
            .run(HANDLER, 4, Event::Return(A - 0x40))
            .run(SYSTEM_CALL + 0x20, 3, Event::None)
            .run(BREAKPOINT, 6, Event::None)
            .run(INTERRUPT_RETURN, 2, Event::None)
            .run(SYSTEM_CALL + 0x30, 1, Event::None)
            .run(TIMER, 70, Event::None)
            .run(INTERRUPT_RETURN, 20, Event::None)
            .run(SYSTEM_CALL + 0x40, 2, Event::Return(A))
            .run(SYSCALL + 0x20, 1, Event::None);
    };
    let mut player = Player::new();
    system_call(&mut player);
    assert!(player.counter.operations.is_empty(), "the load has not begun");
    player.counter.operation(true);
    system_call(&mut player);
    system_call(&mut player);
    player.counter.operation(true);
    system_call(&mut player);
    player.counter.operation(false);
    system_call(&mut player);
    let one = 5 + 4 + 3 + 8 + 1 + 2;
    assert_eq!(player.counter.operations, HashMap::from([(one, 1), (2 * one, 1)]));
    assert_eq!(player.counter.within, HashMap::from([(4, 1), (2 * 4, 1)]), "the handler");
    // Nothing else is told apart, and calls are what they are without operations.
    assert_eq!(player.inclusive(HANDLER), [(4, 5)]);
    let of = |node: &Node| (node.parent, node.calls, node.sums.instructions);
    assert_eq!(player.counter.nodes.iter().map(of).collect::<Vec<_>>(), [(ROOT, 5, 20)]);
}

/// Before Linux 4.17 the entry code calls functions of a table, and others before it leaves the kernel. What it calls in an interrupt
/// is none of them.
#[test]
fn a_system_call_is_what_the_entry_code_calls() {
    let mut player = Player::new();
    player.counter.operation(true);
    player
        .system_call(A)
        .run(SCHEDULE, 5, Event::Call(A - 0x40))
        .run(HANDLER, 4, Event::Return(A - 0x40))
        .run(TIMER, 7, Event::Call(IRQ))
        .run(MEMCPY, 70, Event::Return(IRQ))
        .run(TIMER + 0x40, 7, Event::None)
        .run(INTERRUPT_RETURN, 20, Event::None)
        .run(SCHEDULE + 0x20, 3, Event::Return(A))
        .run(ENTRY + 0x40, 2, Event::Call(A))
        .run(MEMCPY, 6, Event::Return(A))
        .run(ENTRY + 0x60, 9, Event::None)
        // In the program.
        .run(TIMER, 7, Event::Call(IRQ))
        .run(MEMCPY, 70, Event::Return(IRQ));
    player.counter.operation(false);
    assert_eq!(player.counter.operations, HashMap::from([(5 + 4 + 3 + 6, 1)]));
}

/// Before Linux 5.8 a new task begins in the entry code, and it may have the stack of one that ended in a system call.
#[test]
fn what_a_new_task_begins_with_is_no_system_call() {
    let mut player = Player::new();
    player.counter.operation(true);
    let switch = |player: &mut Player, to: u64| {
        player.run(SWITCH, 4, Event::None).run(SWITCH_C, 2, Event::Return(to));
    };
    player.system_call(A).run(SCHEDULE, 5, Event::Call(A - 0x80));
    switch(&mut player, B);
    player.run(MEMCPY, 9, Event::None);
    switch(&mut player, A);
    player.run(ENTRY + 0x80, 3, Event::Call(A)).run(MEMCPY, 70, Event::Return(A));
    player.run(ENTRY + 0x90, 3, Event::Call(A)).run(MEMCPY, 700, Event::None);
    player.counter.operation(false);
    assert_eq!(player.counter.operations, HashMap::from([(5 + 4 + 2, 1)]));
}

/// The handler calls a function whose return is probed, and then another; with an interrupt before the trampoline, too.
#[test]
fn a_probed_return_leaves_no_trampoline_on_its_caller() {
    let names = ["arch_rethook_trampoline", "kretprobe_trampoline", "__kretprobe_trampoline"];
    for (name, interrupted) in names.iter().flat_map(|name| [(name, false), (name, true)]) {
        let text = KALLSYMS.replace("do_syscall\n", &format!("{name}\n"));
        let mut player = Player::of(&text);
        let (slot, trampoline) = (A - 0x40, SYSCALL - 0x10);
        player.run(SCHEDULE, 1, Event::Call(A)).run(HANDLER, 3, Event::Call(slot));
        player.run(HELPER, 10, Event::Return(slot));
        if interrupted {
            player.run(TIMER, 9, Event::Call(IRQ)).run(MEMCPY, 3, Event::Return(IRQ));
            player.run(INTERRUPT_RETURN, 1, Event::None);
        }
        player
            .run(trampoline, 20, Event::Call(slot - 0xb0))
            .run(MEMCPY, 30, Event::Return(slot - 0xb0))
            .run(trampoline + 0x40, 20, Event::Return(slot))
            .run(HANDLER + 0x20, 100, Event::Call(slot))
            .run(MEMCPY, 7, Event::Return(slot))
            .end(HANDLER + 0x80, A);
        let own = if interrupted { 3 + 100 + 1 + 40 } else { 3 + 100 + 1 };
        assert_eq!(player.inclusive(HANDLER), [(3 + 10 + 70 + 100 + 7 + 1, 1)], "{name}");
        assert_eq!(player.calls(HANDLER).own, HashMap::from([(own, 1)]), "{name}");
        let below = player.counter.nodes.iter().filter(|node| node.parent == 0);
        // Of the helper, the trampoline and memcpy; or of the helper, and of memcpy twice.
        assert_eq!(below.map(|node| node.calls).sum::<u64>(), 3, "{name}");
    }
}

/// An optimised kprobe's jump to its copied instructions, at the first byte of their page, and back.
#[test]
fn a_page_of_kprobes_is_the_function_that_jumps_there() {
    let mut player = Player::of(&KALLSYMS.replace("do_syscall\n", "kprobe_optinsn_page\n"));
    player.run(SCHEDULE, 1, Event::Call(A)).run(HANDLER, 3, Event::None);
    player.run(SYSCALL - 0x10, 9, Event::None).end(HANDLER + 0x20, A);
    assert_eq!(player.calls(HANDLER).own, HashMap::from([(13, 1)]));
}

#[test]
fn a_recursion_has_a_call_for_each_level() {
    let mut player = Player::new();
    player.run(SYSCALL, 1, Event::Call(A)).run(HANDLER, 3, Event::Call(A - 0x40)).run(
        HANDLER,
        3,
        Event::Call(A - 0x80),
    );
    player.run(HANDLER, 3, Event::None).run(HANDLER + 0x30, 2, Event::Return(A - 0x80));
    player.run(HANDLER + 0x40, 1, Event::Return(A - 0x40)).end(HANDLER + 0x40, A);
    assert_eq!(player.inclusive(HANDLER), [(5, 1), (9, 1), (13, 1)]);
    assert_eq!(player.counter.nodes.len(), 3);
}

#[test]
fn a_function_that_is_jumped_to_returns_for_its_caller() {
    let mut player = Player::new();
    player.run(SYSCALL, 1, Event::Call(A)).run(HANDLER, 3, Event::None).end(HELPER, A);
    assert_eq!(player.inclusive(HANDLER), [(4, 1)]);
    assert_eq!(player.inclusive(HELPER), [(1, 1)]);
}

/// Behind the prologue of the second program; within its own prologue each goes on.
#[test]
fn a_tail_call_enters_a_bpf_program_behind_its_prologue() {
    let text = "module bpf\n\
        ffffffff81006000 t do_syscall\n\
        ffffffffc0000000 t first\t[bpf]\n\
        ffffffffc0000100 t second\t[bpf]\n";
    let mut player = Player::of(text);
    let [first, second] = [HANDLER, HELPER];
    player.run(SYSCALL, 1, Event::Call(A)).run(first, 3, Event::None).run(
        first + 11,
        5,
        Event::None,
    );
    player.run(second + 11, 7, Event::None).run(second + 11, 2, Event::None).end(second + 0x40, A);
    assert_eq!(player.inclusive(first), [(18, 1)]);
    assert_eq!(player.inclusive(second), [(10, 1)]);
    // From its beginning, too.
    player.run(SYSCALL, 1, Event::Call(A)).run(second, 3, Event::None).end(second + 0x40, A);
    assert_eq!(player.inclusive(second), [(4, 1), (10, 1)]);
}

/// Whoever writes a program chooses its name, which may be one that the kernel's code is known by.
#[test]
fn a_bpf_program_is_counted_whatever_its_name_is() {
    for name in [
        "first.cold",
        "do_syscall_64",
        "asm_exc_page_fault",
        "__switch_to_asm",
        "__x86_indirect_thunk_array",
        "arch_rethook_trampoline",
        "my_text_end",
        "_stext",
        "__entry_text_start",
    ] {
        let text = format!(
            "module bpf\n\
             ffffffff81006000 t do_syscall\n\
             ffffffffc0000000 t first\t[bpf]\n\
             ffffffffc0000100 t {name}\t[bpf]\n"
        );
        let mut player = Player::of(&text);
        player.run(SYSCALL, 1, Event::Call(A)).run(HANDLER, 3, Event::Call(B));
        player.run(HELPER, 5, Event::Return(B)).end(HANDLER + 0x40, A);
        assert_eq!(player.inclusive(HELPER), [(5, 1)], "{name}");
        assert_eq!(player.inclusive(HANDLER), [(9, 1)], "{name}");
    }
}

#[test]
fn a_retpoline_leads_to_the_function_it_goes_to() {
    let mut player = Player::new();
    // `call __x86_indirect_thunk_rax`, which calls within itself, overwrites the address, and returns to it.
    player
        .run(SYSCALL, 1, Event::Call(A))
        .run(HANDLER, 3, Event::Call(A - 0x40))
        .run(THUNK, 1, Event::Call(A - 0x48))
        .run(THUNK + 0x10, 2, Event::Return(A - 0x48))
        .run(HELPER, 6, Event::Return(A - 0x40))
        .end(HANDLER + 0x20, A);
    assert_eq!(player.inclusive(HANDLER), [(13, 1)]);
    assert_eq!(player.inclusive(HELPER), [(6, 1)]);
    let helper = &player.counter.nodes[2];
    assert_eq!((helper.parent, helper.calls), (0, 1));
    // A root that is entered so.
    let mut player = Player::new();
    player.run(SYSCALL, 1, Event::Call(A)).run(THUNK, 1, Event::Call(A - 8)).run(
        THUNK + 0x10,
        2,
        Event::Return(A - 8),
    );
    player.run(HANDLER, 6, Event::Return(A)).run(SYSCALL, 1, Event::None);
    assert_eq!(player.inclusive(HANDLER), [(6, 1)]);
}

/// A driver may call its functions in a new order each time.
#[test]
fn what_is_kept_of_a_count_has_an_end() {
    let mut player = Player::new();
    let mut orders = 0..1 << 4;
    while !player.counter.is_full() {
        let order = orders.next().expect("it is full before");
        player.run(SYSCALL, 1, Event::Call(A));
        for depth in 0..4 {
            let function = if order >> depth & 1 == 0 { HANDLER } else { HELPER };
            player.run(function, 3, Event::Call(A - 0x40 * (depth + 1)));
        }
        player.run(MEMCPY, 2, Event::Return(A)).end(SYSCALL + 1, A + 8);
        let of = &player.counter;
        let values = |calls: &Calls| calls.inclusive.len() + calls.own.len();
        let values: usize = of.calls.values().map(values).sum();
        let kept = of.nodes.len() + of.cells.len() + of.code.len() + values;
        if order == 7 {
            assert!(values > 0 && of.kept == kept, "{kept}");
            player.counter.kept = MOST_KEPT - 10;
        }
    }
}

/// Code stays translated from one count to the next, and the driver may be another one by then.
#[test]
fn a_block_of_an_earlier_count_is_looked_up_anew() {
    let mut outside = Block::new(SYSCALL, vec![1], Kind::Call, false);
    let mut inside = Block::new(HANDLER, vec![1; 3], Kind::Return, false);
    let mut sums = Sums::default();
    let mut count = |symbols, number, calls: u64| {
        let mut counter = Counter::new(symbols, number);
        for _ in 0..calls {
            counter.begin(&mut outside, || sums);
            counter.record_event(Event::Call(A));
            sums.instructions += 1;
            counter.begin(&mut inside, || sums);
            counter.record_event(Event::Return(A));
            sums.instructions += 3;
        }
        counter.begin(&mut outside, || sums);
        counter
    };
    let named = |counter: &Counter| -> Vec<(String, u64, u64)> {
        let of = |(id, calls): (&u32, &Calls)| {
            let name = counter.symbols.functions[*id as usize].name.clone();
            (name, calls.ended, calls.inclusive[&3])
        };
        counter.calls.iter().map(of).collect()
    };
    let first = count(symbols::parse(KALLSYMS, &x86::ARCH).unwrap(), 1, 2);
    assert_eq!(named(&first), [("handler".to_owned(), 2, 2)]);
    let times = |counter: &Counter| counter.cells.iter().map(|cell| cell.times).sum::<u64>();
    assert_eq!(times(&first), 2);
    let second = count(first.into_symbols(), 2, 5);
    assert_eq!((named(&second), times(&second)), (vec![("handler".to_owned(), 5, 5)], 5));
    let other = KALLSYMS.replace("t handler", "t another");
    let third = count(symbols::parse(&other, &x86::ARCH).unwrap(), 3, 1);
    assert_eq!((named(&third), times(&third)), (vec![("another".to_owned(), 1, 1)], 1));
    let without = KALLSYMS.replace("module driver", "function memcpy");
    assert_eq!(named(&count(symbols::parse(&without, &x86::ARCH).unwrap(), 4, 3)), []);
}

/// Two functions of a stripped module: one below its first symbol, and one that a thunk leads to.
#[test]
fn a_function_without_a_symbol_is_named_by_its_place() {
    let text = KALLSYMS.replace("module driver", "module driver ffffffffbffff000 8192");
    let mut player = Player::of(&text);
    for _ in 0..2 {
        player
            .run(SYSCALL, 1, Event::Call(A))
            .run(HANDLER, 3, Event::Call(A - 0x40))
            .run(HANDLER - 0x10, 5, Event::None)
            .run(HANDLER - 8, 2, Event::Return(A - 0x40))
            .run(HANDLER + 0x20, 1, Event::Call(A - 0x40))
            .run(THUNK, 1, Event::None)
            .run(HELPER + 0x80, 6, Event::Return(A - 0x40))
            .end(HANDLER + 0x30, A);
    }
    assert_eq!(player.inclusive(HANDLER), [(19, 2)]);
    assert_eq!(player.calls(HANDLER).own, HashMap::from([(5, 2)]));
    let functions = player.counter.symbols.functions.clone();
    let of = |node: &Node| {
        (&*functions[node.function as usize].name, node.calls, node.sums.instructions)
    };
    let nodes: Vec<_> = player.counter.nodes.iter().map(of).collect();
    let thunk = ("__x86_indirect_thunk_rax", 2, 2);
    assert_eq!(nodes, [("handler", 2, 10), ("0xff0", 2, 14), thunk, ("0x1180", 2, 12)]);
    // Each of their instructions has its place.
    let lines: u64 = player
        .counter
        .cells
        .iter()
        .map(|cell| cell.times * player.counter.code[cell.code as usize].sizes.len() as u64)
        .sum();
    assert_eq!(lines, 10 + 14 + 12);
    // The next count finds such functions itself.
    let given = player.counter.into_symbols();
    let expected = symbols::parse(&text, &x86::ARCH).unwrap();
    assert_eq!(given.functions, expected.functions);
    for address in [HANDLER - 0x10, HELPER + 0x80, HELPER, HANDLER] {
        assert_eq!(given.place(address), expected.place(address));
    }
}

#[test]
fn a_cold_part_is_its_function() {
    let mut player = Player::new();
    player
        .run(SYSCALL, 1, Event::Call(A))
        .run(HELPER, 3, Event::None)
        .run(COLD, 4, Event::None)
        .end(HELPER + 0x20, A);
    assert_eq!(player.inclusive(HELPER), [(8, 1)]);
    assert_eq!(player.counter.nodes.len(), 1);
}

#[test]
fn an_interrupt_is_in_no_call_and_a_handler_in_it_is() {
    let mut player = Player::new();
    player
        .run(SYSCALL, 1, Event::Call(A))
        .run(HANDLER, 3, Event::None)
        .run(TIMER, 20, Event::Call(IRQ))
        .run(HANDLER, 3, Event::None)
        .run(HANDLER + 0x20, 4, Event::Return(IRQ))
        .run(INTERRUPT_RETURN, 2, Event::None)
        .run(HANDLER + 0x20, 4, Event::Return(A))
        .run(SYSCALL, 1, Event::None);
    let calls = player.calls(HANDLER);
    assert_eq!((calls.entered, calls.ended, calls.abandoned), (2, 2, 0));
    assert_eq!((calls.interrupted, calls.interrupts), (1, 29));
    assert_eq!(player.inclusive(HANDLER), [(7, 2)]);
}

/// `profiler` reads it.
#[test]
fn counts_are_written_as_json() {
    let mut player = Player::new();
    player.run(SYSCALL, 1, Event::Call(A)).run(HANDLER, 3, Event::Call(A - 0x40));
    player.run(MEMCPY, 2, Event::Return(A - 0x40)).end(HANDLER + 3, A);
    let file = std::env::temp_dir().join(format!("profiler-qemu-counts-{}", std::process::id()));
    crate::report::write(&player.counter, &file).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    let expected = r#"{"functions":{"8":[18446744071578861568,"memcpy",null],
"12":[18446744072635809792,"handler","driver"]},"calls":{"12":{"entered":1,"ended":1,"abandoned":0,"interrupted":0,"iterations":0,"ordering":0,"inclusive":[[6, 1]],"own":[[4, 1]]}},"nodes":[[null,12,[1,4,0]],
[0,8,[1,2,0]]],"code":[[0,1,18446744072635809792,[1, 1, 1]],
[0,1,18446744072635809795,[1]]],"operations":[],"within":[],"of_operations":[0, 0]}"#;
    assert_eq!(text, expected);
}

#[test]
fn what_an_interrupt_does_to_the_stack_is_no_call_or_return() {
    let mut player = Player::new();
    // Between the call and the handler's first instruction. QEMU 7.2 tells of what `iret` reads as if it were a return.
    player.run(SYSCALL, 1, Event::Call(A)).run(TIMER, 9, Event::Return(A - 0x60));
    player.run(INTERRUPT_RETURN, 1, Event::Return(A - 0x30));
    player.run(HANDLER, 3, Event::None).run(HANDLER + 0x20, 1, Event::Return(A));
    player.run(SYSCALL, 1, Event::None);
    let calls = player.calls(HANDLER);
    assert_eq!((calls.entered, calls.ended, calls.abandoned), (1, 1, 0));
    assert_eq!(player.inclusive(HANDLER), [(4, 1)]);
}

/// The handler reads memory that is not there: the kernel's work on it is the handler's, a timer that fell into that is not.
#[test]
fn a_fault_belongs_to_what_caused_it_and_its_instruction_counts_once() {
    let mut player = Player::new();
    player
        .run(SYSCALL, 1, Event::Call(A))
        // The third of five faults, and is begun again after it.
        .part(HANDLER, 5, 3, Event::None)
        .run(FAULT, 1_000, Event::Call(A - 0x200))
        .run(MEMCPY, 3_000, Event::None)
        .run(TIMER, 70, Event::Call(IRQ))
        .run(HELPER, 3, Event::Return(IRQ))
        .run(INTERRUPT_RETURN, 20, Event::None)
        .run(MEMCPY + 0x20, 500, Event::Return(A - 0x200))
        .run(FAULT + 0x40, 490, Event::None)
        .run(INTERRUPT_RETURN, 10, Event::None)
        .run(HANDLER + 2, 3, Event::Return(A))
        .run(SYSCALL, 1, Event::None);
    assert_eq!(player.inclusive(HANDLER), [(5 + 5_000, 1)]);
    let calls = player.calls(HANDLER);
    assert_eq!(calls.own, HashMap::from([(5, 1)]));
    assert_eq!((calls.interrupted, calls.interrupts, calls.ended), (1, 93, 1));
    assert_eq!(player.inclusive(HELPER), [(3, 1)]);
    let functions = &player.counter.symbols.functions;
    let of = |node: &Node| {
        let name = &*functions[node.function as usize].name;
        (name, node.parent, node.calls, node.sums.instructions)
    };
    let nodes: Vec<_> = player.counter.nodes.iter().map(of).collect();
    let fault = ("page_fault", 0, 1, 1_490);
    let end = ("common_interrupt_return", 1, 1, 10);
    let rest = [fault, ("memcpy", 1, 1, 3_500), ("helper", ROOT, 1, 3), end];
    assert_eq!((&nodes[0], &nodes[1..]), (&("handler", ROOT, 1, 5), &rest[..]));
    let lines: Vec<_> = player
        .counter
        .cells
        .iter()
        .filter(|cell| cell.node == 0 && cell.times > 0)
        .map(|cell| player.counter.code[cell.code as usize].sizes.len())
        .collect();
    assert_eq!(lines, [2, 3]);
}

/// A WARN in a handler (`ud2`), and in that a breakpoint whose handler is watched.
#[test]
fn exceptions_within_each_other_are_all_the_callers() {
    let mut player = Player::of(&KALLSYMS.replace("vector 14", "vector 6"));
    player
        .run(SYSCALL, 1, Event::Call(A))
        .run(HANDLER, 3, Event::None)
        .run(FAULT, 100, Event::None)
        .run(BREAKPOINT, 30, Event::Call(A - 0x300))
        .run(HELPER, 4, Event::Return(A - 0x300))
        .run(BREAKPOINT + 0x20, 5, Event::None)
        .run(INTERRUPT_RETURN, 1, Event::None)
        .run(FAULT + 0x20, 10, Event::None)
        .run(INTERRUPT_RETURN, 1, Event::None)
        .run(HANDLER + 0x20, 2, Event::Return(A))
        .run(SYSCALL, 1, Event::None);
    // `ud2` is no instruction that has ended, and is not begun again.
    assert_eq!(player.inclusive(HANDLER), [(2 + 100 + 40 + 11 + 2, 1)]);
    assert_eq!(player.inclusive(HELPER), [(4, 1)]);
    let calls = player.calls(HANDLER);
    assert_eq!((calls.interrupts, calls.abandoned, calls.ended), (0, 0, 1));
}

/// Of a helper that clears memory by a `rep stosq`, interrupted between two iterations, with a fault at one.
#[test]
fn a_string_instruction_counts_once_and_its_iterations_are_the_calls() {
    let mut player = Player::new();
    player.counter.operation(true);
    player.system_call(A).run(SYSTEM_CALL, 5, Event::Call(A - 0x40));
    player.run(HANDLER, 3, Event::Call(A - 0x80)).run(HELPER, 3, Event::None);
    let iterate = |player: &mut Player, address: u64, times: u64| {
        for _ in 0..times {
            player.block(address, 1, 1, Event::None, true);
            player.sums.beside += Beside { half_iterations: 2, ordering: 1 };
        }
    };
    iterate(&mut player, HELPER + 2, 10);
    player.run(TIMER, 9, Event::None).run(INTERRUPT_RETURN, 1, Event::None);
    iterate(&mut player, HELPER + 2, 1);
    player.run(FAULT, 7, Event::None);
    iterate(&mut player, MEMCPY, 2);
    player.run(INTERRUPT_RETURN, 1, Event::None);
    iterate(&mut player, HELPER + 2, 1_000);
    player.run(HELPER + 3, 1, Event::Return(A - 0x80)).run(HANDLER + 3, 1, Event::Return(A - 0x40));
    player.run(SYSTEM_CALL + 0x20, 2, Event::Return(A)).run(SYSCALL, 1, Event::None);
    player.counter.operation(false);
    for function in [HANDLER, HELPER] {
        let expected = Beside { half_iterations: 2 * 1_013, ordering: 1_013 };
        assert_eq!(player.calls(function).beside, expected);
    }
    assert_eq!(player.counter.beside.half_iterations, 2 * 1_013);
    assert_eq!((player.counter.elsewhere, player.counter.operations.len()), (0, 1));
    assert_eq!(player.inclusive(HANDLER), [(4 + 4 + 9, 1)]);
}

/// A work item that a handler has queued runs in a thread of the kernel, and a timer of the driver in an interrupt.
#[test]
fn what_runs_outside_of_system_calls_is_no_operations() {
    let mut player = Player::new();
    let work = |player: &mut Player| {
        player.run(SCHEDULE, 1, Event::Call(B)).run(HELPER, 40, Event::Call(B - 0x40));
        player.run(MEMCPY, 10, Event::Return(B - 0x40)).run(HELPER + 0x20, 1, Event::Return(B));
        player.run(SCHEDULE + 0x20, 1, Event::None);
    };
    work(&mut player);
    player.counter.operation(true);
    player.system_call(A).run(SYSTEM_CALL, 5, Event::Call(A - 0x40));
    player.run(HANDLER, 3, Event::Return(A - 0x40)).run(SYSTEM_CALL + 0x20, 2, Event::None);
    player.run(TIMER, 20, Event::Call(IRQ)).run(HELPER, 6, Event::Return(IRQ));
    player.run(INTERRUPT_RETURN, 2, Event::None).run(SYSTEM_CALL + 0x30, 1, Event::Return(A));
    player.run(SYSCALL + 0x20, 1, Event::None);
    work(&mut player);
    player.counter.operation(false);
    work(&mut player);
    assert_eq!(player.counter.operations, HashMap::from([(11, 1)]));
    assert_eq!(player.counter.elsewhere, 6 + 51);
}

#[test]
fn tasks_that_sleep_inside_a_call_do_not_mix() {
    let mut player = Player::new();
    let sleep = |player: &mut Player, from: u64, to: u64| {
        player.run(HANDLER, 3, Event::Call(from - 0x40)).run(
            SCHEDULE,
            10,
            Event::Call(from - 0x80),
        );
        player.run(SWITCH, 4, Event::None).run(SWITCH_C, 2, Event::Return(to - 0x80));
    };
    let wake = |player: &mut Player, slot: u64| {
        player.run(SCHEDULE + 0x20, 5, Event::Return(slot - 0x40)).end(HANDLER + 0x20, slot);
    };
    player.run(SYSCALL, 1, Event::Call(A));
    sleep(&mut player, A, B);
    // The other task, which had called `schedule` from elsewhere, enters the handler and sleeps, too.
    player.run(SCHEDULE + 0x20, 5, Event::Return(B - 0x40)).run(SYSCALL, 50, Event::Call(B));
    sleep(&mut player, B, A);
    wake(&mut player, A);
    player.run(SYSCALL, 70, Event::Call(A - 0x40)).run(SCHEDULE, 10, Event::Call(A - 0x80));
    player.run(SWITCH, 4, Event::None).run(SWITCH_C, 2, Event::Return(B - 0x80));
    wake(&mut player, B);
    let calls = player.calls(HANDLER);
    assert_eq!((calls.entered, calls.ended, calls.abandoned), (2, 2, 0));
    assert_eq!(player.inclusive(HANDLER), [(25, 2)]);
}

#[test]
fn a_call_whose_stack_is_left_is_told() {
    let mut player = Player::new();
    player.run(SYSCALL, 1, Event::Call(A - 0x200)).run(HANDLER, 3, Event::Call(A - 0x240));
    // The task has ended, and another begins on its stack.
    player.run(MEMCPY, 1, Event::Call(A)).run(HANDLER, 3, Event::Return(A)).run(
        SYSCALL,
        1,
        Event::None,
    );
    let calls = player.calls(HANDLER);
    assert_eq!((calls.entered, calls.ended, calls.abandoned), (2, 1, 1));
}

#[test]
fn a_handler_that_is_jumped_to_from_outside_ends_with_its_return() {
    let mut player = Player::new();
    // Its caller was called, called and returned, took its own frame down, and jumps.
    player
        .run(SYSCALL, 1, Event::Call(A))
        .run(SYSCALL + 0x40, 1, Event::Call(A - 0x40))
        .run(MEMCPY, 3, Event::Return(A - 0x40))
        .run(SYSCALL + 0x60, 2, Event::None)
        .run(HANDLER, 3, Event::Call(A - 0x18))
        .run(MEMCPY, 3, Event::Return(A - 0x18))
        .end(HANDLER + 0x20, A);
    let calls = player.calls(HANDLER);
    assert_eq!((calls.entered, calls.ended, calls.abandoned), (1, 1, 0));
    assert_eq!(player.inclusive(HANDLER), [(7, 1)]);
}
