//! What the counter needs to know about a guest's architecture. Each one has its own file, such as [`crate::x86`].

use crate::{arm64, x86};

/// An architecture.
#[derive(Debug)]
pub(crate) struct Arch {
    /// QEMU's name for it.
    pub(crate) target: &'static str,
    /// The kind of the instruction with these bytes.
    pub(crate) kind: fn(&[u8]) -> Kind,
    /// Whether QEMU executes the instruction by a helper function although it does not access memory.
    pub(crate) is_helped: fn(&[u8]) -> bool,
    /// Whether an instruction orders others: it is atomic, a barrier, or serialising. It takes as long as tens of others.
    pub(crate) orders: fn(&[u8]) -> bool,
    /// Log2 of the size of a task's stack, which is aligned to its size; 63 where slots are only numbers.
    pub(crate) stack_bits: u32,
    /// Offsets at which a tail call enters a BPF program.
    pub(crate) tail_calls: &'static [u64],
    /// The interrupt or exception of a vector.
    pub(crate) vector: fn(u8) -> Option<Interrupt>,
    /// The interrupt or exception that begins at this offset in the kernel's function of this name.
    pub(crate) interrupt: fn(&str, u64) -> Option<Interrupt>,
    /// Whether the function of this name makes system calls, where the instruction that makes one is not seen.
    pub(crate) is_system_call: fn(&str) -> bool,
    /// The function that switches stacks between tasks, where nothing else shows the switch.
    pub(crate) switch: &'static str,
    /// Whether the function of this name jumps to one that its caller chose, which then returns for both.
    pub(crate) is_thunk: fn(&str) -> bool,
}

/// What begins at an entry of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// An interrupt: the code that it fell into has not caused it.
    Asynchronous,
    /// An exception that the code has caused.
    Exception,
    /// An exception before its instruction has ended, which is then executed again.
    Fault,
}

/// What an instruction does to the control flow or to its own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Writes its return address and goes elsewhere.
    Call,
    /// Goes to the address that it reads from the stack.
    Return,
    /// Leaves its return address in a register and goes elsewhere.
    Link,
    /// Goes to the return address that it finds in a register.
    Back,
    /// Stores the first register of the task that is switched out.
    Suspend,
    /// Loads the first register of the task that is switched in.
    Resume,
    /// Causes an exception, and is not executed again.
    Breakpoint,
    /// Goes back to what an interrupt or exception interrupted.
    InterruptReturn,
    /// Enters the kernel from a program.
    SystemCall,
    /// A string instruction with a prefix that repeats it, and the number of its accesses per iteration.
    Repeat(u8),
    /// The guest's request, by its number.
    Request(u8),
    /// None of these.
    Other,
}

impl Arch {
    /// That of QEMU's target.
    pub(crate) fn of(target: &str) -> Option<&'static Self> {
        [&x86::ARCH, &arm64::ARCH].into_iter().find(|arch| arch.target == target)
    }

    /// The stack that an address lies on.
    #[inline]
    pub(crate) fn stack_of(&self, slot: u64) -> u64 {
        slot >> self.stack_bits
    }

    pub(crate) const fn new(target: &'static str) -> Self {
        Self {
            target,
            kind: |_| Kind::Other,
            is_helped: |_| false,
            orders: |_| false,
            stack_bits: 63,
            tail_calls: &[],
            vector: |_| None,
            interrupt: |_, _| None,
            is_system_call: |_| false,
            switch: "",
            is_thunk: |_| false,
        }
    }
}

/// Whether code at this address is the kernel's.
pub(crate) fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

/// Bytes of a return address on the stack.
pub(crate) const SLOT: u64 = 8;

/// Whether the function of this name runs instead of a return: a probe of returns has replaced the return address
/// (`kernel/rethook.c` and `kernel/kprobes.c` of an architecture).
pub(crate) fn is_return_trampoline(name: &str) -> bool {
    matches!(name, "arch_rethook_trampoline" | "kretprobe_trampoline" | "__kretprobe_trampoline")
}

/// Whether it holds instructions of kprobed functions, which jump there and are jumped back to (`kernel/kprobes.c`).
pub(crate) fn is_kprobe_page(name: &str) -> bool {
    matches!(name, "kprobe_insn_page" | "kprobe_optinsn_page")
}

/// Symbols around the code of entries, the only code whose return from an interrupt ends one: x86's `sync_core()` has one, too.
pub(crate) const ENTRY_TEXT: [&str; 2] = ["__entry_text_start", "__entry_text_end"];
