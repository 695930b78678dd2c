//! From what is asked for to what each boot does.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use super::agent::Agent;
use super::plan::{Job, Length, RunSpec};
use super::subject::Subject;
use crate::error::{Failure, exit};
use crate::load::{BuiltinKind, Dimensions, Rate};
use crate::recording::{Backend, Clock, Meter};
use crate::verdict::FIRST_PLACEMENTS;

/// Operations of a run where none were asked for: enough calls for a TP99, and so many timer
/// interrupts that one more or less in a handler hardly moves its average.
const OPERATIONS: u64 = 20_000;

/// The same where instructions are counted: no interrupt is in them, and the same operations take the same. A TP99 needs
/// 200 calls.
const OPERATIONS_IF_EXACT: u64 = 1_000;

/// Operations that start a process, mount, change an interface or the kernel, of which one takes the guest a thousand times as long.
const SLOW: [BuiltinKind; 7] = [
    BuiltinKind::Execve,
    BuiltinKind::Setsid,
    BuiltinKind::CallUsermodehelper,
    BuiltinKind::Mount,
    BuiltinKind::Interface,
    BuiltinKind::Module,
    BuiltinKind::TextPoke,
];

/// Operations of a run with one of these.
const OPERATIONS_IF_SLOW: u64 = 400;

/// CPUs under wall clock: the fewest that can get in each other's way.
const CPUS: u32 = 2;

/// Longest that a machine may take: ten times what it takes on a machine that does nothing else.
const TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// What a lab is asked for. `None` is a default that depends on the rest.
#[derive(Debug, Clone)]
pub struct Options {
    /// Kernels to boot; none is the one that the module was built for.
    pub kernels: Vec<String>,
    /// The only subject, or the baseline: one for each kernel.
    pub baseline: Vec<Subject>,
    /// Parameters of the module.
    pub baseline_params: String,
    /// The subjects that are compared; none if there is one alone.
    pub candidate: Vec<Subject>,
    /// Parameters of these.
    pub candidate_params: String,
    /// What runs beside the driver.
    pub agent: Option<Agent>,
    /// Handlers, by name or glob.
    pub handlers: Vec<String>,
    /// Built-in loads that run side by side.
    pub loads: Vec<BuiltinKind>,
    /// Threads of each load.
    pub workers: u32,
    /// Operations per second of each load; `None` is as fast as possible.
    pub rate: Option<Rate>,
    /// What operations give handlers to walk over.
    pub dimensions: Dimensions,
    /// When a run ends.
    pub length: Option<Length>,
    /// Placements of each build, where instructions are counted.
    pub placements: Option<u32>,
    /// Where probes measure, runs in each boot, or rounds of ABBA.
    pub repeat: Option<u32>,
    /// Where probes measure, boots of each kernel.
    pub boots: Option<u32>,
    /// Guests that run side by side.
    pub jobs: Option<u32>,
    /// What a nanosecond is.
    pub clock: Clock,
    /// Whether the emulator counts, or probes measure.
    pub meter: Meter,
    /// The backend of all probes; `None`: of each handler the best.
    pub backend: Option<Backend>,
    /// CPUs of the guest.
    pub cpus: Option<u32>,
    /// Memory of the guest, as QEMU takes it.
    pub memory: String,
    /// Longest that one boot may take on the host's clock.
    pub timeout: Duration,
    /// Whether the loads are timed without the driver and with it.
    pub cost: bool,
    /// Each run is made twice, and both have to count the same.
    pub verify: bool,
    /// Where the guests' messages are kept.
    pub logs: Option<PathBuf>,
}

/// How one kernel is measured: nothing is left open.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What a nanosecond is.
    pub clock: Clock,
    /// CPUs of the guest; virtual time takes one.
    pub cpus: u32,
    /// Memory of the guest, as QEMU takes it.
    pub memory: String,
    /// Longest that one machine may take on the host's clock.
    pub timeout: Duration,
    /// Numbers of the placements of each build, where instructions are counted.
    pub placements: Range<u32>,
    /// Where probes measure, boots.
    pub boots: u32,
    /// Where probes measure, runs in each boot, or rounds of ABBA.
    pub repeat: u32,
    /// Guests that run side by side.
    pub jobs: u32,
    /// What is measured.
    pub work: Vec<Job>,
    /// Each run is made twice, and both have to count the same.
    pub verify: bool,
    /// What runs beside the driver.
    pub agent: Option<Agent>,
    /// What jobs run as their operations, where they say so.
    pub program: Option<Agent>,
    /// A folder for the files of this kernel's guests.
    pub folder: PathBuf,
    /// Where the guests' messages are kept.
    pub logs: Option<PathBuf>,
}

