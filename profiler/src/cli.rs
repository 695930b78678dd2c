//! The command line: the only place with clap's types.

pub mod compare;
pub mod explain;
pub mod gate;
mod lab;
mod load;
mod ltp;
mod merge;
mod profiles;
mod report;
mod shell;
mod sweep;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use lab::{LabArgs, LabGuestArgs};
pub use load::{ConfineArgs, WatchArgs};
pub use ltp::LtpArgs;
pub use merge::MergeArgs;
pub use report::ReportArgs;
pub use shell::{CompletionsArgs, ManArgs};
pub use sweep::{Asked, SweepArgs};

use crate::export::{Export, Unit};
use crate::load::{BuiltinKind, Rate};
use crate::probe::Precision;
use crate::profile::{Backend, Clock};
use crate::trace_cmd::Percentile;

pub use profiles::ProfilesArgs;

/// Latency profiler for the hook handlers of kernel modules.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 internal error, 2 wrong usage, 3 this machine cannot measure,
4 module or handler not found, 5 the load failed, 6 no handler had a hit, 7 bad input file,
8 output not writable, 9 fewer hits than the load profile wants, 10 the gate failed,
11 inconclusive, 12 not comparable, 13 too few runs, 14 more losses than --max-loss allows,
15 the VM of a lab failed, 16 the driver was replaced or unloaded meanwhile,
130 interrupted (Ctrl-C), 143 terminated. With 5, 6, 9, 14, 15, 16, 130
and 143 what was measured has been reported and saved.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure handlers under a load, and print a table of their latencies.
    Run(Box<RunArgs>),
    /// Run a load at several rates and numbers of workers, one profile each; goes on after a stop.
    Sweep(SweepArgs),
    /// Print a run from its JSON file, as a table or in another format.
    Report(ReportArgs),
    /// Make one profile out of several: the exact sum of their histograms and losses.
    Merge(MergeArgs),
    /// Say what differs between runs of a baseline and of a candidate.
    Compare(compare::CompareArgs),
    /// Say whether a candidate is slower than it may be; the exit code tells.
    Gate(Box<gate::GateArgs>),
    /// Say where the instructions of handlers go, and what differs between two builds.
    Explain(explain::ExplainArgs),
    /// Print the table of latencies that another tool recorded.
    Import(ImportArgs),
    /// Measure what the probes themselves add to each call of a handler on this machine.
    Cost(CostArgs),
    /// Print the completions for a shell.
    Completions(CompletionsArgs),
    /// Print the man page of a subcommand, or write all of them to a folder.
    Man(ManArgs),
    /// Say what this machine can measure, and what to do where it cannot.
    Doctor(DoctorArgs),
    /// List functions: address, size, whether they can be traced, prototype.
    List(ListArgs),
    /// Give a driver's .ko file the BTF that probes need, before it is loaded.
    Prepare(PrepareArgs),
    /// List and check load profiles: which handlers to measure, and under which load.
    Profiles(ProfilesArgs),
    /// Measure a driver in a VM, under virtual time: figures that repeat on any machine.
    Lab(Box<LabArgs>),
    /// The part of `lab` that runs in the VM.
    #[command(name = "__lab-guest", hide = true)]
    LabGuest(LabGuestArgs),
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  profiler doctor
  # can these handlers of a loaded driver be measured, and if not, what is missing?
  profiler doctor --module hids_driver --handler 'bind_*'";

/// Arguments of `profiler doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// Kernel module that is to be measured.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Functions to look at, by name or glob (repeatable).
    #[arg(long = "handler", short = 'H', value_name = "NAME|GLOB", default_value = "*_handler")]
    pub handlers: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const LIST_EXAMPLES: &str = "\
Examples:
  profiler list --module hids_driver '*_handler'
  # functions of the kernel itself, for a script
  profiler list --json 'tcp_v4_*'";

