//! A file that counts closed intervals, and those that exist only in memory. The next daemon reports by it what SIGKILL took.
//! It is overwritten in place, which works on a full disk.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use tracing::warn;

/// Its name in the folder of intervals.
pub(super) const NAME: &str = "closed";

/// Bytes of the file: three numbers of 20 digits, spaces and a newline.
const LENGTH: usize = 63;

/// The content of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number of the interval that was closed last.
    pub(super) closed: u64,
    /// Closed intervals that are not on disk.
    pub(super) waiting: u64,
    /// How many of them are being written to the file of that number: not lost if it exists.
    pub(super) under_way: u64,
}

#[derive(Debug)]
pub(super) struct Ledger {
    file: Option<File>,
    written: Entry,
    is_broken: bool,
}

impl Ledger {
    /// The file in this folder, and its content; a new or damaged one counts nothing.
    pub(super) fn open(folder: &Path) -> (Self, Entry) {
        let path = folder.join(NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let opened = options.custom_flags(libc::O_NOFOLLOW).open(&path);
        let file = opened.map_err(|error| {
            warn!(
                "cannot open {}: {error}: what SIGKILL takes will not be reported",
                path.display()
            );
        });
        let file = file.ok();
        let entry = file.as_ref().and_then(read).unwrap_or_default();
        (Self { file, written: entry, is_broken: false }, entry)
    }

    /// Replaces the content, also for after a loss of power.
    pub(super) fn write(&mut self, entry: Entry) {
        let Some(file) = self.file.as_ref().filter(|_| entry != self.written) else { return };
        let Entry { closed, waiting, under_way } = entry;
        let text = format!("{closed:020} {waiting:020} {under_way:020}\n");
        let written = file.write_all_at(text.as_bytes(), 0).and_then(|()| file.sync_data());
        match written {
            Ok(()) => (self.written, self.is_broken) = (entry, false),
            Err(error) if !self.is_broken => {
                self.is_broken = true;
                warn!(
                    "cannot write {NAME} beside the intervals: {error}: what SIGKILL takes now will not be reported"
                );
            }
            Err(_) => {}
        }
    }
}

fn read(file: &File) -> Option<Entry> {
    let mut bytes = [0; LENGTH];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let numbers = std::str::from_utf8(&bytes).ok()?.split_whitespace();
    let numbers = numbers.map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let [closed, waiting, under_way] = numbers[..] else { return None };
    // The next number is one more.
    (closed < u64::MAX && waiting <= closed).then_some(Entry { closed, waiting, under_way })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_last_is_read_and_nonsense_counts_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (mut ledger, entry) = Ledger::open(folder.path());
        assert_eq!(entry, Entry::default());
        let last = Entry { closed: u64::MAX - 1, waiting: 3, under_way: 2 };
        ledger.write(Entry { closed: 7, waiting: 0, under_way: 0 });
        ledger.write(last);
        assert_eq!(Ledger::open(folder.path()).1, last);
        let of = |text: &str| {
            std::fs::write(folder.path().join(NAME), text).unwrap();
            Ledger::open(folder.path()).1
        };
        let nonsense = [
            "x".repeat(LENGTH),
            format!("{:020} {:020}\n", 9, 3),
            format!("{:020} {:020} {:020}\n", 9, 10, 0),
            format!("{:020} {:020} {:020}\n", u64::MAX, 0, 0),
        ];
        for text in nonsense {
            assert_eq!(of(&text), Entry::default(), "{text}");
        }
    }
}
