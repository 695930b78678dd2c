//! Layout of the maps that the BPF side writes and user space reads.
//!
//! All of it is `repr(C)`, made of `u64` and `u32`, without padding.

/// Per CPU and handler: the start of the call that is running, and counters that only grow.
///
/// One cache line. The owner CPU alone writes it, but for `frame`, which another CPU may take
/// (compare and exchange) for a call that migrated there, and `record`, which user space writes.
///
/// `entries` and `lost` are written by the entry program alone, `unpaired_exits` by the exit
/// program alone: the kernel never runs one program on top of itself on the same CPU
/// (`bpf_prog->active`, counted in `recursion_misses`), so plain increments lose nothing.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot {
    /// Identity of the call whose start is in `start`; 0 when there is none.
    ///
    /// On the trampoline the address of the argument block in its stack frame, elsewhere that of
    /// the return address: the same for the entry and the exit program of one call, and unique
    /// among the handler's calls under way. A multiple of 8: in the low bits the programs mark a start
    /// that is being moved to the map of displaced starts.
    pub frame: u64,
    /// When that call entered, nanoseconds of the monotonic clock.
    ///
    /// Programs that keep starts elsewhere (cookies) count here the calls whose entry and exit were
    /// both seen; the other programs' paired calls are the total of the histogram.
    pub start: u64,
    /// Calls entered.
    pub entries: u64,
    /// Entries whose start was overwritten or found no room: they will not be paired.
    pub lost: u64,
    /// Exits for which no start was known.
    pub unpaired_exits: u64,
    /// Starts moved to the map of displaced starts, because another call entered on this CPU
    /// before they had left (nesting, sleep, interrupt).
    pub displaced: u64,
    /// Exits on this CPU of calls that had entered on another.
    pub migrated: u64,
    /// Where this CPU's calls are counted now; user space alone writes it, to change the phase. Up to the
    /// last record of the handler's value it is the offset there in bytes, else [`LOOKED_UP`] and a key of
    /// [`names::RECORDS`].
    pub record: u64,
}

/// Which call a start that had to leave its slot belongs to.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Frame {
    /// As [`Slot::frame`].
    pub frame: u64,
    /// The handler, by its number in the session: a function that jumps to another instead of
    /// calling it shares its return address with it.
    pub handler: u64,
}

/// A start that had to leave its slot, keyed by its [`Frame`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Displaced {
    /// When the call entered, nanoseconds of the monotonic clock.
    pub start: u64,
    /// The CPU whose slot it left: while it is moved, that slot tells whether it is still to be had.
    pub cpu: u64,
}

/// Functions of the kernel that programs call. Their BTF ids are known when a program is loaded:
/// until then these numbers, which no BPF helper has, stand in the call instructions.
pub mod kfunc {
    /// `bpf_session_is_return` (kernel 6.10, commit adf46d88ae4b)
    pub const IS_RETURN: i32 = 0x7e00_0001;
    /// `bpf_session_cookie` (kernel 6.10, commit 5c919acef851)
    pub const COOKIE: i32 = 0x7e00_0002;
}

/// Numbers in instructions that depend on the machine. User space puts the right ones in their place when it
/// loads a program: an operand costs the hot path less than a load does.
pub mod operand {
    /// Of the `and` that bounds the number of a CPU: the slots of a handler, a power of two, less one.
    pub const CPU_MASK: i32 = 0x7e00_0010;
    /// Of the comparison that tells offsets of records from keys: the last offset. The compiler may
    /// compare with the number after it.
    pub const LAST_RECORD: i32 = 0x7e00_0020;
    /// Of the load of the stack pointer: where it is in the registers of [`STACK_POINTERS`](super::STACK_POINTERS).
    pub const STACK_POINTER: i16 = 0x7e08;
}

/// Where the registers that programs are given have the stack pointer, in bytes, by architecture: `sp` of x86-64's `struct pt_regs`,
/// and of arm64's `struct user_pt_regs` (`asm/ptrace.h`).
pub const STACK_POINTERS: [(&str, i16); 2] = [("x86_64", 19 * 8), ("aarch64", 31 * 8)];

