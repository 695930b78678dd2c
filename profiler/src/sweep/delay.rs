//! A delay of the loopback interface, while one cell is measured.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{Failure, exit};
use crate::load::{CleanupCommand, ProfilerProgram};

/// The delay. It ends when this value is dropped, and also if this program is killed.
pub(super) struct Delay(CleanupCommand);

impl Delay {
    /// Sets it; none for a delay of zero.
    ///
    /// # Errors
    /// Without root or `tc`, if the interface has a queue already, or the kernel has no `netem`.
    pub(super) fn set(delay: Duration) -> Result<Option<Self>, Failure> {
        if delay.is_zero() {
            return Ok(None);
        }
        let cannot =
            |text: String| Failure::new(exit::CANNOT_MEASURE, format!("--net-delay: {text}"));
        if !nix::unistd::geteuid().is_root() {
            return Err(cannot("only root can delay an interface: run as root".to_owned()));
        }
        let queue = tc(&["qdisc", "show", "dev", "lo", "root"]).map_err(cannot)?;
        if !queue.trim().is_empty() && !queue.contains("noqueue") {
            return Err(cannot(format!(
                "the loopback interface has a queue that would be lost: {}; remove it first (`tc qdisc \
                 del dev lo root`)",
                queue.trim()
            )));
        }
        // What removes it comes first: then it is removed even if this program is killed in between.
        let args = ["qdisc", "del", "dev", "lo", "root"].map(Into::into);
        let cleanup = CleanupCommand::new(&ProfilerProgram::this(), "tc", args)
            .map_err(|error| cannot(format!("nobody to take it back: {error}")))?;
        let time = format!("{}us", delay.as_micros());
        // `tc` holds the remover's input: if this program is killed, it removes what `tc` adds afterwards.
        let input = cleanup.input().map_err(|error| cannot(error.to_string()))?;
        match tc_with(&["qdisc", "add", "dev", "lo", "root", "netem", "delay", &time], input.into())
        {
            Ok(_) => Ok(Some(Self(cleanup))),
            Err(text) => Err(cannot(format!(
                "{text}; is the kernel's sch_netem there (`modprobe sch_netem`)?"
            ))),
        }
    }

    /// Takes it back.
    ///
    /// # Errors
    /// If that fails: the interface is still slow.
    pub(super) fn take_back(self) -> Result<(), Failure> {
        if self.0.run_now() {
            return Ok(());
        }
        let text = "the delay of the loopback interface could not be taken back: `tc qdisc del dev lo root`";
        Err(Failure::new(exit::INTERNAL, text))
    }
}

fn tc(args: &[&str]) -> Result<String, String> {
    tc_with(args, Stdio::null())
}

fn tc_with(args: &[&str], input: Stdio) -> Result<String, String> {
    let output = Command::new("tc").args(args).stdin(input).output();
    let output = output.map_err(|error| format!("tc (package iproute2): {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`tc {}`: {}", args.join(" "), said.trim()))
}
