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
    fn what_the_kernel_does_not_say_is_unknown_and_not_nothing() {
        let total = HookMisses::total;
        assert_eq!(total(HookMisses::None, Side::Both, None, 10), None);
        assert_eq!(total(HookMisses::Link(None), Side::Entry, Some(3), 10), None);
        assert_eq!(total(HookMisses::Event(None), Side::Entry, Some(3), 10), None);
    }
}
