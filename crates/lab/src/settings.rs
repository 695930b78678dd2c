//! Options of a lab, their defaults, and what follows from them for each kernel.

use std::ops::Range;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use profiler_base::error::{Failure, exit};
use profiler_load::BuiltinKind;
use profiler_recording::{Clock, Meter};
use profiler_run::args::GuestArgs;
use profiler_verdict::FIRST_PLACEMENTS;

use super::agent::Agent;
use super::plan::{Job, Length, RunSpec};
use super::subject::{Subject, agent_beside};

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
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Kernels to boot; by default those that the modules were built for.
    pub kernels: Vec<String>,
    /// The only subject, or the baseline, and what is compared with it, if anything: one for each kernel.
    pub subjects: [Vec<Subject>; 2],
    /// Parameters of the modules of each side.
    pub params: [String; 2],
    /// What runs beside the driver.
    pub agent: Option<Agent>,
    /// What is measured.
    pub run: RunSpec,
    /// Placements of each build, where instructions are counted.
    pub placements: Option<u32>,
    /// Where probes measure, runs in each boot, or rounds of ABBA.
    pub repeat: Option<u32>,
    /// Where probes measure, boots of each kernel.
    pub boots: Option<u32>,
    /// Guests that run side by side.
    pub jobs: Option<u32>,
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

/// The default length of a run with these loads.
pub fn usual_length(meter: Meter, loads: &[BuiltinKind]) -> Length {
    Length::Operations(match meter {
        _ if loads.iter().any(|kind| is_slow(*kind)) => OPERATIONS_IF_SLOW,
        Meter::Exact => OPERATIONS_IF_EXACT,
        Meter::Probes => OPERATIONS,
    })
}

impl Options {
    /// The defaults for counted instructions, without subjects or loads.
    pub fn counted() -> Self {
        Self {
            run: RunSpec::counted(Vec::new(), OPERATIONS_IF_EXACT),
            memory: "512M".to_owned(),
            timeout: TIMEOUT,
            ..Self::default()
        }
    }

    /// The same with the subjects of each side, and with what is named beside them.
    ///
    /// # Errors
    /// If one cannot be read, or files are for none.
    pub fn given(sides: [&[PathBuf]; 2], guests: &GuestArgs) -> Result<Self, Failure> {
        let [baseline, candidate] =
            sides.map(|given| Subject::all(given, &guests.agent.agent_file));
        let subjects = [baseline?, candidate?];
        let has_command = subjects.iter().flatten().any(Subject::is_command);
        let agent = agent_beside(&guests.agent, has_command)?;
        Ok(Self { subjects, agent, logs: guests.logs.clone(), ..Self::counted() })
    }

    /// Refuses options that contradict each other.
    ///
    /// # Errors
    /// Names the contradiction.
    pub fn check(&self) -> Result<(), Failure> {
        let (run, [baseline, candidate]) = (&self.run, &self.subjects);
        let (virtual_time, exact) = (run.clock == Clock::Virtual, run.meter == Meter::Exact);
        let mut sides = self.subjects.iter();
        let is_many = sides.any(|of| of.len() > 1 && of.iter().any(Subject::is_command));
        let is_command = self.subjects.iter().flatten().any(Subject::is_command);
        let why = if virtual_time && self.cpus.is_some_and(|cpus| cpus != 1) {
            "virtual time needs one CPU: leave out --cpus, or say --clock wall"
        } else if exact && !virtual_time {
            "the emulator counts under virtual time: leave out --clock wall, or say --meter probes"
        } else if is_many {
            "one `run: COMMAND` of each build is for all kernels: give it once"
        } else if exact && (self.boots.is_some() || self.repeat.is_some()) {
            "counted instructions of a run repeat to the bit: say --placements in place of --boots and --repeat"
        } else if exact && run.backend.is_some() {
            "--backend is for --meter probes"
        } else if exact && run.length.operations().is_none() {
            "counted runs make a number of operations: say --operations in place of --duration"
        } else if !exact && !run.dimensions.is_none() {
            "--dimensions are for --meter exact"
        } else if run.dimensions.descriptors > 0 && run.loads.len() > 1 {
            "descriptors are the process's: give one --builtin with them"
        } else if !exact && (self.placements.is_some() || self.verify) {
            "--placements and --verify are for --meter exact; with probes say --boots"
        } else if !exact && (is_command || self.agent.is_some()) {
            "--agent, and what is no FILE.ko, are for --meter exact"
        } else if is_command && self.agent.is_some() {
            "--agent is for a driver: what is no FILE.ko is measured alone"
        } else if !candidate.is_empty() && baseline.len() != candidate.len() {
            "give as many --candidate as --baseline: one of each for each kernel"
        } else {
            return Ok(());
        };
        Err(Failure::new(exit::USAGE, why))
    }

    /// The run that was asked for.
    pub fn job(&self) -> Job {
        let run = self.run.clone();
        let cost = self.cost
            && run.meter == Meter::Exact
            && run.rate.is_none()
            && matches!(run.loads.as_slice(), [kind] if has_cost(*kind));
        Job { cost, run, ..Job::default() }
    }

