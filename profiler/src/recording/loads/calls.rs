//! The system calls that a built-in load made.

use serde::{Deserialize, Serialize};

/// System calls that a built-in load made itself, set-up included: what a probe on the matching kernel
/// function sees of this load. Exact as long as `errors` is empty (a failed `open` may or may not have
/// reached the hook). Calls by the program's runtime (`mprotect`, `write`, `exit`, ...) are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnCalls {
    /// `connect(2)`.
    pub connect: u64,
    /// `bind(2)`.
    pub bind: u64,
    /// `execve(2)`, made on the load's behalf in its children.
    pub execve: u64,
    /// `openat(2)` that created a file: one `security_inode_create` each.
    pub open_create: u64,
    /// `ptrace(2)` requests that reach `arch_ptrace`.
    pub ptrace: u64,
    /// `ptrace(2)` requests that attach, which end before `arch_ptrace`.
    pub ptrace_attach: u64,
    /// Receiving calls on a UDP socket: one `udp_recvmsg` each.
    pub udp_recvmsg: u64,
    /// `rename(2)` and its kin.
    pub rename: u64,
    /// `link(2)` and its kin.
    pub link: u64,
    /// `unlink(2)` and its kin, of files.
    pub unlink: u64,
    /// `rmdir(2)`, also as `unlinkat(2)`.
    pub rmdir: u64,
    /// `write(2)` to a file of the load.
    pub write: u64,
    /// `mount(2)`.
    pub mount: u64,
    /// `memfd_create(2)`.
    pub memfd_create: u64,
    /// `mprotect(2)` that makes memory executable.
    pub mprotect: u64,
    /// `accept4(2)`.
    pub accept: u64,
    /// `setsid(2)`, made on the load's behalf in its children.
    pub setsid: u64,
    /// `prctl(2)` that names the thread.
    pub prctl: u64,
    /// `setuid(2)`: one `commit_creds` each.
    pub commit_creds: u64,
    /// `kill(2)`.
    pub kill: u64,
    /// `tkill(2)`.
    pub tkill: u64,
    /// `nanosleep(2)`.
    pub nanosleep: u64,
    /// `exit(2)` of threads started for it.
    pub exit: u64,
    /// `socket(2)` for which the kernel starts a program: one `call_usermodehelper_exec` each.
    pub usermodehelper: u64,
}

/// The sum of `$one` and `$more`, field by field. Taking `$more` apart makes a forgotten field an error.
macro_rules! add_fields {
    ($one:ident + $more:ident: $($field:ident)*) => {{
        let Self { $($field),* } = $more;
        Some(Self { $($field: $one.$field.checked_add($field)?),* })
    }};
}

impl OwnCalls {
    /// The sum; `None` beyond 2^64 - 1.
    pub(crate) fn checked_add(self, more: Self) -> Option<Self> {
        add_fields!(self + more:
            connect bind execve open_create ptrace ptrace_attach udp_recvmsg rename link unlink
            rmdir write mount memfd_create mprotect accept setsid prctl commit_creds kill tkill
            nanosleep exit usermodehelper)
    }
}

/// Beyond 2^64 - 1 the sum stays as it is.
impl std::ops::AddAssign for OwnCalls {
    fn add_assign(&mut self, more: Self) {
        *self = self.checked_add(more).unwrap_or(*self);
    }
}
