//! Messages to systemd by sd_notify(3), if it is there. One that cannot be sent is dropped: systemd then goes by its time-outs.

use sd_notify::NotifyState;

fn send(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// The daemon has started or reloaded: its probes are attached, or it waits for a module.
pub(super) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// What the daemon does now, for `systemctl status`; `is_well` if no drain fails.
pub(super) fn alive(status: &str, is_well: bool) {
    let status = one_line(status);
    let states = [NotifyState::Status(&status), NotifyState::Watchdog];
    send(if is_well { &states } else { &states[..1] });
}

/// It reads its configuration again; [`ready`] ends that. `Type=notify-reload` compares the time with that of its own signal.
pub(super) fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        send(&[NotifyState::Reloading, now]);
    }
}

/// It ends.
pub(super) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// A line break would begin another variable.
fn one_line(status: &str) -> String {
    status.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;

    use super::*;

    #[test]
    fn states_are_lines_of_a_datagram() {
        if std::env::var_os("NOTIFY_SOCKET").is_some() {
            ready("measures 3 handlers\nREADY=0");
            alive("well", true);
            alive("ill", false);
            reloading();
            return stopping();
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let test = std::thread::current().name().unwrap().to_owned();
        let mut daemon = Command::new(std::env::current_exe().unwrap());
        daemon.args(["--exact", &test]).env("NOTIFY_SOCKET", &path);
        assert!(daemon.output().unwrap().status.success());
        let received = || {
            let mut buffer = [0; 512];
            let size = manager.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..size].into()).unwrap()
        };
        assert_eq!(received(), "READY=1\nSTATUS=measures 3 handlers READY=0\n");
        assert_eq!(received(), "STATUS=well\nWATCHDOG=1\n");
        assert_eq!(received(), "STATUS=ill\n");
        let text = received();
        assert!(text.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{text}");
        assert_eq!(received(), "STOPPING=1\n");
    }
}
