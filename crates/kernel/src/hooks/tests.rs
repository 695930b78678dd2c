use std::cell::Cell;
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::hooks::walk::{MOST, MOST_SHORT, testing};

const K: u64 = 0xffff_ffff_8000_0000;
/// Where the driver's code and data are.
const CODE: u64 = 0xffff_ffff_c000_0000;
const DATA: u64 = CODE + 0x8000;

/// Addresses of functions of the kernel.
const AGGREGATE: u64 = K + 0xa0;
const KRETPROBE: u64 = K + 0xb0;
const DISPATCHER: u64 = K + 0xc0;
const RAW: u64 = K + 0xd0;
/// The list of the kernel's events, and its table of trampolines.
const EVENTS: u64 = K + 0x2500;
const TRAMPOLINES: u64 = K + 0x1_0000;

fn symbols() -> String {
    let mut text = "driver 65536 0 - Live 0xffffffffc0000000 (OE)\n".to_owned();
    for (at, symbol) in [
        (AGGREGATE, "t aggr_pre_handler"),
        (KRETPROBE, "t pre_handler_kretprobe"),
        (DISPATCHER, "t kprobe_dispatcher"),
        (RAW, "t __bpf_trace_sys_enter"),
        (EVENTS, "D ftrace_events"),
        (TRAMPOLINES, "b trampoline_table"),
        (K + 0x100, "T sys_open"),
        (K + 0x1000, "d kprobe_table"),
        (K + 0x2000, "D __tracepoint_sys_enter"),
        (K + 0x2100, "b a_chain"),
        (K + 0x2200, "d a_notifier"),
        (K + 0x2300, "D ftrace_ops_list"),
        (K + 0x2308, "D ftrace_list_end"),
        (K + 0x2400, "B init_net"),
        (K + 0x3000, "d security_hook_heads"),
        (K + 0x4000, "D sys_call_table"),
        (CODE + 0x10, "t one\t[driver]"),
        (CODE + 0x20, "t two\t[driver]"),
        (CODE + 0x20, "t alias\t[driver]"),
        (DATA, "d data\t[driver]"),
    ] {
        text.push_str(&format!("{at:016x} {symbol}\n"));
    }
    text
}

/// Memory with a kprobe of these handlers at `address`.
fn kprobe(memory: &mut HashMap<u64, u64>, address: u64, on: u64, handler: u64, flags: u64) {
    for (offset, value) in [(0, 0), (32, 5), (40, on), (48, handler), (56, 0), (64, flags)] {
        memory.insert(address + offset, value);
    }
}

fn hooks(memory: &HashMap<u64, u64>) -> Hooks {
    hooks_by(&|address| memory.get(&address).copied().ok_or_else(|| io::Error::other("none")))
}

fn hooks_by(read: Read<'_>) -> Hooks {
    let symbols = symbols();
    let reader = testing::reader(&symbols);
    reader.hooks("driver", &Names::of(&[&symbols]), &symbols, read)
}

/// Memory in which all lists are empty.
fn empty() -> HashMap<u64, u64> {
    let words = (0..64).map(|at| K + 0x1000 + 8 * at).chain((0..512).map(|at| K + 0x4000 + 8 * at));
    let words = words.chain((0..32).map(|at| K + 0x2400 + 8 * at));
    words
        .chain([K + 0x2000, K + 0x2100, K + 0x2108, K + 0x2300, K + 0x3000])
        .map(|at| (at, 0))
        .collect()
}

fn lines(hooks: &Hooks) -> Vec<String> {
    hooks.list.iter().map(ToString::to_string).collect()
}

