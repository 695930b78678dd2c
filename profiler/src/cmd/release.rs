//! `profiler release`: has the daemon let a module go.

use super::{ask, to_stdout};
use crate::cli::ReleaseArgs;
use crate::error::Failure;
use crate::serve::control::{Released, Request};
use crate::text::{listed, plural};

/// See the [command line](ReleaseArgs).
///
/// # Errors
/// If no daemon runs, or it is not for this module.
pub fn run(args: &ReleaseArgs) -> Result<(), Failure> {
    let module = args.module.clone();
    let text = if args.resume {
        let handlers: Vec<String> = ask(&Request::Resume(module))?;
        format!("{} is measured again: {}", args.module, listed(&handlers))
    } else {
        of_release(&args.module, &ask(&Request::Release(module))?)
    };
    if args.quiet { Ok(()) } else { to_stdout(&(text + "\n")) }
}

fn of_release(module: &str, released: &Released) -> String {
    let Released { handlers, calls, references } = released;
    if handlers.is_empty() && *references == 0 {
        return format!("{module} was not measured: nothing holds it");
    }
    let mut text = match handlers.is_empty() {
        true => format!("{module} was not measured, and this load of it will not be"),
        false => format!(
            "{module} is released: {calls} call{} since the last interval, of {}",
            plural(*calls),
            listed(handlers)
        ),
    };
    if *references > 0 {
        let others = format!(
            "; others still hold it ({references} reference{}): see lsmod and /sys/module/{module}/holders",
            plural(*references)
        );
        text.push_str(&others);
    }
    text
}
