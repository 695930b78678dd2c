//! Counts calls on several CPUs. Each worker takes every n-th chunk of the text, counts the short
//! calls of functions that it knows, and hands back all other lines. One [`Collector`] then reads
//! those in their order.
//!
//! The result is that of one thread. A leaf call changes nothing but the counts of its function, and
//! the first call of each function is handed back, so that functions are numbered in the same order.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use memchr::memchr_iter;

use super::collect::{Collector, Tally};
use super::line::{Line, Source, known_leaf, parse};
use super::names::{Names, Recent};
use super::values::ShortCounts;

/// Functions that one worker counts: 64 KiB each.
const MAX_FUNCTIONS: usize = 32;
/// More workers than that count faster than one thread reads.
const MAX_WORKERS: usize = 3;
/// Chunks that wait for one worker, or in its results.
const QUEUE: usize = 2;

/// A chunk of the text, and what a worker left of it.
#[derive(Debug, Default)]
struct Chunk {
    text: Vec<u8>,
    /// Where the whole lines are.
    lines: Range<usize>,
    /// Lines for the collector: the number of counted lines before each, and where it is.
    uncounted: Vec<(u64, Range<u32>)>,
    /// Counted lines after the last of those.
    counted: u64,
}

#[derive(Debug, Default)]
struct Worker {
    /// What stands after the bar of calls, with the numbers of `names`.
    known: Recent,
    names: Names,
    /// By the numbers of `names`.
    tallies: Vec<Tally>,
}

impl Worker {
    fn count_chunk(&mut self, chunk: &mut Chunk) {
        chunk.uncounted.clear();
        chunk.counted = 0;
        let lines = &chunk.text[chunk.lines.clone()];
        let mut from = 0;
        for newline in memchr_iter(b'\n', lines) {
            if self.count_line(&lines[from..newline]) {
                chunk.counted += 1;
            } else {
                let counted = std::mem::take(&mut chunk.counted);
                chunk.uncounted.push((counted, from as u32..newline as u32));
            }
            from = newline + 1;
        }
    }

    /// Counts the line if it is a short call of a known function; makes its function known otherwise.
    #[inline]
    fn count_line(&mut self, line: &[u8]) -> bool {
        let names = &mut self.names;
        let Some((id, ps, source)) = known_leaf(line, &mut self.known, |name| names.id(name))
        else {
            return false;
        };
        let Some(tally) = self.tallies.get_mut(id as usize) else {
            self.add_tally(line);
            return false;
        };
        let Some(count) = tally.short.get_mut(ps) else { return false };
        *count += 1;
        tally.lines[usize::from(source == Source::Ftrace)] += 1;
        true
    }

    /// Makes the function of a call that [`known_leaf`] has just numbered known.
    fn add_tally(&mut self, line: &[u8]) {
        if let Line::Leaf { name, .. } = parse(line)
            && self.tallies.len() < MAX_FUNCTIONS
        {
            let short = ShortCounts::default();
            self.tallies.push(Tally { name: name.into(), short, lines: [0; 2] });
        }
    }
}

/// What a worker returns: each chunk and, at its end, its counts.
enum Done {
    Chunk(Chunk),
    All(Vec<Tally>),
}

/// Running workers, and the chunks on their way.
pub(super) struct Workers {
    workers: Vec<(SyncSender<Chunk>, Receiver<Done>)>,
    submitted: usize,
    collected: usize,
    /// Chunks to fill again.
    spare: Vec<Chunk>,
}

impl Workers {
    /// Starts `number` workers.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        number: usize,
    ) -> io::Result<Self> {
        let mut workers = Vec::new();
        for _ in 0..number {
            let (to, chunks) = sync_channel::<Chunk>(QUEUE);
            let (results, from) = sync_channel(QUEUE + 1);
            std::thread::Builder::new().name("import".to_owned()).spawn_scoped(
                scope,
                move || {
                    let mut worker = Worker::default();
                    for mut chunk in chunks {
                        worker.count_chunk(&mut chunk);
                        if results.send(Done::Chunk(chunk)).is_err() {
                            return;
                        }
                    }
                    let _ = results.send(Done::All(worker.tallies));
                },
            )?;
            workers.push((to, from));
        }
        Ok(Self { workers, submitted: 0, collected: 0, spare: Vec::new() })
    }

    /// Submits the whole lines at `lines` of `buffer` and replaces it by another buffer, which starts
    /// with the bytes at `kept`. Where too many chunks wait, `collector` takes an earlier one first.
    ///
    /// # Errors
    /// If a worker has ended, which is a bug.
    pub(super) fn submit(
        &mut self,
        buffer: &mut Vec<u8>,
        lines: Range<usize>,
        kept: Range<usize>,
        collector: &mut Collector,
    ) -> io::Result<()> {
        if self.submitted - self.collected >= QUEUE * self.workers.len() {
            self.collect_next(collector)?;
        }
        let mut chunk = self.spare.pop().unwrap_or_default();
        chunk.text.resize(buffer.len(), 0);
        chunk.text[..kept.len()].copy_from_slice(&buffer[kept]);
        chunk.lines = lines;
        std::mem::swap(buffer, &mut chunk.text);
        let (to, _) = &self.workers[self.submitted % self.workers.len()];
        to.send(chunk).map_err(|_| ended_early())?;
        self.submitted += 1;
        Ok(())
    }

    /// Waits for all submitted chunks.
    ///
    /// # Errors
    /// If a worker has ended, which is a bug.
    pub(super) fn drain(&mut self, collector: &mut Collector) -> io::Result<()> {
        while self.collected < self.submitted {
            self.collect_next(collector)?;
        }
        Ok(())
    }

    fn collect_next(&mut self, collector: &mut Collector) -> io::Result<()> {
        let (_, from) = &self.workers[self.collected % self.workers.len()];
        let Ok(Done::Chunk(chunk)) = from.recv() else { return Err(ended_early()) };
        let lines = &chunk.text[chunk.lines.clone()];
        for (counted, range) in &chunk.uncounted {
            collector.add_lines(*counted);
            collector.line(&lines[range.start as usize..range.end as usize]);
        }
        collector.add_lines(chunk.counted);
        self.collected += 1;
        self.spare.push(chunk);
        Ok(())
    }

    /// Waits for all submitted chunks and adds the workers' counts to `collector`.
    ///
    /// # Errors
    /// If a worker has ended, which is a bug.
    pub(super) fn finish(mut self, collector: &mut Collector) -> io::Result<()> {
        self.drain(collector)?;
        for (to, from) in self.workers {
            drop(to);
            let Ok(Done::All(tallies)) = from.recv() else { return Err(ended_early()) };
            tallies.iter().for_each(|tally| collector.add_tally(tally));
        }
        Ok(())
    }
}

/// Number of workers for this machine's CPUs; 0 on a single CPU, where they would not help.
pub(super) fn workers() -> usize {
    match std::thread::available_parallelism() {
        Ok(cpus) if cpus.get() > 1 => cpus.get().min(MAX_WORKERS),
        _ => 0,
    }
}

fn ended_early() -> io::Error {
    io::Error::other("a thread that counts calls has ended early")
}
