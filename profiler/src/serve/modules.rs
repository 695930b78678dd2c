//! Waits for modules to be loaded and unloaded: the kernel reports both by uevents, so nothing is polled.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, socket,
};
use tokio::sync::mpsc;
use tracing::error;

use profiler_kernel::host::read_fact;
use profiler_kernel::module::Loads;

/// The kernel's own messages; group 2 has udev's.
const KERNEL_GROUP: u32 = 1;

/// More than a uevent has (`UEVENT_BUFFER_SIZE` in include/linux/kobject.h, and its header).
const LONGEST: usize = 8192;

/// Events that wait for the engine. While there is no room the kernel keeps them, and reports an overflow.
const QUEUE: usize = 64;

/// What the kernel reported.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A module came or went: its name.
    Module(String),
    /// There were more events than fit into the socket's buffer: any module may have come or gone.
    Lost,
}

/// The kernel's events about modules from now on; they end if the socket fails.
///
/// # Errors
/// If the kernel refuses the socket, or the system the thread that reads it.
pub(super) fn events() -> io::Result<mpsc::Receiver<Event>> {
    let (flags, protocol) = (SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkKObjectUEvent);
    let socket = socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let thread = std::thread::Builder::new().name("uevents".to_owned());
    thread.spawn(move || forward(&socket, &sender))?;
    Ok(receiver)
}

/// Reads the socket until the receiver of events is gone.
fn forward(socket: &OwnedFd, events: &mpsc::Sender<Event>) {
    loop {
        let mut message = [0; LONGEST];
        let event = match recvfrom::<NetlinkAddr>(socket.as_raw_fd(), &mut message) {
            // Only the kernel has the number 0.
            Ok((length, Some(sender))) if sender.pid() == 0 => {
                let module = message.get(..length).and_then(module_of);
                module.map(|module| Event::Module(module.to_owned()))
            }
            Ok(_) | Err(Errno::EINTR) => None,
            Err(Errno::ENOBUFS) => Some(Event::Lost),
            Err(error) => {
                error!("cannot read the kernel's events about modules: {error}");
                return;
            }
        };
        if event.is_some_and(|event| events.blocking_send(event).is_err()) {
            return;
        }
    }
}

/// The module of a uevent that reports one as added or removed: `ACTION@DEVPATH`, then `KEY=VALUE`, each ended by a zero.
///
/// The kernel sends `add` when the module's initialisation has finished (`do_init_module()`, since 5.11 and
/// commit 38dc717e9715; before, when it began), and `remove` when its folder in sysfs is gone.
fn module_of(message: &[u8]) -> Option<&str> {
    let mut parts = message.split(|byte| *byte == 0);
    let (action, path) = std::str::from_utf8(parts.next()?).ok()?.split_once('@')?;
    let module = path.strip_prefix("/module/").filter(|name| !name.contains('/'))?;
    let is_module = parts.any(|part| part == b"SUBSYSTEM=module");
    (is_module && matches!(action, "add" | "remove")).then_some(module)
}

/// Whether a module is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is not loaded, or is being unloaded.
    Absent,
    /// It initialises; the load has its number already.
    Coming(u64),
    /// It is loaded: the number of this load ([`Loads::number`]).
    Live(u64),
}

impl Presence {
    pub(super) fn of(module: &str) -> Self {
        Self::below(Path::new("/"), module)
    }

    fn below(root: &Path, module: &str) -> Self {
        let Some(number) = Loads::below(root).number(module) else { return Self::Absent };
        let state = read_fact(&root.join("sys/module").join(module).join("initstate"));
        match state.as_deref() {
            Some("coming") => Self::Coming(number),
            Some("going") => Self::Absent,
            // One that is built into the kernel has no state.
            _ => Self::Live(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_uevents_about_modules_are_events() {
        let message = |text: &str| text.replace(' ', "\0").into_bytes();
        let of = |text| module_of(&message(text)).map(str::to_owned);
        let add = "add@/module/hids ACTION=add DEVPATH=/module/hids SUBSYSTEM=module SEQNUM=7 ";
        assert_eq!(of(add).as_deref(), Some("hids"));
        assert_eq!(of("remove@/module/a_1 SUBSYSTEM=module ").as_deref(), Some("a_1"));
        for other in [
            "add@/devices/pci0000:00 SUBSYSTEM=pci ",
            "change@/module/hids SUBSYSTEM=module ",
            "add@/module/hids/holders/x SUBSYSTEM=module ",
            "add@/module/hids SUBSYSTEM=drivers ",
            "libudev",
            "@",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(module_of(b"add@/module/\xff\xfe\0SUBSYSTEM=module\0"), None);
        let whole = message(add);
        for length in 0..whole.len() {
            // A message that was cut says nothing wrong.
            assert!(module_of(&whole[..length]).is_none_or(|name| name == "hids"));
        }
    }

    #[test]
    fn a_module_is_there_when_its_initialisation_is_over() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/module/hids");
        let presence = || Presence::below(root.path(), "hids");
        assert_eq!(presence(), Presence::Absent);
        fs::create_dir_all(&folder).unwrap();
        let write = |text: &str| fs::write(folder.join("initstate"), text).unwrap();
        write("coming\n");
        let coming = presence();
        write("live\n");
        let live = presence();
        let (Presence::Coming(coming), Presence::Live(live)) = (coming, live) else {
            panic!("{coming:?}, then {live:?}")
        };
        assert!(coming == live && live > 0, "it is the same load");
        write("going\n");
        assert_eq!(presence(), Presence::Absent);
    }
}
