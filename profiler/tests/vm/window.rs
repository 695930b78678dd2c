//! A measured window whose two ends fall between calls, so that counts can be compared exactly.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use profiler_base::stats::nearest_rank;
use profiler_kernel::target::{KernelFiles, Target};
use profiler_load::{
    BuiltinKind, BuiltinLoad, LoadRun, LoadSpec, LoadStatus, ProfilerProgram, StopSignal,
};
use profiler_probe::recorder::Recorder;
use profiler_probe::{Books, Drained, Options, Precision, Probes, Session as _};
use profiler_recording::Backend;
use profiler_recording::measure::HandlerMeasure;

use crate::replaced::build_id;
use crate::testbed::{self, Counters};

/// A folder in memory. The root file system is an overlay, of which both layers call the hook when a file is
/// created.
pub(crate) const MEMORY: &str = "/dev/shm";

/// The program, in memory: the guest reads the machine's files slowly, and an unprivileged user may not
/// have access to them.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let copy = Path::new(MEMORY).join("profiler");
        if !copy.exists() {
            std::fs::copy(env!("CARGO_BIN_EXE_profiler"), &copy).unwrap();
        }
        copy
    })
}

/// What was looked up, by the patterns and the modules that were loaded then.
type Known = HashMap<(Vec<String>, Vec<String>), Vec<Target>>;

/// Functions of the testbed, in the order of the patterns. A translated guest takes seconds to look them up, so that is
/// done once as long as the same modules are at the same places.
pub(crate) fn resolve(patterns: &[&str]) -> Vec<Target> {
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    testbed::load();
    let modules = std::fs::read_to_string("/proc/modules").unwrap();
    // `NAME SIZE REFERENCES HOLDERS STATE ADDRESS`; a driver that is loaded again may be another at the same address.
    let place = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        format!("{} {} {}", fields[0], fields[1], fields[5])
    };
    let modules = std::iter::once(build_id()).chain(modules.lines().map(place)).collect();
    let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let found = known.get_or_insert_default().entry((patterns.clone(), modules));
    let look_up =
        || KernelFiles::default().resolve(Some(testbed::NAME), &patterns).unwrap().targets;
    found.or_insert_with(look_up).clone()
}

/// A built-in load that starts the real program where it has to start one.
pub(crate) fn builtin(kind: BuiltinKind, operations: u64) -> BuiltinLoad {
    BuiltinLoad {
        operations: Some(operations),
        directory: Some(MEMORY.into()),
        profiler: ProfilerProgram::at(program()),
        ..BuiltinLoad::new(kind)
    }
}

