//! What the guest says to the plugin in QEMU, for the fuzzer alone.
#![allow(clippy::expect_used)] // A panic is a finding.

use crate::arch::Kind;
use crate::arm64;
use crate::count::{Block, Counter, Event, Sums};
use crate::symbols;
use crate::x86;

const KALLSYMS: &str = "module driver ffffffffc0000000 4096\n\
    vector 236 ffffffff81000000\n\
    vector 14 ffffffff81000100\n\
    ffffffff81000000 T __entry_text_start\n\
    ffffffff81001000 T __entry_text_end\n\
    ffffffff81002000 T __switch_to_asm\n\
    ffffffff81003000 T memcpy\n\
    ffffffff81007000 T do_syscall_64\n\
    ffffffffc0000000 t handler\t[driver]\n\
    ffffffffc0000100 t helper\t[driver]\n\
    ffffffffc0000200 t helper.cold\t[driver]\n";

/// The same of arm64.
const OF_ARM64: &str = "module driver ffffffffc0000000 4096\n\
    ffffffff81000000 T __entry_text_start\n\
    ffffffff81000000 t vectors\n\
    ffffffff81001000 T __entry_text_end\n\
    ffffffff81002000 T cpu_switch_to\n\
    ffffffff81003000 T __kretprobe_trampoline\n\
    ffffffff81007000 T do_el0_svc\n\
    ffffffffc0000000 t handler\t[driver]\n\
    ffffffffc0000100 t helper\t[driver]\n";

/// Lower halves of addresses.
const PLACES: [u32; 16] = [
    0x81000000, 0x81000100, 0x81000200, 0x81002000, 0x81003000, 0x81003010, 0x81007000, 0x81007010,
    0xc0000000, 0xc0000010, 0xc0000100, 0xc0000110, 0xc0000200, 0xc0000300, 0xc0000310, 0,
];

/// The file of symbols.
pub fn symbols(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for arch in [&x86::ARCH, &arm64::ARCH] {
        (arch.kind)(bytes);
        let Ok(mut symbols) = symbols::parse(text, arch) else { continue };
        let known: Vec<u64> = symbols.functions.iter().map(|function| function.address).collect();
        for address in known.iter().flat_map(|at| [at.wrapping_sub(1), *at, at.wrapping_add(1)]) {
            symbols.place(address);
            symbols.is_entry_text(address);
            if symbols.is_watched(address) {
                symbols.add(address).expect("a watched module holds it");
                assert!(symbols.place(address).is_some_and(|place| place.entry));
            }
        }
        assert_eq!(symbols.without_added().functions.len(), known.len());
    }
}

/// Any order of blocks and of what their last instructions do: four bytes each, and one more for those of arm64.
pub fn count(bytes: &[u8]) {
    let of_arm64 = bytes.len() % 4 == 1;
    let (text, arch) = if of_arm64 { (OF_ARM64, &arm64::ARCH) } else { (KALLSYMS, &x86::ARCH) };
    let mut counter = Counter::new(symbols::parse(text, arch).expect("these are symbols"), 1);
    let mut sums = Sums::default();
    for &[at, end, slot, ran] in bytes.as_chunks::<4>().0 {
        let slot = 0xffff_c900_0000_3f00 + u64::from(slot & 0xf8) + u64::from(slot & 7) * 0x1_0000;
        if of_arm64 && ran & 0x80 != 0 {
            counter.suspend(slot);
            counter.resume(slot ^ u64::from(ran & 0x30));
        }
        let (kind, event) = match end % 6 {
            0 if of_arm64 => (Kind::Link, Event::None),
            1 if of_arm64 => (Kind::Back, Event::None),
            4 if of_arm64 => (Kind::Breakpoint, Event::None),
            0 => (Kind::Call, Event::Call(slot)),
            1 => (Kind::Return, Event::Return(slot)),
            2 => (Kind::InterruptReturn, Event::None),
            3 => (Kind::Repeat(1), Event::None),
            4 => (Kind::Other, Event::Call(slot)),
            _ => (Kind::Other, Event::None),
        };
        let instructions = if kind == Kind::Repeat(1) { 1 } else { usize::from(end >> 4) + 1 };
        let address = 0xffff_ffff_0000_0000 | u64::from(PLACES[usize::from(at % 16)]);
        let mut block = Block::new(address, vec![2; instructions], kind, kind == Kind::Repeat(1));
        let now = sums;
        counter.begin(&mut block, || now);
        counter.record_event(event);
        // No more than the block has.
        sums.instructions += u64::from(ran).min(instructions as u64);
        match at >> 5 {
            7 => counter.operation(at & 16 != 0),
            6 => counter.system_call(),
            _ => {}
        }
    }
    let mut calls = counter.calls.values();
    assert!(calls.all(|calls| calls.ended + calls.abandoned <= calls.entered));
    drop(counter.into_symbols());
}
