//! System calls that have no safe wrapper: the only `unsafe` of the loads.

use std::ffi::{CStr, CString, c_void};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sched::CloneFlags;
use nix::sys::mman::{self, MapFlags, MmapAdvise, ProtFlags};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{SockaddrIn, SockaddrLike as _};
use rustix::io::retry_on_intr;
use rustix::process::{WaitOptions, waitpid};

use profiler_base::limits;

use super::sandbox::{CommandKind, Sandbox};

/// Brings `lo` up or down, in the network namespace of `socket`.
pub fn set_loopback(socket: BorrowedFd<'_>, up: bool) -> io::Result<()> {
    let mut request = interface(socket, libc::SIOCGIFFLAGS, loopback())?;
    let flag = libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCGIFFLAGS answered in this field of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = if up { flags | flag } else { flags & !flag };
    interface(socket, libc::SIOCSIFFLAGS, request).map(drop)
}

/// Gives `lo` an address, in place of the one that it had.
pub(super) fn set_address(socket: BorrowedFd<'_>, address: Ipv4Addr) -> io::Result<()> {
    let mut request = loopback();
    request.ifr_ifru.ifru_addr = ipv4(address);
    interface(socket, libc::SIOCSIFADDR, request).map(drop)
}

fn ipv4(address: Ipv4Addr) -> libc::sockaddr {
    let address = SockaddrIn::from(SocketAddrV4::new(address, 0));
    // SAFETY: it points to a structure of 16 bytes, made to be read as this one.
    unsafe { *address.as_ptr() }
}

/// Adds a neighbour on `lo`, permanent or not: arp(7).
pub(super) fn set_neighbour(
    socket: BorrowedFd<'_>,
    address: Ipv4Addr,
    stays: bool,
) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `arpreq`: integers and arrays of them.
    let mut request: libc::arpreq = unsafe { std::mem::zeroed() };
    request.arp_pa = ipv4(address);
    request.arp_ha.sa_family = libc::ARPHRD_LOOPBACK;
    request.arp_flags = libc::ATF_COM | if stays { libc::ATF_PERM } else { 0 };
    request.arp_dev = loopback().ifr_name;
    // SAFETY: the descriptor is open while borrowed, and the kernel reads one `arpreq`.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSARP as _, &raw const request) };
    checked(result.into())
}

/// A request about `lo`.
fn loopback() -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid `ifreq`: integers, pointers and arrays of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l', b'o'].map(|byte| byte as libc::c_char));
    request
}

/// Makes one of the requests of netdevice(7) that read and write one `ifreq` without pointers, and gives back what it is then.
fn interface(
    socket: BorrowedFd<'_>,
    number: libc::c_ulong,
    mut request: libc::ifreq,
) -> io::Result<libc::ifreq> {
    // SAFETY: the descriptor is open while borrowed, and the request reads and writes one `ifreq`.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), number as _, &raw mut request) }.into())?;
    Ok(request)
}

/// Has the kernel kill the calling process when the thread that started it ends.
fn die_with(parent: nix::unistd::Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // If the parent died before the line above, no signal comes.
    if nix::unistd::getppid() != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Has the kernel kill the process started by `command` when the calling thread ends, which must outlive
/// it unless the whole program ends.
pub fn dying_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    // SAFETY: between fork and exec the closure makes plain system calls only (prctl, getppid): no
    // allocation, no lock.
    unsafe { command.pre_exec(move || die_with(parent)) };
}

/// Gives the process started by `command`, and what that starts, the limits that this program was started with.
pub(super) fn with_own_limits(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes plain system calls only (setrlimit): no allocation, no lock.
    unsafe { command.pre_exec(|| limits::put_back().map_err(io::Error::from)) };
}

/// Detaches the file of a loop device.
pub(super) fn detach_loop(device: &std::path::Path) -> io::Result<()> {
    /// `LOOP_CLR_FD` of linux/loop.h.
    const CLEAR: libc::c_ulong = 0x4c01;
    let file = std::fs::File::open(device)?;
    // SAFETY: the descriptor is open, and this request takes no argument.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), CLEAR as _) }.into())
}

