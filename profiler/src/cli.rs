//! The command line: the only place with clap's types.

mod agent;
pub mod bisect;
pub mod compare;
pub mod explain;
pub mod gate;
mod kernels;
mod lab;
mod load;
mod ltp;
mod merge;
mod profiles;
mod report;
mod serve;
mod shell;
mod sweep;

use std::error::Error;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser,
};
use clap::{ArgGroup, Args, Parser, Subcommand};

pub use agent::AgentArgs;
pub use kernels::{KernelsAction, KernelsArgs};
pub use lab::LabArgs;
pub use load::{ConfineArgs, WatchArgs};
pub use ltp::LtpArgs;
pub use merge::MergeArgs;
pub use report::ReportArgs;
pub use serve::{Listen, ReleaseArgs, ServeArgs, StatusArgs};
pub use shell::{CompletionsArgs, ManArgs, completions, man_pages};
pub use sweep::{Asked, SweepArgs, run_arguments};

use crate::export::{Export, Unit};
use crate::load::{BuiltinKind, Rate};
use crate::probe::Precision;
use crate::recording::{Backend, Clock};
use crate::text::duration;

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
8 output not writable, 9 fewer hits than the load profile requires, 10 the gate failed,
11 inconclusive, 12 not comparable, 13 too few runs, 14 more losses than --max-loss allows,
15 the VM of a lab failed, 16 the driver was replaced or unloaded during the run,
129 its terminal was closed, 130 interrupted (Ctrl-C), 143 terminated. With 5, 6, 9, 14, 15,
16, 129, 130 and 143 what was measured has been reported and saved.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure handlers under a load, and print a table of their latencies.
    Run(Box<RunArgs>),
    /// Run a load at several rates and numbers of workers, one recording each; continues after a stop.
    Sweep(SweepArgs),
    /// Run as a daemon that measures handlers continuously, per module build.
    Serve(ServeArgs),
    /// Have the daemon take its probes off a module, so that it can be unloaded.
    Release(ReleaseArgs),
    /// Show what the daemon does; live on a terminal.
    Status(StatusArgs),
    /// Print a recording as a table, or write it in another format.
    Report(ReportArgs),
    /// Merge recordings into one: the exact sum of their histograms and losses.
    Merge(MergeArgs),
    /// Show what differs between runs of a baseline and of a candidate.
    Compare(compare::CompareArgs),
    /// Decide whether a candidate is slower than it may be; the exit code is the decision.
    Gate(Box<gate::GateArgs>),
    /// Find the first commit of a driver that made a handler slower; continues after a stop.
    Bisect(bisect::BisectArgs),
    /// Say where the instructions of handlers go, and what differs between two builds.
    Explain(explain::ExplainArgs),
    /// Make a recording of latencies that another tool recorded, and print its table.
    Import(ImportArgs),
    /// Measure what the probes themselves add to each call of a handler on this machine.
    Cost(CostArgs),
    /// Print the completions for a shell.
    Completions(CompletionsArgs),
    /// Print the man page of a subcommand, or write all of them to a folder.
    Man(ManArgs),
    /// Check what this machine can measure, and what to do where it cannot.
    Doctor(DoctorArgs),
    /// List functions with address, size, prototype, and whether they can be traced.
    List(ListArgs),
    /// Give a driver's .ko file the BTF that probes need, before it is loaded.
    Prepare(PrepareArgs),
    /// List and check load profiles: which handlers to measure, and under which load.
    Profiles(ProfilesArgs),
    /// Measure a driver in a VM, under virtual time: figures that repeat on any machine.
    Lab(Box<LabArgs>),
    /// Fetch stock Debian kernels for labs; list and remove them.
    Kernels(KernelsArgs),
    /// Restore tracefs after a killed profiler, as the next start of one does: for a service's `ExecStopPost=`.
    #[command(hide = true)]
    Restore,
    /// The first process of a lab's guest.
    #[command(name = "__lab-guest", hide = true)]
    LabGuest,
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
    /// Kernel module to measure.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Functions to check, by name or glob (repeatable).
    #[arg(
        long = "handler",
        short = 'H',
        value_name = "NAME|GLOB",
        default_value = "*_handler",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub handlers: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const LIST_EXAMPLES: &str = "\
Examples:
  profiler list --module hids_driver '*_handler'
  # functions of the kernel itself, for a script
  profiler list --json 'tcp_v4_*'
  # what a driver registers when it is loaded: kprobes, tracepoints and other hooks; in a VM
  profiler list --module hids_driver.ko --kernel 6.1
  # where the BPF programs of an agent are attached
  profiler list --agent ./agent --kernel 6.1";