/// In [`Slot::record`]: the rest is a key of [`names::RECORDS`]. Such a record may be that of several CPUs, so
/// it is added to atomically.
pub const LOOKED_UP: u64 = 1 << 31;

/// The shortest and the longest of some durations.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extremes {
    /// As [`RecordHead::not_min`].
    pub not_min: u64,
    /// As [`RecordHead::max`].
    pub max: u64,
}

/// Runs of a program that may lie on top of one another on a CPU, beside the lowest: a soft interrupt, a
/// hard one and one that cannot be masked, and one to spare. A power of two.
pub const NESTED_MAX: usize = 4;

/// Head of one histogram in the kernel; its counters (`u32`) follow.
///
/// Two of these exist per handler and CPU that was online at the start, one for each phase: programs write the one, user space
/// reads and clears the other. Counters of 32 bits suffice because a phase lasts seconds.
///
/// `sum`, `not_min` and `max` cover only the durations of `2^magnitude` ns and more: a shorter one has
/// a counter of its own, so that the counters tell its exact value, and the fast path need not.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordHead {
    /// Sum of durations in nanoseconds.
    pub sum: u64,
    /// Complement (`!`) of the shortest duration in nanoseconds, so that zeroes are an empty record:
    /// what the kernel makes of a new map, without user space having to write it.
    pub not_min: u64,
    /// Longest duration in nanoseconds; 0 before the first.
    pub max: u64,
    /// Durations longer than [`HIGHEST_NS`](crate::bucket::HIGHEST_NS), counted in its bucket.
    pub over_range: u64,
    /// Calls that left before they had entered, by a clock that stepped back: counted here alone.
    pub backwards: u64,
    /// Runs that are updating this record now, of programs that may run on top of themselves; the
    /// others leave it at 0.
    pub depth: u64,
    /// The same as `not_min` and `max`, of durations that such a run counted on top of others: each depth
    /// has its own, because an update of both takes more than one instruction.
    pub nested: [Extremes; NESTED_MAX],
}

/// One histogram in the kernel.
#[repr(C)]
pub struct Record<const COUNTERS: usize> {
    /// Exact statistics.
    pub head: RecordHead,
    /// Durations per bucket.
    pub counts: [u32; COUNTERS],
}

/// Number of phases: one is written while the other is read.
pub const PHASES: u32 = 2;

/// Entries in the map of displaced starts: calls of all handlers that sleep, recurse or are
/// interrupted at one time. Beyond it starts are lost, and counted as such.
pub const DISPLACED_MAX: u32 = 16_384;

/// The most slots of a handler, a power of two: CPUs of the largest machine that can be measured.
pub const SLOTS_MAX: usize = 1024;

/// Names of maps, globals and programs in the BPF object.
pub mod names {
    /// Per handler: the histograms that programs look up, an array. Two follow one another, one for each phase.
    pub const RECORDS: &str = "RECORDS";
    /// Shared: displaced starts, a hash.
    pub const DISPLACED: &str = "DISPLACED";
    /// Per handler: one value that programs address directly and user space maps. The slots of all
    /// possible CPUs, then the histograms, in the order of [`RECORDS`].
    pub const SLOTS: &str = ".bss";
    /// Per handler, frozen: [`HANDLER`], [`CPUS`], [`PREEMPTS`] and [`EXIT_SHIFT`].
    pub const CONSTANTS: &str = ".rodata";
    /// Global in [`CONSTANTS`]: the handler's number.
    pub const HANDLER: &str = "HANDLER";
    /// Global in [`CONSTANTS`]: possible CPUs.
    pub const CPUS: &str = "CPUS";
    /// Global in [`CONSTANTS`]: 1 where the kernel preempts tasks that run in it, else 0.
    pub const PREEMPTS: &str = "PREEMPTS";
    /// Global in [`CONSTANTS`]: from the registers at an exit to the return address's place.
    pub const EXIT_SHIFT: &str = "EXIT_SHIFT";
}
