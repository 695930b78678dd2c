//! Events of one page of the ring buffer. Whatever the bytes are, it does not panic.

use profiler_base::bytes::array;

use super::format::Layout;

/// The bits of the length below flags, which say what the kernel's counters say, too.
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

/// Hands the events of a page to `take`, in their order, until one is cut off. Returns how many whole events of any kind
/// it has: those of other tools are only counted.
pub(super) fn parse(layout: &Layout, page: &[u8], mut take: impl FnMut(Event)) -> u64 {
    let mut events = 0;
    let (Some(mut time), Some(commit), Some(data)) =
        (layout.timestamp.read(page), layout.commit.read(page), page.get(layout.data..))
    else {
        return events;
    };
    let mut rest = data.get(..(commit & COMMIT) as usize).unwrap_or_default();
    while let Some((skip, payload)) = step(rest, &mut time) {
        if let Some(payload) = payload
            && let Some(event) = event(layout, payload, time)
        {
            events += 1;
            event.into_iter().for_each(&mut take);
        }
        rest = rest.get(skip..).unwrap_or_default();
    }
    events
}

/// How many bytes the next item of a page takes, always more than none, and the event in it if it is one. `None` at the
/// end of the page, also where that cuts an event.
#[inline]
fn step<'a>(rest: &'a [u8], time: &mut u64) -> Option<(usize, Option<&'a [u8]>)> {
    let word = word32(rest, 0)?;
    let (kind, delta) = (word & ((1 << TYPE_BITS) - 1), word >> TYPE_BITS);
    match kind {
        PADDING => {
            // What was discarded; without a time it is the end of the page.
            let bytes = word32(rest, 4).filter(|_| delta != 0)?;
            *time = time.wrapping_add(u64::from(delta));
            Some(((bytes as usize).saturating_add(4), None))
        }
        TIME_EXTEND | TIME_STAMP => {
            let value = u64::from(delta) | (u64::from(word32(rest, 4)?) << DELTA_BITS);
            *time = if kind == TIME_EXTEND {
                time.wrapping_add(value)
            } else {
                let low = (1 << STAMP_BITS) - 1;
                (value & low) | (*time & !low)
            };
            Some((8, None))
        }
        _ => {
            *time = time.wrapping_add(u64::from(delta));
            let (begin, end) = match kind {
                // The word with the length counts itself.
                0 => (8, (word32(rest, 4)? as usize).saturating_add(4)),
                words => (4, 4 + 4 * words as usize),
            };
            Some((end.next_multiple_of(4), Some(rest.get(begin..end)?)))
        }
    }
}

/// `Some(None)` is an event of another kind; `None` one that is too short.
#[inline]
fn event(layout: &Layout, payload: &[u8], time: u64) -> Option<Option<Event>> {
    let id = layout.id.read(payload)?;
    let Some(format) = [&layout.entry, &layout.exit].into_iter().find(|format| format.id == id)
    else {
        return Some(None);
    };
    let exit = if id == layout.exit.id {
        let times = match format.times {
            Some((call, ret)) => Some((call.read(payload)?, ret.read(payload)?)),
            None => None,
        };
        let too_deep = format.overrun.and_then(|field| field.read(payload)).unwrap_or(0);
        Some(Exit { too_deep, times })
    } else {
        None
    };
    Some(Some(Event {
        time,
        func: format.func.read(payload)?,
        pid: layout.pid.read(payload)? as u32,
        depth: format.depth.read(payload)? as u32,
        exit,
    }))
}

#[inline]
fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}
