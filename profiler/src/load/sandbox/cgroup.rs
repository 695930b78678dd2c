//! Control groups (cgroup version 2) that limit the CPU time and memory of a load.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::folder::unused_name;
use crate::kernel::host::cgroup2_mount;

/// The path of a control group that is created later.
///
/// # Errors
/// A sentence that says what is missing here, and what to do.
pub(super) fn plan() -> Result<PathBuf, String> {
    // Profilers in several containers may have the same process id.
    Ok(mount()?.join(unused_name("profiler-load-")))
}

fn mount() -> Result<PathBuf, String> {
    let mount = cgroup2_mount().ok_or(
        "limits need cgroup version 2, which is not mounted: `mount -t cgroup2 none /sys/fs/cgroup`",
    );
    Ok(mount?)
}

/// Creates the control group with these limits.
///
/// # Errors
/// A sentence that says what is missing here, and what to do.
pub(super) fn create(
    group: &Path,
    cpu_max: Option<f64>,
    memory_max: Option<u64>,
) -> Result<(), String> {
    /// The kernel's default period, in microseconds.
    const PERIOD_US: f64 = 100_000.0;
    let mount = mount()?;
    let cpu = cpu_max.map(|cpus| ("cpu", format!("{:.0} {PERIOD_US:.0}", cpus * PERIOD_US)));
    let memory = memory_max.map(|bytes| ("memory", bytes.to_string()));
    let limits: Vec<(&str, String)> = cpu.into_iter().chain(memory).collect();
    let available = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
    for (controller, _) in &limits {
        if !available.split_whitespace().any(|name| name == *controller) {
            return Err(format!(
                "the controller `{controller}` is not in {}: boot with cgroup version 2 only, or leave out \
                 the limit",
                mount.join("cgroup.controllers").display()
            ));
        }
        write(&mount.join("cgroup.subtree_control"), &format!("+{controller}"))?;
    }
    fs::create_dir(group)
        .map_err(|error| format!("the control group {}: {error}", group.display()))?;
    let set = |(controller, limit): (&str, String)| {
        write(&group.join(format!("{controller}.max")), &limit)
    };
    limits.into_iter().try_for_each(set)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("write `{text}` to {}: {error}", path.display()))
}

/// Kills the processes in a control group and removes it.
pub(in crate::load) fn remove(group: &Path) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                if Instant::now() >= deadline {
                    return Err(error);
                }
            }
            ended => return ended,
        }
        // `cgroup.kill` exists since 5.14; on older kernels the supervisor has killed the processes.
        let _ = fs::write(group.join("cgroup.kill"), "1");
        std::thread::sleep(Duration::from_millis(10));
    }
}