#[test]
fn kprobes_kretprobes_and_several_of_one_function_are_found() {
    let mut memory = empty();
    let of = &mut memory;
    let [table, a, b, c, d, e] =
        [K + 0x1000, DATA, DATA + 0x200, DATA + 0x400, DATA + 0x600, DATA + 0x800];
    kprobe(of, a, K + 0x104, CODE + 0x10, 8);
    kprobe(of, b, K + 0x130, KRETPROBE, 4);
    of.extend([
        (b + 112, CODE + 0x20),
        (b + 120, CODE + 0x30),
        (b + 128, 9 << 32 | 16),
        (b + 132, 9),
    ]);
    // Two on one function, of which the first node knows that it is a jump, behind the kretprobe in its bucket.
    kprobe(of, c, K + 0x100, AGGREGATE, 4);
    kprobe(of, d, K + 0x100, CODE + 0x10, 2);
    kprobe(of, e, K + 0x100, CODE + 0x20, 0);
    of.extend([(c + 16, d + 16), (d + 16, e + 16), (e + 16, c + 16)]);
    of.extend([(table, a), (table + 8 * 63, b), (b, c)]);
    // One that calls the kernel.
    kprobe(of, K + 0x9000, K + 0x100, K + 0x100, 0);
    of.insert(table + 8, K + 0x9000);
    let found = hooks(&memory);
    let figures: Vec<_> = found
        .list
        .iter()
        .map(|hook| {
            (
                hook.to_string(),
                hook.state.unwrap().name(),
                hook.maxactive,
                hook.missed + hook.beyond_maxactive,
            )
        })
        .collect();
    let expected = [
        ("kprobe sys_open (one)", "ftrace", None, 5),
        ("kprobe sys_open (one)", "disabled", None, 5),
        ("kprobe sys_open (two)", "optimized", None, 5),
        ("kretprobe sys_open+0x30 (0x30, two)", "optimized", Some(16), 14),
    ];
    assert_eq!(
        figures,
        expected.map(|(text, state, most, missed)| (text.to_owned(), state, most, missed))
    );
    assert_eq!(found.unknown, [""; 0]);
    // Later, of a kprobe and of a kretprobe.
    memory.extend([(a + 32, 8), (b + 32, 6), (b + 132, 7 << 32 | 11)]);
    let symbols = symbols();
    let reader = testing::reader(&symbols);
    let read = |address: u64| memory.get(&address).copied().ok_or_else(|| io::Error::other("none"));
    let misses = |hook: &Hook| reader.misses(hook.kind, hook.address, &read).unwrap();
    let [kprobe, kretprobe] = [a, b].map(|at| found.list.iter().find(|hook| hook.address == at));
    assert_eq!(kprobe.map(misses), Some([8, 0]));
    assert_eq!(kretprobe.map(misses), Some([6, 11]));
}

/// A driver may have any number of chains with one list behind them.
#[test]
fn chains_and_what_is_on_them_have_an_end() {
    let of = |chains: u64| {
        let mut memory = empty();
        // Blocks of the driver's, each before the next.
        let block = |number: u64| DATA + 16 * (number % MOST_SHORT as u64);
        for number in 0..MOST_SHORT as u64 {
            memory.extend([(block(number), CODE + 0x10), (block(number) + 8, block(number + 1))]);
        }
        memory.extend((0..chains).map(|chain| (K + 0x10_0000 + 8 * chain, DATA)));
        let symbols: String =
            (0..chains).map(|at| format!("{:x} d chain_{at}\n", K + 0x10_0000 + 8 * at)).collect();
        let symbols = format!("{}{symbols}", self::symbols());
        let read = |at: u64| memory.get(&at).copied().ok_or_else(|| io::Error::other("none"));
        testing::reader(&symbols).hooks("driver", &Names::of(&[&symbols]), &symbols, &read)
    };
    let found = of(100);
    assert_eq!((found.list.len(), found.unknown.len()), (MOST, 1), "{:?}", found.unknown);
    let found = of(MOST as u64);
    assert!(found.list.is_empty() && found.unknown[0].contains("named as chains"), "{found:?}");
}

