//! The kernel's log: `Documentation/ABI/testing/dev-kmsg`.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

/// What the kernel has logged since it was opened, whatever its console shows.
pub(super) struct Log(Option<File>);

impl Log {
    /// From the oldest record on; empty if the kernel has no such log.
    pub(super) fn all() -> Self {
        let open = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
        Self(open.ok())
    }

    /// From the next record on.
    pub(super) fn from_here() -> Self {
        let mut log = Self::all();
        if let Some(file) = &mut log.0 {
            // As it was: then there are older ones.
            let _ = file.seek(SeekFrom::End(0));
        }
        log
    }

    /// The lines that were not read yet.
    pub(super) fn lines(&mut self) -> Vec<String> {
        let Some(file) = &mut self.0 else { return Vec::new() };
        let (mut record, mut lines) = ([0; 8192], Vec::new());
        loop {
            match file.read(&mut record) {
                Ok(bytes) if bytes > 0 => {
                    let text = String::from_utf8_lossy(&record[..bytes]);
                    let text = text.split_once(';').map_or("", |(_, text)| text);
                    lines.extend(text.lines().next().map(str::to_owned));
                }
                // Overwritten meanwhile: the next read gives the oldest that is left.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                _ => return lines,
            }
        }
    }
}
