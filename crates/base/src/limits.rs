//! Resource limits: probes need more of some than most processes may have, and a load is to have those that the
//! profiler was started with.

use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

static LOCKED_MEMORY: Limit = Limit { of: Resource::RLIMIT_MEMLOCK, before: OnceLock::new() };
static OPEN_FILES: Limit = Limit { of: Resource::RLIMIT_NOFILE, before: OnceLock::new() };

struct Limit {
    of: Resource,
    /// Soft and hard limit before they were raised; empty if they were not.
    before: OnceLock<(rlim_t, rlim_t)>,
}

impl Limit {
    fn raise(&self, wanted: rlim_t) {
        let Ok((soft, hard)) = getrlimit(self.of) else { return };
        if soft < wanted && setrlimit(self.of, wanted, hard.max(wanted)).is_ok() {
            self.before.get_or_init(|| (soft, hard));
        }
    }
}

/// Lets this process lock as much memory as maps need, on kernels that still charge maps to
/// `RLIMIT_MEMLOCK` (before 5.11). Failure shows as `EPERM` when a map is made.
pub fn raise_locked_memory() {
    LOCKED_MEMORY.raise(nix::libc::RLIM_INFINITY);
}

/// Lets this process open `more` files, if it may not yet: each probe needs some. Failure shows as
/// `EMFILE`.
pub fn raise_open_files(more: usize) {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    OPEN_FILES.raise(rlim_t::try_from(open + more).unwrap_or(rlim_t::MAX));
}

/// Takes back what was raised. Only makes system calls: for a new process between fork and exec.
pub fn put_back() -> Result<(), Errno> {
    for limit in [&LOCKED_MEMORY, &OPEN_FILES] {
        if let Some((soft, hard)) = limit.before.get() {
            setrlimit(limit.of, *soft, *hard)?;
        }
    }
    Ok(())
}