/// Data whose name is that of a chain is often the head of a list.
#[test]
fn a_list_is_not_gone_round_again_and_again() {
    let mut memory = empty();
    let head = K + 0x2100;
    memory.extend([(head, head), (head + 8, head)]);
    let reads = Cell::new(0);
    let found = hooks_by(&|address| {
        reads.set(reads.get() + u32::from(address == head));
        memory.get(&address).copied().ok_or_else(|| io::Error::other("none"))
    });
    assert_eq!(lines(&found), [""; 0]);
    assert!(reads.get() < 10, "{} reads of the head", reads.get());
}

#[test]
fn hooks_of_other_kinds_are_found() {
    let mut memory = empty();
    // A tracepoint that calls the kernel, then the driver.
    memory.extend([
        (K + 0x2000, K + 0x5000),
        (K + 0x5000, K + 0x100),
        (K + 0x5018, CODE + 0x10),
        (K + 0x5030, 0),
    ]);
    // A chain with a block of the kernel's, whose name is that of a chain, and one of the driver's.
    memory.extend([
        (K + 0x2100, K + 0x2200),
        (K + 0x2200, K + 0x100),
        (K + 0x2208, DATA),
        (DATA, CODE + 0x20),
        (DATA + 8, 0),
    ]);
    // `ftrace_ops` on a function.
    let [ops, hash, filter, entry] = [DATA + 0x100, DATA + 0x200, DATA + 0x300, DATA + 0x400];
    memory.extend([
        (K + 0x2300, ops),
        (ops, CODE + 0x10),
        (ops + 8, K + 0x2308),
        (ops + 16, 0),
        (ops + 24, hash),
    ]);
    memory.extend([
        (hash, filter),
        (filter, 0),
        (filter + 8, filter + 0x20),
        (filter + 0x20, entry),
        (entry, 0),
        (entry + 16, K + 0x104),
    ]);
    // Netfilter, LSM, and an entry of the table of system calls.
    memory.extend([(K + 0x2400 + 8, K + 0x6000), (K + 0x6000, 1), (K + 0x6008, CODE + 0x20)]);
    memory.extend([(K + 0x3000, DATA + 0x500), (DATA + 0x500, 0), (DATA + 0x518, CODE + 0x10)]);
    memory.insert(K + 0x4000 + 8 * 42, CODE + 0x10);
    let found = hooks(&memory);
    assert_eq!(
        lines(&found),
        [
            "tracepoint sys_enter (one)",
            "ftrace sys_open (one)",
            "netfilter ipv4 input (two)",
            "lsm bprm_check (one)",
            "notifier a_chain (two)",
            "system-call sys_call_table[42] (one)",
        ]
    );
    // Data of the driver's is nothing that is called.
    memory.insert(K + 0x4000, DATA + 0x10);
    assert_eq!(hooks(&memory), found);
}