    /// Whether two builds are compared.
    fn is_pair(&self) -> bool {
        !self.subjects[1].is_empty()
    }

    /// Numbers of the placements of each build, where instructions are counted.
    pub(super) fn placements(&self) -> Range<u32> {
        let usual = if self.is_pair() { FIRST_PLACEMENTS as u32 } else { 1 };
        0..self.placements.unwrap_or(usual)
    }

    /// Where probes measure, boots, and in each the runs, or rounds of ABBA.
    pub(super) fn boots(&self) -> [u32; 2] {
        // Two rounds of ABBA in two boots: enough runs for a gate over many handlers.
        let usual = if self.is_pair() { 2 } else { 1 };
        [self.boots, self.repeat].map(|given| given.unwrap_or(usual))
    }

    /// CPUs of a guest under wall clock.
    pub(super) fn cpus(&self) -> u32 {
        self.cpus.unwrap_or(CPUS)
    }

    /// Guests that run side by side.
    pub(super) fn jobs(&self) -> u32 {
        match (self.jobs, self.run.clock) {
            (Some(jobs), _) => jobs,
            (None, Clock::Virtual) => available_parallelism().map_or(1, |cpus| cpus.get() as u32),
            (None, Clock::Wall) => 1,
        }
    }
}

/// Whether an operation starts a process, mounts, or changes an interface or the kernel.
pub(super) fn is_slow(kind: BuiltinKind) -> bool {
    SLOW.contains(&kind)
}

/// Whether an operation waits for grace periods and threads, for longer or shorter by what these do (LKRG checks the whole kernel
/// at each change of an interface: 176,000 instructions of an operation varied by 3,000).
pub(super) fn waits(kind: BuiltinKind) -> bool {
    kind == BuiltinKind::Interface || kind.changes_kernel()
}

/// Whether an operation's instructions are those of system calls alone: the kernel starts modprobe in a thread of its own.
pub fn has_cost(kind: BuiltinKind) -> bool {
    kind != BuiltinKind::CallUsermodehelper && !waits(kind)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn module(file: &str) -> Subject {
        Subject::Module(file.into())
    }

    fn options() -> Options {
        let run = RunSpec {
            meter: Meter::Probes,
            handlers: vec!["bind_*".to_owned()],
            ..RunSpec::counted(vec![BuiltinKind::Bind], 9)
        };
        let subjects = [vec![module("d.ko")], Vec::new()];
        Options { subjects, run, cost: true, ..Options::counted() }
    }

    #[test]
    fn virtual_time_counts_operations() {
        let subjects = ["d.ko", "b.ko"].map(|file| vec![module(file)]);
        let two = Options { subjects, ..options() };
        assert_eq!((two.boots(), two.placements()), ([2, 2], 0..3));
        let one = Options { boots: Some(2), ..options() };
        assert_eq!((one.boots(), one.placements()), ([2, 1], 0..1));
        let job = one.job();
        assert_eq!(job.run, one.run);
        assert!(!job.cost, "probes do not count operations");
        let run = RunSpec { meter: Meter::Exact, ..options().run };
        assert!(Options { run, ..options() }.job().cost);
        let usual = |meter, kind| usual_length(meter, &[BuiltinKind::Bind, kind]);
        assert_eq!(usual(Meter::Exact, BuiltinKind::Bind), Length::Operations(1_000));
        assert_eq!(usual(Meter::Probes, BuiltinKind::Bind), Length::Operations(20_000));
        assert_eq!(usual(Meter::Probes, BuiltinKind::Execve), Length::Operations(400));
    }

    #[test]
    fn wall_clock_runs_one_vm_at_a_time() {
        let run = RunSpec { clock: Clock::Wall, ..options().run };
        let wall = Options { run, ..options() };
        assert_eq!((wall.cpus(), wall.jobs()), (2, 1));
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
        let wall = RunSpec { clock: Clock::Wall, ..options().run };
        assert!(Options { run: wall, ..two_cpus }.check().is_ok());
        let exact = RunSpec { meter: Meter::Exact, ..options().run };
        let boots = Options { run: exact.clone(), boots: Some(2), ..options() };
        assert!(refused(&boots).contains("--placements"));
        assert!(refused(&Options { verify: true, ..options() }).contains("--meter exact"));
        let run = RunSpec { length: Length::Time(Duration::from_secs(1)), ..exact.clone() };
        assert!(refused(&Options { run, ..options() }).contains("--operations"));
        let subjects = [vec![module("a.ko"), module("b.ko")], vec![module("c.ko")]];
        let uneven = Options { subjects, ..options() };
        assert!(refused(&uneven).contains("as many"));
        let agent = Subject::of(Path::new("run: sh -c true"), &[]).unwrap();
        let subjects = [vec![agent.clone()], Vec::new()];
        let command = Options { subjects, ..options() };
        assert!(refused(&command).contains("for --meter exact"));
        let two = Options { run: exact, agent: agent.command().cloned(), ..command };
        assert!(refused(&two).contains("measured alone"));
    }
}
