//! Numbers of functions by their names.

use std::collections::HashMap;
use std::rc::Rc;

use foldhash::fast::RandomState;

/// Different functions. A trace of everything in a busy kernel has some thousands; each takes about
/// 2 KB here and in the table.
pub(super) const MAX_FUNCTIONS: usize = 16_384;
/// Bytes of their names.
const MAX_BYTES: usize = 2 << 20;
/// Names that are found without a look at the table.
const SHORTCUTS: usize = 256;

/// Names with their numbers, from 0.
#[derive(Debug)]
pub(super) struct Names {
    ids: HashMap<Rc<[u8]>, u32, RandomState>,
    bytes: usize,
    /// The last name of each [`slot`] that stood in a call.
    shortcuts: Vec<Option<(Rc<[u8]>, u32)>>,
}

impl Default for Names {
    fn default() -> Self {
        Self { ids: HashMap::default(), bytes: 0, shortcuts: vec![None; SHORTCUTS] }
    }
}

impl Names {
    /// The number of `name`, a new one if it has none; `None` if there are too many.
    pub(super) fn id(&mut self, name: &[u8]) -> Option<u32> {
        if let Some(&id) = self.ids.get(name) {
            return Some(id);
        }
        let id = u32::try_from(self.ids.len()).ok()?;
        self.bytes += name.len();
        if self.ids.len() >= MAX_FUNCTIONS || self.bytes > MAX_BYTES {
            return None;
        }
        self.ids.insert(name.into(), id);
        Some(id)
    }

    /// Whether `name` has a number.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.ids.contains_key(name)
    }

    /// The number of what stands where the name of a call does, if [`Self::called`] was told it
    /// lately: a text that was a name once is one again.
    #[inline]
    pub(super) fn shortcut(&self, text: &[u8]) -> Option<u32> {
        let (name, id) = self.shortcuts.get(slot(text))?.as_ref()?;
        (**name == *text).then_some(*id)
    }

    /// Takes note of a name that stood in a call.
    pub(super) fn called(&mut self, name: &[u8]) {
        if let Some((name, &id)) = self.ids.get_key_value(name)
            && let Some(shortcut) = self.shortcuts.get_mut(slot(name))
        {
            *shortcut = Some((Rc::clone(name), id));
        }
    }
}

/// Place of a name among the shortcuts: by its length, and by eight bytes from its begin, its middle
/// and its end, which is much faster than a hash of all.
#[inline]
fn slot(name: &[u8]) -> usize {
    let mixed = match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        (Some(first), Some(last)) => {
            let middle = name[name.len() / 2 - 4..].first_chunk::<8>().unwrap_or(first);
            [first, middle, last].iter().fold(name.len() as u64, |mixed, bytes| {
                (mixed.rotate_left(5) ^ u64::from_le_bytes(**bytes))
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            })
        }
        _ => name.iter().fold(name.len() as u64, |mixed, &byte| {
            (mixed ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        }),
    };
    (mixed >> (u64::BITS - SHORTCUTS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number() {
        let mut names = Names::default();
        let all: Vec<String> = (0..2000).map(|at| "x".repeat(at % 20) + &at.to_string()).collect();
        for (at, name) in all.iter().enumerate() {
            assert_eq!(names.shortcut(name.as_bytes()), None, "{name} is not known");
            assert_eq!(names.id(name.as_bytes()), Some(at as u32));
            assert_eq!(names.shortcut(name.as_bytes()), None, "{name} was not called");
            names.called(name.as_bytes());
            assert_eq!(names.shortcut(name.as_bytes()), Some(at as u32));
        }
        for (at, name) in all.iter().enumerate() {
            assert_eq!(names.id(name.as_bytes()), Some(at as u32));
            assert!(names.shortcut(name.as_bytes()).is_none_or(|id| id == at as u32), "{name}");
        }
    }

    #[test]
    fn names_of_handlers_do_not_push_each_other_out() {
        let names = [
            "connect_syscall_handler",
            "connect_syscall_entry_handler",
            "bind_handler",
            "bind_entry_handler",
            "execve_entry_handler",
            "execve_handler",
            "udp_recvmsg_handler",
            "udp_recvmsg_entry_handler",
            "security_inode_create_pre_handler",
            "ptrace_pre_handler",
        ];
        let slots: std::collections::HashSet<_> =
            names.iter().map(|name| slot(name.as_bytes())).collect();
        assert_eq!(slots.len(), names.len());
    }

    #[test]
    fn too_many_names_have_no_number() {
        let mut names = Names::default();
        for at in 0..MAX_FUNCTIONS {
            assert!(names.id(format!("f{at}").as_bytes()).is_some());
        }
        assert_eq!(names.id(b"g"), None);
        assert_eq!(names.id(b"f7"), Some(7));
        let mut names = Names::default();
        let long = |at: usize| format!("{at:0512}").into_bytes();
        let kept = (0..MAX_FUNCTIONS).filter(|&at| names.id(&long(at)).is_some()).count();
        assert_eq!(kept, MAX_BYTES / 512);
    }
}
