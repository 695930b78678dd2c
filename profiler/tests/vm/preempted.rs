//! Linux 7.2 preempts tasks within a trampoline's programs. Four tasks call one function on one CPU, and no duration may be longer than
//! the longest that the module itself counted.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use profiler_kernel::btf::{BTF_FOLDER, Btf};
use profiler_probe::feature::try_backend;
use profiler_probe::recorder::Recorder;
use profiler_probe::{Drained, Options, Precision, Probes, Session as _};
use profiler_recording::Backend;

use crate::testbed;
use crate::window::{Window, preempts, resolve};

const TIMED: &str = "testbed_timed";
const TASKS: usize = 4;

/// Tasks on the first CPU that call the function again and again; they are killed when this is dropped.
struct Hammers(Vec<Child>);

impl Hammers {
    fn start(msec: u64) -> Self {
        let hammer = || {
            let command = format!("echo timed {msec} >/proc/hids_testbed/trigger");
            Command::new("taskset").args(["-c", "0", "sh", "-c", &command]).spawn().unwrap()
        };
        Self((0..TASKS).map(|_| hammer()).collect())
    }

    fn finish(mut self) {
        for hammer in &mut self.0 {
            assert!(hammer.wait().unwrap().success());
        }
        self.0.clear();
    }
}

impl Drop for Hammers {
    fn drop(&mut self) {
        for hammer in &mut self.0 {
            let _ = hammer.kill();
            let _ = hammer.wait();
        }
    }
}

/// Each task calls from 32 places on its stack in turn, and returns to each after more than a second, which is the age
/// of a start that was left there.
///
/// Calls of one task do not lie on top of another's, but the programs' starts do: a start whose exit the
/// kernel skipped may be taken for that of a later call. The module itself times each call by the same
/// clock from outside of the trampoline, so that no duration can be longer than its longest.
fn assert_none_longer(backend: Backend) {
    assert!(preempts(), "this kernel does not take tasks off within programs");
    testbed::load();
    let window = Window::by(backend, &[TIMED]);
    // Long enough for most tasks to be taken off outside of programs.
    testbed::spin(TIMED, 4_000);
    testbed::reset_longest();
    Hammers::start(3_000).finish();
    testbed::spin(TIMED, 0);
    let longest = testbed::longest();
    let measured = window.end().remove(0);
    let (measure, count) = (&measured.measure, measured.count());
    let losses = measure.losses;
    let max = measure.durations.max_ns().unwrap();
    let text = format!(
        "{backend}: {count} of {} calls, the longest measured {max} of {longest} ns: {losses:?}",
        measured.truth
    );
    println!("{text}");
    assert_eq!(losses.imbalance(count), 0, "{text}");
    assert!(losses.entries <= measured.truth, "{text}");
    // How many are left depends on how often a task is taken off within a program: a fifth on a busy machine.
    assert!(count > measured.truth / 10, "{text}");
    assert!(count + losses.unmeasured() >= losses.entries, "{text}");
    // After doubtful durations are removed, the rest is known by bucket.
    let bound = measure.durations.histogram().highest_equivalent(longest);
    assert!(max <= bound, "{text}");
    if backend == Backend::Fsession || backend == Backend::KprobeSession {
        assert_eq!(losses.doubtful, 0, "{text}");
    }
    measured.assert_ordered();
}

#[test]
#[ignore = "VM 7.2: other kernels take no task off its CPU within a program"]
fn no_duration_is_longer_than_the_longest_call() {
    let functions = Btf::of(None, Path::new(BTF_FOLDER)).unwrap();
    let takes = |backend: &&Backend| try_backend(**backend, Some(&functions)).is_ok();
    let of_programs = Backend::ALL.iter().filter(|backend| **backend != Backend::FunctionGraph);
    for backend in of_programs.filter(takes) {
        assert_none_longer(*backend);
    }
}