/// Runs loads side by side to their end; all of them have to succeed in every operation.
pub(crate) fn run_loads(loads: Vec<BuiltinLoad>) -> Vec<LoadRun> {
    let stop = StopSignal::new();
    let run = |load: &BuiltinLoad| LoadRun { spec: load.describe(), outcome: load.run(&stop) };
    let runs: Vec<LoadRun> = std::thread::scope(|scope| {
        let threads: Vec<_> = loads.iter().map(|load| scope.spawn(|| run(load))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_completed(&runs);
    runs
}

pub(crate) fn assert_completed(runs: &[LoadRun]) {
    for run in runs {
        assert_eq!(run.outcome.status, LoadStatus::Completed, "{run:?}");
        assert_eq!(run.outcome.errors, [], "{run:?}");
    }
}

/// System calls that built-in loads make by the table of docs/loads.md.
#[derive(Debug, Default)]
pub(crate) struct OwnCalls {
    pub(crate) connect: u64,
    bind: u64,
    execve: u64,
    udp_recvmsg: u64,
    open_create: u64,
    ptrace: u64,
}

/// System calls that all loads made.
pub(crate) fn own_calls(runs: &[LoadRun]) -> OwnCalls {
    let mut sum = OwnCalls::default();
    for run in runs {
        let LoadSpec::Builtin { name, workers, user, .. } = &run.spec else {
            panic!("{:?} counts no operations", run.spec);
        };
        let (operations, workers) = (run.outcome.operations.unwrap(), u64::from(*workers));
        match name {
            BuiltinKind::Connect => sum.connect += operations,
            BuiltinKind::Bind => sum.bind += operations,
            BuiltinKind::Execve => sum.execve += operations,
            BuiltinKind::Open => sum.open_create += operations,
            BuiltinKind::Ptrace => {
                sum.ptrace += operations + workers;
                sum.execve += workers;
            }
            BuiltinKind::UdpRecv => {
                sum.udp_recvmsg += operations;
                sum.bind += workers;
            }
            other => panic!("{other} is not in this table"),
        }
        sum.execve += match (user, name) {
            // Its supervisor, and its process.
            (Some(_), _) => 2,
            // The process that removes its folder.
            (None, BuiltinKind::Open) => 1,
            (None, _) => 0,
        };
    }
    sum
}

/// Expected calls of a hook's handlers, by the load's count.
pub(crate) fn expected(calls: &OwnCalls, handler: &str) -> u64 {
    match handler {
        "connect_syscall_entry_handler" | "connect_syscall_handler" => calls.connect,
        "bind_entry_handler" | "bind_handler" => calls.bind,
        "execve_entry_handler" | "execve_handler" => calls.execve,
        "udp_recvmsg_entry_handler" | "udp_recvmsg_handler" => calls.udp_recvmsg,
        "security_inode_create_pre_handler" => calls.open_create,
        "ptrace_pre_handler" => calls.ptrace,
        _ => panic!("no load calls {handler}"),
    }
}

/// Probes, and what was recorded of them before the next window.
pub(crate) struct Attached {
    session: Probes,
    recorder: Recorder,
}

impl Attached {
    pub(crate) fn new(session: Probes) -> Self {
        let recorder = Recorder::new(session.handlers(), Precision::Three);
        Self { session, recorder }
    }
}

/// Probes with a window that has begun.
pub(crate) struct Window {
    pub(crate) session: Probes,
    recorder: Recorder,
    before: Counters,
    books_before: Vec<Books>,
}

/// One handler over a window.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) measure: HandlerMeasure,
    /// Calls in the window by the module's own count.
    pub(crate) truth: u64,
    /// Starts that were displaced from their slot in the window.
    pub(crate) displaced: u64,
    /// Calls of the window that returned on another CPU.
    pub(crate) migrated: u64,
}

impl Window {
    pub(crate) fn on(patterns: &[&str]) -> Self {
        Self::attached(Probes::attach(&resolve(patterns), Options::default()).unwrap())
    }

    /// The same by one backend alone.
    pub(crate) fn by(backend: Backend, patterns: &[&str]) -> Self {
        let options = Options { backend: Some(backend), ..Options::default() };
        Self::attached(Probes::attach(&resolve(patterns), options).unwrap())
    }

    /// Starts a window of a session while no counted call starts.
    pub(crate) fn attached(session: Probes) -> Self {
        Self::of(Attached::new(session))
    }

    /// The same of probes that may have had windows before.
    pub(crate) fn of(attached: Attached) -> Self {
        let Attached { mut session, mut recorder } = attached;
        let (before, drained) = between_calls(|| {
            let drained = session.drain().unwrap();
            recorder.begin(&drained);
            drained
        });
        let books_before = drained.iter().map(|drained| drained.books).collect();
        Self { session, recorder, before, books_before }
    }

    /// A drain within the window.
    pub(crate) fn drain(&mut self) {
        self.recorder.add(&self.session.drain().unwrap());
    }

    /// Ends the window while no counted call starts, and takes the probes off.
    pub(crate) fn end(self) -> Vec<Measured> {
        self.end_and_keep().0
    }

    /// Ends the window while no counted call starts. The probes stay, for another one: attaching takes longer than most loads.
    pub(crate) fn end_and_keep(self) -> (Vec<Measured>, Attached) {
        let Self { mut session, mut recorder, before, books_before } = self;
        let (after, drained) = between_calls(|| {
            let drained = session.drain().unwrap();
            recorder.add(&drained);
            drained
        });
        let books = drained.iter().map(|drained: &Drained| drained.books);
        let measured = recorder
            .clone()
            .finish()
            .into_iter()
            .zip(books.zip(books_before))
            .map(|(measure, (now, then))| Measured {
                truth: after.of(counter(&measure.target)) - before.of(counter(&measure.target)),
                displaced: now.displaced - then.displaced,
                migrated: now.migrated - then.migrated,
                measure,
            })
            .collect();
        (measured, Attached { session, recorder })
    }
}

/// Name of a function's counter in the module.
fn counter(target: &Target) -> &str {
    match (target.name.as_str(), target.duplicate_index) {
        ("testbed_twin", Some(1)) => "testbed_twin_first",
        ("testbed_twin", Some(2)) => "testbed_twin_second",
        (name, _) => name,
    }
}

/// Whether the kernel may preempt a task in a trampoline's program. Until the task is back, the kernel skips that
/// program for all others on the CPU, and counts the skips.
pub(crate) fn preempts() -> bool {
    let model = profiler_kernel::host::collect().preemption;
    !matches!(model.expect("debugfs tells").as_str(), "none" | "voluntary")
}

/// Repeats `drain` until the module counted no call meanwhile.
fn between_calls<T>(mut drain: impl FnMut() -> T) -> (Counters, T) {
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        let before = Counters::calls();
        let drained = drain();
        let after = Counters::calls();
        if before == after {
            return (after, drained);
        }
        assert!(Instant::now() < patience, "the machine does not come to rest");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Measured {
    pub(crate) fn name(&self) -> &str {
        &self.measure.target.name
    }

    pub(crate) fn count(&self) -> u64 {
        self.measure.durations.len()
    }

    pub(crate) fn mean_ns(&self) -> f64 {
        self.measure.durations.sum_ns() as f64 / self.count() as f64
    }

    /// Mean of all calls but the longest in a hundred, which an interrupt may have come upon: one that takes 100,000
    /// instructions moves the mean of 4,000 calls by 25. A call counts as the middle of its bucket.
    pub(crate) fn uninterrupted_mean_ns(&self) -> f64 {
        let histogram = self.measure.durations.histogram();
        let rank = nearest_rank(histogram.len(), 0.99).unwrap();
        let (mut left, mut sum) = (rank, 0.0);
        for found in histogram.iter_recorded() {
            let (value, count) = (found.value_iterated_to(), found.count_at_value().min(left));
            let (from, to) =
                (histogram.lowest_equivalent(value), histogram.highest_equivalent(value));
            sum += count as f64 * (from as f64 + to as f64) / 2.0;
            left -= count;
        }
        sum / rank as f64
    }

    /// Every call of the window was measured, and nothing else was.
    pub(crate) fn assert_exact(&self) {
        let losses = &self.measure.losses;
        let text = format!("{}: {losses:?}", self.name());
        assert_eq!(self.count(), self.truth, "{text}");
        assert_eq!(losses.entries, self.truth, "{text}");
        assert_eq!(losses.exits, self.truth, "{text}");
        assert_eq!(losses.carried_in, 0, "{text}");
        assert_eq!(losses.in_flight, 0, "{text}");
        assert_eq!(losses.lost, 0, "{text}");
        assert_eq!(losses.unpaired_exits, 0, "{text}");
        assert_eq!(losses.missed, 0, "{text}");
        assert_eq!(losses.over_range, 0, "{text}");
        assert_eq!((losses.doubtful, losses.backwards), (0, 0), "{text}");
        assert_eq!(losses.imbalance(self.count()), 0, "{text}");
        self.assert_ordered();
    }

    /// Every call of the window was measured, or is in the books as one that was not.
    pub(crate) fn assert_accounted(&self, backend: Backend) {
        let (losses, count, truth) = (&self.measure.losses, self.count(), self.truth);
        let text = format!("{backend}: {}: {count} of {truth}: {losses:?}", self.name());
        assert_eq!(losses.imbalance(count), 0, "{text}");
        assert_eq!((losses.in_flight, losses.carried_in), (0, 0), "{text}");
        self.assert_ordered();
        if losses.lost + losses.missed + losses.unpaired_exits == 0 {
            self.assert_exact();
            return;
        }
        // Without its entry a call is missed; without its exit, or with another's, it is lost.
        assert!(losses.entries <= truth && truth <= losses.entries + losses.missed, "{text}");
        assert_eq!(losses.entries, count + losses.lost + losses.doubtful, "{text}");
        assert!(truth <= count + losses.unmeasured(), "{text}");
    }

    /// Minimum, mean and maximum are those of one set of durations, and of the histogram's.
    pub(crate) fn assert_ordered(&self) {
        let (durations, name) = (&self.measure.durations, self.name());
        if self.count() == 0 {
            assert_eq!(
                (durations.sum_ns(), durations.min_ns(), durations.max_ns()),
                (0, None, None),
                "{name}"
            );
            return;
        }
        let (min, max) = (durations.min_ns().unwrap(), durations.max_ns().unwrap());
        let mean = self.mean_ns();
        assert!(min > 0 && min as f64 <= mean && mean <= max as f64, "{name}: {min} {mean} {max}");
        // Buckets are 1/1024 wide at most.
        let histogram = durations.histogram();
        assert!(histogram.equivalent(histogram.min(), min), "{name}: {} {min}", histogram.min());
        assert!(histogram.equivalent(histogram.max(), max), "{name}: {} {max}", histogram.max());
        let off = (histogram.mean() - mean).abs() / mean;
        assert!(off < 0.002, "{name}: mean {mean} and {} of the histogram", histogram.mean());
    }
}
