//! The command line.

use clap::{Parser, Subcommand};

use profiler_run::args::{PrepareArgs, RunArgs, TaxArgs};

use crate::cmd::{
    bisect, compare, cost, doctor, explain, gate, import, kernels, lab, list, merge, profiles,
    report, serve, shell, slope,
};

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
    /// Run as a daemon that measures handlers continuously, per module build.
    Serve(serve::ServeArgs),
    /// Have the daemon take its probes off a module, so that it can be unloaded.
    Release(serve::ReleaseArgs),
    /// Show what the daemon does.
    Status(serve::StatusArgs),
    /// Print a recording as a table, or write it in another format.
    Report(report::ReportArgs),
    /// Merge recordings into one: the exact sum of their histograms and losses.
    Merge(merge::MergeArgs),
    /// Show what differs between runs of a baseline and of a candidate.
    Compare(compare::CompareArgs),
    /// Decide whether a candidate is slower than it may be; the exit code is the decision.
    Gate(Box<gate::GateArgs>),
    /// Find the first commit of a driver that made a handler slower; continues after a stop.
    Bisect(bisect::BisectArgs),
    /// Say where the instructions of handlers go, and what differs between two builds.
    Explain(explain::ExplainArgs),
    /// Make a recording of latencies that another tool recorded, and print its table.
    #[command(subcommand)]
    Import(import::ImportSource),
    /// Measure what the probes themselves add to each call of a handler on this machine.
    Cost(cost::CostArgs),
    /// Print the completions for a shell.
    Completions(shell::CompletionsArgs),
    /// Print the program's man page, or write all pages to a folder.
    Man(shell::ManArgs),
    /// Check what this machine can measure, and what to do where it cannot.
    Doctor(doctor::DoctorArgs),
    /// List functions with their addresses, and whether they can be traced.
    List(list::ListArgs),
    /// Give a driver's .ko file the BTF that probes need, before it is loaded.
    Prepare(PrepareArgs),
    /// List and check load profiles: which handlers to measure, and under which load.
    Profiles(profiles::ProfilesArgs),
    /// Measure a driver in a VM, under virtual time: figures that repeat on any machine.
    Lab(Box<lab::LabArgs>),
    /// Show what operations take more with drivers or agents than without them, beside each other.
    Tax(TaxArgs),
    /// Show what handlers take for each folder, byte, descriptor or process that they walk over, and judge a change by it.
    Slope(slope::SlopeArgs),
    /// Fetch stock Debian kernels for labs, or add those of other distributions; list and remove them.
    #[command(subcommand)]
    Kernels(kernels::KernelsAction),
    /// Restore tracefs after a killed profiler, as the next start of one does: for a service's `ExecStopPost=`.
    #[command(hide = true)]
    Restore,
    /// The first process of a lab's guest.
    #[command(name = "__lab-guest", hide = true)]
    LabGuest,
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
    fn what_is_missing_is_asked_for_with_its_alternatives() {
        for (line, named) in [
            ("run", &["--handler", "--profile", "--no-probe"][..]),
            ("lab", &["--module", "--baseline", "--builtin", "--profile"]),
            ("explain", &["FILE", "--live"]),
            ("serve", &["--config"]),
        ] {
            let error = Cli::try_parse_from(["profiler", line]).unwrap_err().to_string();
            let said = error.split("Usage").next().unwrap_or_default();
            assert!(named.iter().all(|name| said.contains(name)), "{error}");
        }
    }

    #[test]
    fn what_takes_time_takes_some() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        for option in ["--duration 0s", "--ltp-timeout 0s"] {
            let error = parse(&format!("profiler run -H x {option}")).unwrap_err().to_string();
            assert!(error.contains("such as 10s"), "{error}");
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