/// Arguments of `profiler list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// Kernel module that holds the functions; without it those of the kernel image. Of a file ending in
    /// `.ko` the hooks are listed that it registers when it is loaded, in a VM; with --agent alone those of its BPF programs.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Kernel to load the file on (repeatable) [default: the one that it was built for].
    #[arg(long, value_name = "VMLINUZ|FOLDER|VERSION")]
    pub kernel: Vec<String>,
    /// Parameters of the module, as insmod takes them.
    #[arg(long, value_name = "PARAMS", default_value = "", hide_default_value = true)]
    pub module_params: String,
    /// What uses the driver.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Names or globs; a name in the source also finds the compiler's variants of the function. Of hooks:
    /// of a handler or of the place.
    #[arg(value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const PREPARE_EXAMPLES: &str = "\
Examples:
  # writes hids_driver.btf.ko for the running kernel
  profiler prepare hids_driver.ko
  # for another kernel, with its BTF from a file
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
  # two handlers of Elkeid's driver under the built-in load connect, as fast as possible
  profiler run --module hids_driver --handler connect_syscall_handler \\
      --handler connect_syscall_entry_handler --builtin connect --duration 30s
  # all handlers of bind under a command of your own, with the recording as JSON
  profiler run --module hids_driver --handler 'bind_*' --json bind.json -- ./my-load --fast
  # the handlers of the load profile bind, for five minutes under LTP's tests of bind
  profiler run --profile bind --duration 5m
  # Elkeid's ten handlers, one load after the other, without LTP
  profiler run --profile elkeid --builtin";

