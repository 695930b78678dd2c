//! What the guest says to the plugin in QEMU.

use crate::arch::{Arch, Kind};
use crate::count::{Block, Counter, Event, Sums};
use crate::symbols::{self, Symbols};
use crate::{arm64, x86};

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

const PLACES: [u64; 16] = [
    0xffff_ffff_8100_0000,
    0xffff_ffff_8100_0100,
    0xffff_ffff_8100_0200,
    0xffff_ffff_8100_2000,
    0xffff_ffff_8100_3000,
    0xffff_ffff_8100_3010,
    0xffff_ffff_8100_7000,
    0xffff_ffff_8100_7010,
    0xffff_ffff_c000_0000,
    0xffff_ffff_c000_0010,
    0xffff_ffff_c000_0100,
    0xffff_ffff_c000_0110,
    0xffff_ffff_c000_0200,
    0xffff_ffff_c000_0300,
    0xffff_ffff_c000_0310,
    0xffff_ffff_0000_0000,
];

pub fn symbols(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for arch in [&x86::ARCH, &arm64::ARCH] {
        symbols_of(text, arch);
        (arch.kind)(bytes);
    }
}

fn symbols_of(text: &str, arch: &'static Arch) {
    let Ok(mut symbols) = symbols::parse(text, arch) else { return };
    let addresses: Vec<u64> = symbols.functions.iter().map(|function| function.address).collect();
    for address in addresses.iter().flat_map(|at| [at.wrapping_sub(1), *at, at.wrapping_add(1)]) {
        symbols.place(address);
        symbols.is_entry_text(address);
        if symbols.is_watched(address) {
            symbols.add(address).expect("a watched module holds it");
            assert!(symbols.place(address).is_some_and(|place| place.entry));
        }
    }
    let given = symbols.without_added();
    assert_eq!(given.functions.len(), addresses.len());
}

/// Any order of blocks and of what their last instructions do: four bytes each, and one more for those of arm64.
pub fn count(bytes: &[u8]) {
    let (text, arch) = match bytes.len() % 4 {
        1 => (OF_ARM64, &arm64::ARCH),
        _ => (KALLSYMS, &x86::ARCH),
    };
    let symbols: Symbols = symbols::parse(text, arch).expect("these are symbols");
    let mut counter = Counter::new(symbols, 1);
    let mut sums = Sums::default();
    for &[at, end, slot, ran] in bytes.as_chunks::<4>().0 {
        let slot = 0xffff_c900_0000_4000 - 0x100 + u64::from(slot & 0xf8) + u64::from(slot & 7) * 0x1_0000;
        let of_arm64 = text == OF_ARM64;
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
        let mut block =
            Block::new(PLACES[usize::from(at % 16)], vec![2; instructions], kind, kind == Kind::Repeat(1));
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
