//! Control groups (cgroup version 2).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::kernel::host::cgroup2_mount;

use super::{Counters, Meter, Reading, Tally, Usage};

pub(super) struct Group {
    folder: Option<PathBuf>,
    tally: Tally<()>,
    exists: bool,
    was_read: bool,
    seen: u32,
    ended: u32,
}

impl Group {
    /// The group at `path`, which is relative to the mount or starts with it.
    pub(super) fn new(path: &str) -> Self {
        let folder = cgroup2_mount().map(|mount| {
            if Path::new(path).starts_with(&mount) {
                PathBuf::from(path)
            } else {
                mount.join(path.trim_start_matches('/'))
            }
        });
        Self::at(folder)
    }

    fn at(folder: Option<PathBuf>) -> Self {
        let tally = Tally::default();
        Self { folder, tally, exists: false, was_read: false, seen: 0, ended: 0 }
    }

    fn used(&self) -> Option<Counters> {
        let text = fs::read_to_string(self.folder.as_ref()?.join("cpu.stat")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        let (user, system) = (field("user_usec ")?, field("system_usec ")?);
        Some(Counters { user, system, ..Counters::default() })
    }
}

impl Meter for Group {
    fn read(&mut self) -> Reading {
        let used = self.used();
        match used {
            Some(now) => {
                // A group that was created after the first reading counts from zero.
                let first = if self.was_read { Counters::default() } else { now };
                let (came, _) = self.tally.update(&BTreeMap::from([((), (first, now))]));
                self.seen += came;
            }
            None if self.exists => {
                self.ended += 1;
                self.tally.update(&BTreeMap::new());
            }
            None => {}
        }
        self.exists = used.is_some();
        self.was_read = true;
        let read = |name: &str| {
            let folder = self.folder.as_ref()?;
            fs::read_to_string(folder.join(name)).ok()
        };
        let total = self.tally.total();
        let usage = Usage {
            user_ns: total.user.saturating_mul(1_000),
            system_ns: total.system.saturating_mul(1_000),
            memory_bytes: read("memory.current").and_then(|text| text.trim().parse().ok()),
            voluntary_switches: None,
            involuntary_switches: None,
            processes: read("cgroup.procs")
                .map_or(0, |text| u32::try_from(text.lines().count()).unwrap_or(u32::MAX)),
        };
        Reading { usage, seen: self.seen, ended: self.ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_cpu(folder: &Path, user_us: u64) {
        fs::create_dir_all(folder).unwrap();
        let text = format!("usage_usec {user_us}\nuser_usec {user_us}\nsystem_usec 0\n");
        fs::write(folder.join("cpu.stat"), text).unwrap();
    }

    #[test]
    fn a_group_that_exists_counts_from_the_first_reading() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("group");
        let mut group = Group::at(Some(folder.clone()));
        use_cpu(&folder, 700);
        assert_eq!(group.read().usage.user_ns, 0);
        use_cpu(&folder, 900);
        let reading = group.read();
        assert_eq!((reading.usage.user_ns, reading.seen), (200_000, 1));
    }

    #[test]
    fn a_group_that_is_created_later_counts_from_zero() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("group");
        let mut group = Group::at(Some(folder.clone()));
        assert_eq!(group.read().seen, 0);
        use_cpu(&folder, 700);
        let reading = group.read();
        assert_eq!((reading.usage.user_ns, reading.seen), (700_000, 1));
        // Created again, it starts from zero.
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(group.read().ended, 1);
        use_cpu(&folder, 30);
        let reading = group.read();
        assert_eq!((reading.usage.user_ns, reading.seen), (730_000, 2));
    }
}