/// Arguments of `profiler list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// Kernel module that holds the functions; without it those of the kernel image.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Names or globs; variants that the compiler made are found by the name in the source too.
    #[arg(value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const PREPARE_EXAMPLES: &str = "\
Examples:
  # makes hids_driver.btf.ko for the running kernel
  profiler prepare hids_driver.ko
  # for another kernel, whose BTF a file holds
  profiler prepare hids_driver.ko --btf /boot/vmlinux-6.1.0-56-amd64 --output /tmp/hids.ko";

/// Arguments of `profiler prepare`.
#[derive(Debug, Args)]
#[command(after_help = PREPARE_EXAMPLES)]
pub struct PrepareArgs {
    /// The module's file, built with debug information.
    #[arg(value_name = "MODULE.ko")]
    pub file: PathBuf,
    /// BTF of the kernel that will load the module: a raw file, or a vmlinux [default: the
    /// running kernel's].
    #[arg(long, value_name = "PATH")]
    pub btf: Option<PathBuf>,
    /// Where the copy with BTF goes [default: MODULE.btf.ko beside the module].
    #[arg(long, short, value_name = "FILE", conflicts_with = "in_place")]
    pub output: Option<PathBuf>,
    /// Change the file itself.
    #[arg(long)]
    pub in_place: bool,
}

const RUN_EXAMPLES: &str = "\
Examples:
  # two handlers of Elkeid's driver under the built-in connect load, as fast as it goes
  profiler run --module hids_driver --handler connect_syscall_handler \\
      --handler connect_syscall_entry_handler --builtin connect --duration 30s
  # all handlers of bind under a command of your own, with the result as JSON
  profiler run --module hids_driver --handler 'bind_*' --json bind.json -- ./my-load --fast
  # what the load profile bind says: its handlers, for five minutes under LTP's tests of bind
  profiler run --profile bind --duration 5m
  # the ten handlers of Elkeid's table, load after load, without LTP
  profiler run --profile elkeid --builtin";

