//! The end of a test's output.

use std::io::{self, PipeReader, Read as _};
use std::process::Command;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// How much of a test's output is kept.
const OUTPUT_BYTES: usize = 2048;

/// The output of a command, once connected.
#[derive(Default)]
pub(super) struct Output {
    pub(super) pipe: Option<PipeReader>,
    tail: Vec<u8>,
}

impl Output {
    pub(super) fn connect(&mut self, command: &mut Command) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        command.stdout(writer.try_clone()?).stderr(writer);
        self.pipe = Some(reader);
        Ok(())
    }

    /// Reads what is available.
    pub(super) fn read(&mut self) -> io::Result<()> {
        // A pipe holds 64 KiB by default, and at most 1 MiB; a process that cannot be killed may go on writing.
        for _ in 0..64 {
            let Some(pipe) = &mut self.pipe else { break };
            let mut bytes = [0; 16384];
            match pipe.read(&mut bytes) {
                // All writers have closed it: `poll` would return at once.
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    self.tail.extend_from_slice(bytes.get(..count).unwrap_or_default());
                    let surplus = self.tail.len().saturating_sub(OUTPUT_BYTES);
                    self.tail.drain(..surplus);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The last lines of the output.
    pub(super) fn end(mut self) -> io::Result<String> {
        self.read()?;
        let text = String::from_utf8_lossy(&self.tail);
        // Starts with a whole line if something is left out.
        let whole = match text.split_once('\n') {
            Some((_, rest)) if self.tail.len() >= OUTPUT_BYTES => rest,
            _ => &text,
        };
        Ok(whole.trim_end().to_owned())
    }
}
