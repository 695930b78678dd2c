//! Splits a stream of any length into lines, in constant memory.

use std::io::{self, Read};
use std::ops::Range;

use memchr::{memchr, memchr_iter, memrchr};

use super::collect::Collector;
use super::parallel::{self, Workers};

/// Size of one read, and of the longest line that is parsed.
pub const MAX_LINE: usize = 256 << 10;
/// Bytes of the head that are kept, to identify a file without a record.
pub const HEAD: usize = 8 << 10;
/// Bytes after which threads are worth their start.
const LONG: u64 = 8 << 20;

/// What [`scan`] read.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Bytes in all.
    pub bytes: u64,
    /// The first [`HEAD`] of them.
    pub head: Vec<u8>,
}

/// Passes each line of `input` to `collector`; stops early at a decimal comma. Calls `progress` with
/// the bytes read so far.
///
/// # Errors
/// If `input` cannot be read.
pub fn scan(
    input: &mut dyn Read,
    collector: &mut Collector,
    progress: &mut dyn FnMut(u64),
) -> io::Result<Scanned> {
    scan_with(input, collector, progress, parallel::workers(), LONG)
}

/// As [`scan`], with `workers` threads after `long` bytes.
fn scan_with(
    input: &mut dyn Read,
    collector: &mut Collector,
    progress: &mut dyn FnMut(u64),
    workers: usize,
    long: u64,
) -> io::Result<Scanned> {
    std::thread::scope(|scope| {
        let mut start = |bytes: u64| {
            let wanted = workers > 0 && bytes >= long;
            wanted.then(|| Workers::start(scope, workers)).transpose()
        };
        scan_lines(input, collector, progress, &mut start)
    })
}