/// Arguments of `profiler run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, group = one_of_these("what", &["handlers", "profile", "no_probe"]))]
pub struct RunArgs {
    /// Kernel module that holds the handlers; without it they are functions of the kernel image.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Handler to measure, by name or glob (repeatable). One of several functions of one name is
    /// NAME#2, the second in order of address, or NAME@ADDRESS: see `profiler list`.
    #[arg(
        long = "handler",
        short = 'H',
        value_name = "NAME|GLOB",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub handlers: Vec<String>,
    /// Measure the load and its costs without probes; needs no privileges.
    #[arg(long, conflicts_with_all = ["handlers", "module", "profile"])]
    pub no_probe: bool,
    /// Length of the measured window, such as 30s or 5m [default: 10s, or until a load that ends by
    /// itself has ended].
    #[arg(long, short, value_parser = length)]
    pub duration: Option<Duration>,
    /// How long the load runs before the window begins.
    #[arg(long, value_parser = duration, default_value = "0s")]
    pub warmup: Duration,
    /// Measure N times, each with its own probes, load and warm-up. The runs are kept apart: the table
    /// has medians and spreads, and the JSON is what `compare` and `gate` read.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Print a line per interval of this length, and keep each interval's figures in the JSON.
    #[arg(long, value_parser = interval)]
    pub interval: Option<Duration>,
    /// Write the recording as JSON to this file (`-` is standard output).
    #[arg(long, short = 'o', value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the recording in another format: FORMAT=FILE, or a file whose extension names the
    /// format (repeatable).
    #[arg(long, value_name = "[FORMAT=]FILE")]
    pub export: Vec<Export>,
    /// Unit of durations in the table: auto, ns, us or ms.
    #[arg(long, default_value_t = Unit::Auto)]
    pub unit: Unit,
    /// Significant decimal digits of the histograms [default: 3, or 2 with a warning where 3 do not fit in
    /// memory].
    #[arg(long, value_parser = one_of(PRECISIONS))]
    pub precision: Option<Precision>,
    /// What the machine's clock measures: `virtual` for a guest under `-icount`, whose clock counts
    /// instructions. The recording has it, and recordings of different clocks are not compared.
    #[arg(long, value_parser = one_of(CLOCKS), default_value_t = Clock::Wall)]
    pub clock: Clock,
    /// Built-in load (repeatable, or several with commas: they run side by side). Without a name: the one
    /// of --profile.
    #[arg(
        long,
        value_delimiter = ',',
        num_args = 0..=1,
        value_name = "KIND",
        value_parser = Builtin,
        conflicts_with = "load"
    )]
    pub builtin: Option<Vec<BuiltinKind>>,
    /// Operations per second of each built-in load, such as 200/s [default: as fast as possible].
    #[arg(long, requires = "builtin", value_name = "N/s")]
    pub rate: Option<Rate>,
    /// Threads of each built-in load, or tests of LTP side by side [default: 1].
    #[arg(long, conflicts_with = "load", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub workers: Option<u32>,
    /// Keep each of these threads on one CPU.
    #[arg(long, requires = "builtin")]
    pub pin: bool,
    /// Total operations of each built-in load, after which it ends.
    #[arg(long, requires = "builtin", value_name = "N")]
    pub operations: Option<u64>,
    /// Folder in which loads create their files.
    #[arg(long, value_name = "DIR")]
    pub load_dir: Option<PathBuf>,
    /// Fail, after the report, if more than this percentage of a handler's calls was lost.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.1, value_parser = percent)]
    pub max_loss: f64,
    /// Limits of loads.
    #[command(flatten)]
    pub confine: ConfineArgs,
    /// Programs whose costs are watched.
    #[command(flatten)]
    pub watch: WatchArgs,
    /// Measure a handler even if another tracing program is attached to it, whose time is then counted
    /// as the handler's.
    #[arg(long)]
    pub allow_shared: bool,
    /// Measure all handlers with this backend: fsession, fentry, kprobe-session,
    /// function-graph or kprobe [default: for each handler the first of these that works].
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Use the backend even where it is known to count nothing.
    #[arg(long, requires = "backend")]
    pub force: bool,
    /// Buffer of the function-graph backend on each CPU, in KiB [default: up to 8192, by the memory].
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(4..=1 << 21))]
    pub trace_buffer: Option<u64>,
    /// Plot each handler below the table, in text: latency by percentile.
    #[arg(long)]
    pub plot: bool,
    /// No progress bar and no live table on the terminal, only lines about what happens.
    #[arg(long)]
    pub no_progress: bool,
    /// No progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
    /// Command that is the load, with its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub load: Vec<std::ffi::OsString>,
    /// Load profiles and LTP. The last field, because its heading holds for all options after it.
    #[command(flatten)]
    pub ltp: LtpArgs,
}

/// Arguments of `profiler import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The tool that recorded them.
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
  # a file with the output of trace-cmd report
  profiler import trace-cmd bind_entry_handler.txt
  # straight from trace.dat
  trace-cmd report -i trace.dat | profiler import trace-cmd -";