/// Places that call BPF programs: `programs` begin at [`DATA`], 0x100 bytes each, and their code is named `a`, `b` and so on.
#[test]
fn bpf_programs_are_found_where_they_are_attached() {
    let code = |number: u64| CODE + 0x1000 + 0x10 * number;
    let mut text = symbols();
    for (number, name) in (0..).zip(["a", "b", "c", "d", "e", "f"]) {
        text.push_str(&format!("{:016x} t {name}\t[bpf]\n", code(number)));
    }
    let mut memory = empty();
    let program = |number: u64| DATA + 0x100 * number;
    memory.extend((0..6).map(|number| (program(number) + 48, code(number))));
    // Arrays of programs, and events that have them.
    let [kprobe_event, system_call, tracepoint] = [K + 0x7000, K + 0x7100, K + 0x7200];
    for (event, number) in [(kprobe_event + 16, 0), (system_call, 1), (tracepoint, 2)] {
        let array = K + 0x8000 + 0x100 * number;
        memory.extend([(event + 32, array), (array + 16, program(number)), (array + 32, 0)]);
    }
    // A kprobe of a perf event, which is in the list of events, too.
    let probe = K + 0x9000;
    kprobe(&mut memory, probe, K + 0x100, DISPATCHER, 8);
    memory.extend([(K + 0x1000, probe), (probe - 8 + 512, kprobe_event)]);
    let list = [EVENTS, kprobe_event + 16, system_call, tracepoint, EVENTS];
    memory.extend(list.windows(2).map(|pair| (pair[0], pair[1])));
    memory.insert(kprobe_event + 16 + 24, K + 0x9800);
    memory.extend([(system_call + 24, K + 0x9800), (tracepoint + 24, K + 0x2000)]);
    for (at, bytes) in (0..).zip(b"sys_enter_connect\0......".chunks_exact(8)) {
        memory.insert(K + 0x9800 + 8 * at, u64::from_le_bytes(bytes.try_into().unwrap()));
    }
    // A raw tracepoint, by the program before Linux 6.10, and by its link.
    let functions = K + 0x5000;
    memory.extend([(K + 0x2000, functions), (functions, RAW), (functions + 8, program(3))]);
    memory.extend([(functions + 24, RAW), (functions + 32, K + 0x9900), (functions + 48, 0)]);
    memory.extend([(K + 0x9900 + 24, program(4)), (program(3) + 24, 0), (48, 0)]);
    memory.insert(K + 0x9900 + 48, 0);
    // A trampoline with a program at the function's entry.
    memory.extend((0..1 << 10).map(|bucket| (TRAMPOLINES + 8 * bucket, 0)));
    let trampoline = K + 0xa000;
    memory.extend([(TRAMPOLINES, trampoline), (trampoline, 0), (trampoline + 64, K + 0x100)]);
    memory.extend((0..3).map(|kind| (trampoline + 72 + 8 * kind, 0)));
    memory.extend([(trampoline + 72, K + 0xa100), (K + 0xa100, 0), (K + 0xa108, program(5))]);
    let read = |address: u64| memory.get(&address).copied().ok_or_else(|| io::Error::other("none"));
    let found = testing::reader(&text).hooks(BPF, &Names::of(&[&text]), &text, &read);
    assert_eq!(found.unknown, [""; 0]);
    assert_eq!(
        lines(&found),
        [
            "kprobe sys_open (a)",
            "tracepoint sys_enter (c)",
            "tracepoint sys_enter_connect (b)",
            "raw-tracepoint sys_enter (d)",
            "raw-tracepoint sys_enter (e)",
            "fentry sys_open (f)",
        ]
    );
}

#[test]
fn what_cannot_be_read_is_said_and_the_rest_is_found() {
    let mut memory = empty();
    memory.insert(K + 0x4000, CODE + 0x10);
    memory.insert(K + 0x1000, 0x10);
    let found = hooks(&memory);
    assert_eq!(lines(&found), ["system-call sys_call_table[0] (one)"]);
    assert_eq!(found.unknown, ["kprobes: none"]);
}

#[test]
fn a_circle_ends() {
    let symbols = symbols();
    let reader = testing::reader(&symbols);
    let hooks = reader.hooks("driver", &Names::of(&[&symbols]), &symbols, &|_| Ok(CODE + 0x10));
    assert!(hooks.list.len() < 1 << 15, "{}", hooks.list.len());
    // An aggregate without members that is its own next.
    let memory = |address: u64| match address.wrapping_sub(DATA) {
        0 | 0x10 => Ok(address),
        0x30 => Ok(AGGREGATE),
        _ if address == K + 0x1000 => Ok(DATA),
        _ => Ok(0),
    };
    assert!(reader.hooks("driver", &Names::of(&[&symbols]), &symbols, &memory).list.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A guest's memory may have anything.
    #[test]
    fn no_memory_makes_it_panic(words in proptest::collection::vec(any::<u64>(), 1..64)) {
        let symbols = symbols();
        let reader = testing::reader(&symbols);
        let read = |address: u64| match words[(address / 8) as usize % words.len()] {
            word if word % 16 == 0 => Err(io::Error::other("none")),
            word if word % 4 == 0 => Ok(0),
            word => Ok(CODE + word % 0x9000),
        };
        for module in ["driver", BPF] {
            let _ = reader.hooks(module, &Names::of(&[&symbols]), &symbols, &read);
        }
    }
}
