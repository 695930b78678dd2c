//! Whether there is memory for the maps of the probes, before they are made.
//!
//! The kernel makes most of them with `__GFP_RETRY_MAYFAIL`: it drops caches and swaps before it refuses
//! one, and charges the control group of the process (from 5.11), which may kill it.

use std::path::{Path, PathBuf};

use profiler_base::text::plural;
use profiler_common::layout::DISPLACED_MAX;

use super::{Precision, ProbeError, counters::Layout};

/// Share of what is available that maps may take. The rest is for the histograms that the profiler itself
/// keeps, for the load, and because part of what the kernel calls available are caches that it has to
/// write back first.
const SHARE: (u64, u64) = (3, 4);

/// Bytes of the map that all handlers share, with an estimate of what the kernel adds to the elements of hash maps.
const SHARED: u64 = DISPLACED_MAX as u64 * 80;

impl Layout {
    /// Bytes of all maps of so many handlers.
    fn bytes_of(&self, handlers: u64) -> u64 {
        handlers * self.bytes() + SHARED
    }

    /// How many handlers fit into so many bytes.
    fn that_fit(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(SHARED) / self.bytes()
    }
}

/// Available memory, and the file that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Available {
    bytes: u64,
    source: PathBuf,
}

impl Available {
    /// Compares the maps of so many handlers with it.
    ///
    /// # Errors
    /// If they need more than may be taken of it.
    pub(super) fn check(&self, layout: &Layout, handlers: u64) -> Result<(), ProbeError> {
        let may_take = self.bytes / SHARE.1 * SHARE.0;
        let needed = layout.bytes_of(handlers);
        if needed <= may_take {
            return Ok(());
        }
        let has_three = layout.precision == Precision::Three;
        let coarser = Layout::new(layout.possible, layout.own.clone(), Precision::Two);
        let fit = match has_three {
            true => format!("{} fit with 3 digits, and ", layout.that_fit(may_take)),
            false => String::new(),
        };
        let text = format!(
            "histograms of {handlers} handler{} need {} of kernel memory for {} CPUs with {} digits, and {} may be \
             taken: three quarters of the {} that {} leaves, the rest being for the load and for the profiler \
             itself; {fit}{} with --precision 2: name fewer at a time, free memory, or boot with fewer CPUs (nr_cpus=)",
            plural(handlers),
            mebibytes(needed),
            layout.own.len(),
            layout.precision.digits(),
            mebibytes(may_take),
            mebibytes(self.bytes),
            self.source.display(),
            coarser.that_fit(may_take)
        );
        let fits_with_two_digits = has_three && coarser.bytes_of(handlers) <= may_take;
        Err(ProbeError::Memory { text, fits_with_two_digits })
    }

    /// The least of what the machine has and what the control groups (of version 2) of this process may
    /// take; `None` where nothing says so.
    pub(super) fn read() -> Option<Self> {
        let mount = profiler_kernel::host::cgroup2_mount();
        Self::read_below(Path::new("/"), mount.as_deref())
    }

    fn read_below(root: &Path, groups: Option<&Path>) -> Option<Self> {
        let kib = read(root, "proc/meminfo").and_then(|text| field(&text, "MemAvailable:"));
        let bytes = kib.and_then(|kib| kib.checked_mul(1024));
        let machine = bytes.map(|bytes| Self { bytes, source: root.join("proc/meminfo") });
        let own = read(root, "proc/self/cgroup").unwrap_or_default();
        // The group of version 2.
        let group = own.lines().find_map(|line| line.strip_prefix("0::/")).zip(groups);
        let of_groups = group.into_iter().flat_map(|(group, mount)| {
            let own = mount.join(group);
            let all = own.ancestors().take_while(|folder| folder.starts_with(mount));
            all.filter_map(Self::of_group).collect::<Vec<_>>()
        });
        machine.into_iter().chain(of_groups).min_by_key(|available| available.bytes)
    }

