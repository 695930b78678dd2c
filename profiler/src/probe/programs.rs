//! Which programs each BPF backend puts on a handler, and how.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use super::{
    Precision,
    kprobe_event::Event,
    sys::{self, AttachType, Place},
};
use crate::{kernel::target::Target, profile::Backend};

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
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) side: Side,
    /// Its name in the object.
    pub(super) name: &'static str,
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
    /// With the task's other calls under way.
    Nests,
}

/// What programs have to know of the kernel.
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
    /// Whether the distance from registers to stack is needed.
    pub(super) needs_shift: bool,
    /// Whether the programs call functions of the kernel.
    pub(super) calls_kernel: bool,
}

impl Set {
    /// Those of `backend`; empty ones do nothing. `self_time`: those that tell calls' own time.
    pub(super) fn of(
        backend: Backend,
        precision: Precision,
        empty: bool,
        kernel: Kernel,
        self_time: bool,
    ) -> Self {
        if self_time && !empty {
            return Self::telling_self_time(backend, precision);
        }
        use AttachType as A;
        let choose = |two, three, nothing| match (empty, precision) {
            (true, _) => nothing,
            (false, Precision::Two) => two,
            (false, Precision::Three) => three,
        };
        let entry = |name, attach_type| Kind { side: Side::Entry, name, attach_type };
        let exit = |name, attach_type| Kind { side: Side::Exit, name, attach_type };
        let both = |name, attach_type| Kind { side: Side::Both, name, attach_type };
        // Programs for slots, or for the map alone.
        let slots = kernel.exchanges || empty;
        let registers = |attach_type| {
            if slots {
                vec![
                    exit(choose("regs_leave_2", "regs_leave_3", "regs_empty"), attach_type),
                    entry(choose("regs_enter", "regs_enter", "regs_empty"), attach_type),
                ]
            } else {
                vec![
                    exit(choose("hashed_regs_leave_2", "hashed_regs_leave_3", ""), attach_type),
                    entry("hashed_regs_enter", attach_type),
                ]
            }
        };
        let trampoline = || {
            if slots {
                let [two, three] = if kernel.preempts {
                    ["preempted_leave_2", "preempted_leave_3"]
                } else {
                    ["leave_2", "leave_3"]
                };
                vec![
                    exit(choose(two, three, "empty_leave"), A::Fexit),
                    entry(choose("enter", "enter", "empty_enter"), A::Fentry),
                ]
            } else {
                vec![
                    exit(choose("hashed_leave_2", "hashed_leave_3", ""), A::Fexit),
                    entry("hashed_enter", A::Fentry),
                ]
            }
        };
        let paired = if slots { Starts::Slots } else { Starts::Map };
        let (kinds, starts) = match backend {
            Backend::Fsession => {
                let name = choose("fsession_2", "fsession_3", "empty_enter");
                (vec![both(name, A::Fsession)], Starts::Cookies)
            }
            Backend::KprobeSession => {
                let name = choose("ksession_2", "ksession_3", "regs_empty");
                (vec![both(name, A::KprobeSession)], Starts::Cookies)
            }
            Backend::KprobeMulti => (registers(A::KprobeMulti), paired),
            Backend::Kprobe => (registers(A::Kprobe), paired),
            Backend::Fentry | Backend::FunctionGraph => (trampoline(), paired),
        };
        let calls_kernel = starts == Starts::Cookies;
        let needs_shift = !empty && matches!(backend, Backend::KprobeMulti | Backend::Kprobe);
        Self { kinds, starts, needs_shift, calls_kernel }
    }

    fn telling_self_time(backend: Backend, precision: Precision) -> Self {
        use AttachType as A;
        let choose = |two, three| match precision {
            Precision::Two => two,
            Precision::Three => three,
        };
        let pair = |leave, enter, at_exit, at_entry| {
            vec![
                Kind { side: Side::Exit, name: leave, attach_type: at_exit },
                Kind { side: Side::Entry, name: enter, attach_type: at_entry },
            ]
        };
        let both = |name, attach_type| vec![Kind { side: Side::Both, name, attach_type }];
        let registers = |attach_type| {
            let leave = choose("nest_regs_leave_2", "nest_regs_leave_3");
            pair(leave, "nest_regs_enter", attach_type, attach_type)
        };
        let kinds = match backend {
            Backend::Fsession => both(choose("nest_fsession_2", "nest_fsession_3"), A::Fsession),
            Backend::KprobeSession => {
                both(choose("nest_ksession_2", "nest_ksession_3"), A::KprobeSession)
            }
            Backend::KprobeMulti => registers(A::KprobeMulti),
            Backend::Kprobe => registers(A::Kprobe),
            Backend::Fentry | Backend::FunctionGraph => {
                pair(choose("nest_leave_2", "nest_leave_3"), "nest_enter", A::Fexit, A::Fentry)
            }
        };
        Self {
            kinds,
            starts: Starts::Nests,
            needs_shift: matches!(backend, Backend::KprobeMulti | Backend::Kprobe),
            calls_kernel: matches!(backend, Backend::Fsession | Backend::KprobeSession),
        }
    }
}

/// What keeps a program on a function; it comes off when this is dropped.
pub(super) enum Hook {
    Link(OwnedFd),
    Multi(OwnedFd),
    Event(Event),
}

impl Hook {
    /// The link, where there is one that others could take for a foreign program.
    pub(super) fn link(&self) -> Option<&OwnedFd> {
        match self {
            Self::Link(link) | Self::Multi(link) => Some(link),
            Self::Event(_) => None,
        }
    }
}

/// Puts a loaded program on a function.
///
/// # Errors
/// What the kernel said.
pub(super) fn attach(kind: Kind, program: &OwnedFd, target: &Target) -> io::Result<Hook> {
    let program = program.as_fd();
    let at_exit = kind.side == Side::Exit;
    match kind.attach_type {
        AttachType::Fentry | AttachType::Fexit | AttachType::Fsession => {
            sys::attach_tracing(program).map(Hook::Link)
        }
        AttachType::KprobeMulti | AttachType::KprobeSession => {
            let name = CString::new(target.name.as_str())?;
            let place = match target.address {
                0 if target.duplicate_index.is_some() => {
                    let what = "its address is hidden, and others have its name: sysctl \
                                kernel.kptr_restrict=1";
                    return Err(io::Error::other(what));
                }
                // Hidden: the kernel looks the name up, which is that of one function alone.
                0 => Place::Symbol(&name),
                address => Place::Address(address),
            };
            sys::attach_multi(program, kind.attach_type, place, at_exit).map(Hook::Multi)
        }
        AttachType::Kprobe => Event::attach(target, at_exit, program).map(Hook::Event),
    }
}
