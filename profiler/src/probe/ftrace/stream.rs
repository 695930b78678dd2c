//! The buffers of all CPUs, read page by page.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use super::FtraceError;
use super::format::Layout;
use super::page;
use super::pairing::Pairing;
use super::setup::Tracing;
use super::tracefs::stat;
use crate::probe::Drained;

/// Pages of one CPU that a round of the reader reads before it turns to the next CPU.
const PAGES_A_ROUND: usize = 64;

/// Rounds after which the reader checks for lost events.
const ROUNDS_A_LOOK: u32 = 16;

/// The buffers of all CPUs, and the pairing of their events.
pub(super) struct Stream {
    layout: Layout,
    cpus: Vec<Cpu>,
    page: Vec<u8>,
    pairing: Pairing,
    /// Bytes of the buffer of one CPU.
    buffer_bytes: u64,
    rounds: u32,
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
    /// Lost, by the pages themselves.
    flagged: u64,
    /// Latest event read.
    read_to: u64,
}

/// Counters of the kernel on one CPU's buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Stats {
    overrun: u64,
    commit_overrun: u64,
    dropped: u64,
    read: u64,
}

impl Stats {
    fn parse(text: &str) -> Self {
        let counter = |name| stat(text, name).unwrap_or(0);
        Self {
            overrun: counter("overrun"),
            commit_overrun: counter("commit overrun"),
            dropped: counter("dropped events"),
            read: counter("read events"),
        }
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
        pairing: Pairing,
    ) -> Result<Self, FtraceError> {
        let place = &tracing.place;
        let cpu = |(number, runs): &(usize, bool)| {
            let name = format!("per_cpu/cpu{number}/trace_pipe_raw");
            let mut options = OpenOptions::new();
            let options = options.read(true).custom_flags(libc::O_NONBLOCK);
            let raw = options
                .open(place.path(&name))
                .map_err(|error| place.failed("opening", &name, error))?;
            let stats = format!("per_cpu/cpu{number}/stats");
            // The start has emptied the buffers of CPUs that run.
            let now = place.read(&stats)?;
            let before = if *runs { Stats::default() } else { Stats::parse(&now) };
            let stats = place.path(&stats);
            Ok(Cpu { raw, stats, before, events: 0, flagged: 0, read_to: 0 })
        };
        let cpus = tracing.cpus.iter().map(cpu).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            layout,
            page: vec![0; layout.page.bytes],
            pairing,
            buffer_bytes: tracing.buffer_bytes / cpus.len().max(1) as u64,
            cpus,
            rounds: 0,
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
        if self.rounds.is_multiple_of(ROUNDS_A_LOOK) {
            self.events_lost()?;
        }
        Ok(pages as f64 * self.page.len() as f64 / self.buffer_bytes as f64)
    }

    /// Reads every CPU, `limit` pages at most: most pages of one.
    fn read(&mut self, limit: usize) -> io::Result<usize> {
        let Self { layout, cpus, page, pairing, .. } = self;
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
                let summary = page::parse(layout, &page[..length], |event| {
                    cpu.read_to = event.time;
                    pairing.add(number, event);
                });
                cpu.events += summary.events;
                cpu.flagged += summary.missed;
                pages += 1;
            }
            if pages == limit {
                read_to = read_to.min(cpu.read_to);
            }
            most = most.max(pages);
        }
        pairing.end_round(read_to);
        Ok(most)
    }

    /// Reads all that has been written, and takes what was paired.
    ///
    /// # Errors
    /// When a buffer cannot be read, or the reader had failed before.
    pub(super) fn drain(&mut self, finished: bool) -> Result<Vec<Drained>, FtraceError> {
        let lost = (|| {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            // What is read in the first round is paired in the second. A CPU that writes meanwhile is
            // not followed for ever.
            let limit = (2 * self.buffer_bytes / self.page.len() as u64 + 16) as usize;
            self.read(limit)?;
            self.read(limit)?;
            if finished {
                self.pairing.finish();
            }
            self.events_lost()
        })()
        .map_err(FtraceError::Reading)?;
        self.pairing.take(lost).map_err(|error| FtraceError::Reading(io::Error::other(error)))
    }

    /// Events so far that the kernel has dropped, or another process has read.
    fn events_lost(&mut self) -> io::Result<u64> {
        let mut lost = 0;
        for cpu in &self.cpus {
            let now = Stats::parse(&fs::read_to_string(&cpu.stats)?);
            let before = &cpu.before;
            let overrun = now.overrun.saturating_sub(before.overrun).max(cpu.flagged);
            lost += now.dropped.saturating_sub(before.dropped)
                + now.commit_overrun.saturating_sub(before.commit_overrun)
                + overrun
                + now.read.saturating_sub(before.read).saturating_sub(cpu.events);
        }
        if lost > 0 {
            let is_alive = |task: u32| fs::exists(format!("/proc/{task}")).unwrap_or(true);
            self.pairing.lossy(is_alive);
        }
        Ok(lost)
    }
}
