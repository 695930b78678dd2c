//! Control groups (cgroup version 2) that limit the CPU time and memory of a load.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::SandboxOptions;
use super::folder::unused_name;
use crate::kernel::host::cgroup2_mount;

/// A control group with limits, which may not exist yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cgroup {
    path: PathBuf,
    cpu_max: Option<f64>,
    memory_max: Option<u64>,
}

impl Cgroup {
    /// One with the limits of `options`; `None` if there are none.
    ///
    /// # Errors
    /// A sentence that says what is missing here, and what to do.
    pub(super) fn plan(options: &SandboxOptions) -> Result<Option<Self>, String> {
        let SandboxOptions { cpu_max, memory_max, .. } = *options;
        if cpu_max.is_none() && memory_max.is_none() {
            return Ok(None);
        }
        // Profilers in several containers may have the same process id.
        Ok(Some(Self { path: mount()?.join(unused_name("profiler-load-")), cpu_max, memory_max }))
    }

    /// Creates it.
    ///
    /// # Errors
    /// A sentence that says what is missing here, and what to do.
    pub(super) fn create(&self) -> Result<(), String> {
        /// The kernel's default period, in microseconds.
        const PERIOD_US: f64 = 100_000.0;
        let mount = mount()?;
        let cpu =
            self.cpu_max.map(|cpus| ("cpu", format!("{:.0} {PERIOD_US:.0}", cpus * PERIOD_US)));
        let memory = self.memory_max.map(|bytes| ("memory", bytes.to_string()));
        let limits: Vec<(&str, String)> = cpu.into_iter().chain(memory).collect();
        let controllers = mount.join("cgroup.controllers");
        let available = fs::read_to_string(&controllers).unwrap_or_default();
        for (controller, _) in &limits {
            if !available.split_whitespace().any(|name| name == *controller) {
                return Err(format!(
                    "the controller `{controller}` is not in {}: boot with cgroup version 2 only, or leave \
                     out the limit",
                    controllers.display()
                ));
            }
            write(&mount.join("cgroup.subtree_control"), &format!("+{controller}"))?;
        }
        fs::create_dir(&self.path)
            .map_err(|error| format!("the control group {}: {error}", self.path.display()))?;
        for (controller, limit) in limits {
            write(&self.path.join(format!("{controller}.max")), &limit)?;
        }
        Ok(())
    }

    /// The file that a process joins it by writing to.
    pub(super) fn entrance(&self) -> io::Result<fs::File> {
        fs::File::options().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Kills the processes in it and removes it.
    pub(super) fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                }
                ended => return ended,
            }
            self.kill();
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn kill(&self) {
        if fs::write(self.path.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        // Before Linux 5.14 one by one. None can start another while all are frozen, which a fatal signal ends.
        let _ = fs::write(self.path.join("cgroup.freeze"), "1");
        let processes = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        // A process of another PID namespace is 0 here.
        for pid in processes.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid > 0) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

fn mount() -> Result<PathBuf, String> {
    let missing = "limits need cgroup version 2, which is not mounted: `mount -t cgroup2 none /sys/fs/cgroup`";
    cgroup2_mount().ok_or_else(|| missing.to_owned())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("write `{text}` to {}: {error}", path.display()))
}
