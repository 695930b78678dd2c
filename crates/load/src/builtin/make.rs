//! Makes the worker of each kind of load: a new kind has its line here.

use std::fs;
use std::path::PathBuf;

use super::worker::{NewWorker, Shared, simple, unavailable};
use super::{BuiltinLoad, Remover, credentials, files, general, kernel, net, process, thread};
use crate::sandbox::PrivateFolder;
use profiler_recording::loads::{BuiltinKind, Dimensions};

/// Makes a worker, on its own thread.
pub(super) fn worker(load: &BuiltinLoad, shared: &Shared, index: u32) -> NewWorker {
    use BuiltinKind as Kind;
    match load.kind {
        Kind::Connect => net::connect_again(),
        Kind::Bind => simple(net::bind_anew),
        Kind::UdpRecv => net::receive(),
        Kind::Dns => net::receive_dns(index),
        Kind::Accept => net::accept(),
        Kind::Execve => process::execve(load.profiler.clone(), load.dimensions),
        Kind::Ptrace => process::ptrace(&load.profiler),
        Kind::Setsid => simple(process::setsid),
        Kind::Exit => simple(process::exit),
        Kind::Kill => simple(process::kill),
        Kind::Tkill => simple(process::tkill),
        Kind::Open => files::create(shared, index),
        Kind::Rename => files::rename(shared, index),
        Kind::Link => files::second_name(shared, index, true),
        Kind::Unlink => files::second_name(shared, index, false),
        Kind::Rmdir => files::rmdir(shared, index),
        Kind::Write => files::write(shared, index),
        Kind::Mount => thread::mount_anew(shared, index),
        Kind::MemfdCreate => simple(thread::memfd_create),
        Kind::Mprotect => thread::mprotect(),
        Kind::Prctl => thread::prctl(),
        Kind::UpdateCred => simple(thread::update_cred),
        Kind::Nanosleep => simple(thread::nanosleep),
        Kind::CallUsermodehelper => thread::call_usermodehelper(),
        Kind::Getppid => simple(general::getppid),
        Kind::Pipe => general::pipe(),
        Kind::Stat => general::stat(shared, index),
        Kind::OpenExisting => general::open_existing(shared, index),
        Kind::Mmap => simple(general::mmap),
        Kind::Futex => simple(general::futex),
        Kind::Epoll => general::epoll(),
        Kind::Fork => simple(general::fork),
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

/// Makes what all workers share.
pub(super) fn shared(load: &BuiltinLoad) -> Result<Shared, String> {
    if !load.kind.needs_directory() {
        return Ok(Shared::default());
    }
    let within = load.directory.clone().unwrap_or_else(std::env::temp_dir);
    let folder = match load.remover {
        Remover::Sandbox => {
            return Ok(Shared { directory: deep(within, load.dimensions)?, _folder: None });
        }
        // Loads run side by side there, each with a folder of its own.
        Remover::Nothing => {
            PrivateFolder::unattended(&within, &format!("profiler-load-{}", load.kind))
        }
        Remover::Process => PrivateFolder::new(&within, "profiler-load-", &load.profiler),
    };
    let folder = folder
        .map_err(|error| format!("a folder for its files in {}: {error}", within.display()))?;
    let directory = deep(folder.path().to_owned(), load.dimensions)?;
    Ok(Shared { directory, _folder: Some(folder) })
}

/// A folder as deep below `directory`.
fn deep(mut directory: PathBuf, dimensions: Dimensions) -> Result<PathBuf, String> {
    for _ in 0..dimensions.depth {
        directory.push("d");
    }
    fs::create_dir_all(&directory).map_err(unavailable(directory.to_string_lossy()))?;
    Ok(directory)
}