/// Arguments of `profiler run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// Kernel module that holds the handlers; without it they are functions of the kernel image.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Handler to measure, by name or glob (repeatable). One of several functions of one name is
    /// NAME#2, the second in order of address, or NAME@ADDRESS: see `profiler list`.
    #[arg(
        long = "handler",
        short = 'H',
        required_unless_present_any = ["profile", "no_probe"],
        value_name = "NAME|GLOB"
    )]
    pub handlers: Vec<String>,
    /// Measure the load and its costs without any probe; needs no privileges.
    #[arg(long, conflicts_with_all = ["handlers", "module", "profile"])]
    pub no_probe: bool,
    /// Length of the measured window, such as 30s or 5m [default: 10s, or until the load has
    /// ended if it ends by itself].
    #[arg(long, short, value_parser = duration)]
    pub duration: Option<Duration>,
    /// How long the load runs before the window begins.
    #[arg(long, value_parser = duration, default_value = "0s")]
    pub warmup: Duration,
    /// Measure that many times, each with probes, load and warm-up of its own. The runs are kept apart:
    /// the table has medians and spreads, and the JSON is what `compare` and `gate` read.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Print a line every so often, and keep figures of each such interval in the JSON.
    #[arg(long, value_parser = duration)]
    pub interval: Option<Duration>,
    /// Write the whole profile as JSON to this file (`-` is standard output).
    #[arg(long, short = 'o', value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the profile to this file in another format, too: FORMAT=FILE, or a file whose ending
    /// tells the format (repeatable).
    #[arg(long, value_name = "[FORMAT=]FILE")]
    pub export: Vec<Export>,
    /// Unit of durations in the table: auto, ns, us or ms.
    #[arg(long, default_value_t = Unit::Auto)]
    pub unit: Unit,
    /// Significant digits of the histograms.
    #[arg(long, value_enum, default_value_t = Digits::Three)]
    pub precision: Digits,
    /// What the machine's clock measures: `virtual` for a guest under `-icount`, whose clock
    /// counts instructions. It is recorded, so that unlike profiles are never compared.
    #[arg(long, value_enum, default_value_t = ClockArg::Wall)]
    pub clock: ClockArg,
    /// Built-in load, such as connect (repeatable, or several with commas: they run side by side).
    /// One that does not exist is answered with the list. Without a name: that of the --profile.
    #[arg(long, value_delimiter = ',', num_args = 0..=1, value_name = "KIND", conflicts_with = "load")]
    pub builtin: Option<Vec<BuiltinKind>>,
    /// Operations per second of each built-in load, such as 200/s; without it, as fast as it goes.
    #[arg(long, requires = "builtin", value_name = "N/s")]
    pub rate: Option<Rate>,
    /// Threads of each built-in load, or tests of LTP side by side [default: 1].
    #[arg(long, conflicts_with = "load", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub workers: Option<u32>,
    /// Keep each of these threads on one CPU.
    #[arg(long, requires = "builtin")]
    pub pin: bool,
    /// Operations of each built-in load in all, after which it ends.
    #[arg(long, requires = "builtin", value_name = "N")]
    pub operations: Option<u64>,
    /// Folder in which loads create their files.
    #[arg(long, value_name = "DIR")]
    pub load_dir: Option<PathBuf>,
    /// Load profiles and LTP.
    #[command(flatten)]
    pub ltp: LtpArgs,
    /// Fail, after the report, if more than this share of a handler's calls was not measured.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.1, value_parser = percent)]
    pub max_loss: f64,
    /// What loads are kept to.
    #[command(flatten)]
    pub confine: ConfineArgs,
    /// Whose costs are watched.
    #[command(flatten)]
    pub watch: WatchArgs,
    /// Measure also where another tracing program is on a handler: its time is counted with it.
    #[arg(long)]
    pub allow_shared: bool,
    /// Measure all handlers with this backend alone: fsession, fentry, kprobe-session, kprobe-multi,
    /// function-graph or kprobe [default: for each handler the first of these that works].
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Use that backend even where it is known to count nothing.
    #[arg(long, requires = "backend")]
    pub force: bool,
    /// Of handlers that call one another, tell also what each takes itself: without the calls of the
    /// others within it, and without what their probes take. Costs more per call, and twice the memory.
    #[arg(long, conflicts_with = "no_probe")]
    pub self_time: bool,
    /// Buffer of the function-graph backend on each CPU, in KiB [default: up to 8192, by the memory].
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(4..=1 << 21))]
    pub trace_buffer: Option<u64>,
    /// Plot each handler below the table, in text: latency by percentile.
    #[arg(long)]
    pub plot: bool,
    /// No bar and no table on the terminal while it runs; lines that tell what happens remain.
    #[arg(long)]
    pub no_progress: bool,
    /// No progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
    /// Command that makes the load, with its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub load: Vec<std::ffi::OsString>,
}

/// Arguments of `profiler import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// What recorded them.
    #[command(subcommand)]
    pub source: ImportSource,
}

/// Tools whose recordings are read.
#[derive(Debug, Subcommand)]
pub enum ImportSource {
    /// function_graph text: what `trace-cmd report` prints, or ftrace's `trace` and `trace_pipe`.
    TraceCmd(TraceCmdArgs),
}

const TRACE_CMD_EXAMPLES: &str = "\
Examples:
  # the text that trace-cmd printed some time ago
  profiler import trace-cmd bind_entry_handler.txt
  # a recording, without a file in between, and with the percentiles of older scripts
  trace-cmd report -i trace.dat | profiler import trace-cmd --percentile seed -";