/// Prepares the calling process, a child of `parent`, to execute a program in `sandbox`, by plain system calls only: no allocation,
/// no lock.
fn enter(sandbox: &Sandbox, parent: nix::unistd::Pid) -> io::Result<()> {
    if sandbox.private_mounts() {
        // First, as it needs the rights of root. One that may not do that may not mount either.
        match nix::sched::unshare(CloneFlags::CLONE_NEWNS) {
            Ok(()) | Err(Errno::EPERM) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    if let Some(user) = &sandbox.user {
        nix::unistd::setgroups(&[])?;
        nix::unistd::setgid(user.gid.into())?;
        nix::unistd::setuid(user.uid.into())?;
    }
    // A change of the user takes it back.
    die_with(parent)?;
    nix::unistd::setsid()?;
    let mut blocked = SigSet::empty();
    if sandbox.kind == CommandKind::Builtin {
        // A stop may come before it can handle it: it must not be killed without an outcome.
        blocked.add(Signal::SIGTERM);
    }
    Ok(blocked.thread_set_mask()?)
}

/// Makes the process started by `command` lead a new session in `sandbox`. The kernel kills it when the thread that starts it
/// ends, which has to live as long as this process.
pub(super) fn start_in_session(command: &mut Command, sandbox: Sandbox) {
    let parent = nix::unistd::getpid();
    // SAFETY: between fork and exec the closure makes plain system calls only (unshare, setgroups, setgid, setuid, prctl,
    // getppid, setsid, sigprocmask): no allocation, no lock.
    unsafe { command.pre_exec(move || enter(&sandbox, parent)) };
}

/// Starts a process that calls `setsid` and ends, and waits for it.
pub fn setsid_in_child() -> io::Result<ExitStatus> {
    // SAFETY: setsid takes nothing.
    spawn(OUR_MEMORY, || isize::from(unsafe { libc::setsid() } < 0))
}

/// Starts a process that ends at once, and waits for it.
pub(super) fn spawn_noop() -> io::Result<()> {
    spawn(OUR_MEMORY, || 0).map(drop)
}

/// Starts the program at `path`, with its arguments and all of its environment, and waits for its end: three system calls of the
/// caller and of the child. The standard library's way sets each of 64 signals twice. Here a signal may run this program's handler in
/// the child, in the memory that both share, as it may in any thread.
pub(super) fn execute(
    path: &CStr,
    arguments: &[CString],
    environment: &[CString],
) -> io::Result<ExitStatus> {
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    let mut refused = 0;
    let status = spawn(OUR_MEMORY, || {
        // SAFETY: path and strings end with 0, and both lists with a null pointer; all outlive the call.
        unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        // The caller's, whose thread this shares.
        refused = Errno::last_raw();
        1
    })?;
    if refused == 0 { Ok(status) } else { Err(io::Error::from_raw_os_error(refused)) }
}

/// Ends with a null pointer.
fn pointers(all: &[CString]) -> Vec<*const libc::c_char> {
    all.iter().map(|one| one.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Memory that is shared with a process, as with `vfork`: a copy would take longer the more there is.
const OUR_MEMORY: CloneFlags = CloneFlags::CLONE_VM;

/// Starts a process that ends with what `work` says, and waits for it. That has to be async-signal-safe, and must not fault in memory
/// that is [shared](OUR_MEMORY).
fn spawn(memory: CloneFlags, work: impl FnMut() -> isize) -> io::Result<ExitStatus> {
    /// Enough for a system call and for a signal, whose frame has all registers: 11 KiB with AMX.
    const STACK_BYTES: usize = 32 << 10;
    let mut stack = vec![0_u8; STACK_BYTES];
    let flags = memory | CloneFlags::CLONE_VFORK;
    // SAFETY: the child has a stack of its own, does what is async-signal-safe alone, and has ended when the call returns.
    let child =
        unsafe { nix::sched::clone(Box::new(work), &mut stack, flags, Some(libc::SIGCHLD)) };
    let child = rustix::process::Pid::from_raw(child?.as_raw());
    let waited = retry_on_intr(|| waitpid(child, WaitOptions::empty()))?;
    let (_, status) = waited.ok_or(io::ErrorKind::NotFound)?;
    Ok(ExitStatus::from_raw(status.as_raw()))
}

/// The error of a system call that failed.
fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `tkill` of the calling thread with signal 0: nothing is delivered.
pub(super) fn tkill_self() -> io::Result<()> {
    let thread = nix::unistd::gettid().as_raw();
    // SAFETY: plain integers; signal 0 only checks.
    checked(unsafe { libc::syscall(libc::SYS_tkill, thread, 0) })
}

/// `accept(2)` itself: the standard library calls `accept4`.
pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open while borrowed, and no address is asked for.
    owned(unsafe { libc::syscall(libc::SYS_accept, listener.as_raw_fd(), 0, 0) }).map(drop)
}

/// `open(2)` to read, where the architecture has it: the C library calls `openat`.
pub(super) fn open(path: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a NUL.
    owned(unsafe {
        #[cfg(target_arch = "x86_64")]
        let opened = libc::syscall(libc::SYS_open, path.as_ptr(), flags);
        #[cfg(not(target_arch = "x86_64"))]
        let opened = libc::open(path.as_ptr(), flags).into();
        opened
    })
}

/// The descriptor that a system call has given.
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    checked(result)?;
    let number = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the call has just made it, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The path of a missing file, in memory that 32-bit system calls can address.
pub(super) struct Missing(Page);

impl Missing {
    const PATH: &CStr = c"/nonexistent/program";
    /// Bytes of the page before the arguments, the path itself, as 64-bit calls take them, and as 32-bit ones do. The page is
    /// zero otherwise, so both end there.
    const ARGUMENTS: usize = 64;
    const ARGUMENTS_32: usize = 128;

    pub(super) fn new() -> io::Result<Self> {
        let page = Page::at(ProtFlags::PROT_WRITE, LOW_MEMORY)?;
        let path = page.0.addr().get();
        // SAFETY: the page is ours and writable, all lies within it, and both numbers are aligned.
        unsafe {
            let bytes = Self::PATH.to_bytes();
            page.0.as_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            page.0.byte_add(Self::ARGUMENTS).cast::<usize>().write(path);
            page.0.byte_add(Self::ARGUMENTS_32).cast::<u32>().write(path as u32);
        }
        Ok(Self(page))
    }

    /// The addresses of path, arguments and an empty environment.
    fn addresses(&self, arguments: usize) -> [usize; 3] {
        let path = self.0.0.addr().get();
        [path, path + arguments, path + arguments + size_of::<usize>()]
    }

    /// `open`, `execve` and `execveat` of it.
    pub(super) fn calls(&self) -> [io::Result<()>; 3] {
        let [path, arguments, environment] = self.addresses(Self::ARGUMENTS);
        let (number, here) = (libc::SYS_execveat, libc::AT_FDCWD);
        let open = open(Self::PATH).map(drop);
        // SAFETY: a path, and two arrays that end with a null.
        let execve =
            checked(unsafe { libc::syscall(libc::SYS_execve, path, arguments, environment) });
        // SAFETY: as above.
        let execveat =
            checked(unsafe { libc::syscall(number, here, path, arguments, environment, 0) });
        [open, execve, execveat]
    }

    /// The same three by 32-bit system calls: `arch/x86/entry/syscalls/syscall_32.tbl`.
    pub(super) fn by_32_bits(&self) -> [io::Result<()>; 3] {
        let [path, arguments, environment] =
            self.addresses(Self::ARGUMENTS_32).map(|address| address as u32);
        [
            (5, [path, libc::O_RDONLY as u32, 0, 0]),
            (11, [path, arguments, environment, 0]),
            (358, [libc::AT_FDCWD as u32, path, arguments, environment]),
        ]
        .map(|(number, arguments)| of_call_32(call_32(number, arguments)))
    }
}

/// Whether the kernel has system calls of 32-bit programs; without, it kills the caller.
pub(super) fn has_32_bit_calls() -> bool {
    /// `getpid` of 32-bit programs.
    const GETPID: u32 = 20;
    // One that shares our memory would end us, too, before Linux 5.16.
    let child = spawn(CloneFlags::empty(), || isize::from(call_32(GETPID, [0; 4]) <= 0));
    child.is_ok_and(|status| status.success())
}

/// Makes calls that set the thread's ids to those that it has and its groups to none, and calls on capabilities, keys, namespaces
/// and filters that fail before they do anything; of 32-bit programs, too, where their functions are others. Each has its name and
/// the errors that are expected of it. Those of the C library would be made for all threads.
pub(super) fn of_credentials(
    has_32_bits: bool,
) -> impl Iterator<Item = (&'static str, io::Result<()>, &'static [Errno])> {
    let group = libc::c_long::from(nix::unistd::getegid().as_raw());
    // Invalid arguments, or a kernel built without the call.
    let fails: &[Errno] =
        &[Errno::EFAULT, Errno::EINVAL, Errno::EBADF, Errno::EOPNOTSUPP, Errno::ENOSYS];
    let made = [
        ("setgid", libc::SYS_setgid, [group, 0, 0], [].as_slice()),
        ("setregid", libc::SYS_setregid, [-1, -1, 0], &[]),
        ("setresgid", libc::SYS_setresgid, [-1, -1, -1], &[]),
        ("setreuid", libc::SYS_setreuid, [-1, -1, 0], &[]),
        ("setresuid", libc::SYS_setresuid, [-1, -1, -1], &[]),
        ("setfsuid", libc::SYS_setfsuid, [-1, 0, 0], &[]),
        ("setfsgid", libc::SYS_setfsgid, [-1, 0, 0], &[]),
        ("setgroups", libc::SYS_setgroups, [0, 0, 0], &[]),
        ("capset", libc::SYS_capset, [0, 0, 0], fails),
        ("setns", libc::SYS_setns, [-1, 0, 0], fails),
        ("seccomp", libc::SYS_seccomp, [-1, 0, 0], fails),
        ("add_key", libc::SYS_add_key, [0, 0, 0], fails),
        ("request_key", libc::SYS_request_key, [0, 0, 0], fails),
        ("keyctl", libc::SYS_keyctl, [-1, 0, 0], fails),
    ];
    let made = made.into_iter().map(|(name, number, [first, second, third], errors)| {
        // SAFETY: the kernel gets numbers and null pointers, so it writes to no memory.
        let result = unsafe { libc::syscall(number, first, second, third, 0, 0) };
        (name, checked(result), errors)
    });
    let by_32_bits = [
        ("capset", 185, 0),
        ("add_key", 286, 0),
        ("request_key", 287, 0),
        ("keyctl", 288, u32::MAX),
    ];
    let by_32_bits = by_32_bits.into_iter().filter(move |_| has_32_bits);
    made.chain(by_32_bits.map(move |(name, number, first)| {
        (name, of_call_32(call_32(number, [first, 0, 0, 0])), fails)
    }))
}

fn of_call_32(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// A 32-bit system call.
#[cfg(target_arch = "x86_64")]
fn call_32(number: u32, [first, second, third, fourth]: [u32; 4]) -> i32 {
    let result: i32;
    // SAFETY: the kernel writes to no memory for the calls that are made here. The compiler keeps RBX for itself, and old
    // kernels clear R8 to R11.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first:r}",
            "int 0x80",
            "xchg rbx, {first:r}",
            first = inout(reg) u64::from(first) => _,
            inlateout("eax") number => result,
            in("ecx") second,
            in("edx") third,
            in("esi") fourth,
            in("edi") 0,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
            options(nostack)
        );
    }
    result
}

#[cfg(not(target_arch = "x86_64"))]
fn call_32(_: u32, _: [u32; 4]) -> i32 {
    -libc::ENOSYS
}

#[cfg(target_arch = "x86_64")]
const LOW_MEMORY: MapFlags = MapFlags::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const LOW_MEMORY: MapFlags = MapFlags::empty();

/// A page of memory.
pub(super) struct Page(NonNull<c_void>);

/// The smallest page size; the kernel rounds up to its own.
const PAGE_BYTES: usize = 4096;

impl Page {
    /// One of the kernel's choice, to read and with `more` rights.
    pub(super) fn new(more: ProtFlags) -> io::Result<Self> {
        Self::at(more, MapFlags::empty())
    }

    fn at(more: ProtFlags, place: MapFlags) -> io::Result<Self> {
        let (rights, flags) = (ProtFlags::PROT_READ | more, MapFlags::MAP_PRIVATE | place);
        let length = NonZeroUsize::new(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        // SAFETY: a new anonymous mapping at a place of the kernel's choice.
        Ok(Self(unsafe { mman::mmap_anonymous(None, length, rights, flags) }?))
    }

    /// Gives the memory of a writable page back, and has a system call write there.
    pub(super) fn fault(&mut self) -> io::Result<()> {
        // SAFETY: the page is ours, and nothing refers to it.
        unsafe { mman::madvise(self.0, PAGE_BYTES, MmapAdvise::MADV_DONTNEED) }?;
        // SAFETY: the page has room for the names.
        checked(unsafe { libc::uname(self.0.as_ptr().cast()) }.into())
    }

    /// Makes it readable and executable, and optionally writable.
    pub(super) fn make_executable(&mut self, writable: bool) -> io::Result<()> {
        let write = if writable { ProtFlags::PROT_WRITE } else { ProtFlags::empty() };
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC | write;
        // SAFETY: the mapping is ours, and nothing else refers to it.
        Ok(unsafe { mman::mprotect(self.0, PAGE_BYTES, rights) }?)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        let _ = unsafe { mman::munmap(self.0, PAGE_BYTES) };
    }
}