impl Options {
    /// Instructions counted under virtual time; what is measured is left open.
    #[must_use]
    pub fn counted() -> Self {
        Self {
            kernels: Vec::new(),
            baseline: Vec::new(),
            baseline_params: String::new(),
            candidate: Vec::new(),
            candidate_params: String::new(),
            agent: None,
            handlers: vec!["*".to_owned()],
            loads: Vec::new(),
            workers: 1,
            rate: None,
            dimensions: Dimensions::default(),
            length: None,
            placements: None,
            repeat: None,
            boots: None,
            jobs: None,
            clock: Clock::Virtual,
            meter: Meter::Exact,
            backend: None,
            cpus: None,
            memory: "512M".to_owned(),
            timeout: TIMEOUT,
            cost: false,
            verify: false,
            logs: None,
        }
    }

    /// Refuses options that contradict each other.
    ///
    /// # Errors
    /// With what contradicts what.
    pub fn check(&self) -> Result<(), Failure> {
        let usage = |text: &str| Err(Failure::new(exit::USAGE, text));
        if self.clock == Clock::Virtual && self.cpus.is_some_and(|cpus| cpus != 1) {
            return usage("virtual time needs one CPU: leave out --cpus, or say --clock wall");
        }
        if self.meter == Meter::Exact && self.clock == Clock::Wall {
            return usage(
                "the emulator counts under virtual time: leave out --clock wall, or say --meter probes",
            );
        }
        let is_many =
            |all: &Vec<Subject>| all.len() > 1 && all.iter().any(|it| it.command().is_some());
        if [&self.baseline, &self.candidate].into_iter().any(is_many) {
            return usage("one `run: COMMAND` of each build is for all kernels: give it once");
        }
        let (exact, probes) = (self.meter == Meter::Exact, self.meter == Meter::Probes);
        if exact && (self.boots.is_some() || self.repeat.is_some()) {
            return usage(
                "counted instructions of a run repeat to the bit: say --placements in place of --boots and --repeat",
            );
        }
        if exact && self.backend.is_some() {
            return usage("--backend is for --meter probes");
        }
        if probes && !self.dimensions.is_none() {
            return usage("--dimensions are for --meter exact");
        }
        if self.dimensions.descriptors > 0 && self.loads.len() > 1 {
            return usage("descriptors are the process's: give one --builtin with them");
        }
        if probes && (self.placements.is_some() || self.verify) {
            return usage(
                "--placements and --verify are for --meter exact; with probes say --boots",
            );
        }
        let mut subjects = self.baseline.iter().chain(&self.candidate);
        let is_command = subjects.any(|subject| subject.command().is_some());
        if probes && (is_command || self.agent.is_some()) {
            return usage("--agent and `run: COMMAND` are for --meter exact");
        }
        if is_command && self.agent.is_some() {
            return usage("--agent is for a driver: `run: COMMAND` is measured alone");
        }
        if !self.candidate.is_empty() && self.baseline.len() != self.candidate.len() {
            return usage("give as many --candidate as --baseline: one of each for each kernel");
        }
        Ok(())
    }

    /// The settings for one kernel, whose guests have their files in `folder`.
    #[must_use]
    pub fn settings(&self, folder: &Path) -> Settings {
        let (cpus, side_by_side) = match self.clock {
            Clock::Virtual => {
                let cpus = available_parallelism().map_or(1, std::num::NonZero::get);
                (1, u32::try_from(cpus).unwrap_or(1))
            }
            Clock::Wall => (self.cpus.unwrap_or(CPUS), 1),
        };
        let two = !self.candidate.is_empty();
        // Two rounds of ABBA in two boots: enough runs for a gate over many handlers.
        let usual = if two { 2 } else { 1 };
        let placements = self.placements.unwrap_or(if two { FIRST_PLACEMENTS as u32 } else { 1 });
        let run = self.run();
        let counted = matches!(run.length, Length::Operations(_)) && self.rate.is_none();
        let cost = self.cost
            && self.meter == Meter::Exact
            && counted
            && matches!(self.loads.as_slice(), [kind] if has_cost(*kind));
        Settings {
            clock: self.clock,
            cpus,
            memory: self.memory.clone(),
            timeout: self.timeout,
            placements: 0..placements,
            boots: self.boots.unwrap_or(usual),
            repeat: self.repeat.unwrap_or(usual),
            jobs: self.jobs.unwrap_or(side_by_side),
            work: vec![Job { part: None, run, cost, guest: 0, wanted: None, program: false }],
            verify: self.verify,
            agent: self.agent.clone(),
            program: None,
            folder: folder.to_owned(),
            logs: self.logs.clone(),
        }
    }

    fn run(&self) -> RunSpec {
        let slow = self.loads.iter().any(|kind| is_slow(*kind));
        let usual = match self.meter {
            _ if slow => OPERATIONS_IF_SLOW,
            Meter::Exact => OPERATIONS_IF_EXACT,
            Meter::Probes => OPERATIONS,
        };
        RunSpec {
            clock: self.clock,
            meter: self.meter,
            backend: self.backend,
            handlers: self.handlers.clone(),
            loads: self.loads.clone(),
            workers: self.workers,
            rate: self.rate,
            dimensions: self.dimensions,
            length: self.length.unwrap_or(Length::Operations(usual)),
        }
    }
}

