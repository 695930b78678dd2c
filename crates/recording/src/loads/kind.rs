//! Names of the built-in loads.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which operation a built-in load repeats. docs/loads.md says what each does.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::VariantArray,
    strum::VariantNames,
    strum::IntoStaticStr,
    strum::Display,
    strum::EnumString,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = no_such_builtin)]
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
    /// `getppid`.
    Getppid,
    /// Bytes through a pipe.
    Pipe,
    /// `stat` of a file.
    Stat,
    /// `open` of a file that is there.
    OpenExisting,
    /// `mmap` and `munmap` of a page.
    Mmap,
    /// `futex` that wakes nobody.
    Futex,
    /// `epoll_wait` for an event that is there.
    Epoll,
    /// Start and end of a process that shares memory.
    Fork,
    /// Bytes through a TCP connection.
    Tcp,
    /// A switch to another thread and back.
    Switch,
    /// A page fault in a system call.
    PageFault,
    /// A datagram by IPv6.
    Ipv6,
    /// Calls that fail.
    Errors,
    /// Calls of 32-bit programs, which fail.
    Errors32,
    /// Credentials, keys and what else rights depend on.
    Credentials,
    /// A network interface that gets another address, and goes up and down.
    Interface,
    /// A module that is loaded and unloaded.
    Module,
    /// Code of the kernel that it patches itself.
    TextPoke,
}

impl BuiltinKind {
    /// All kinds, in the order of the help text.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Those that no hook is about, from `getppid` on: a hook on everything shows there.
    pub const GENERAL: &[Self] = Self::ALL.split_at(Self::Getppid as usize).1;

    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether it works in a temporary directory.
    pub fn needs_directory(self) -> bool {
        matches!(
            self,
            Self::Open
                | Self::Rename
                | Self::Link
                | Self::Unlink
                | Self::Rmdir
                | Self::Write
                | Self::Mount
                | Self::Stat
                | Self::OpenExisting
        )
    }

    /// Whether it changes the running kernel, so that it runs in a lab's guest alone.
    pub fn changes_kernel(self) -> bool {
        matches!(self, Self::Module | Self::TextPoke)
    }

    /// Whether it needs root; all others run as any user.
    pub fn needs_root(self) -> bool {
        matches!(self, Self::Mount | Self::Credentials | Self::Interface) || self.changes_kernel()
    }
}

fn no_such_builtin(given: &str) -> String {
    let names = <BuiltinKind as strum::VariantNames>::VARIANTS.join(", ");
    format!("no built-in load `{given}`; there are {names}")
}
