//! sd_notify(3) client: ready, reloading, stopping, status, watchdog.
//!
//! The protocol is one datagram of `NAME=value` lines to a socket that the environment names. Without one nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// The service manager.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    /// How often at least it has to be told that the daemon lives: half of what it waits for that.
    every: Option<Duration>,
    told: Option<Instant>,
}

impl Notifier {
    /// That which the environment names: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    ///
    /// # Errors
    /// When there is a socket, and it cannot be reached.
    pub fn from_env() -> io::Result<Self> {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let other = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| !other).map(Duration::from_micros);
        Self::new(std::env::var_os("NOTIFY_SOCKET").as_deref(), watchdog)
    }

    fn new(socket: Option<&OsStr>, watchdog: Option<Duration>) -> io::Result<Self> {
        let Some(name) = socket else { return Ok(Self::default()) };
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A manager that does not read must not hold up the daemon.
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Some(socket), every: watchdog.map(|time| time / 2), told: None })
    }

    /// How often [`alive`](Self::alive) has to be called at least; `None` without a watchdog.
    #[must_use]
    pub const fn every(&self) -> Option<Duration> {
        self.every
    }

    /// The daemon has started or reloaded: its probes are attached, or it waits for a module.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\n{}", status_line(status)));
    }

    /// What the daemon does now, in one line of `systemctl status`.
    pub fn status(&self, status: &str) {
        self.send(&status_line(status));
    }

    /// It reads its configuration anew; [`ready`](Self::ready) ends it. `Type=notify-reload` compares the time with that of
    /// its own signal.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
    }

    /// It ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// All drains that were due at `now` succeeded, or none was due. Call it after each such round, at least
    /// [so often](Self::every): it is told at most four times in the time after which systemd takes the daemon for dead.
    pub fn alive(&mut self, now: Instant) {
        let Some(every) = self.every else { return };
        // A caller that comes just that often, and once a moment early, would otherwise be a whole turn late.
        let is_due = self.told.is_none_or(|told| now.saturating_duration_since(told) >= every / 2);
        if is_due {
            self.told = Some(now);
            self.send("WATCHDOG=1");
        }
    }

    /// What cannot be sent is left out: the manager then has its own view, by its time-outs.
    fn send(&self, text: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(text.as_bytes());
        }
    }
}

/// A line break would begin another variable.
fn status_line(status: &str) -> String {
    format!("STATUS={}", status.replace(['\n', '\r'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATCHDOG: Option<Duration> = Some(Duration::from_secs(60));

    fn manager() -> (UnixDatagram, tempfile::TempDir, Notifier) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let notifier = Notifier::new(Some(path.as_os_str()), WATCHDOG).unwrap();
        (manager, folder, notifier)
    }

    /// All that has come.
    fn received(manager: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 512];
        let next = || {
            manager
                .recv(&mut buffer)
                .ok()
                .map(|size| String::from_utf8(buffer[..size].into()).unwrap())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn states_are_lines_of_a_datagram() {
        let (manager, _folder, notifier) = manager();
        notifier.ready("measures 3 handlers\nREADY=0");
        notifier.status("waits for hids_driver");
        notifier.stopping();
        assert_eq!(
            received(&manager),
            [
                "READY=1\nSTATUS=measures 3 handlers READY=0",
                "STATUS=waits for hids_driver",
                "STOPPING=1"
            ]
        );
        let usec = || Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_micros();
        let before = usec();
        notifier.reloading();
        let text = received(&manager).remove(0);
        let time: u128 =
            text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().parse().unwrap();
        assert!((before..=usec()).contains(&time), "{before} {text}");
    }

    #[test]
    fn the_watchdog_hears_of_a_living_daemon_alone_and_not_too_often() {
        let (manager, _folder, mut notifier) = manager();
        assert_eq!(notifier.every(), Some(Duration::from_secs(30)));
        let start = Instant::now();
        let mut heard = Vec::new();
        // A round every five seconds; the drains of 40 s to 85 s fail.
        for second in (0..120).step_by(5).filter(|second| !(40..90).contains(second)) {
            notifier.alive(start + Duration::from_secs(second));
            for text in received(&manager) {
                assert_eq!(text, "WATCHDOG=1");
                heard.push(second);
            }
        }
        assert_eq!(heard, [0, 15, 30, 90, 105]);
    }

    #[test]
    fn an_abstract_socket_is_reached_and_no_socket_is_no_error() {
        let name = format!("profiler-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_nonblocking(true).unwrap();
        let at = format!("@{name}");
        Notifier::new(Some(OsStr::new(&at)), None).unwrap().ready("");
        assert_eq!(received(&manager), ["READY=1\nSTATUS="]);

        let mut nobody = Notifier::new(None, WATCHDOG).unwrap();
        nobody.ready("x");
        nobody.alive(Instant::now());
        assert_eq!(nobody.every(), None);
        assert!(Notifier::new(Some(OsStr::new("/nowhere/notify")), None).is_err());
    }

    #[test]
    fn a_manager_that_does_not_read_holds_nobody_up() {
        let (_manager, _folder, notifier) = manager();
        let begun = Instant::now();
        (0..5_000).for_each(|_| notifier.status("again"));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
