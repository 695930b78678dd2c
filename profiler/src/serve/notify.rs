//! Messages to systemd by sd_notify(3). One that cannot be sent is dropped: systemd then goes by its time-outs.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};

/// The service manager's socket, if there is one.
#[derive(Debug, Default)]
pub(super) struct Notifier(Option<UnixDatagram>);

impl Notifier {
    /// The socket that `NOTIFY_SOCKET` names.
    ///
    /// # Errors
    /// If there is one, and it cannot be reached.
    pub(super) fn from_env() -> io::Result<Self> {
        std::env::var_os("NOTIFY_SOCKET").map_or(Ok(Self::default()), |path| Self::new(&path))
    }

    fn new(path: &OsStr) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        socket.connect_addr(&address)?;
        // A manager that does not read must not block the daemon.
        socket.set_nonblocking(true)?;
        Ok(Self(Some(socket)))
    }

    fn send(&self, state: &str) {
        if let Some(socket) = &self.0 {
            let _ = socket.send(state.as_bytes());
        }
    }

    /// The daemon has started or reloaded: its probes are attached, or it waits for a module.
    pub(super) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// What the daemon does now, for `systemctl status`; `is_well` if no drain fails.
    pub(super) fn alive(&self, status: &str, is_well: bool) {
        let watchdog = if is_well { "\nWATCHDOG=1" } else { "" };
        self.send(&format!("STATUS={}{watchdog}", one_line(status)));
    }

    /// It reads its configuration again; [`ready`](Self::ready) ends that. `Type=notify-reload` compares the time with that of
    /// its own signal.
    pub(super) fn reloading(&self) {
        if let Ok(now) = clock_gettime(ClockId::CLOCK_MONOTONIC) {
            self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.num_microseconds()));
        }
    }

    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }
}

/// A line break would begin another variable.
fn one_line(status: &str) -> String {
    status.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// All that a manager has got.
    fn received(manager: &UnixDatagram) -> Vec<String> {
        manager.set_nonblocking(true).unwrap();
        let mut buffer = [0; 512];
        let next = || {
            let size = manager.recv(&mut buffer).ok()?;
            Some(String::from_utf8(buffer[..size].into()).unwrap())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn states_are_lines_of_a_datagram_and_a_manager_that_does_not_read_blocks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(path.as_os_str()).unwrap();
        notifier.ready("measures 3 handlers\nREADY=0");
        assert_eq!(received(&manager), ["READY=1\nSTATUS=measures 3 handlers READY=0"]);
        notifier.alive("well", true);
        notifier.alive("ill", false);
        assert_eq!(received(&manager), ["STATUS=well\nWATCHDOG=1", "STATUS=ill"]);
        notifier.reloading();
        let text = received(&manager).concat();
        assert!(text.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{text}");
        let begun = Instant::now();
        (0..5_000).for_each(|_| notifier.alive("again", true));
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert!(Notifier::new(OsStr::new("/nowhere/notify")).is_err());
    }
}
