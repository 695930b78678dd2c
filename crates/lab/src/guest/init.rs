//! What a distribution's init would do that a measurement needs.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use nix::mount::{MsFlags, mount};

use profiler_load::set_loopback;

/// File systems: where, of which type, and whether a kernel may lack it.
const MOUNTS: [(&str, &str, bool); 9] = [
    ("/proc", "proc", false),
    ("/sys", "sysfs", false),
    ("/dev", "devtmpfs", false),
    ("/tmp", "tmpfs", false),
    ("/run", "tmpfs", false),
    ("/sys/kernel/debug", "debugfs", true),
    ("/sys/kernel/tracing", "tracefs", true),
    ("/sys/fs/bpf", "bpf", true),
    ("/sys/fs/cgroup", "cgroup2", true),
];

/// Process ids start here: a driver that writes them in decimal digits takes longer for one more, and all that follow have five.
const FIRST_PID: &str = "10000";

/// What the kernel has put off at its boot is done in this time, which is skipped where the guest has nothing to do.
const SETTLED: Duration = Duration::from_secs(3);

/// Makes the guest a machine that loads run on.
///
/// # Errors
/// If a file system cannot be mounted, or the loopback interface not be started.
pub(super) fn prepare() -> io::Result<()> {
    for (at, kind, optional) in MOUNTS {
        let made = fs::create_dir_all(at).and_then(|()| {
            let none = MsFlags::empty();
            mount(Some(kind), at, Some(kind), none, None::<&str>).map_err(io::Error::from)
        });
        if let (Err(error), false) = (made, optional) {
            return Err(io::Error::new(error.kind(), format!("cannot mount {at}: {error}")));
        }
    }
    fs::set_permissions("/tmp", fs::Permissions::from_mode(0o1777))?;
    set_loopback(UdpSocket::bind("0.0.0.0:0")?.as_fd(), true)?;
    for (path, value) in [
        ("/proc/sys/kernel/ns_last_pid", FIRST_PID),
        ("/proc/sys/kernel/kptr_restrict", "0"),
        ("/proc/sys/kernel/modprobe", "/bin/true"),
        // BPF programs are compiled, without random numbers in them, and have symbols: Documentation/admin-guide/sysctl/net.rst.
        ("/proc/sys/net/core/bpf_jit_enable", "1"),
        ("/proc/sys/net/core/bpf_jit_harden", "0"),
        ("/proc/sys/net/core/bpf_jit_kallsyms", "1"),
    ] {
        // Some kernels lack some of them.
        let _ = fs::write(path, value);
    }
    std::thread::sleep(SETTLED);
    Ok(())
}
