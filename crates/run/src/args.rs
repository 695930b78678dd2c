//! Arguments of `profiler run`, which are what a run is: under which load, for how long, measured how. Commands that run
//! something take a part of them, and the rest as it is by default. Arguments of other engines that take them as they are.

mod agent;
mod ltp;
mod prepare;
mod tax;

use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser};
use strum::VariantNames;

pub use agent::SUBJECT;
pub use agent::{AgentArgs, GuestArgs};
pub use ltp::LtpArgs;
pub use prepare::PrepareArgs;
pub use tax::TaxArgs;

use profiler_base::text::duration;
use profiler_export::{Export, Unit};
use profiler_load::{BuiltinKind, LoadUser, Rate, SandboxOptions};
use profiler_probe::{self as probe, Precision};
use profiler_recording::{Backend, Clock};

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
#[command(after_help = RUN_EXAMPLES, group = one_of_these("what", &["handlers", "bpf_progs", "profile", "no_probe"]))]
pub struct RunArgs {
    /// Kernel module that holds the handlers; without it they are functions of the kernel image.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Handler to measure, by name or glob (repeatable). One of several functions of one name is
    /// NAME#2, the second in order of address: see `profiler list`.
    #[arg(
        long = "handler",
        short = 'H',
        value_name = "NAME|GLOB",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub handlers: Vec<String>,
    /// Loaded BPF program to measure, by name or glob (repeatable). A subprogram is PROGRAM/SUBPROGRAM, and one of several of
    /// a name NAME#2, the second in the order in which they were loaded.
    #[arg(
        long = "bpf-prog",
        value_name = "NAME|GLOB",
        value_parser = NonEmptyStringValueParser::new(),
        conflicts_with_all = ["handlers", "module", "profile"]
    )]
    pub bpf_progs: Vec<String>,
    /// Measure the load and its costs without probes; needs no privileges.
    #[arg(long, conflicts_with_all = ["handlers", "bpf_progs", "module", "profile"])]
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
    /// Significant decimal digits of the histograms: 2 is 1 part in 100, and 3 is 1 in 1000 [default: 3, or 2
    /// with a warning where 3 do not fit in memory].
    #[arg(long, value_parser = by_name::<Precision>())]
    pub precision: Option<Precision>,
    /// What the machine's clock measures: `wall` for its own time, `virtual` for a guest under `-icount`, whose
    /// clock counts instructions. The recording has it, and recordings of different clocks are not compared.
    #[arg(long, value_parser = by_name::<Clock>(), default_value_t = Clock::Wall)]
    pub clock: Clock,
    /// Built-in load (repeatable, or several with commas: they run side by side). Without a name: the one
    /// of --profile.
    #[arg(
        long,
        value_delimiter = ',',
        num_args = 0..=1,
        value_name = "KIND",
        value_parser = by_name::<BuiltinKind>(),
        conflicts_with = "load"
    )]
    pub builtin: Option<Vec<BuiltinKind>>,
    /// Operations per second of each built-in load, such as 200/s [default: as fast as possible].
    #[arg(long, requires = "builtin", value_name = "N/s")]
    pub rate: Option<Rate>,
    /// Threads of each built-in load [default: 1].
    #[arg(long, requires = "builtin", value_parser = clap::value_parser!(u32).range(1..=4096))]
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
    /// User that the load runs as [default, as root: nobody for built-in loads that need no
    /// privileges; root for a command and for LTP, many of whose tests need it].
    #[arg(long, value_name = "NAME")]
    pub load_user: Option<LoadUser>,
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
    /// No progress bar and no live table on the terminal, only lines about what happens.
    #[arg(long)]
    pub no_progress: bool,
    /// No progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
    /// Trace what the one handler calls, by the function-graph backend.
    #[arg(skip)]
    pub call_tree: bool,
    /// Command that is the load, with its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub load: Vec<std::ffi::OsString>,
    /// Load profiles and LTP. The last field, because its heading holds for all options after it.
    #[command(flatten)]
    pub ltp: LtpArgs,
}

impl Default for RunArgs {
    /// No handler, no load, ten seconds.
    fn default() -> Self {
        #[derive(Parser)]
        struct Alone {
            #[command(flatten)]
            args: RunArgs,
        }
        Self { no_probe: false, ..Alone::parse_from(["run", "--no-probe"]).args }
    }
}

impl RunArgs {
    /// How the handlers are probed.
    pub(crate) fn probes(&self) -> probe::Options {
        probe::Options {
            precision: self.precision.unwrap_or_default(),
            allow_shared: self.allow_shared,
            backend: self.backend,
            force: self.force,
            trace_buffer_kib: self.trace_buffer,
            call_tree: self.call_tree,
            keeper: true,
            ..probe::Options::default()
        }
    }

    /// What loads are kept to.
    pub(crate) fn sandbox(&self) -> SandboxOptions {
        let (user, directory) = (self.load_user.clone(), self.load_dir.clone());
        SandboxOptions { user, directory, ..SandboxOptions::default() }
    }
}

/// Arguments of which one is needed: an error names all of them.
pub fn one_of_these(name: &'static str, arguments: &[&'static str]) -> ArgGroup {
    ArgGroup::new(name).args(arguments).multiple(true).required(true)
}

/// A value by its name; help and completions list all names.
pub fn by_name<T>() -> impl TypedValueParser<Value = T>
where
    T: VariantNames + FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync,
    T: 'static,
{
    PossibleValuesParser::new(T::VARIANTS).try_map(|name| name.parse::<T>())
}

/// A duration above zero.
pub fn length(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("`{text}` is no time: give a longer one, such as 10s")),
        length => Ok(length),
    }
}

/// For clap: a share in percent.
///
/// # Errors
/// If `text` is no number from 0 to 100.
pub fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| format!("invalid percentage `{text}`: give a number from 0 to 100"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_takes_time_takes_some() {
        assert_eq!(length("1ms"), Ok(Duration::from_millis(1)));
        for bad in ["0s", "-1s"] {
            assert!(length(bad).is_err(), "{bad}");
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
}
