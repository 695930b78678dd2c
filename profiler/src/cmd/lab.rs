//! `profiler lab`: measures a driver in VMs, under virtual time by default.

mod options;
mod output;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_lab::{self as lab, builds};
use profiler_load::{BuiltinKind, Dimensions, Rate};
use profiler_recording::{Backend, Clock, Meter};
use profiler_run::args::{GuestArgs, SUBJECT, by_name, length, one_of_these};

pub use profiler_lab::guest::run as guest;

use output::Outputs;

const EXAMPLES: &str = "\
Examples:
  # what the handlers of connect cost in this build, in instructions, on the kernel it was built for
  profiler lab --module hids_driver.ko --handler 'connect_*' --builtin connect --json connect.json
  # before and after a change, two series for `profiler compare` and `profiler gate`
  profiler lab --baseline base.ko --candidate head.ko --profile connect --out lab/
  # what the BPF programs of an agent cost
  profiler lab --kernel 6.1 --agent ./agent --agent-file agent.yaml --builtin connect
  # how far figures depend on where objects lie, and whether each run repeats to the bit
  profiler lab --module hids_driver.ko --profile connect --placements 5 --verify";

/// Arguments of `profiler lab`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = one_of_these("subject", &["module", "baseline", "agent"]), group = one_of_these("work", &["builtin", "profile"]))]
pub struct LabArgs {
    /// Kernel to boot (repeatable): a vmlinuz, the folder of an unpacked kernel package, a version in /boot, or one
    /// that `profiler kernels fetch` got, such as 6.1 [default: the version that the module was built for].
    #[arg(long, value_name = "FILE|FOLDER|VERSION")]
    pub kernel: Vec<String>,
    /// The driver's file (repeatable: one for each kernel). If it has no BTF, a copy gets it.
    #[arg(long, short, value_name = "FILE.ko")]
    pub module: Vec<PathBuf>,
    /// The driver before the change (repeatable: one for each kernel), or a file of BPF programs, or a program whose BPF programs are
    /// measured, as `run: COMMAND`.
    #[arg(long, value_name = SUBJECT, requires = "candidate", conflicts_with = "module")]
    pub baseline: Vec<PathBuf>,
    /// The same after the change.
    #[arg(long, value_name = SUBJECT, requires = "baseline")]
    pub candidate: Vec<PathBuf>,
    /// Parameters of the module, as insmod takes them.
    #[arg(long, value_name = "NAME=VALUE ...", default_value = "")]
    pub module_params: String,
    /// Further parameters of the baseline.
    #[arg(long, value_name = "NAME=VALUE ...", requires = "baseline", default_value = "")]
    pub baseline_params: String,
    /// Further parameters of the candidate.
    #[arg(long, value_name = "NAME=VALUE ...", requires = "baseline", default_value = "")]
    pub candidate_params: String,
    /// Handler to measure, by name or glob (repeatable) [default: those of --profile; else all functions of the
    /// driver, if instructions are counted].
    #[arg(long = "handler", short = 'H', value_name = "NAME|GLOB")]
    pub handlers: Vec<String>,
    /// Load profile with a built-in load, which gives the handlers, the load and the module's parameter
    /// that they need. `profiler profiles` lists them.
    #[arg(long, short, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// Folder of load profiles that is searched before all others (repeatable).
    #[arg(long = "profiles-dir", value_name = "DIR", requires = "profile")]
    pub profile_folders: Vec<PathBuf>,
    /// Built-in load, such as connect (repeatable, or several with commas: they run side by side); an unknown name
    /// prints the list.
    #[arg(long, value_delimiter = ',', value_name = "KIND", conflicts_with = "profile")]
    pub builtin: Vec<BuiltinKind>,
    /// Operations of each built-in load in a run. The same number in every run gives every run the
    /// same calls [default: 1000 where instructions are counted, else 20000; 400 with a load that starts
    /// processes or mounts].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: Option<u64>,
    /// Length of a run with probes on the guest's clock, in place of a number of operations.
    #[arg(long, short, value_parser = length, conflicts_with = "operations")]
    pub duration: Option<Duration>,
    /// Operations per second of each built-in load, such as 97/s [default: as fast as possible].
    #[arg(long, value_name = "N/s")]
    pub rate: Option<Rate>,
    /// What operations give handlers to walk over, such as depth=8,args=4096: depth (folders above the files of loads on files), args
    /// and env (bytes, of execve), descriptors (open ones of the process), ancestors (processes above it).
    #[arg(long, value_name = "NAME=N,...")]
    pub dimensions: Option<Dimensions>,
    /// Threads of each built-in load.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub workers: u32,
    /// Where instructions are counted: placements of each build, that is, histories of the guest before the driver is installed
    /// [default: 1; 3 with --baseline].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub placements: Option<u32>,
    /// Make each run twice, and fail unless both count the same.
    #[arg(long)]
    pub verify: bool,
    /// Where probes measure: runs in each boot [default: 1]; with --baseline, rounds of ABBA in each boot [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,
    /// Where probes measure: boots of each kernel [default: 1; 2 with --baseline].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub boots: Option<u32>,
    /// Guests that run side by side [default: one per CPU under virtual time, which changes no figure;
    /// else one].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub jobs: Option<u32>,
    /// `virtual`: one CPU, and a clock that counts instructions. `wall`: the host's time, on
    /// several CPUs, to see contention.
    #[arg(long, value_parser = by_name::<Clock>(), default_value_t = Clock::Virtual)]
    pub clock: Clock,
    /// How handlers are measured [default: exact under virtual time, else probes]. `exact`: the emulator
    /// counts the instructions of each call, without probes. `probes`: as `profiler run` does.
    #[arg(long, value_parser = by_name::<Meter>())]
    pub meter: Option<Meter>,
    /// Have probes measure all handlers with this backend, as `profiler run` does.
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// CPUs of the guest on the wall clock [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: Option<u32>,
    /// Memory of the guest, as QEMU takes it.
    #[arg(long, default_value = "512M")]
    pub memory: String,
    /// Longest time that one machine may take, on the host's clock.
    #[arg(long, value_parser = length, default_value = "15m")]
    pub timeout: Duration,
    /// Do not count what the driver costs an operation of the load.
    #[arg(long)]
    pub no_cost: bool,
    /// Write the recording of the run, or the series of several, as JSON to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "baseline")]
    pub json: Option<PathBuf>,
    /// Write the series as JSON into this folder: baseline.json and candidate.json, or series.json;
    /// with several kernels, in a folder for each.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// What runs in the guests beside that, and what is kept and said of them.
    #[command(flatten)]
    pub guests: GuestArgs,
}

