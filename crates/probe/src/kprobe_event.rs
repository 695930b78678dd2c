//! Kprobes and kretprobes as trace events: `kprobe_events` in tracefs.
//!
//! They are on every kernel that has kprobes, and `kprobe_profile` counts for each how often it was hit
//! and how often the kernel skipped it. Such an event outlives the process that made it, so its name
//! says whose it is, and those of processes that are gone are removed. The name is one that no other
//! process can have: two events of one name are one event with two probes.

use std::{
    collections::HashMap,
    fs, io,
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use profiler_kernel::target::Target;

use super::{
    ftrace::{self, patiently},
    life::{self, Life},
    sys::perf,
};

/// Group of all our events.
const GROUP: &str = "profiler";

/// Calls of one function that may be under way at once, before the kernel misses exits: each takes
/// some 100 bytes of kernel memory.
const MAXACTIVE: u32 = 1024;

/// How long an event of a process that is gone may still be in use: the kernel may not be done with it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A kprobe or kretprobe on a function, with a program on it. It is gone when this is dropped.
pub(super) struct Event {
    name: String,
    tracefs: PathBuf,
    perf: Option<OwnedFd>,
}

/// What the kernel counted of an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// How often the probe ran.
    pub(super) hits: u64,
    /// How often the kernel skipped it.
    pub(super) missed: u64,
}

/// The folder of tracefs that has `kprobe_events`.
///
/// # Errors
/// When there is none.
pub(super) fn tracefs() -> io::Result<PathBuf> {
    let mut places = ftrace::PLACES.iter().map(PathBuf::from);
    places.find(|place| place.join("kprobe_events").exists()).ok_or_else(|| {
        io::Error::other(
            "tracefs has no kprobe_events: it is not mounted at /sys/kernel/tracing, or the kernel \
             was built without CONFIG_KPROBE_EVENTS",
        )
    })
}

impl Event {
    /// Puts a program on the entry of a function, or on its exits.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn attach(
        target: &Target,
        at_exit: bool,
        program: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let tracefs = tracefs()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{GROUP}_{}_{number}", Life::this(Path::new("/")));
        let kind = if at_exit { format!("r{MAXACTIVE}") } else { "p".to_owned() };
        let function = match &target.module {
            // The name alone could be another function's, and kernels that look for it in modules, too, take
            // none that is there twice (kernel commit b022f0c7e404, Linux 6.7).
            _ if target.duplicate_index.is_some()
                || target.namesake.is_some() && target.address != 0 =>
            {
                format!("{:#x}", target.address)
            }
            Some(module) => format!("{module}:{}", target.name),
            None => target.name.clone(),
        };
        write(&tracefs, &format!("{kind}:{GROUP}/{name} {function}"))?;
        // From here on dropping it removes it.
        let mut event = Self { name, tracefs, perf: None };
        let id = event.tracefs.join("events").join(GROUP).join(&event.name).join("id");
        let id = fs::read_to_string(id)?;
        let id =
            id.trim().parse().map_err(|_| io::Error::other("the event's id is not a number"))?;
        event.perf = Some(perf::attach(id, program)?);
        Ok(event)
    }

    /// Takes the program off. The event itself, and what the kernel counted of it, stays until this is
    /// dropped.
    pub(super) fn stop(&mut self) {
        self.perf = None;
    }

    /// What the kernel counted of this event, by [`profile`].
    pub(super) fn counted(&self, profile: &HashMap<String, Counted>) -> Counted {
        profile.get(&self.name).copied().unwrap_or_default()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // An event in use cannot be removed.
        self.perf = None;
        // What stays is removed by the next start.
        let _ = patiently(Instant::now() + PATIENCE / 10, &|| remove(&self.tracefs, &self.name));
    }
}

fn remove(tracefs: &Path, name: &str) -> io::Result<()> {
    write(tracefs, &format!("-:{GROUP}/{name}"))
}

