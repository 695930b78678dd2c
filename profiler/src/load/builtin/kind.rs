//! Names of the built-in loads.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which operation a built-in load repeats. The [table](super) says what each does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BuiltinKind {
    /// `connect` of a UDP socket.
    Connect,
    /// `bind` of a UDP socket.
    Bind,
    /// `execve` of a program that ends at once.
    Execve,
    /// Creation of a file.
    Open,
    /// A request to a traced process.
    Ptrace,
    /// Receipt of a UDP datagram.
    UdpRecv,
    /// Receipt of a DNS answer from a port of DNS.
    Dns,
    /// `accept` of a TCP connection.
    Accept,
    /// `rename` of a file.
    Rename,
    /// A hard link to a file.
    Link,
    /// `unlink` of a file.
    Unlink,
    /// `rmdir` of a folder.
    Rmdir,
    /// `write` to a file.
    Write,
    /// `mount` of a file system.
    Mount,
    /// `memfd_create`.
    MemfdCreate,
    /// `mprotect` that makes memory executable.
    Mprotect,
    /// `setsid` in a new process.
    Setsid,
    /// `prctl` that names the thread.
    Prctl,
    /// `setuid`, which commits new credentials.
    UpdateCred,
    /// `kill` with signal 0.
    Kill,
    /// `tkill` with signal 0.
    Tkill,
    /// `nanosleep` of a nanosecond.
    Nanosleep,
    /// End of a thread.
    Exit,
    /// A program that the kernel itself starts.
    CallUsermodehelper,
}

impl BuiltinKind {
    /// All kinds, in the order of the help text.
    pub const ALL: [Self; 24] = [
        Self::Connect,
        Self::Bind,
        Self::Execve,
        Self::Open,
        Self::Ptrace,
        Self::UdpRecv,
        Self::Dns,
        Self::Accept,
        Self::Rename,
        Self::Link,
        Self::Unlink,
        Self::Rmdir,
        Self::Write,
        Self::Mount,
        Self::MemfdCreate,
        Self::Mprotect,
        Self::Setsid,
        Self::Prctl,
        Self::UpdateCred,
        Self::Kill,
        Self::Tkill,
        Self::Nanosleep,
        Self::Exit,
        Self::CallUsermodehelper,
    ];

    /// Its name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Bind => "bind",
            Self::Execve => "execve",
            Self::Open => "open",
            Self::Ptrace => "ptrace",
            Self::UdpRecv => "udp-recv",
            Self::Dns => "dns",
            Self::Accept => "accept",
            Self::Rename => "rename",
            Self::Link => "link",
            Self::Unlink => "unlink",
            Self::Rmdir => "rmdir",
            Self::Write => "write",
            Self::Mount => "mount",
            Self::MemfdCreate => "memfd-create",
            Self::Mprotect => "mprotect",
            Self::Setsid => "setsid",
            Self::Prctl => "prctl",
            Self::UpdateCred => "update-cred",
            Self::Kill => "kill",
            Self::Tkill => "tkill",
            Self::Nanosleep => "nanosleep",
            Self::Exit => "exit",
            Self::CallUsermodehelper => "call-usermodehelper",
        }
    }

    /// Whether it works in a directory of its own.
    pub(in crate::load) fn needs_directory(self) -> bool {
        matches!(
            self,
            Self::Open
                | Self::Rename
                | Self::Link
                | Self::Unlink
                | Self::Rmdir
                | Self::Write
                | Self::Mount
        )
    }

    /// Whether it can only be made with the privileges of root: all others run as anybody.
    #[must_use]
    pub fn needs_root(self) -> bool {
        self == Self::Mount
    }
}

impl fmt::Display for BuiltinKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no built-in load has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no built-in load `{given}`{}; there are {}", self.why(), BuiltinKind::ALL.map(BuiltinKind::name).join(", "))]
pub struct NoSuchBuiltin {
    given: String,
}

impl NoSuchBuiltin {
    fn why(&self) -> &'static str {
        if self.given.contains("module") {
            ": a module would have to be loaded for it, which only a command of your own can do \
             (`-- sh -c 'insmod FILE.ko; rmmod NAME'`)"
        } else {
            ""
        }
    }
}

impl FromStr for BuiltinKind {
    type Err = NoSuchBuiltin;

    fn from_str(given: &str) -> Result<Self, NoSuchBuiltin> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == given);
        found.ok_or_else(|| NoSuchBuiltin { given: given.to_owned() })
    }
}
