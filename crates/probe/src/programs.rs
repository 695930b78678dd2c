//! Which programs each BPF backend puts on a handler, and how.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use profiler_kernel::target::Target;
use profiler_recording::Backend;

use super::{
    Pair, Precision,
    kprobe_event::Event,
    sys::{self, AttachType},
};

/// Which events of a call a program sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Entry,
    Exit,
    Both,
}

impl Side {
    /// For messages.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
            Self::Both => "entry and exit",
        }
    }
}

/// A program of the object, and what it is loaded for.
#[derive(Debug, Clone)]
pub(super) struct Kind {
    pub(super) side: Side,
    /// Its name in the object.
    pub(super) name: String,
    pub(super) attach_type: AttachType,
}

/// Where a call's start is kept until its exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Starts {
    /// In the CPU's slot, or in the map of displaced ones.
    Slots,
    /// All in the map of displaced ones.
    Map,
    /// In the kernel's own bytes for each call.
    Cookies,
}

/// The kernel's features that decide which programs are used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    /// Whether it has the instruction that compares and exchanges.
    pub(super) exchanges: bool,
    /// Whether it takes tasks off their CPU within programs on a trampoline. Probes that are given the
    /// registers run with preemption off (`ftrace_test_recursion_trylock`, `kprobe_ftrace_handler`).
    pub(super) preempts: bool,
}

/// Programs of a backend, exits first: so no entry is counted whose exit is not.
pub(super) struct Set {
    pub(super) kinds: Vec<Kind>,
    pub(super) starts: Starts,
}

impl Set {
    /// Those of `backend` that do what `pair` says.
    pub(super) fn of(backend: Backend, precision: Precision, pair: Pair, kernel: Kernel) -> Self {
        use AttachType as A;
        use Backend as B;
        use Pair as P;
        let starts = match backend {
            B::Fsession | B::KprobeSession => Starts::Cookies,
            _ if kernel.exchanges || pair != P::Measuring => Starts::Slots,
            _ => Starts::Map,
        };
        let [leave, enter] = match (pair, backend, starts) {
            (P::Empty, B::Fsession, _) => ["empty_enter", ""],
            (P::Empty, B::Fentry | B::FunctionGraph, _) => ["empty_leave", "empty_enter"],
            (P::Empty, ..) => ["regs_empty", "regs_empty"],
            (P::Clock, B::Fsession, _) => ["clock_enter", ""],
            (P::Clock, B::Fentry | B::FunctionGraph, _) => ["clock_leave", "clock_enter"],
            (P::Clock, ..) => ["regs_clock", "regs_clock"],
            (_, B::Fsession, _) => ["fsession", ""],
            (_, B::KprobeSession, _) => ["ksession", ""],
            (_, B::Kprobe, Starts::Map) => ["hashed_regs_leave", "hashed_regs_enter"],
            (_, B::Kprobe, _) => ["regs_leave", "regs_enter"],
            (.., Starts::Map) => ["hashed_leave", "hashed_enter"],
            _ if kernel.preempts => ["preempted_leave", "enter"],
            _ => ["leave", "enter"],
        };
        let enter = enter.to_owned();
        let leave = match pair {
            P::Measuring => format!("{leave}_{}", precision.digits()),
            P::Empty | P::Clock => leave.to_owned(),
        };
        let kinds = match backend {
            B::Fsession => vec![(Side::Both, leave, A::Fsession)],
            B::KprobeSession => vec![(Side::Both, leave, A::KprobeSession)],
            B::Kprobe => vec![(Side::Exit, leave, A::Kprobe), (Side::Entry, enter, A::Kprobe)],
            B::Fentry | B::FunctionGraph => {
                vec![(Side::Exit, leave, A::Fexit), (Side::Entry, enter, A::Fentry)]
            }
        };
        let kinds = kinds.into_iter();
        let kinds = kinds.map(|(side, name, attach_type)| Kind { side, name, attach_type });
        Self { kinds: kinds.collect(), starts }
    }
}

/// What keeps a program on a function; it comes off when this is dropped.
pub(super) enum Hook {
    /// A link of a tracing program.
    Link(OwnedFd),
    /// A link to a function probe.
    Multi(OwnedFd),
    Event(Event),
}

/// Puts a loaded program on a function.
///
/// # Errors
/// What the kernel said.
pub(super) fn attach(kind: &Kind, program: &OwnedFd, target: &Target) -> io::Result<Hook> {
    let program = program.as_fd();
    let at_exit = kind.side == Side::Exit;
    match kind.attach_type {
        AttachType::Fentry | AttachType::Fexit | AttachType::Fsession => {
            sys::attach_tracing(program).map(Hook::Link)
        }
        // Where the address is hidden, the kernel looks the name up.
        AttachType::KprobeSession => {
            sys::attach_session(program, &target.name, target.address).map(Hook::Multi)
        }
        AttachType::Kprobe => Event::attach(target, at_exit, program).map(Hook::Event),
    }
}