    /// What a group may still take; `None` without a limit.
    fn of_group(folder: &Path) -> Option<Self> {
        let source = folder.join("memory.max");
        let limit = read(folder, "memory.max")?.trim().parse::<u64>().ok()?;
        let used = read(folder, "memory.current")?.trim().parse::<u64>().ok()?;
        // Caches of files are charged to it, and dropped first.
        let caches = read(folder, "memory.stat").and_then(|text| field(&text, "inactive_file "));
        let bytes = limit.saturating_sub(used.saturating_sub(caches.unwrap_or(0)));
        Some(Self { bytes, source })
    }
}

fn read(folder: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(folder.join(name)).ok()
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn layout(cpus: u32, precision: Precision) -> Layout {
        Layout::new(240, (0..cpus).collect(), precision)
    }

    fn available(mebibytes: u64) -> Available {
        Available { bytes: mebibytes * MIB, source: "/proc/meminfo".into() }
    }

    #[test]
    fn a_handler_takes_what_the_docs_say() {
        let kib = |cpus, precision| layout(cpus, precision).bytes() / 1024;
        let a_cpu = |precision| kib(2, precision) - kib(1, precision);
        let text = format!(
            "per handler {} KiB ({} KiB with `--precision 2`) for each CPU that is online at the start, as much again",
            a_cpu(Precision::Three),
            a_cpu(Precision::Two)
        );
        let page = include_str!("../../../docs/durations.md");
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains(&text), "docs/durations.md has to say: {text}");
        let slots = 256 * 64 / 1024;
        assert_eq!(kib(9, Precision::Three) - slots, 2162);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let check = |mebibytes, handlers, cpus, precision| {
            available(mebibytes).check(&layout(cpus, precision), handlers)
        };
        assert!(check(1024, 10, 240, Precision::Three).is_ok());
        let refused = check(512, 10, 240, Precision::Three).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "histograms of 10 handlers need 510.4 MiB of kernel memory for 240 CPUs with 3 digits, and \
             384.0 MiB may be taken: three quarters of the 512.0 MiB that /proc/meminfo leaves, the rest being \
             for the load and for the profiler itself; 7 fit with 3 digits, and 53 with --precision 2: name fewer \
             at a time, free memory, or boot with fewer CPUs (nr_cpus=)"
        );
        let refused = check(1024, 512, 128, Precision::Three).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("512 handlers need 13"), "{text}");
        assert!(
            text.contains("; 28 fit with 3 digits, and 200 with --precision 2: name"),
            "{text}"
        );
        let refused = check(1024, 512, 128, Precision::Two).unwrap_err();
        assert!(refused.to_string().contains("; 200 with --precision 2: name"), "{refused}");
    }

    #[test]
    fn as_many_as_are_said_to_fit_do() {
        for precision in [Precision::Two, Precision::Three] {
            let layout = layout(64, precision);
            let bytes = 700 * MIB;
            let fit = layout.that_fit(bytes);
            assert!(layout.bytes_of(fit) <= bytes);
            assert!(layout.bytes_of(fit + 1) > bytes);
        }
    }

    #[test]
    fn the_smallest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let groups = root.path().join("sys/fs/cgroup");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let read = || Available::read_below(root.path(), Some(&groups));
        assert_eq!(read(), None);
        write("proc/meminfo", "MemTotal: 4096000 kB\nMemAvailable:    1024 kB\n");
        assert_eq!(read().unwrap().bytes, MIB);
        write("proc/self/cgroup", "1:name=systemd:/x\n0::/outer/inner\n");
        write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
        write("sys/fs/cgroup/outer/inner/memory.current", "5\n");
        assert_eq!(read().unwrap().bytes, MIB, "no limit");
        write("sys/fs/cgroup/outer/memory.max", "1000\n");
        write("sys/fs/cgroup/outer/memory.current", "700\n");
        let of_outer = read().unwrap();
        assert_eq!(of_outer.bytes, 300);
        assert!(of_outer.source.ends_with("outer/memory.max"), "{of_outer:?}");
        write("sys/fs/cgroup/outer/memory.stat", "anon 600\ninactive_file 50\n");
        assert_eq!(read().unwrap().bytes, 350, "caches can be dropped");
        write("sys/fs/cgroup/outer/memory.current", "2000\n");
        assert_eq!(read().unwrap().bytes, 0);
    }
}
