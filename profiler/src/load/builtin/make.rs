//! Makes the worker of each kind of load: a new kind has its line here.

use super::worker::{Shared, Worker};
use super::{BuiltinLoad, credentials, files, general, net, process, thread};
use crate::load::sandbox::PrivateFolder;
use crate::recording::loads::{BuiltinKind, OwnCalls};

/// Makes a worker, on its own thread.
pub(super) fn worker(
    load: &BuiltinLoad,
    shared: &Shared,
    index: u32,
    calls: &mut OwnCalls,
) -> Result<Box<dyn Worker>, String> {
    use BuiltinKind as Kind;
    Ok(match load.kind {
        Kind::Connect => Box::new(net::Connect::new()?),
        Kind::Bind => Box::new(net::Bind::new()?),
        Kind::UdpRecv => Box::new(net::UdpReceive::new(calls)?),
        Kind::Dns => Box::new(net::UdpReceive::dns(index, calls)?),
        Kind::Accept => Box::new(net::Accept::new(calls)?),
        Kind::Execve => Box::new(process::Execve::new(load.profiler.clone())),
        Kind::Ptrace => Box::new(process::Ptrace::new(&load.profiler, calls)?),
        Kind::Setsid => Box::new(process::Setsid),
        Kind::Exit => Box::new(process::Exit),
        Kind::Kill => Box::new(process::Signal0 { to_thread: false }),
        Kind::Tkill => Box::new(process::Signal0 { to_thread: true }),
        Kind::Open => Box::new(files::Create::new(shared, index)?),
        Kind::Rename => Box::new(files::Rename::new(shared, index, calls)?),
        Kind::Link => {
            Box::new(files::SecondName::new(shared, index, files::Measured::Link, calls)?)
        }
        Kind::Unlink => {
            Box::new(files::SecondName::new(shared, index, files::Measured::Unlink, calls)?)
        }
        Kind::Rmdir => Box::new(files::Rmdir::new(shared, index)?),
        Kind::Write => Box::new(files::Write::new(shared, index, calls)?),
        Kind::Mount => Box::new(thread::Mount::new(shared, index, calls)?),
        Kind::MemfdCreate => Box::new(thread::MemfdCreate),
        Kind::Mprotect => Box::new(thread::Mprotect::new()?),
        Kind::Prctl => Box::new(thread::Prctl::new()),
        Kind::UpdateCred => Box::new(thread::UpdateCred),
        Kind::Nanosleep => Box::new(thread::Nanosleep),
        Kind::CallUsermodehelper => Box::new(thread::CallUsermodehelper::new()?),
        Kind::Getppid => Box::new(general::Getppid),
        Kind::Pipe => Box::new(general::Through::pipe()?),
        Kind::Stat => Box::new(general::Existing::new(shared, index, false, calls)?),
        Kind::OpenExisting => Box::new(general::Existing::new(shared, index, true, calls)?),
        Kind::Mmap => Box::new(general::Mmap),
        Kind::Futex => Box::new(general::Futex),
        Kind::Epoll => Box::new(general::Epoll::new()?),
        Kind::Fork => Box::new(general::Fork),
        Kind::Tcp => Box::new(general::Through::tcp(calls)?),
        Kind::Switch => Box::new(general::Switch::new()?),
        Kind::PageFault => Box::new(general::PageFault::new()?),
        Kind::Ipv6 => Box::new(general::Ipv6::new(calls)?),
        Kind::Errors => Box::new(general::Errors::new(calls)?),
        Kind::Errors32 => Box::new(general::Errors32::new()?),
        Kind::Credentials => Box::new(credentials::Credentials::new()?),
        Kind::Interface => Box::new(credentials::Interface::new()?),
    })
}

/// Makes what all workers share.
pub(super) fn shared(load: &BuiltinLoad, calls: &mut OwnCalls) -> Result<Shared, String> {
    let directory =
        if load.kind.needs_directory() {
            let within = load.directory.clone().unwrap_or_else(std::env::temp_dir);
            let folder = match load.unattended {
                // Loads run side by side there, each with a folder of its own.
                true => PrivateFolder::unattended(&within, &format!("profiler-load-{}", load.kind)),
                false => {
                    // The process that removes it.
                    calls.execve += 1;
                    PrivateFolder::new(&within, "profiler-load-", &load.profiler)
                }
            };
            Some(folder.map_err(|error| {
                format!("a folder for its files in {}: {error}", within.display())
            })?)
        } else {
            None
        };
    Ok(Shared { directory })
}
