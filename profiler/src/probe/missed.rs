//! How often the kernel skipped a program: its own count and that of what keeps it on the function.

use std::{collections::HashMap, io, os::fd::AsFd as _};

use super::{
    kprobe_event::Counted,
    programs::{Hook, Side},
    sys,
};

/// Skipped runs that the hook counts, besides those that its program counts. Read before the hook is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HookMisses {
    /// None: the program's own count is complete.
    None,
    /// Calls that the link could not follow; `None` on kernels that do not say.
    Link(Option<u64>),
    /// What `kprobe_profile` says of the event; `None` if it could not be read.
    Event(Option<Counted>),
}

impl HookMisses {
    /// What `hook` has counted so far; `events` is `kprobe_profile`, if it could be read.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn of(
        hook: Option<&Hook>,
        events: Option<&HashMap<String, Counted>>,
    ) -> io::Result<Self> {
        Ok(match hook {
            None | Some(Hook::Link(_)) => Self::None,
            Some(Hook::Multi(link)) => Self::Link(sys::multi_misses(link.as_fd())?),
            Some(Hook::Event(event)) => Self::Event(events.map(|events| event.counted(events))),
        })
    }

    /// With what the next hook of the same program counts.
    pub(super) fn plus(self, next: Self) -> Self {
        let sum =
            |a: Counted, b: Counted| Counted { hits: a.hits + b.hits, missed: a.missed + b.missed };
        match (self, next) {
            (Self::None, one) | (one, Self::None) => one,
            (Self::Link(a), Self::Link(b)) => Self::Link(a.zip(b).map(|(a, b)| a + b)),
            (Self::Event(a), Self::Event(b)) => Self::Event(a.zip(b).map(|(a, b)| sum(a, b))),
            // Hooks of one program are of one kind, unless one could not be asked.
            _ => Self::Link(None),
        }
    }

    /// Runs of a program that the kernel skipped, `own` of them by the program's own count; `None` where it
    /// does not say. `entries` are the runs of the entry program.
    pub(super) fn total(self, side: Side, own: Option<u64>, entries: u64) -> Option<u64> {
        match self {
            Self::None => own,
            Self::Link(link) => link.zip(own).map(|(link, own)| link + own),
            // Hits in which another BPF program was running on the CPU count as hits there.
            Self::Event(counted) => counted.map(|counted| {
                let skipped = match side {
                    Side::Entry => counted.hits.saturating_sub(entries),
                    Side::Exit | Side::Both => 0,
                };
                counted.missed + skipped
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hook_and_program_skipped_is_added() {
        let total = HookMisses::total;
        assert_eq!(total(HookMisses::None, Side::Entry, Some(3), 10), Some(3));
        assert_eq!(total(HookMisses::Link(Some(4)), Side::Exit, Some(3), 10), Some(7));
        let event = HookMisses::Event(Some(Counted { hits: 12, missed: 5 }));
        assert_eq!(total(event, Side::Entry, Some(3), 10), Some(7), "two hits without a run");
        assert_eq!(total(event, Side::Exit, None, 10), Some(5));
    }

    #[test]
    fn what_hooks_count_one_after_the_other_is_added() {
        use HookMisses::{Event, Link, None};
        let event = |hits, missed| Event(Some(Counted { hits, missed }));
        assert_eq!(Link(Some(2)).plus(Link(Some(3))), Link(Some(5)));
        assert_eq!(event(10, 1).plus(event(5, 2)), event(15, 3));
        assert_eq!(event(10, 1).plus(None), event(10, 1), "no hook now");
        assert_eq!(None.plus(Link(Some(3))), Link(Some(3)));
        for (a, b) in [(Link(Option::None), Link(Some(3))), (event(1, 1), Link(Option::None))] {
            assert_eq!(a.plus(b), Link(Option::None), "unknown stays unknown");
        }
    }

    #[test]
    fn what_the_kernel_does_not_say_is_unknown_and_not_nothing() {
        let total = HookMisses::total;
        assert_eq!(total(HookMisses::None, Side::Both, None, 10), None);
        assert_eq!(total(HookMisses::Link(None), Side::Entry, Some(3), 10), None);
        assert_eq!(total(HookMisses::Event(None), Side::Entry, Some(3), 10), None);
    }
}
