//! The buffers of all CPUs, read page by page.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use profiler_base::error::Failure;

use super::READING;
use super::format::Layout;
use super::page::{self, Event};
use super::setup::Tracing;
use super::tracefs::{Folder, stat};
use crate::{Drained, ProbeError, Traced, errno::Doing as _};

/// Pages of one CPU that a round of the reader reads before it turns to the next CPU.
const PAGES_A_ROUND: usize = 64;

/// What the kernel's counters said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Events that were dropped so far.
    pub(super) lost: u64,
    /// When the first counter was read, and when the last one was.
    pub(super) from: u64,
    pub(super) to: u64,
}

/// What is made of the events.
pub(super) trait Sink: Send {
    /// Takes an event; the caller keeps the order of each CPU's events.
    fn add(&mut self, cpu: usize, event: Event);

    /// Ends a round in which all CPUs were read, each at least to the time `read_to`; `None` if nothing more will come.
    fn end_round(&mut self, read_to: Option<u64>);

    /// Learns which events the kernel has dropped.
    fn look(&mut self, look: Look);

    /// Takes what was counted of each handler since the last time; `events_lost` were dropped so far.
    fn take(&mut self, events_lost: u64) -> Vec<Drained>;

    /// The call tree so far, if it makes one.
    ///
    /// # Errors
    /// When the functions in it cannot be named.
    fn call_tree(&self) -> Result<Option<Traced>, Failure> {
        Ok(None)
    }
}

/// The buffers of all CPUs, and what becomes of their events.
pub(super) struct Stream {
    layout: Layout,
    cpus: Vec<Cpu>,
    page: Vec<u8>,
    pub(super) sink: Box<dyn Sink>,
    /// Bytes of the buffer of one CPU.
    buffer_bytes: u64,
    rounds: u32,
    /// Rounds after which the reader looks for dropped events.
    rounds_a_look: u32,
    /// Why the reader gave up.
    pub(super) failed: Option<io::Error>,
}

/// One CPU's buffer.
struct Cpu {
    raw: File,
    stats: PathBuf,
    /// Counters of before the tracer started.
    before: Stats,
    events: u64,
    /// Latest event read.
    read_to: u64,
}

impl Cpu {
    fn open(place: &Folder, number: u32, runs: bool) -> Result<Self, ProbeError> {
        let name = format!("per_cpu/cpu{number}/trace_pipe_raw");
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(libc::O_NONBLOCK);
        let raw = options.open(place.path(&name)).doing(&place.doing("opening", &name))?;
        let stats = format!("per_cpu/cpu{number}/stats");
        // The start has emptied the buffers of CPUs that run.
        let now = place.read(&stats)?;
        let before = if runs { Stats::default() } else { Stats::parse(&now) };
        let stats = place.path(&stats);
        Ok(Self { raw, stats, before, events: 0, read_to: 0 })
    }
}

/// Counters of the kernel on one CPU's buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Stats {
    dropped: u64,
    read: u64,
    /// When they were read, by the buffer's clock, in nanoseconds.
    now: u64,
}

impl Stats {
    fn parse(text: &str) -> Self {
        let counters = ["overrun", "commit overrun", "dropped events", "read events"];
        let [overrun, in_commit, dropped, read]: [u64; 4] =
            counters.map(|name| stat(text, name).unwrap_or(0));
        // In seconds, with six decimals.
        let now: f64 = stat(text, "now ts").unwrap_or(0.0);
        let now = ((now * 1e6).round() as u64).saturating_mul(1000);
        Self { dropped: overrun + in_commit + dropped, read, now }
    }
}

impl Stream {
    /// Opens the buffers of a tracer that has just started.
    ///
    /// # Errors
    /// When they cannot be opened.
    pub(super) fn open(
        layout: Layout,
        tracing: &Tracing,
        sink: Box<dyn Sink>,
        rounds_a_look: u32,
    ) -> Result<Self, ProbeError> {
        let cpus = tracing.cpus.iter().map(|&(cpu, runs)| Cpu::open(&tracing.place, cpu, runs));
        let cpus = cpus.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            layout,
            page: vec![0; layout.page_bytes],
            sink,
            buffer_bytes: tracing.buffer_bytes / cpus.len().max(1) as u64,
            cpus,
            rounds: 0,
            rounds_a_look,
            failed: None,
        })
    }

    /// Closes the buffers: the kernel changes no tracer before.
    pub(super) fn close(&mut self) {
        self.cpus.clear();
    }

    /// Reads all CPUs, some pages each: the largest share of a buffer that was found filled.
    ///
    /// # Errors
    /// When a buffer cannot be read.
    pub(super) fn round(&mut self) -> io::Result<f64> {
        let pages = self.read(PAGES_A_ROUND)?;
        self.rounds += 1;
        if self.rounds.is_multiple_of(self.rounds_a_look) {
            self.events_lost(false)?;
        }
        Ok(pages as f64 * self.page.len() as f64 / self.buffer_bytes as f64)
    }

    /// Reads every CPU, `limit` pages at most: most pages of one.
    fn read(&mut self, limit: usize) -> io::Result<usize> {
        let Self { layout, cpus, page, sink, .. } = self;
        let (mut most, mut read_to) = (0, u64::MAX);
        for (number, cpu) in cpus.iter_mut().enumerate() {
            let mut pages = 0;
            while pages < limit {
                let length = match cpu.raw.read(page) {
                    Ok(0) => break,
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // A CPU that may come and has not been there yet has no buffer.
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                let page = &page[..length];
                let read_to = &mut cpu.read_to;
                cpu.events += page::parse(layout, page, |event| {
                    *read_to = event.time;
                    sink.add(number, event);
                });
                pages += 1;
            }
            if pages == limit {
                read_to = read_to.min(cpu.read_to);
            }
            most = most.max(pages);
        }
        sink.end_round(Some(read_to));
        Ok(most)
    }

    /// Reads all that has been written, and takes what was paired.
    ///
    /// # Errors
    /// When a buffer cannot be read, or the reader had failed before.
    pub(super) fn drain(&mut self, finished: bool) -> Result<Vec<Drained>, ProbeError> {
        let lost = self.read_all(finished).doing(READING)?;
        Ok(self.sink.take(lost))
    }

    fn read_all(&mut self, finished: bool) -> io::Result<u64> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        // What is read in the first round is paired in the second. A CPU that writes meanwhile is
        // not followed for ever.
        let limit = (2 * self.buffer_bytes / self.page.len() as u64 + 16) as usize;
        self.read(limit)?;
        self.read(limit)?;
        if finished {
            self.sink.end_round(None);
        }
        self.events_lost(finished)
    }

    /// Events so far that the kernel has dropped, or another process has read.
    fn events_lost(&mut self, finished: bool) -> io::Result<u64> {
        let mut look = Look { lost: 0, from: u64::MAX, to: 0 };
        for cpu in &self.cpus {
            let now = Stats::parse(&fs::read_to_string(&cpu.stats)?);
            let before = &cpu.before;
            look.lost += now.dropped.saturating_sub(before.dropped)
                + now.read.saturating_sub(before.read).saturating_sub(cpu.events);
            (look.from, look.to) = (look.from.min(now.now), look.to.max(now.now));
        }
        if finished {
            // Nothing is written any more.
            look.from = u64::MAX;
        }
        self.sink.look(look);
        Ok(look.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_counters() {
        let text =
            "entries: 4\noldest event ts:     2.000001\nnow ts:    12.345678\ndropped events: 3\n";
        let stats = Stats::parse(text);
        assert_eq!((stats.now, stats.dropped), (12_345_678_000, 3));
    }
}
