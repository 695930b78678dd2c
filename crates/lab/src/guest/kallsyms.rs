//! The kernel's symbols, as `/proc/kallsyms` has them.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};

const PATH: &str = "/proc/kallsyms";

/// Bytes before the end of the kernel's own symbols at which a file waits. One that has come to their end has seen that there are no
/// modules, and does not look again (`pos_mod_end` in the kernel's kernel/kallsyms.c).
const BEFORE_END: u64 = 8 << 10;

/// A file of them that was opened before there were modules.
///
/// The kernel writes out each line before those that are wanted, 150,000 of them, which takes longer than to load a driver. A file
/// that was read up to there goes on where it is.
pub(super) struct Kallsyms(Option<File>);

impl Kallsyms {
    /// All of them, and the file; empty if the kernel has none.
    pub(super) fn read() -> (Vec<u8>, Self) {
        let text = fs::read(PATH).unwrap_or_default();
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        let own = lines.take_while(|line| !line.ends_with(b"]\n")).map(<[u8]>::len).sum::<usize>();
        let at = (own as u64).checked_sub(BEFORE_END);
        let file = at.and_then(|at| {
            let mut file = File::open(PATH).ok()?;
            file.seek(SeekFrom::Start(at)).ok().map(|_| file)
        });
        (text, Self(file))
    }

    /// Without it: a copy of this process has no use for the file.
    pub(super) fn close(&mut self) {
        self.0 = None;
    }

    /// The lines that name a module, or what is written like one.
    ///
    /// # Errors
    /// As the system.
    pub(super) fn of_modules(&mut self) -> io::Result<String> {
        // It does so once.
        let mut file = match self.0.take() {
            Some(file) => file,
            None => File::open(PATH)?,
        };
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with("]\n"));
        Ok(lines.collect())
    }
}
