//! `profiler prepare`: gives the file of a kernel module the BTF that probes need.

use std::path::Path;

use profiler_base::error::Failure;
use profiler_kernel::host::read_fact;
use profiler_lab::prepare::prepare;
use profiler_run::args::PrepareArgs;

use super::to_stdout;

/// Writes the copy with BTF and prints what was done.
///
/// # Errors
/// As [`prepare`]. The module's own file is never left half-written.
pub fn run(args: &PrepareArgs) -> Result<(), Failure> {
    let running = read_fact(Path::new("/proc/sys/kernel/osrelease"));
    let done = prepare(args, running.as_deref())?;
    let mut text = format!(
        "{}: {} functions of {} are described now, on the BTF of {}\n",
        done.output.display(),
        done.functions,
        done.module.name,
        done.base.display()
    );
    if let Some(release) = &done.module.built_for {
        text.push_str(&format!("it loads on kernel {release} only, as before\n"));
    }
    if done.was_signed {
        text.push_str("its signature is gone: sign it again where the kernel asks for one\n");
    }
    text.push_str(&format!(
        "next: rmmod {0} (if it is loaded), insmod {1}, profiler doctor --module {0}\n",
        done.module.name,
        done.output.display()
    ));
    to_stdout(&text)
}
