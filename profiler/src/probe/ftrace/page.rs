//! Events of one page of the ring buffer. Whatever the bytes are, it does not panic.

use super::format::{Kind, Layout};
use crate::bytes::array;

/// Flag: events were lost before this page.
const MISSED_EVENTS: u64 = 1 << 31;
/// Flag: their number follows the events.
const MISSED_STORED: u64 = 1 << 30;
/// The bits of the length below the flags.
const COMMIT: u64 = (1 << 27) - 1;
/// The head of an event is a word with its type and the time since the event before. `events/header_event` says the same
/// on each kernel, and libtraceevent does without it (its kbuffer-parse.c).
const TYPE_BITS: u32 = 5;
const DELTA_BITS: u32 = 27;
/// Type of padding.
const PADDING: u32 = 29;
/// Type of a time too large for its bits.
const TIME_EXTEND: u32 = 30;
/// Type of an absolute time stamp. Those below are data: the length in words, which with 0 is in a word of its own.
const TIME_STAMP: u32 = 31;
/// An absolute time stamp has this many bits; the higher ones are those of the time before.
const STAMP_BITS: u32 = 59;

/// One of the two events of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    /// When it was written, by the buffer's clock.
    pub(super) time: u64,
    /// Address that was called.
    pub(super) func: u64,
    /// The task.
    pub(super) pid: u32,
    /// How many traced calls of the task it lies within.
    pub(super) depth: u32,
    /// What only an exit event has.
    pub(super) exit: Option<Exit>,
}

/// Fields that only an exit event has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit {
    /// Calls of this task that were too deep to be traced, since it began.
    pub(super) too_deep: u64,
    /// When the call began and ended, by each CPU's own clock, where the kernel writes it.
    pub(super) times: Option<(u64, u64)>,
}

/// What a page held besides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// Events of any kind.
    pub(super) events: u64,
    /// Those that are neither of the two.
    pub(super) foreign: u64,
    /// Events that were lost before this page, as far as it is known: at least one if it says so.
    pub(super) missed: u64,
    /// It ends within an event, or is not a page.
    pub(super) broken: bool,
}

/// Hands all events of a page to `take`, in their order.
pub(super) fn parse(layout: &Layout, page: &[u8], mut take: impl FnMut(Event)) -> Summary {
    let mut summary = Summary::default();
    let head = &layout.page;
    let (Some(mut time), Some(commit), Some(data)) =
        (head.timestamp.read(page), head.commit.read(page), page.get(head.data..))
    else {
        return Summary { broken: true, ..summary };
    };
    let length = (commit & COMMIT) as usize;
    if commit & MISSED_EVENTS != 0 {
        let stored = data.get(length..).filter(|_| commit & MISSED_STORED != 0);
        summary.missed = stored.and_then(|rest| word64(rest, 0)).unwrap_or(1).max(1);
    }
    let Some(data) = data.get(..length) else {
        return Summary { broken: true, ..summary };
    };
    let mut at = 0;
    while at < data.len() {
        match step(&data[at..], &mut time) {
            Step::Data { skip, payload } => {
                summary.events += 1;
                match event(layout, payload, time) {
                    Some(Some(event)) => take(event),
                    Some(None) => summary.foreign += 1,
                    None => summary.broken = true,
                }
                at += skip;
            }
            Step::Nothing { skip } => at += skip,
            Step::End => break,
            Step::Broken => {
                summary.broken = true;
                break;
            }
        }
    }
    summary
}

/// What lies at a place in a page, and how many bytes it takes: always more than none.
enum Step<'a> {
    Data { skip: usize, payload: &'a [u8] },
    Nothing { skip: usize },
    End,
    Broken,
}

#[inline]
fn step<'a>(rest: &'a [u8], time: &mut u64) -> Step<'a> {
    let Some(word) = word32(rest, 0) else { return Step::Broken };
    let (kind, delta) = (word & ((1 << TYPE_BITS) - 1), word >> TYPE_BITS);
    let array = word32(rest, 4);
    if kind == PADDING {
        return match array {
            // What was discarded; without a time it is the end of the page.
            Some(bytes) if delta != 0 => {
                *time = time.wrapping_add(u64::from(delta));
                Step::Nothing { skip: (bytes as usize).saturating_add(4).max(4) }
            }
            _ => Step::End,
        };
    }
    if kind == TIME_EXTEND || kind == TIME_STAMP {
        let Some(high) = array else { return Step::Broken };
        let value = u64::from(delta) | (u64::from(high) << DELTA_BITS);
        *time = if kind == TIME_EXTEND {
            time.wrapping_add(value)
        } else {
            let low = (1 << STAMP_BITS) - 1;
            (value & low) | (*time & !low)
        };
        return Step::Nothing { skip: 8 };
    }
    *time = time.wrapping_add(u64::from(delta));
    let (begin, skip) = if kind == 0 {
        // The word with the length counts itself.
        let Some(bytes) = array else { return Step::Broken };
        (8, (bytes as usize).saturating_add(4))
    } else {
        (4, 4 + 4 * kind as usize)
    };
    match rest.get(begin..skip) {
        Some(payload) => Step::Data { skip: skip.next_multiple_of(4), payload },
        None => Step::Broken,
    }
}

/// `Some(None)` is an event of another kind; `None` one that is too short.
#[inline]
fn event(layout: &Layout, payload: &[u8], time: u64) -> Option<Option<Event>> {
    let kind = layout.kind_of(layout.kind.read(payload)?);
    let (func, depth, exit) = match kind {
        Kind::Other => return Some(None),
        Kind::Entry => (layout.entry.func, layout.entry.depth, None),
        Kind::Exit => {
            let format = &layout.exit;
            let times = match format.times {
                Some((call, ret)) => Some((call.read(payload)?, ret.read(payload)?)),
                None => None,
            };
            let too_deep = format.overrun.and_then(|field| field.read(payload)).unwrap_or(0);
            (format.func, format.depth, Some(Exit { too_deep, times }))
        }
    };
    Some(Some(Event {
        time,
        func: func.read(payload)?,
        pid: layout.pid.read(payload)? as u32,
        depth: depth.read(payload)? as u32,
        exit,
    }))
}

#[inline]
fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_ne_bytes)
}
