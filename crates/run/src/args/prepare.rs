//! Arguments of `profiler prepare`.

use std::path::PathBuf;

use clap::Args;

const PREPARE_EXAMPLES: &str = "\
Examples:
  # writes hids_driver.btf.ko for the running kernel
  profiler prepare hids_driver.ko
  # for another kernel, with its BTF from a file
  profiler prepare hids_driver.ko --btf /boot/vmlinux-6.1.0-56-amd64 --output /tmp/hids.ko";

/// Arguments of `profiler prepare`.
#[derive(Debug, Default, Args)]
#[command(after_help = PREPARE_EXAMPLES)]
pub struct PrepareArgs {
    /// The module's file, built with debug information.
    #[arg(value_name = "MODULE.ko")]
    pub file: PathBuf,
    /// BTF of the kernel that will load the module: a raw file, or a vmlinux [default: the
    /// running kernel's].
    #[arg(long, value_name = "PATH")]
    pub btf: Option<PathBuf>,
    /// Where the copy with BTF goes, which may be the module itself [default: MODULE.btf.ko beside the module].
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