impl LabArgs {
    /// How handlers are measured.
    pub fn meter(&self) -> Meter {
        self.meter.unwrap_or(match self.clock {
            Clock::Virtual => Meter::Exact,
            Clock::Wall => Meter::Probes,
        })
    }
}

/// See the [command line](LabArgs).
///
/// # Errors
/// With the exit code of the [table](exit). What was measured before a failure has been reported and
/// saved.
pub fn run(args: &LabArgs) -> Result<(), Failure> {
    let options = options::of(args)?;
    let folder = lab::private_folder("profiler-lab-")?;
    let benches = builds::of_kernels(&options, folder.path())?;
    let mut outputs = Outputs::open(args, &benches)?;
    let mut progress = Progress::new(args.guests.quiet);
    let mut is_reached = false;
    for (number, bench) in benches.iter().enumerate() {
        let measured = lab::run_with_progress(bench, &options, &[options.job()], &mut progress);
        is_reached |= measured.runs.iter().flatten().any(|run| run.calls() > 0);
        if let Some(failure) = outputs.deliver(number, bench, measured)? {
            return Err(failure);
        }
    }
    if is_reached {
        return Ok(());
    }
    let text = "no load reached a handler: choose another with --builtin or --profile; `profiler list --module FILE.ko`, or `--agent COMMAND`, \
                shows where the kernel calls it";
    Err(Failure::new(exit::NO_HITS, text))
}