/// Arguments of `profiler import trace-cmd`.
#[derive(Debug, Args)]
#[command(after_help = TRACE_CMD_EXAMPLES)]
pub struct TraceCmdArgs {
    /// The text (`-` is standard input).
    pub file: PathBuf,
    /// How percentiles are found: interpolated between the two nearest values (numpy's default),
    /// the nearest rank, or `sorted[int(r * n) - 1]`.
    #[arg(long, value_enum, default_value_t = PercentileArg::Linear)]
    pub percentile: PercentileArg,
    /// Write the figures and histograms as JSON to this file (`-` is standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// No progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

/// How percentiles are found.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum PercentileArg {
    /// Interpolated linearly between the two nearest values.
    Linear,
    /// The smallest value that at least that share of all does not exceed.
    NearestRank,
    /// `sorted[int(r * n) - 1]`.
    Seed,
}

impl From<PercentileArg> for Percentile {
    fn from(percentile: PercentileArg) -> Self {
        match percentile {
            PercentileArg::Linear => Self::Linear,
            PercentileArg::NearestRank => Self::NearestRank,
            PercentileArg::Seed => Self::Seed,
        }
    }
}

const COST_EXAMPLES: &str = "\
Examples:
  profiler cost --module hids_driver --handler connect_syscall_entry_handler --builtin connect";

/// Arguments of `profiler cost`.
#[derive(Debug, Args)]
#[command(after_help = COST_EXAMPLES)]
pub struct CostArgs {
    /// Kernel module that holds the handler; without it it is a function of the kernel image.
    #[arg(long, short)]
    pub module: Option<String>,
    /// The handler.
    #[arg(long, short = 'H', value_name = "NAME")]
    pub handler: String,
    /// Built-in load that calls it, such as connect.
    #[arg(long, value_name = "KIND")]
    pub builtin: BuiltinKind,
    /// Backend to measure the cost of: see `profiler run --help`.
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Operations in each measurement.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,
    /// Measurements of each kind; medians are printed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// What the machine's clock measures: see `profiler run --help`.
    #[arg(long, value_enum, default_value_t = ClockArg::Wall)]
    pub clock: ClockArg,
    /// Write the figures as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Significant digits.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Digits {
    /// 1 part in 100.
    #[value(name = "2")]
    Two,
    /// 1 part in 1000.
    #[value(name = "3")]
    Three,
}

impl From<Digits> for Precision {
    fn from(digits: Digits) -> Self {
        match digits {
            Digits::Two => Self::Two,
            Digits::Three => Self::Three,
        }
    }
}

/// What a nanosecond is.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ClockArg {
    /// Time as it passes.
    Wall,
    /// One instruction of a guest.
    Virtual,
}

impl From<ClockArg> for Clock {
    fn from(clock: ClockArg) -> Self {
        match clock {
            ClockArg::Wall => Self::Wall,
            ClockArg::Virtual => Self::Virtual,
        }
    }
}

/// Longest duration taken, so that sums with "now" cannot overflow: a year.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

fn duration(text: &str) -> Result<Duration, String> {
    let example = "give a number with its unit, such as 30s, 500ms or 5m";
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|_| format!("`{text}` is no duration: {example}"))?;
    let parsed =
        Duration::try_from(parsed).map_err(|_| format!("`{text}` is negative: {example}"))?;
    if parsed > LONGEST {
        return Err(format!("`{text}` is more than a year"));
    }
    Ok(parsed)
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is no number of percent"))?;
    if (0.0..=100.0).contains(&value) {
        Ok(value)
    } else {
        Err(format!("`{text}` is not 0 to 100"))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["30", "-1s", "", "soon", "900000h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn percents_are_within_bounds() {
        assert_eq!(percent("0.1"), Ok(0.1));
        assert_eq!(percent("0"), Ok(0.0));
        for bad in ["-1", "101", "NaN", "x", ""] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_command_and_a_builtin_load_exclude_each_other() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("profiler run -H x --builtin open -- true").is_err());
        assert!(parse("profiler run -H x --rate 5/s").is_err());
        assert!(parse("profiler run").is_err());
        assert!(parse("profiler run -H x --builtin open,bind --rate 5/s").is_ok());
        assert!(parse("profiler run -H x -- sh -c true").is_ok());
    }
}
