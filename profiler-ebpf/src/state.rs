//! What a handler's programs share: constants set by user space, the running call of each CPU, and
//! the maps.

use core::{
    arch::asm,
    ptr::{addr_of, addr_of_mut, read_volatile},
};

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap},
};
use profiler_common::{
    bucket::COUNTERS_3,
    layout::{DISPLACED_MAX, Displaced, Frame, Record, SLOTS_MAX, Slot, operand},
};

/// The handler's number in the session; user space sets it and freezes it.
#[unsafe(no_mangle)]
static HANDLER: u64 = 0;

/// Possible CPUs of this machine; user space sets it and freezes it, so that the verifier knows it.
#[unsafe(no_mangle)]
static CPUS: u64 = 0;

/// Whether the kernel preempts tasks that run in it; user space sets it and freezes it.
#[unsafe(no_mangle)]
static PREEMPTS: u64 = 0;

/// From the registers that a return probe is given to the return address's place on the stack, in
/// bytes; user space measures it, sets it and freezes it.
#[unsafe(no_mangle)]
static EXIT_SHIFT: u64 = 0;

/// The running call of each CPU. User space gives the map a value of another size, in which the histograms
/// come after the slots.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".bss")]
static mut SLOTS: [Slot; SLOTS_MAX] = [Slot {
    frame: 0,
    start: 0,
    entries: 0,
    lost: 0,
    unpaired_exits: 0,
    displaced: 0,
    migrated: 0,
    record: 0,
}; SLOTS_MAX];

/// Histograms that are not in the value: those of CPUs that came online later, and of all where the kernel
/// takes no value as large. User space creates it with the size that the precision wants.
#[map]
pub(crate) static RECORDS: Array<Record<COUNTERS_3>> = Array::with_max_entries(1, 0);

/// Starts that had to leave their slot.
#[map]
pub(crate) static DISPLACED: HashMap<Frame, Displaced> =
    HashMap::with_max_entries(DISPLACED_MAX, 0);

// Constants are read as volatile because the compiler must not take the initial value for the
// final one.

#[inline(always)]
pub(crate) fn handler() -> u64 {
    // SAFETY: a static of this program, read as the loader left it.
    unsafe { read_volatile(addr_of!(HANDLER)) }
}

#[inline(always)]
pub(crate) fn cpus() -> u64 {
    // SAFETY: a static of this program, read as the loader left it.
    unsafe { read_volatile(addr_of!(CPUS)) }
}

#[inline(always)]
pub(crate) fn preempts() -> bool {
    // SAFETY: a static of this program, read as the loader left it.
    (unsafe { read_volatile(addr_of!(PREEMPTS)) }) != 0
}

#[inline(always)]
pub(crate) fn exit_shift() -> u64 {
    // SAFETY: a static of this program, read as the loader left it.
    unsafe { read_volatile(addr_of!(EXIT_SHIFT)) }
}

/// The CPU that this runs on.
#[inline(always)]
pub(crate) fn this_cpu() -> u64 {
    /// `bpf_get_smp_processor_id`
    const NUMBER: i32 = 8;
    let cpu: u64;
    // SAFETY: helper without arguments, which clobbers what any call does. There is a slot for every possible
    // CPU, so the mask changes nothing; it is what the verifier needs, and shorter than a comparison.
    unsafe {
        asm!(
            "call {number}",
            "r0 &= {mask}",
            number = const NUMBER,
            mask = const operand::CPU_MASK,
            lateout("r0") cpu,
            lateout("r1") _,
            lateout("r2") _,
            lateout("r3") _,
            lateout("r4") _,
            lateout("r5") _,
        );
    }
    cpu
}

/// The handler's value at an offset, which must be that of a record.
#[inline(always)]
pub(crate) fn record_at<T>(offset: u64) -> *mut T {
    let mut value = addr_of_mut!(SLOTS).cast::<u8>();
    // SAFETY: hidden from the compiler, which takes the value to end with the slots.
    unsafe { asm!("/* {0} */", inout(reg) value, options(pure, nomem, nostack)) }
    value.wrapping_add(offset as usize).cast()
}

/// The slot of a CPU, which must be below [`SLOTS_MAX`].
#[inline(always)]
pub(crate) fn slot_of(cpu: u64) -> *mut Slot {
    // SAFETY: the map has SLOTS_MAX slots.
    unsafe { addr_of_mut!(SLOTS).cast::<Slot>().add(cpu as usize) }
}

/// Ends a program with 0 where it has left its fast path, which saves that one a jump to a common end.
/// Only for what is inlined into a program.
#[inline(always)]
pub(crate) fn end() -> ! {
    // SAFETY: what a program's own end does; the kernel restores the registers.
    unsafe { asm!("r0 = 0", "exit", options(noreturn)) }
}