/// Programs are loaded for the preemption model of that moment: without preemption a slot is given up by a plain store.
#[test]
#[ignore = "VM 6.1: one kernel whose model can be changed, and is not to preempt"]
fn a_change_of_the_preemption_model_is_noticed_at_the_next_drain() {
    const MODEL: &str = "/sys/kernel/debug/sched/preempt";
    let _ = Command::new("mount").args(["-t", "debugfs", "none", "/sys/kernel/debug"]).status();
    let counted = |session: &mut Probes| {
        testbed::trigger("nested 100");
        session.drain().map(|drained| drained[0].durations.len()).map_err(|error| error.to_string())
    };
    fs::write(MODEL, "voluntary").unwrap();
    testbed::load();
    let targets = resolve(&["testbed_inner"]);
    let options = Options { backend: Some(Backend::Fentry), ..Options::default() };
    let attach = || Probes::attach(&targets, options).unwrap();
    let mut session = attach();
    assert_eq!(counted(&mut session), Ok(100));
    fs::write(MODEL, "full").unwrap();
    for _ in 0..2 {
        let refused = counted(&mut session).unwrap_err();
        assert!(refused.contains("preempt tasks"), "{refused}");
    }
    assert!(session.undelivered().is_empty(), "doubtful durations are left out");
    drop(session);
    let mut session = attach();
    assert_eq!(counted(&mut session), Ok(100));
    fs::write(MODEL, "voluntary").unwrap();
    assert_eq!(counted(&mut session), Ok(100), "those programs do for both");
}

/// One CPU, until this is dropped.
pub(crate) struct OneCpu;

const SECOND_CPU: &str = "/sys/devices/system/cpu/cpu1/online";

impl OneCpu {
    pub(crate) fn new() -> Self {
        fs::write(SECOND_CPU, "0").unwrap();
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        assert!(online.trim() == "0" || online.starts_with("0,2"), "{online}");
        Self
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        let _ = fs::write(SECOND_CPU, "1");
    }
}

/// With one CPU every program that is running when a drain starts belongs to a preempted task. A drain that does not
/// wait for these reads half of what they write.
#[test]
#[ignore = "VM 7.2: other kernels take no task off its CPU within a program"]
fn drains_are_whole_on_one_cpu() {
    const DRAINS: usize = 300;
    let targets = resolve(&[TIMED]);
    let _one = OneCpu::new();
    let options = Options { backend: Some(Backend::Fsession), ..Options::default() };
    let mut session = Probes::attach(&targets, options).unwrap();
    let mut recorder = Recorder::new(session.handlers(), Precision::Three);
    recorder.begin(&session.drain().unwrap());
    let hammers = Hammers::start(600_000);
    let mut with_calls = 0;
    for at in 0..DRAINS {
        let drained = session.drain().unwrap();
        assert_whole(&drained[0], at);
        with_calls += usize::from(!drained[0].durations.is_empty());
        recorder.add(&drained);
    }
    drop(hammers);
    recorder.add(&session.drain().unwrap());
    assert!(recorder.is_balanced(), "{:?}", recorder.finish());
    println!("{with_calls} of {DRAINS} drains had calls");
    assert!(with_calls > DRAINS / 4, "{with_calls} drains with calls");
}

/// Sum, minimum and maximum are of the durations that the buckets count.
fn assert_whole(drained: &Drained, at: usize) {
    let durations = &drained.durations;
    let (histogram, sum_ns) = (durations.histogram(), durations.sum_ns());
    let (min_ns, max_ns) = (durations.min_ns(), durations.max_ns());
    let text = format!("drain {at}: {} calls, {sum_ns} {min_ns:?} {max_ns:?}", histogram.len());
    let (Some(min), Some(max)) = (min_ns, max_ns) else {
        assert_eq!((histogram.len(), sum_ns, min_ns, max_ns), (0, 0, None, None), "{text}");
        return;
    };
    assert!(histogram.equivalent(histogram.min(), min), "{text}");
    assert!(histogram.equivalent(histogram.max(), max), "{text}");
    let (mut least, mut most) = (0, 0);
    for bucket in histogram.iter_recorded() {
        let value = bucket.value_iterated_to();
        least += histogram.lowest_equivalent(value).max(min) * bucket.count_at_value();
        most += histogram.highest_equivalent(value).min(max) * bucket.count_at_value();
    }
    assert!((least..=most).contains(&sum_ns), "{text}: {least} to {most}");
}
