//! The command line; clap types stay here.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::series::Series;

/// Set-up, builds, VM runs and tests of the profiler.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Task,
}

/// One task.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Install everything the other tasks need (each installs its own part by itself).
    Setup,
    /// Run a command as root in a VM with a stock Debian kernel on this machine's files.
    Vm(VmArgs),
    /// Build the BPF object and its record into profiler-ebpf/prebuilt.
    Ebpf {
        /// Write nothing; fail if the committed object does not match its sources.
        #[arg(long)]
        check: bool,
    },
    /// Build the testbed module.
    Testbed(TestbedArgs),
    /// Build the program that runs in a lab's guests of arm64, and put it where `profiler` looks for it.
    Guest,
    /// The main job: handlers of the test module under load in a VM; table and JSON.
    Demo {
        /// The kernel series.
        #[arg(long, value_enum, default_value = "6.1")]
        kernel: Series,
    },
    /// Build the book out of docs/ into target/book/html, and follow its links.
    Book,
    /// Make a Debian package and an archive with a static binary in target/dist.
    Dist {
        /// Install and run both in a clean Debian root, as root.
        #[arg(long)]
        check: bool,
    },
    /// Count the instructions that the probes add to a call, in a VM under virtual time.
    Bench(BenchArgs),
    /// Measure the gate's false alarms, and its detection of slow-downs of known size.
    GatePower(GatePowerArgs),
    /// Run each parser under libFuzzer; a finding is an error.
    Fuzz(FuzzArgs),
    /// Check formatting and lints; warnings are errors.
    Lint,
    /// Run every test: on this machine, and in VMs on each kernel.
    Test(TestArgs),
}

/// Arguments of `test`: what to run; none means everything.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct TestArgs {
    /// Only what runs on this machine: no kernel, no VM.
    #[arg(long, conflicts_with_all = ["boot", "filters"])]
    pub(crate) host: bool,
    /// Only this VM: 5.10, 6.1, 6.12, 7.2, icount-6.1, icount-6.1-again, icount-7.2 or lab.
    #[arg(long)]
    pub(crate) boot: Vec<String>,
    /// Run nothing: print which tests run in which VM.
    #[arg(long, conflicts_with = "host")]
    pub(crate) list: bool,
    /// Stop a VM after this many seconds: more than its tests take on a slow machine.
    #[arg(long, default_value_t = 2_700, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    /// In VMs, only tests whose name contains this.
    pub(crate) filters: Vec<String>,
}

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// The kernel series.
    #[arg(long, value_enum, default_value = "6.1")]
    pub(crate) kernel: Series,
    /// Instead measure the import of a generated trace of MIB mebibytes; needs no VM.
    #[arg(long, value_name = "MIB", num_args = 0..=1, default_missing_value = "1024",
          value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(crate) import: Option<u64>,
}

/// Arguments of `fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct FuzzArgs {
    /// How long each target runs.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) seconds: u32,
    /// Only these targets of fuzz/README.md.
    pub(crate) targets: Vec<String>,
}

/// Arguments of `testbed`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestbedArgs {
    /// The kernel series [default: all].
    #[arg(long, value_enum)]
    pub(crate) kernel: Vec<Series>,
    /// A build in which the code of one handler takes longer: iterations more a call, of two instructions each.
    #[arg(long, value_name = "ITERATIONS")]
    pub(crate) slow: Option<u64>,
    /// The handler that is slower.
    #[arg(long, default_value = "connect_syscall_handler", requires = "slow")]
    pub(crate) handler: String,
}

/// Arguments of `gate-power`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GatePowerArgs {
    /// Decisions to make for each change: instructions more a call of the slower handler, and how many.
    #[arg(long, value_delimiter = ',', value_name = "N=COUNT", default_value = "0=40,60=20",
          value_parser = decisions)]
    pub(crate) decisions: Vec<(u64, u64)>,
    /// Handlers that the gate judges [default: all].
    #[arg(long, value_name = "GLOB")]
    pub(crate) handler: Option<String>,
    /// Limit that the gate judges by [default: its own].
    #[arg(long, value_name = "LIMIT")]
    pub(crate) max_regression: Option<String>,
    /// Folder of a driver with the Kbuild or Makefile that names its objects [default: the test module's].
    #[arg(long, requires_all = ["module", "build"])]
    pub(crate) driver: Option<PathBuf>,
    /// The file that is built.
    #[arg(long, value_name = "FILE.ko", default_value = "hids_testbed.ko")]
    pub(crate) module: String,
    /// Shell command that builds it for the 6.1 kernel of `cargo xtask setup`, run in a copy of the folder.
    #[arg(long, value_name = "COMMAND", requires = "driver")]
    pub(crate) build: Option<String>,
    /// Program that the driver hooks the kernel for, as `profiler gate --agent` takes it.
    #[arg(long, value_name = "COMMAND", requires = "driver")]
    pub(crate) agent: Option<String>,
}

/// Instructions more in each call of the slower handler, 0 for builds of equal cost; and how many decisions.
fn decisions(text: &str) -> Result<(u64, u64), String> {
    text.split_once('=')
        .and_then(|(slower, count)| Some((slower.parse().ok()?, count.parse().ok()?)))
        .ok_or_else(|| format!("`{text}` is no N=COUNT, such as 60=20"))
}

/// Arguments of `vm`: what to run, and in which VM.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct VmArgs {
    /// The kernel series.
    #[arg(long, value_enum, default_value = "6.1")]
    pub(crate) kernel: Series,
    /// Virtual time: the clock advances 1 ns for each instruction; one CPU, no KVM.
    #[arg(long, conflicts_with = "cpus")]
    pub(crate) icount: bool,
    /// Virtual CPUs.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) cpus: u32,
    /// Stop the VM after this many seconds.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    /// Name of the log in target/vm/logs.
    #[arg(long, default_value = "vm")]
    pub(crate) name: String,
    /// Words for the kernel's command line.
    #[arg(skip)]
    pub(crate) kernel_args: Vec<&'static str>,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn decisions_are_read() {
        assert_eq!(decisions("60=3"), Ok((60, 3)));
        for bad in ["2", "=3", "2=", "-1=3", "2=-1", "1.5=2"] {
            assert!(decisions(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        let vm = |args: &str| Cli::try_parse_from(format!("x vm {args} -- true").split(' '));
        assert!(vm("--icount").is_ok() && vm("--cpus 4").is_ok());
        assert!(vm("--icount --cpus 4").is_err());
    }
}
