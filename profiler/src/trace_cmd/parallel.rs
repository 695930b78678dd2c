//! Calls counted on several CPUs: each worker takes every so manieth piece of the text, counts its
//! short calls of functions that it knows, and gives back all other lines, which are then read in
//! their order by one [`Collector`].
//!
//! The result is that of one reader: a call in one line changes nothing but its function's counts,
//! and the first such line of each function is given back, so that functions are met in the same
//! order.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use memchr::memchr_iter;

use super::collect::Collector;
use super::line::{Line, Source, parse};
use super::names::Names;
use super::quick;
use super::values::SHORT_NS;

/// Functions that one worker counts: 64 KiB each.
const MAX_FUNCTIONS: usize = 32;
/// More workers than that count faster than one thread reads.
const MAX_WORKERS: usize = 3;
/// Pieces that wait for one worker, or in its results.
const WAITING: usize = 2;

/// A piece of the text, in whole lines, and what a worker left of it.
#[derive(Debug, Default)]
struct Piece {
    text: Vec<u8>,
    /// Where the lines are.
    whole: Range<usize>,
    /// Lines that are not counted yet: how many lines since the one before are, and where it is.
    rest: Vec<(u64, Range<u32>)>,
    /// Counted lines after the last of those.
    counted: u64,
}

/// Calls of one function that a worker has counted.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) name: Box<[u8]>,
    /// By whole nanoseconds, below [`SHORT_NS`].
    pub(super) short: Box<[u64]>,
    /// From trace-cmd, and from ftrace.
    pub(super) lines: [u64; 2],
}

#[derive(Debug, Default)]
struct Worker {
    names: Names,
    tallies: Vec<Tally>,
}

impl Worker {
    fn piece(&mut self, piece: &mut Piece) {
        piece.rest.clear();
        piece.counted = 0;
        let lines = &piece.text[piece.whole.clone()];
        let mut from = 0;
        for newline in memchr_iter(b'\n', lines) {
            if self.counts(&lines[from..newline]) {
                piece.counted += 1;
            } else {
                piece.rest.push((std::mem::take(&mut piece.counted), from as u32..newline as u32));
            }
            from = newline + 1;
        }
    }

    /// Counts the line if it is a short call of a function that is known.
    #[inline]
    fn counts(&mut self, line: &[u8]) -> bool {
        let Some(leaf) = quick::leaf(line) else { return false };
        let Some(id) = self.names.shortcut(leaf.name) else {
            self.meet(line, leaf.name);
            return false;
        };
        let Some(tally) = self.tallies.get_mut(id as usize) else { return false };
        let Some(count) = tally.short.get_mut(leaf.ns as usize) else { return false };
        *count += 1;
        tally.lines[usize::from(leaf.source == Source::Ftrace)] += 1;
        true
    }

    /// Knows a function from its next call on.
    #[cold]
    fn meet(&mut self, line: &[u8], text: &[u8]) {
        let is_name = matches!(parse(line), Line::Leaf { name, .. } if name == text);
        if !is_name || (self.tallies.len() == MAX_FUNCTIONS && !self.names.has(text)) {
            return;
        }
        let Some(id) = self.names.id(text) else { return };
        if id as usize == self.tallies.len() {
            let short = vec![0; SHORT_NS].into_boxed_slice();
            self.tallies.push(Tally { name: text.into(), short, lines: [0; 2] });
        }
        self.names.called(text);
    }
}

/// What comes back from a worker: a piece that was given to it or, at its end, what it has counted.
enum Done {
    Piece(Piece),
    All(Vec<Tally>),
}

/// Workers that have been started, and pieces on their way.
pub(super) struct Workers {
    workers: Vec<(SyncSender<Piece>, Receiver<Done>)>,
    sent: usize,
    taken: usize,
    /// Pieces to be filled anew.
    spare: Vec<Piece>,
}

impl Workers {
    /// Starts `number` of them.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        number: usize,
    ) -> io::Result<Self> {
        let mut workers = Vec::new();
        for _ in 0..number {
            let (to, pieces) = sync_channel::<Piece>(WAITING);
            let (results, from) = sync_channel(WAITING + 1);
            std::thread::Builder::new().name("import".to_owned()).spawn_scoped(
                scope,
                move || {
                    let mut worker = Worker::default();
                    for mut piece in pieces {
                        worker.piece(&mut piece);
                        if results.send(Done::Piece(piece)).is_err() {
                            return;
                        }
                    }
                    let _ = results.send(Done::All(worker.tallies));
                },
            )?;
            workers.push((to, from));
        }
        Ok(Self { workers, sent: 0, taken: 0, spare: Vec::new() })
    }

    /// Hands out the lines at `whole` of `buffer` and puts another in its place, which begins with
    /// what was at `kept`. `collector` takes in what has become of an earlier piece.
    ///
    /// # Errors
    /// If a worker is gone, which is a fault of the program.
    pub(super) fn give(
        &mut self,
        buffer: &mut Vec<u8>,
        whole: Range<usize>,
        kept: Range<usize>,
        collector: &mut Collector,
    ) -> io::Result<()> {
        if self.sent - self.taken >= WAITING * self.workers.len() {
            self.take(collector)?;
        }
        let mut piece = self.spare.pop().unwrap_or_default();
        piece.text.resize(buffer.len(), 0);
        piece.text[..kept.len()].copy_from_slice(&buffer[kept]);
        piece.whole = whole;
        std::mem::swap(buffer, &mut piece.text);
        let (to, _) = &self.workers[self.sent % self.workers.len()];
        to.send(piece).map_err(|_| gone())?;
        self.sent += 1;
        Ok(())
    }

    /// Takes in all pieces that have been handed out.
    ///
    /// # Errors
    /// If a worker is gone, which is a fault of the program.
    pub(super) fn settle(&mut self, collector: &mut Collector) -> io::Result<()> {
        while self.taken < self.sent {
            self.take(collector)?;
        }
        Ok(())
    }

    fn take(&mut self, collector: &mut Collector) -> io::Result<()> {
        let (_, from) = &self.workers[self.taken % self.workers.len()];
        let Ok(Done::Piece(piece)) = from.recv() else { return Err(gone()) };
        let lines = &piece.text[piece.whole.clone()];
        for (counted, range) in &piece.rest {
            collector.counted_lines(*counted);
            collector.line(&lines[range.start as usize..range.end as usize]);
        }
        collector.counted_lines(piece.counted);
        self.taken += 1;
        self.spare.push(piece);
        Ok(())
    }

    /// Takes in all that is left.
    ///
    /// # Errors
    /// If a worker is gone, which is a fault of the program.
    pub(super) fn finish(mut self, collector: &mut Collector) -> io::Result<()> {
        self.settle(collector)?;
        for (to, from) in self.workers {
            drop(to);
            let Ok(Done::All(tallies)) = from.recv() else { return Err(gone()) };
            tallies.iter().for_each(|tally| collector.counted(tally));
        }
        Ok(())
    }
}

/// Workers that this machine has CPUs for; none are better than one.
pub(super) fn workers() -> usize {
    match std::thread::available_parallelism() {
        Ok(cpus) if cpus.get() > 1 => cpus.get().min(MAX_WORKERS),
        _ => 0,
    }
}

fn gone() -> io::Error {
    io::Error::other("a thread that counts calls has ended early")
}
