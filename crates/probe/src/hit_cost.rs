//! What a pair of probes adds to a call on this machine, measured without a load: on a function that the kernel has for tests
//! and calls when it is asked to.
//!
//! It is the cost where the caches have all that the probes touch. `profiler cost` measures it under a load.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use profiler_kernel::target::{KernelFiles, Target};
use profiler_recording::Backend;

use super::errno::Doing as _;
use super::{Options, ProbeError, Probes, Session as _, feature, sys, sys::AttachType};

/// Adds one to a number; nothing else calls it (kernel 5.5, commit faeb2dce084a).
const CALLED: &str = "bpf_fentry_test1";

/// Calls in a batch, and batches with probes; as many without them, half of these before and half after. Batches are so
/// short that on a busy machine some of them are not interrupted.
const CALLS: u32 = 25;
const BATCHES: usize = 200;

/// Calls with probes: another batch fills caches.
const MADE: u64 = (BATCHES as u64 + 1) * CALLS as u64;

/// Of this many calls one may be missed, as kprobes are when an interrupt falls into one. More would say that calls without probes
/// were timed.
const ONE_MISSED_OF: u64 = 100;

/// How often all is measured, at most: on a busy machine it may be that all batches without probes were interrupted.
const ROUNDS: u32 = 5;

/// Two programs that each read a clock take longer than this on any machine, in nanoseconds.
const LEAST: f64 = 20.0;

/// The CPU time that probes of `backend` add to each call of a handler, in nanoseconds: the difference of the fastest batches
/// with and without them (whatever else the machine does makes a batch slower, never faster). Takes a few milliseconds, and
/// what attaching takes.
///
/// # Errors
/// When the kernel does not have the function, the backend cannot measure it, or the cost is lost in noise.
pub fn measure(backend: Backend, options: Options) -> Result<f64, ProbeError> {
    let found = KernelFiles::default().resolve(None, &[CALLED.to_owned()]);
    let found = found.map_err(std::io::Error::other).doing(
        "looking for the kernel's function for tests, on which the cost of a hit is measured",
    )?;
    let target = &found.targets[0];
    let caller = feature::load("fentry", AttachType::Fentry, target.btf_id.unwrap_or_default())
        .map_err(|refusal| std::io::Error::other(refusal.what))
        .doing("loading the program that has the kernel call its test functions")?;
    let options = Options { backend: Some(backend), allow_shared: true, force: true, ..options };
    let (mut without, mut with) = (f64::INFINITY, f64::INFINITY);
    let mut failed = format!(
        "{BATCHES} times {CALLS} calls took hardly longer with probes than without, {ROUNDS} times"
    );
    for _ in 0..ROUNDS {
        without = without.min(fastest(&caller, BATCHES / 2)?);
        let (took, seen) = with_probes(&caller, target, options)?;
        if seen < MADE - MADE / ONE_MISSED_OF {
            failed = format!("of {MADE} calls of {CALLED}, {seen} were measured");
        } else {
            with = with.min(took);
        }
        without = without.min(fastest(&caller, BATCHES / 2)?);
        if with < f64::INFINITY && with - without >= LEAST {
            return Ok(with - without);
        }
    }
    Err(std::io::Error::other(failed)).doing("measuring what a hit costs on a busy machine")
}

/// Of the fastest of so many batches, the nanoseconds of a call. Another one before them fills caches.
fn fastest(caller: &OwnedFd, batches: usize) -> Result<f64, ProbeError> {
    let mut fastest = f64::INFINITY;
    for number in 0..=batches {
        let begun = Instant::now();
        for _ in 0..CALLS {
            sys::test_run(caller.as_fd()).doing("calling the kernel's test functions")?;
        }
        if number > 0 {
            fastest = fastest.min(begun.elapsed().as_nanos() as f64 / f64::from(CALLS));
        }
    }
    Ok(fastest)
}

/// As [`fastest`], with probes, and how many of [`MADE`] calls they measured.
fn with_probes(
    caller: &OwnedFd,
    target: &Target,
    options: Options,
) -> Result<(f64, u64), ProbeError> {
    let mut session = Probes::attach(std::slice::from_ref(target), options)?;
    let fastest = fastest(caller, BATCHES)?;
    let seen = session.drain()?.iter().map(|drained| drained.durations.len()).sum();
    Ok((fastest, seen))
}