/// `start_workers` returns workers once enough bytes were read.
fn scan_lines(
    input: &mut dyn Read,
    collector: &mut Collector,
    progress: &mut dyn FnMut(u64),
    start_workers: &mut dyn FnMut(u64) -> io::Result<Option<Workers>>,
) -> io::Result<Scanned> {
    let mut workers: Option<Workers> = None;
    let mut buffer = vec![0_u8; 2 * MAX_LINE];
    let mut scanned = Scanned::default();
    // Bytes of an incomplete line at the front of the buffer.
    let mut kept = 0;
    // Inside a line that is too long.
    let mut skipping = false;
    loop {
        let (mut start, end) = match input.read(&mut buffer[kept..]) {
            Ok(0) => break,
            Ok(read) => (0, kept + read),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        scanned.add(&buffer[kept..end]);
        progress(scanned.bytes);
        if skipping {
            let Some(newline) = memchr(b'\n', &buffer[..end]) else {
                kept = 0;
                continue;
            };
            (start, skipping) = (newline + 1, false);
        }
        // From the back, and only in what is new, so that many short reads cost no more.
        let fresh = start.max(kept);
        let Some(last) = memrchr(b'\n', &buffer[fresh..end]).map(|at| fresh + at) else {
            buffer.copy_within(start..end, 0);
            kept = end - start;
            if kept >= MAX_LINE {
                if let Some(workers) = &mut workers {
                    workers.drain(collector)?;
                }
                collector.overlong();
                (kept, skipping) = (0, true);
            }
            continue;
        };
        kept = end - last - 1;
        if workers.is_none() {
            workers = start_workers(scanned.bytes)?;
        }
        pass(&mut buffer, start..last + 1, last + 1..end, workers.as_mut(), collector)?;
        if collector.comma().is_some() {
            return Ok(scanned);
        }
    }
    if let Some(workers) = workers {
        workers.finish(collector)?;
    }
    if kept > 0 && !skipping {
        collector.unfinished_line(&buffer[..kept]);
    }
    Ok(scanned)
}

impl Scanned {
    fn add(&mut self, read: &[u8]) {
        let missing = HEAD - self.head.len();
        self.head.extend_from_slice(&read[..missing.min(read.len())]);
        self.bytes += read.len() as u64;
    }
}

/// Passes whole `lines` of the buffer to the workers or the collector, and keeps the `rest` at its front.
fn pass(
    buffer: &mut Vec<u8>,
    lines: Range<usize>,
    rest: Range<usize>,
    workers: Option<&mut Workers>,
    collector: &mut Collector,
) -> io::Result<()> {
    if let Some(workers) = workers {
        return workers.submit(buffer, lines, rest, collector);
    }
    let mut from = lines.start;
    for newline in memchr_iter(b'\n', &buffer[lines.clone()]) {
        let end = lines.start + newline;
        collector.line(&buffer[from..end]);
        from = end + 1;
    }
    buffer.copy_within(rest, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace_cmd::collect::{Counts, Function};

    /// A reader that returns a few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    fn run(input: &mut dyn Read) -> (Vec<Function>, Counts, Scanned) {
        let mut collector = Collector::default();
        let scanned = scan(input, &mut collector, &mut |_| ()).expect("memory can be read");
        let (functions, counts) = collector.finish();
        (functions, counts, scanned)
    }

    #[test]
    fn a_line_too_long_is_skipped_and_counted() {
        let good = b" 0)   0.5 us    |  a();\n";
        let text = [&good[..], &b"x".repeat(3 * MAX_LINE), b"\n", good, &b"y".repeat(MAX_LINE + 1)]
            .concat();
        let (functions, counts, scanned) = run(&mut &text[..]);
        assert_eq!(functions[0].values.count(), 2);
        assert_eq!((counts.overlong, counts.lines), (2, 4));
        assert_eq!((scanned.bytes, scanned.head.len()), (text.len() as u64, HEAD));
    }

    #[test]
    fn a_gigabyte_in_one_line_takes_no_memory() {
        let (_, counts, scanned) = run(&mut io::repeat(b'|').take(1 << 30));
        assert_eq!((counts.lines, counts.overlong, scanned.bytes), (1, 1, 1 << 30));
    }

    #[test]
    fn the_last_line_may_lack_its_end() {
        let (functions, counts, _) = run(&mut &b" 0)   0.5 us    |  a();"[..]);
        assert_eq!((functions[0].values.count(), counts.cut_off), (1, false));
        for (end, is_cut_off) in [
            (" 0)   0.5 us    |  a(", true),
            (" 0)   0.5", true),
            (" 0)", true),
            ("# tracer", false),
            ("  ", false),
            ("CPU:0 [LOST EVENTS]", false),
            (" 0)               |  a() {", false),
        ] {
            let text = format!(" 0)   0.5 us    |  a();\n{end}");
            let (functions, counts, _) = run(&mut text.as_bytes());
            assert_eq!((functions[0].values.count(), counts.cut_off), (1, is_cut_off), "{end}");
        }
        assert!(run(&mut &b" 0)   0.5 us    |  a("[..]).1.cut_off);
        assert!(!run(&mut &b"some text"[..]).1.cut_off);
    }

    /// The same text read by one thread and by some, in pieces of any length.
    fn alone_and_in_parallel(text: &[u8], piece: usize, workers: usize) {
        let read = |workers: usize| {
            let mut collector = Collector::default();
            let input = &mut Slow(text, piece);
            scan_with(input, &mut collector, &mut |_| (), workers, 0).expect("memory can be read");
            let (functions, counts) = collector.finish();
            let rows: Vec<_> = functions
                .iter()
                .map(|f| {
                    let mut values: Vec<(u64, u64)> = f.values.iter().collect();
                    values.sort_unstable();
                    let v = &f.values;
                    let exact = (v.count(), v.sum_ps(), v.min_ps(), v.max_ps());
                    (f.name.clone(), exact, values, f.unparsable, f.unreturned)
                })
                .collect();
            (rows, counts)
        };
        let (alone, parallel) = (read(0), read(workers));
        assert_eq!(parallel.1, alone.1);
        assert_eq!(parallel.0.len(), alone.0.len());
        for (parallel, alone) in parallel.0.iter().zip(&alone.0) {
            assert!(parallel == alone, "{} and {} differ", parallel.0, alone.0);
        }
    }

    #[test]
    fn threads_change_nothing_of_a_long_trace() {
        let mut text = String::new();
        for at in 0..60_000_u64 {
            let ns = at * at % 9973;
            text += &match at % 997 {
                // More functions than a worker counts, nested calls, losses, faults and others.
                0 => format!(" 0)               |  outer{}() {{\n", at % 50),
                1 => " 0)   9.000 us    |  }\n".to_owned(),
                2 => format!("CPU:0 [LOST {at} EVENTS]\n"),
                3 => " 0)   x.000 us    |  f();\n".to_owned(),
                4 => "# a comment\n".to_owned(),
                5 if at < 3000 => "y".repeat(3 * MAX_LINE) + "\n",
                6 => format!(" 0)   {}.5 us    |  f();\n", at % 7),
                7 => format!(" 0)   1.500 us    |  ==f{at}();\n"),
                _ => format!(
                    " x-1 [000] 1.0: funcgraph_entry:      {}.{:03} us   |  f{}();\n",
                    ns / 1000,
                    ns % 1000,
                    at % 37
                ),
            };
        }
        for (piece, workers) in [(usize::MAX, 1), (usize::MAX, 3), (40_000, 2)] {
            alone_and_in_parallel(text.as_bytes(), piece, workers);
        }
    }

    #[test]
    fn threads_find_the_comma() {
        let good = " 0)   0.500 us    |  a();\n".repeat(50_000);
        let text = [&good, " 0)   0,500 us    |  a();\n", &good].concat();
        let mut collector = Collector::default();
        scan_with(&mut text.as_bytes(), &mut collector, &mut |_| (), 2, 0).expect("it is read");
        assert_eq!(collector.finish().1.comma, Some(50_001));
    }

    proptest! {
        #[test]
        fn threads_change_nothing(
            lines in prop::collection::vec(prop::sample::select(vec![
                " 0)   0.500 us    |  a();", " 0)   9.500 us    |  a();", " 1)   0.501 us    |  b();",
                " 0)               |  a() {", " 0)   2.000 us    |  }", " 0)   2.000 us    |  } /* b */",
                "CPU:0 [LOST 3 EVENTS]", " x-1 [000] 1.0: funcgraph_entry:   0.500 us   |  a();", "", "cpus=2",
                " x-1 [000] 1.0: funcgraph_entry:        |  c() {", " x-1 [000] 1.0: funcgraph_exit:  1.0 us | }",
                " 0)   1.x us    |  a();", "CPU:1 [EVENTS DROPPED]", " 0)   0.500 us    |  ==a();",
            ]), 0..60),
            piece in 1..300_usize,
            workers in 1..4_usize,
        ) {
            alone_and_in_parallel(lines.join("\n").as_bytes(), piece, workers);
        }

        #[test]
        fn any_bytes_in_any_pieces(bytes in prop::collection::vec(any::<u8>(), 0..2000), piece in 1..50_usize) {
            let (_, whole, _) = run(&mut &bytes[..]);
            let (_, pieces, _) = run(&mut Slow(&bytes, piece));
            prop_assert_eq!(whole, pieces);
        }

        #[test]
        fn pieces_change_nothing(values in prop::collection::vec(0..2000_u64, 0..40), piece in 1..50_usize) {
            let text: String =
                values.iter().map(|ns| format!(" 0)   {}.{:03} us    |  a();\n", ns / 1000, ns % 1000)).collect();
            let (functions, counts, _) = run(&mut Slow(text.as_bytes(), piece));
            prop_assert_eq!(counts.lines, values.len() as u64);
            let sum: u64 = values.iter().sum();
            prop_assert_eq!(functions.first().map_or(0, |f| f.values.sum_ps()), u128::from(sum) * 1000);
        }
    }
}
