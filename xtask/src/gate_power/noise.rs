//! A second load on every CPU, for the wall clock's record.

use std::process::{Child, Command, Stdio};
use std::thread::available_parallelism;

use anyhow::{Context as _, Result};

/// Busy processes, one a CPU; they end with this value.
#[derive(Debug)]
pub(super) struct Noise(Vec<Child>);

impl Noise {
    /// Starts them. Each computes for a while and rests for a while, so that the machine is quiet and busy by
    /// turns, as a shared runner is.
    pub(super) fn start() -> Result<Self> {
        let cpus = available_parallelism().map_or(1, usize::from);
        let script =
            "while :; do i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 0.3; done";
        let start = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null());
            command.spawn().context("cannot start the second load")
        };
        (0..cpus).map(start).collect::<Result<_>>().map(Self)
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended by itself cannot be killed, which is as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
