//! Makes the worker of each kind of load: a new kind has its line here.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::ProtFlags;
use nix::sys::signal;
use nix::unistd::{Pid, getppid};
use rustix::process::geteuid;
use rustix::thread::set_thread_uid;

use profiler_recording::loads::BuiltinKind;

use super::worker::{Doing as _, NewWorker, OperationErrors, simple};
use super::{BuiltinLoad, Remover, credentials, files, general, kernel, net, process, thread};
use crate::sandbox::PrivateFolder;
use crate::syscalls;

/// Makes a worker, on its own thread.
pub(super) fn worker(load: &BuiltinLoad, folder: &Path, index: u32) -> NewWorker {
    use BuiltinKind as Kind;
    match load.kind {
        Kind::Connect => net::connect_again(),
        Kind::Bind => {
            simple(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).doing("bind to 127.0.0.1"))
        }
        Kind::UdpRecv => net::receive(),
        Kind::Dns => net::receive_dns(index),
        Kind::Accept => net::accept(),
        Kind::Execve => process::execve(load.profiler.clone(), load.dimensions),
        Kind::Ptrace => process::ptrace(&load.profiler),
        Kind::Setsid => simple(process::setsid),
        Kind::Exit => simple(process::exit),
        // Signal 0: everything but the delivery.
        Kind::Kill => simple(|| signal::kill(Pid::this(), None).doing("kill")),
        Kind::Tkill => simple(|| syscalls::tkill_self().doing("tkill")),
        Kind::Open => files::create(folder, index),
        Kind::Rename => files::rename(folder, index),
        Kind::Link => files::second_name(folder, index, true),
        Kind::Unlink => files::second_name(folder, index, false),
        Kind::Rmdir => files::rmdir(folder, index),
        Kind::Write => files::write(folder, index),
        Kind::Mount => thread::mount_anew(folder, index),
        Kind::MemfdCreate => {
            simple(|| memfd_create(c"profiler-load", MFdFlags::MFD_CLOEXEC).doing("memfd_create"))
        }
        Kind::Mprotect => thread::mprotect(),
        Kind::Prctl => thread::prctl(),
        // Of the thread alone, to the id that it has: new credentials are committed, with the same rights.
        Kind::UpdateCred => simple(|| set_thread_uid(geteuid()).doing("setuid")),
        Kind::Nanosleep => simple(thread::nanosleep),
        Kind::CallUsermodehelper => thread::call_usermodehelper(),
        Kind::Getppid => simple(|| Ok(getppid())),
        Kind::Pipe => general::pipe(),
        Kind::Stat => general::stat(folder, index),
        Kind::OpenExisting => general::open_existing(folder, index),
        Kind::Mmap => simple(|| syscalls::Page::new(ProtFlags::empty()).doing("mmap")),
        Kind::Futex => simple(general::futex),
        Kind::Epoll => general::epoll(),
        Kind::Fork => simple(|| syscalls::spawn_noop().doing("a process that ends at once")),
        Kind::Tcp => general::tcp(),
        Kind::Switch => general::switch(),
        Kind::PageFault => general::page_fault(),
        Kind::Ipv6 => general::ipv6(),
        Kind::Errors => general::errors(),
        Kind::Errors32 => general::errors_32(),
        Kind::Credentials => credentials::credentials(),
        Kind::Interface => credentials::interface(),
        Kind::Module => kernel::module(load),
        Kind::TextPoke => kernel::text_poke(load),
    }
}

/// The folder that all workers work in, and what removes it; an empty path for a load that needs none.
pub(super) fn folder(
    load: &BuiltinLoad,
) -> Result<(PathBuf, Option<PrivateFolder>), OperationErrors> {
    if !load.kind.needs_directory() {
        return Ok(Default::default());
    }
    let within = load.directory.clone().unwrap_or_else(std::env::temp_dir);
    let folder = match load.remover {
        Remover::Sandbox => Ok(None),
        // Loads run side by side there, each with a folder of its own.
        Remover::Nothing => {
            PrivateFolder::unattended(&within, &format!("profiler-load-{}", load.kind)).map(Some)
        }
        Remover::Process => PrivateFolder::new(&within, "profiler-load-", &load.profiler).map(Some),
    };
    let folder = folder.doing(format_args!("a folder for its files in {}", within.display()))?;
    let mut deepest = folder.as_ref().map_or(within, |folder| folder.path().to_owned());
    deepest.extend((0..load.dimensions.depth).map(|_| "d"));
    fs::create_dir_all(&deepest).doing(deepest.display())?;
    Ok((deepest, folder))
}