/// Appends a line: without O_APPEND, opening the file would remove the events of all programs.
fn write(tracefs: &Path, line: &str) -> io::Result<()> {
    use io::Write as _;
    let mut file = fs::OpenOptions::new().append(true).open(tracefs.join("kprobe_events"))?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// What the kernel counted of every event.
///
/// # Errors
/// When `kprobe_profile` cannot be read.
pub(super) fn profile() -> io::Result<HashMap<String, Counted>> {
    let text = fs::read_to_string(tracefs()?.join("kprobe_profile"))?;
    Ok(text.lines().filter_map(parse_profile).collect())
}

fn parse_profile(line: &str) -> Option<(String, Counted)> {
    let mut fields = line.split_whitespace();
    let name = fields.next()?.to_owned();
    let hits = fields.next()?.parse().ok()?;
    let missed = fields.next()?.parse().ok()?;
    Some((name, Counted { hits, missed }))
}

/// Removes events of processes of this program that were killed, unless they were in another PID namespace:
/// whether such a process is gone cannot be found out from here. Those stay listed, disabled and under names
/// that no other process uses, until a user removes them or the machine reboots.
///
/// Returns whether none of those that it may remove is left in use.
pub(super) fn remove_leftovers() -> bool {
    let root = Path::new("/");
    let Ok(tracefs) = tracefs() else { return true };
    let Ok(text) = fs::read_to_string(tracefs.join("kprobe_events")) else { return true };
    let mut all = true;
    let patience = Instant::now() + PATIENCE;
    for (name, _) in text.lines().filter_map(owned).filter(|(_, maker)| maker.is_gone(root)) {
        let removed = patiently(patience, &|| remove(&tracefs, name));
        // Another process may remove it at the same time.
        all &= removed.err().is_none_or(|error| error.kind() == io::ErrorKind::NotFound);
    }
    all
}

/// Name and maker of an event if it is one of ours: `p:profiler/profiler_NAMESPACE_PID_STARTED_N function`.
fn owned(line: &str) -> Option<(&str, Life)> {
    let (_, rest) = line.split_once(':')?;
    let name = rest.strip_prefix(GROUP)?.strip_prefix('/')?.split_whitespace().next()?;
    let (maker, count) = name.strip_prefix(GROUP)?.strip_prefix('_')?.rsplit_once('_')?;
    life::number(count)?;
    Some((name, maker.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_read() {
        assert_eq!(
            parse_profile("  profiler_12_0                 4200               17"),
            Some(("profiler_12_0".to_owned(), Counted { hits: 4200, missed: 17 }))
        );
        assert_eq!(parse_profile("  other"), None);
    }

    #[test]
    fn only_our_own_events_are_ever_removed() {
        let owned = |line: &str| owned(line).map(|(name, maker)| (name.to_owned(), maker));
        let life = Life { namespace: 4_026_531_836, pid: 12, started: 3456 };
        let name = format!("profiler_{life}_7");
        assert_eq!(owned(&format!("p:profiler/{name} vfs_open")), Some((name, life)));
        for other in [
            "p:kprobes/profiler_12_0 f",
            "p:profiler/mine f",
            "p:profiler/profiler_x_0 f",
            "p:profiler/profiler_12_1 f",
            "p:profiler/profiler_12 f",
            "p:profiler/profiler_1_2_3 f",
            "p:profiler/profiler_1_2_3_4_5 f",
            "p:profiler/profiler_1_2_3_x f",
        ] {
            assert_eq!(owned(other), None, "{other}");
        }
    }

    /// The kernel takes no name of 64 characters, the last of which would be its end.
    #[test]
    fn the_longest_name_is_short_enough() {
        let life =
            Life { namespace: u32::MAX.into(), pid: 4_194_304, started: u64::MAX / 10_000_000 };
        assert!(format!("{GROUP}_{life}_{}", u32::MAX).len() < 64);
    }
}
