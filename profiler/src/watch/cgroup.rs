//! Control groups of version 2.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::host::cgroup2_mount;

use super::{Counters, Meter, Reading, Tally, Usage};

pub(super) struct Group {
    folder: Option<PathBuf>,
    tally: Tally<()>,
    there: bool,
    seen: u32,
    ended: u32,
}

impl Group {
    /// The group at `path`, below the mount or with it.
    pub(super) fn new(path: &str) -> Self {
        let folder = cgroup2_mount().map(|mount| {
            if Path::new(path).starts_with(&mount) {
                PathBuf::from(path)
            } else {
                mount.join(path.trim_start_matches('/'))
            }
        });
        Self { folder, tally: Tally::default(), there: false, seen: 0, ended: 0 }
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
                // Its own counters begin with it: one that comes late has used all of it meanwhile.
                let first = if self.seen == 0 { now } else { Counters::default() };
                let (came, _) = self.tally.update(&BTreeMap::from([((), (first, now))]));
                self.seen += came;
            }
            None if self.there => {
                self.ended += 1;
                self.tally.update(&BTreeMap::new());
            }
            None => {}
        }
        self.there = used.is_some();
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
