//! How often the kernel skipped a program: its own count and that of what keeps it on the function.

use std::{collections::HashMap, io, os::fd::AsFd as _};

use super::{
    kprobe_event::Counted,
    programs::{Hook, Side},
    sys,
};

/// What a hook counts besides its program, read before it is removed. A trampoline counts nothing. `None` is unknown: on
/// kernels that do not say, or where `kprobe_profile` cannot be read.
pub(super) type HookCount = Option<Counted>;

/// What `hook` has counted so far; `events` is `kprobe_profile`, if it could be read.
///
/// # Errors
/// What the kernel said.
pub(super) fn of_hook(
    hook: Option<&Hook>,
    events: Option<&HashMap<String, Counted>>,
) -> io::Result<HookCount> {
    Ok(match hook {
        None | Some(Hook::Link(_)) => Some(Counted::default()),
        Some(Hook::Multi(link)) => {
            sys::multi_misses(link.as_fd())?.map(|missed| Counted { hits: 0, missed })
        }
        Some(Hook::Event(event)) => events.map(|events| event.counted(events)),
    })
}

/// What a hook has counted and the next one of the same program.
pub(super) fn sum(before: HookCount, next: HookCount) -> HookCount {
    let (before, next) = before.zip(next)?;
    Some(Counted { hits: before.hits + next.hits, missed: before.missed + next.missed })
}

/// Runs that the kernel skipped of a program on a kprobe event; `None` where it does not say. `entries` are the runs of
/// the entry program: hits in which another BPF program was running on the CPU count as hits of the event.
pub(super) fn of_event(hooks: HookCount, side: Side, entries: u64) -> Option<u64> {
    let Counted { hits, missed } = hooks?;
    Some(missed + if side == Side::Entry { hits.saturating_sub(entries) } else { 0 })
}

/// The same of any other program, of which `own` by its own count.
pub(super) fn of_link(hooks: HookCount, own: Option<u64>) -> Option<u64> {
    Some(hooks?.missed + own?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(hits: u64, missed: u64) -> HookCount {
        Some(Counted { hits, missed })
    }

    #[test]
    fn what_hook_and_program_skipped_is_added() {
        assert_eq!(of_link(counted(0, 0), Some(3)), Some(3));
        assert_eq!(of_link(counted(0, 4), Some(3)), Some(7));
        let event = counted(12, 5);
        assert_eq!(of_event(event, Side::Entry, 10), Some(7), "two hits without a run");
        assert_eq!(of_event(event, Side::Exit, 10), Some(5));
    }

    #[test]
    fn what_hooks_count_one_after_the_other_is_added() {
        assert_eq!(sum(counted(10, 1), counted(5, 2)), counted(15, 3));
        assert_eq!(
            sum(counted(10, 1), of_hook(None, None).unwrap()),
            counted(10, 1),
            "no hook now"
        );
        assert_eq!(sum(None, counted(0, 3)), None, "unknown stays unknown");
        assert_eq!(sum(counted(1, 1), None), None);
    }

    #[test]
    fn what_the_kernel_does_not_say_is_unknown_and_not_nothing() {
        assert_eq!(of_link(counted(0, 0), None), None);
        assert_eq!(of_link(None, Some(3)), None);
        assert_eq!(of_event(None, Side::Entry, 10), None);
    }
}
