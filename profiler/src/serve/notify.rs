//! What systemd hears: sd_notify(3). Without a socket in the environment nothing is sent, and what cannot be sent is left out: the
//! manager then has its own view, by its time-outs.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use sd_notify::{NotifyState, watchdog_enabled};

/// The service manager.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    /// A quarter of the time after which systemd takes a silent daemon for dead.
    every: Option<Duration>,
    last_ping: Option<Instant>,
}

impl Notifier {
    /// That which the environment names: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    ///
    /// # Errors
    /// If there is a socket, and it cannot be reached.
    pub fn from_env() -> io::Result<Self> {
        Self::new(std::env::var_os("NOTIFY_SOCKET").as_deref(), watchdog_enabled())
    }

    fn new(socket: Option<&OsStr>, watchdog: Option<Duration>) -> io::Result<Self> {
        let Some(name) = socket else { return Ok(Self::default()) };
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A manager that does not read must not hold up the daemon: `sd_notify::notify` would wait for it.
        socket.set_nonblocking(true)?;
        let every = watchdog.map(|time| time / 4);
        Ok(Self { socket: Some(socket), every, last_ping: None })
    }

    fn send(&self, states: &[NotifyState<'_>]) {
        if let Some(socket) = &self.socket {
            let lines: Vec<String> = states.iter().map(ToString::to_string).collect();
            let _ = socket.send(lines.join("\n").as_bytes());
        }
    }

    /// When [`alive`](Self::alive) is to be called at the latest; `None` without a watchdog.
    pub fn due(&self) -> Option<Instant> {
        Some(self.last_ping? + self.every?)
    }

    /// The daemon has started or reloaded: its probes are attached, or it waits for a module.
    pub fn ready(&mut self, status: &str) {
        self.send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
        self.last_ping = Some(Instant::now());
    }

    /// What the daemon does now, in one line of `systemctl status`.
    pub fn status(&self, status: &str) {
        self.send(&[NotifyState::Status(&one_line(status))]);
    }

    /// It reads its configuration anew; [`ready`](Self::ready) ends it. `Type=notify-reload` compares the time with that of
    /// its own signal.
    pub fn reloading(&self) {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            self.send(&[NotifyState::Reloading, now]);
        }
    }

    /// It ends.
    pub fn stopping(&self) {
        self.send(&[NotifyState::Stopping]);
    }

    /// Says that the daemon lives, if it `is_well`: all drains that were due at `now` succeeded, or none was due.
    pub fn alive(&mut self, now: Instant, is_well: bool) {
        if self.due().is_some_and(|due| due <= now) {
            self.last_ping = Some(now);
            if is_well {
                self.send(&[NotifyState::Watchdog]);
            }
        }
    }
}

/// A line break would begin another variable.
fn one_line(status: &str) -> String {
    status.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
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
    fn states_are_lines_of_a_datagram_and_a_manager_that_does_not_read_holds_nobody_up() {
        let name = format!("profiler-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let at = format!("@{name}");
        let mut notifier = Notifier::new(Some(OsStr::new(&at)), None).unwrap();
        notifier.ready("measures 3 handlers\nREADY=0");
        assert_eq!(received(&manager), ["READY=1\nSTATUS=measures 3 handlers READY=0"]);
        notifier.reloading();
        let text = received(&manager).concat();
        assert!(text.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{text}");
        let begun = Instant::now();
        (0..5_000).for_each(|_| notifier.status("again"));
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(Notifier::new(Some(OsStr::new("/nowhere/notify")), None).is_err());
    }

    #[test]
    fn a_sign_of_life_is_due_each_quarter_of_the_watchdogs_time() {
        let start = Instant::now();
        let second = |number| start + Duration::from_secs(number);
        let every = Some(Duration::from_secs(15));
        let mut notifier = Notifier { every, last_ping: Some(start), ..Notifier::default() };
        let due: Vec<u64> = (0..60)
            .step_by(5)
            .filter(|&number| {
                let is_due = notifier.due().is_some_and(|due| due <= second(number));
                notifier.alive(second(number), true);
                is_due
            })
            .collect();
        assert_eq!(due, [15, 30, 45]);
        let mut nobody = Notifier::default();
        nobody.alive(second(60), true);
        assert_eq!(nobody.due(), None);
    }
}