/// Arguments of `profiler import trace-cmd`.
#[derive(Debug, Args)]
#[command(after_help = TRACE_CMD_EXAMPLES)]
pub struct TraceCmdArgs {
    /// The text (`-` is standard input).
    pub file: PathBuf,
    /// Write the recording to this file (`-` is standard output): `report`, `compare` and `merge` read it.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// No progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

const COST_EXAMPLES: &str = "\
Examples:
  profiler cost --module hids_driver --handler connect_syscall_entry_handler --builtin connect";

/// Arguments of `profiler cost`.
#[derive(Debug, Args)]
#[command(after_help = COST_EXAMPLES)]
pub struct CostArgs {
    /// Kernel module that holds the handler; without it, the handler is a function of the kernel image.
    #[arg(long, short)]
    pub module: Option<String>,
    /// The handler.
    #[arg(long, short = 'H', value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub handler: String,
    /// Built-in load that calls it.
    #[arg(long, value_name = "KIND", value_parser = Builtin)]
    pub builtin: BuiltinKind,
    /// Backend whose cost is measured: see `profiler run --help`.
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Operations in each measurement.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,
    /// Rounds of measurements; medians over them are printed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// What the machine's clock measures: see `profiler run --help`.
    #[arg(long, value_parser = one_of(CLOCKS), default_value_t = Clock::Wall)]
    pub clock: Clock,
    /// Write the figures as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of which one is needed: an error names all of them.
fn one_of_these(name: &'static str, arguments: &[&'static str]) -> ArgGroup {
    ArgGroup::new(name).args(arguments).multiple(true).required(true)
}

/// Values by the names that they have here, each with its help.
type Names<T> = &'static [(&'static str, T, &'static str)];

const PRECISIONS: Names<Precision> =
    &[("2", Precision::Two, "1 part in 100"), ("3", Precision::Three, "1 part in 1000")];

const CLOCKS: Names<Clock> = &[
    ("wall", Clock::Wall, "The machine's own time"),
    ("virtual", Clock::Virtual, "One instruction of a guest"),
];

/// One of these values, by its name; help and completions list all of them.
fn one_of<T: Copy + Send + Sync + 'static>(values: Names<T>) -> impl TypedValueParser<Value = T> {
    let shown = values.iter().map(|(name, _, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(shown).try_map(move |given| {
        let named = values.iter().find(|(name, ..)| *name == given);
        named.map(|(_, value, _)| *value).ok_or("there is no such value")
    })
}

/// A value by its name; help and completions list all names.
fn by_name<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    let names: Vec<&str> = names.into_iter().collect();
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

/// A built-in load by its name; help and completions list all, and an error of its own says more than clap's.
#[derive(Debug, Clone)]
struct Builtin;

impl TypedValueParser for Builtin {
    type Value = BuiltinKind;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<BuiltinKind, clap::Error> {
        str::parse::<BuiltinKind>.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(BuiltinKind::ALL.iter().map(|kind| PossibleValue::new(kind.name()))))
    }
}

/// Reading the counters of many handlers takes a tenth of a second.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    at_least(SHORTEST_INTERVAL, text, "in which the counters of many handlers can be read")
}

fn at_least(shortest: Duration, text: &str, why: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < shortest => Err(format!("`{text}` is less than {shortest:?}, {why}")),
        time => Ok(time),
    }
}

/// Of something that takes time: zero would be nothing.
fn length(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("`{text}` is no time: give a longer one, such as 10s")),
        length => Ok(length),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| format!("invalid percentage `{text}`: give a number from 0 to 100"))?;
    if (0.0..=100.0).contains(&value) {
        Ok(value)
    } else {
        Err(format!("percentage `{text}` is not between 0 and 100"))
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
    fn what_is_missing_is_asked_for_with_its_alternatives() {
        for (line, named) in [
            ("run", &["--handler", "--profile", "--no-probe"][..]),
            ("lab", &["--module", "--baseline", "--builtin", "--profile"]),
            ("explain", &["FILE", "--live"]),
            ("serve", &["--config", "--module"]),
        ] {
            let error = Cli::try_parse_from(["profiler", line]).unwrap_err().to_string();
            let said = error.split("Usage").next().unwrap_or_default();
            assert!(named.iter().all(|name| said.contains(name)), "{error}");
        }
    }

    #[test]
    fn what_takes_time_takes_some() {
        assert_eq!(interval("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(length("1ms"), Ok(Duration::from_millis(1)));
        for bad in ["0s", "1ns", "99ms", "-1s"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        for option in ["--interval 0s", "--interval 1ns", "--duration 0s", "--ltp-timeout 0s"] {
            let error = parse(&format!("profiler run -H x {option}")).unwrap_err().to_string();
            assert!(error.contains("such as 10s") || error.contains("less than 100ms"), "{error}");
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
