//! Files of tracefs.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::{ProbeError, errno::Doing as _};

/// Where tracefs may be.
pub(crate) const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The file with the tracer in use.
pub(super) const CURRENT: &str = "current_tracer";

/// What the tracer is called in it.
pub(super) const TRACER: &str = "function_graph";

const NO_TRACER: &str = "this kernel has no function_graph tracer: use one built with CONFIG_FUNCTION_GRAPH_TRACER, as \
                         those of Debian, Ubuntu, Fedora and RHEL are";

const NO_TRACEFS: &str = "tracefs is not there, which the function-graph backend needs: mount -t tracefs nodev \
                          /sys/kernel/tracing";

/// A folder of tracefs: the top one, or an instance.
#[derive(Debug, Clone)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    /// The top folder, where the kernel has the tracer.
    ///
    /// # Errors
    /// Without tracefs, or the tracer, or the right to read.
    pub(super) fn find() -> Result<Self, ProbeError> {
        for place in PLACES {
            let folder = Self(place.into());
            match folder.text("available_tracers") {
                Ok(tracers) if tracers.split_whitespace().any(|tracer| tracer == TRACER) => {
                    return Ok(folder);
                }
                Ok(_) => return Err(ProbeError::Other(NO_TRACER.to_owned())),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(error).doing(&folder.doing("reading", "available_tracers"));
                }
                Err(_) => {}
            }
        }
        Err(ProbeError::Other(NO_TRACEFS.to_owned()))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What a file says, without the line end.
    fn text(&self, name: &str) -> io::Result<String> {
        let mut file = File::open(self.path(name))?;
        let (mut text, mut part) = (Vec::new(), vec![0; 1 << 16]);
        // In large pieces: some of these files have no second one.
        loop {
            match file.read(&mut part)? {
                0 => break,
                length => text.extend_from_slice(&part[..length]),
            }
        }
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        Ok(text.trim_end().to_owned())
    }

    /// The same, where a file that cannot be read is an error of the tracer.
    pub(super) fn read(&self, name: &str) -> Result<String, ProbeError> {
        self.text(name).doing(&self.doing("reading", name))
    }

    /// The same of a file that not every kernel has.
    pub(super) fn read_if_there(&self, name: &str) -> Result<Option<String>, ProbeError> {
        match self.text(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => text.map(Some).doing(&self.doing("reading", name)),
        }
    }

    /// What is tried of a file, for messages.
    pub(super) fn doing(&self, doing: &str, name: &str) -> String {
        format!("{doing} {}", self.path(name).display())
    }
}

/// Sets a file of the kernel to a value. What was in it is gone, also where it is a list.
pub(super) fn write(path: &Path, value: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    // At once: the kernel takes each write for a value of its own.
    file.write_all(format!("{value}\n").as_bytes())
}

/// The counter `name` in lines of `name: value`.
pub(super) fn stat<T: FromStr>(text: &str, name: &str) -> Option<T> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}
