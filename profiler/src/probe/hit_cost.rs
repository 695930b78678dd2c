//! What a pair of probes adds to a call on this machine, measured without a load: on a function that the kernel has for tests
//! and calls when it is asked to.
//!
//! It is the cost where the caches have all that the probes touch. `profiler cost` measures it under a load.

use std::os::fd::AsFd as _;
use std::time::Instant;

use super::errno::Doing as _;
use super::{Options, ProbeError, Probes, Session as _, feature, sys, sys::AttachType};
use crate::kernel::target::{KernelFiles, Target};
use crate::recording::Backend;

/// Adds one to a number; nothing else calls it (kernel 5.5, commit faeb2dce084a).
const CALLED: &str = "bpf_fentry_test1";

/// Calls in a batch, and batches with probes; as many without them, half of these before and half after. Batches are so
/// short that on a busy machine some of them are not interrupted.
const CALLS: u32 = 25;
const BATCHES: usize = 200;

/// Of this many calls one may be missed, as kprobes are when an interrupt falls into one. More would say that calls without probes
/// were timed.
const ONE_MISSED_OF: u64 = 100;

/// The CPU time that probes of `backend` add to each call of a handler, in nanoseconds: the difference of the fastest batches
/// with and without them (whatever else the machine does makes a batch slower, never faster), 0 if it is lost in noise. Takes a
/// few milliseconds, and what attaching takes.
///
/// # Errors
/// When the kernel does not have the function, or the backend cannot measure it.
pub fn measure(backend: Backend, options: Options) -> Result<f64, ProbeError> {
    let target = called()?;
    let caller = feature::load("fentry", AttachType::Fentry, target.btf_id.unwrap_or_default())
        .map_err(|refusal| std::io::Error::other(refusal.what))
        .doing("loading the program that has the kernel call its test functions")?;
    let batch = || {
        let begun = Instant::now();
        for _ in 0..CALLS {
            sys::test_run(caller.as_fd()).doing("calling the kernel's test functions")?;
        }
        Ok::<_, ProbeError>(begun.elapsed().as_nanos() as f64 / f64::from(CALLS))
    };
    let batches = |count| (0..count).map(|_| batch()).collect::<Result<Vec<_>, _>>();
    // The first one fills caches.
    batch()?;
    let mut without = batches(BATCHES / 2)?;
    let options = Options { backend: Some(backend), allow_shared: true, force: true, ..options };
    let mut session = Probes::attach(std::slice::from_ref(&target), options)?;
    batch()?;
    session.drain()?;
    let with = batches(BATCHES)?;
    let seen: u64 = session.drain()?.iter().map(|drained| drained.durations.len()).sum();
    drop(session);
    let made = BATCHES as u64 * u64::from(CALLS);
    if seen < made - made / ONE_MISSED_OF {
        let what = format!("of {made} calls of {CALLED}, {seen} were measured by {backend}");
        return Err(std::io::Error::other(what)).doing("measuring what a hit costs");
    }
    without.extend(batches(BATCHES / 2)?);
    let [without, with] = [without, with].map(|all| all.into_iter().reduce(f64::min));
    Ok((with.unwrap_or_default() - without.unwrap_or_default()).max(0.0))
}

fn called() -> Result<Target, ProbeError> {
    let found = KernelFiles::default().resolve(None, &[CALLED.to_owned()]);
    let first = found.map(|targets| targets.into_iter().next());
    let first = first
        .map_err(|error| error.to_string())
        .and_then(|first| first.ok_or("not found".to_owned()));
    first.map_err(std::io::Error::other).doing(
        "looking for the kernel's function for tests, on which the cost of a hit is measured",
    )
}
