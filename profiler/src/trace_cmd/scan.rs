//! Lines of a stream of any length, in constant memory.

use std::io::{self, Read};

use memchr::{memchr, memchr_iter, memrchr};

use super::collect::Collector;

/// Bytes that are read at once, and the longest line that is taken.
pub const MAX_LINE: usize = 256 << 10;
/// Bytes of the head that are kept to tell what a file is that holds no record.
pub const HEAD: usize = 8 << 10;

/// What was read.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Bytes in all.
    pub bytes: u64,
    /// The first of them.
    pub head: Vec<u8>,
}

/// Gives each line of `input` to `collector`; stops early at a decimal comma. `progress` is told the
/// bytes read so far.
///
/// # Errors
/// If `input` cannot be read.
pub fn scan(
    input: &mut dyn Read,
    collector: &mut Collector,
    progress: &mut dyn FnMut(u64),
) -> io::Result<Scanned> {
    let mut buffer = vec![0_u8; 2 * MAX_LINE];
    let mut scanned = Scanned::default();
    // Bytes at the front of the buffer that are the begin of a line.
    let mut kept = 0;
    // Inside a line that is too long.
    let mut skipping = false;
    loop {
        let read = match input.read(&mut buffer[kept..]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let (mut start, end) = (0, kept + read);
        if scanned.head.len() < HEAD {
            let more = (HEAD - scanned.head.len()).min(read);
            scanned.head.extend_from_slice(&buffer[kept..kept + more]);
        }
        scanned.bytes += read as u64;
        progress(scanned.bytes);
        if skipping {
            match memchr(b'\n', &buffer[..end]) {
                Some(newline) => (start, skipping) = (newline + 1, false),
                None => {
                    kept = 0;
                    continue;
                }
            }
        }
        // Searched from the back, and only in what is new, so that many short reads cost no more.
        let fresh = start.max(kept);
        let Some(last) = memrchr(b'\n', &buffer[fresh..end]).map(|at| fresh + at) else {
            buffer.copy_within(start..end, 0);
            kept = end - start;
            if kept >= MAX_LINE {
                collector.overlong();
                (kept, skipping) = (0, true);
            }
            continue;
        };
        let whole = &buffer[start..=last];
        let mut from = 0;
        for newline in memchr_iter(b'\n', whole) {
            collector.line(&whole[from..newline]);
            from = newline + 1;
        }
        if collector.comma().is_some() {
            return Ok(scanned);
        }
        buffer.copy_within(last + 1..end, 0);
        kept = end - last - 1;
    }
    if kept > 0 && !skipping {
        collector.unfinished_line(&buffer[..kept]);
    }
    Ok(scanned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace_cmd::collect::{Counts, Function};

    /// A reader that gives a few bytes at a time.
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
        let (_, counts, _) = run(&mut &b" 0)   0.5 us    |  a("[..]);
        assert!(counts.cut_off);
    }

    proptest! {
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
