//! `profiler run`: measures, reports, and writes files.

mod deliver;

use profiler_base::error::Failure;
use profiler_base::progress::Progress;
use profiler_kernel::privileges;
use profiler_recording::Series;
use profiler_run::args::RunArgs;
use profiler_run::{Measured, Run};

use deliver::Outputs;

/// See the [command line](RunArgs).
///
/// # Errors
/// With the exit code of the [table](exit). Codes 5, 6, 9, 129, 130 and 143 come after the report.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let run = prepare(args)?;
    let outputs = Outputs::open(args)?;
    let mut progress = Progress::new(args.quiet).drawn(!args.no_progress);
    let Measured { recordings, end } = run.measure(&mut progress)?;
    if recordings.is_empty() {
        return end;
    }
    let series = Series::new(args.ltp.profile.as_deref().unwrap_or_default(), recordings);
    outputs.deliver(args, &series, run.is_several())?;
    end
}

/// A run for which the machine is ready.
pub(super) fn prepare(args: &RunArgs) -> Result<Run<'_>, Failure> {
    if !args.no_probe {
        privileges::check()?;
        super::restore_tracefs();
    }
    Run::prepare(args)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use profiler_lab::guest;
    use profiler_lab::plan::{Length, RunSpec};
    use profiler_load::BuiltinKind;
    use profiler_recording::{Clock, Meter};

    fn parsed(line: &str) -> RunArgs {
        let line = format!("profiler run {line}");
        let command = Cli::try_parse_from(line.split_whitespace()).unwrap().command;
        let Command::Run(args) = command else { panic!("{command:?}") };
        *args
    }

    #[test]
    fn what_is_not_asked_for_is_the_default() {
        let handlers = vec!["x".to_owned()];
        let default = RunArgs { handlers, ..RunArgs::default() };
        assert_eq!(format!("{default:?}"), format!("{:?}", parsed("-H x")));
    }

    /// The same as the command line that a user would write, after the way into the guest.
    #[test]
    fn a_measurement_of_the_lab_is_a_run_with_its_defaults() {
        let measurement = |length, clock, rate: Option<&str>| RunSpec {
            meter: Meter::Probes,
            backend: None,
            clock,
            handlers: vec!["a_*".to_owned(), "b".to_owned()],
            loads: vec![BuiltinKind::Connect, BuiltinKind::Bind],
            workers: 2,
            dimensions: profiler_load::Dimensions::default(),
            rate: rate.map(|rate| rate.parse().unwrap()),
            length,
        };
        let second = Duration::from_secs(1);
        for (measurement, more) in [
            (
                measurement(Length::Operations(20_000), Clock::Virtual, None),
                "--clock virtual --operations 20000",
            ),
            (
                measurement(Length::Time(second), Clock::Wall, Some("97/s")),
                "--clock wall --rate 97/s --duration 1000ms",
            ),
        ] {
            let task = serde_json::to_vec(&measurement).unwrap();
            let read: RunSpec = serde_json::from_slice(&task).unwrap();
            let line = format!(
                "--module driver --handler a_* --handler b --builtin connect --builtin bind \
                 --workers 2 {more}"
            );
            let options = guest::run_args("driver", &read);
            assert_eq!(format!("{options:?}"), format!("{:?}", parsed(&line)));
        }
    }
}
