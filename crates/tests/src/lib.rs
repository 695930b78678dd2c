//! What tests of several crates are made of.
#![allow(clippy::unwrap_used, reason = "for tests alone")]

pub mod btf;
pub mod recording;

use profiler_kernel::target::Target;
use profiler_probe::recorder::Recorder;
use profiler_probe::{Books, Drained, Precision};
use profiler_recording::Backend;

/// A function of a module: every backend reaches it.
pub fn function(name: &str) -> Target {
    Target {
        name: name.to_owned(),
        module: Some("driver".to_owned()),
        address: 0xffff_ffff_c000_1000,
        btf_id: Some(7),
        has_btf: true,
        argument: Some("pt_regs".to_owned()),
        traceable: Some(true),
        ..Target::default()
    }
}

/// What a session gives that saw calls of these durations, in nanoseconds.
pub fn drained(all: &[u64], books: Books) -> Drained {
    let mut durations = Precision::Three.durations();
    all.iter().for_each(|ns| durations.record(*ns));
    Drained { durations, books }
}

/// A recorder of handlers of these names, whose window began with `at_begin`.
pub fn recorder(names: &[&str], at_begin: &[Drained]) -> Recorder {
    let targets = names.iter().map(|name| Target { name: (*name).to_owned(), ..Target::default() });
    let targets: Vec<Target> = targets.collect();
    let handlers = targets.iter().map(|target| (target, Backend::Fentry)).collect();
    let mut recorder = Recorder::new(handlers, Precision::Three);
    recorder.begin(at_begin);
    recorder
}

/// Makes a system call whose arguments no kernel takes; returns what it says.
pub fn call_in_vain(
    number: libc::c_long,
    first: libc::c_int,
    second: libc::c_long,
) -> Option<nix::errno::Errno> {
    let first = libc::c_long::from(first);
    // SAFETY: the caller passes no address.
    let result = unsafe { libc::syscall(number, first, second, 0, 0, 0) };
    nix::errno::Errno::result(result).err()
}