/// Whether an operation starts a process or mounts.
pub(super) fn is_slow(kind: BuiltinKind) -> bool {
    SLOW.contains(&kind)
}

/// Whether an operation waits for grace periods and threads, for longer or shorter by what these do (LKRG checks the whole kernel
/// at each change of an interface: 176,000 instructions of an operation varied by 3,000).
pub(super) fn waits(kind: BuiltinKind) -> bool {
    kind == BuiltinKind::Interface || kind.changes_kernel()
}

/// Whether an operation's instructions are those of system calls alone: the kernel starts modprobe in a thread of its own.
#[must_use]
pub fn has_cost(kind: BuiltinKind) -> bool {
    kind != BuiltinKind::CallUsermodehelper && !waits(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(file: &str) -> Subject {
        Subject::Module(file.into())
    }

    fn options() -> Options {
        Options {
            kernels: Vec::new(),
            baseline: vec![module("d.ko")],
            baseline_params: String::new(),
            candidate: Vec::new(),
            candidate_params: String::new(),
            agent: None,
            handlers: vec!["bind_*".to_owned()],
            loads: vec![BuiltinKind::Bind],
            workers: 1,
            rate: None,
            dimensions: Dimensions::default(),
            length: None,
            placements: None,
            repeat: None,
            boots: None,
            jobs: None,
            clock: Clock::Virtual,
            meter: Meter::Probes,
            backend: None,
            cpus: None,
            memory: "512M".to_owned(),
            timeout: Duration::from_secs(900),
            cost: true,
            verify: false,
            logs: None,
        }
    }

    fn settings(options: &Options) -> Settings {
        options.settings(Path::new("/lab/kernel-0"))
    }

    #[test]
    fn virtual_time_counts_operations() {
        let two = settings(&Options { candidate: vec![module("b.ko")], ..options() });
        assert_eq!((two.boots, two.repeat), (2, 2));
        let one = settings(&Options { boots: Some(2), ..options() });
        let run = RunSpec {
            clock: Clock::Virtual,
            meter: Meter::Probes,
            backend: None,
            handlers: vec!["bind_*".to_owned()],
            loads: vec![BuiltinKind::Bind],
            workers: 1,
            rate: None,
            dimensions: Dimensions::default(),
            length: Length::Operations(20_000),
        };
        assert_eq!(one.work[0].run, run);
        assert_eq!((one.cpus, one.boots), (1, 2));
        assert!(!one.work[0].cost, "probes do not count operations");
        let with = |kind| Options { loads: vec![BuiltinKind::Bind, kind], ..options() };
        let exact = settings(&Options { meter: Meter::Exact, ..options() });
        assert!(exact.work[0].cost);
        assert_eq!(exact.placements, 0..1);
        assert_eq!(exact.work[0].run.length, Length::Operations(1_000));
        let execve = settings(&with(BuiltinKind::Execve));
        assert_eq!(execve.work[0].run.length, Length::Operations(400));
    }

    #[test]
    fn wall_clock_runs_one_vm_at_a_time() {
        let settings = settings(&Options {
            clock: Clock::Wall,
            length: Some(Length::Time(Duration::from_secs(10))),
            boots: Some(3),
            ..options()
        });
        assert_eq!((settings.cpus, settings.jobs), (2, 1));
        assert_eq!(settings.work[0].run.length, Length::Time(Duration::from_secs(10)));
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |options: &Options| {
            let failure = options.check().unwrap_err();
            assert_eq!(failure.code, exit::USAGE);
            failure.message
        };
        let two_cpus = Options { cpus: Some(2), ..options() };
        assert!(refused(&two_cpus).contains("virtual time needs one CPU"));
        assert!(Options { clock: Clock::Wall, ..two_cpus }.check().is_ok());
        let boots = Options { meter: Meter::Exact, boots: Some(2), ..options() };
        assert!(refused(&boots).contains("--placements"));
        assert!(refused(&Options { verify: true, ..options() }).contains("--meter exact"));
        let baseline = vec![module("a.ko"), module("b.ko")];
        let uneven = Options { baseline, candidate: vec![module("c.ko")], ..options() };
        assert!(refused(&uneven).contains("as many"));
        let agent = Subject::of(Path::new("run: sh -c true"), &[]).unwrap();
        let command = Options { baseline: vec![agent.clone()], ..options() };
        assert!(refused(&command).contains("for --meter exact"));
        let meter = Meter::Exact;
        let two = Options { meter, agent: agent.command().cloned(), ..command };
        assert!(refused(&two).contains("measured alone"));
    }
}
