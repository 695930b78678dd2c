//! Numbers the functions by their names.

use std::collections::HashMap;
use std::rc::Rc;

use foldhash::fast::RandomState;

/// Longest function name: the kernel's own limit (`KSYM_NAME_LEN`).
pub(super) const MAX_NAME: usize = 512;
/// Distinct functions. A trace of everything in a busy kernel has a few thousand; each takes about
/// 2 KB here and in the table.
pub(super) const MAX_FUNCTIONS: usize = 16_384;
/// Bytes of their names.
const MAX_BYTES: usize = 2 << 20;
/// Texts that are found without the table.
const RECENT: usize = 256;

/// Texts with their numbers: the latest of each [`slot`].
#[derive(Debug)]
pub(super) struct Recent(Vec<Option<(Rc<[u8]>, u32)>>);

impl Default for Recent {
    fn default() -> Self {
        Self(vec![None; RECENT])
    }
}

impl Recent {
    #[inline]
    pub(super) fn get(&self, text: &[u8]) -> Option<u32> {
        match self.0.get(slot(text)) {
            Some(Some((recent, number))) if **recent == *text => Some(*number),
            _ => None,
        }
    }

    /// Keeps the number of `text`, unless that is too long to be worth it.
    pub(super) fn put(&mut self, text: Rc<[u8]>, number: u32) {
        if text.len() <= 2 * MAX_NAME
            && let Some(recent) = self.0.get_mut(slot(&text))
        {
            *recent = Some((text, number));
        }
    }
}

/// Names with their numbers, from 0.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<Rc<[u8]>, u32, RandomState>,
    bytes: usize,
    recent: Recent,
}

impl Names {
    /// The number of `name`, a new one for a new name; `None` if there are too many.
    #[inline]
    pub(super) fn id(&mut self, name: &[u8]) -> Option<u32> {
        self.recent.get(name).or_else(|| self.find_or_add(name))
    }

    fn find_or_add(&mut self, name: &[u8]) -> Option<u32> {
        let found = self.ids.get_key_value(name).map(|(name, &id)| (Rc::clone(name), id));
        let (name, id) = match found {
            Some(found) => found,
            None => {
                let id = u32::try_from(self.ids.len()).ok()?;
                self.bytes += name.len();
                if self.ids.len() >= MAX_FUNCTIONS || self.bytes > MAX_BYTES {
                    return None;
                }
                let name: Rc<[u8]> = name.into();
                self.ids.insert(Rc::clone(&name), id);
                (name, id)
            }
        };
        self.recent.put(name, id);
        Some(id)
    }
}

/// Place among the recent texts, from the length and the first, middle and last eight bytes: much
/// faster than a hash of all bytes.
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
    (mixed >> (u64::BITS - RECENT.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number() {
        let mut names = Names::default();
        let all: Vec<String> = (0..2000).map(|at| "x".repeat(at % 20) + &at.to_string()).collect();
        for _ in 0..2 {
            for (at, name) in all.iter().enumerate() {
                assert_eq!(names.id(name.as_bytes()), Some(at as u32));
            }
        }
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
