//! Perf events on trace events, which is how BPF programs get to kprobes on every kernel.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

use aya_obj::generated::{
    PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC, perf_event_attr,
    perf_type_id,
};

use profiler_kernel::host;

use super::zeroed;

/// Runs a program at every hit of a trace event, on all CPUs, until the returned event is closed.
///
/// # Errors
/// What the kernel said.
pub(crate) fn attach(event_id: u64, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attributes: perf_event_attr = zeroed();
    attributes.type_ = perf_type_id::PERF_TYPE_TRACEPOINT as u32;
    attributes.size = size_of::<perf_event_attr>() as u32;
    attributes.config = event_id;
    attributes.__bindgen_anon_1.sample_period = 1;
    // Every process, on the first CPU that runs: programs of a trace event run on all of them, wherever the
    // event was opened.
    // Without a list CPU 0, which can hardly ever be taken offline.
    let online = host::cpus("online").unwrap_or_default();
    let cpu = online.first().map_or(0, |first| first.cast_signed());
    let (pid, group) = (-1, -1);
    // SAFETY: the struct is live and of the size that it names; the rest are integers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            pid,
            cpu,
            group,
            libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC),
        )
    };
    let fd = i32::try_from(fd).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for this call, so it has no other owner.
    let event = unsafe { OwnedFd::from_raw_fd(fd) };
    let requests = [(PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()), (PERF_EVENT_IOC_ENABLE, 0)];
    for (request, argument) in requests {
        // SAFETY: both requests take an integer and touch no memory of ours.
        if unsafe { libc::ioctl(event.as_raw_fd(), request.into(), argument) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(event)
}
