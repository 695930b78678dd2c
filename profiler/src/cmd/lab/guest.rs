//! The part of `profiler lab` that runs in the guest.

use std::path::Path;
use std::time::Duration;

use crate::cli::{ClockArg, ConfineArgs, Digits, LtpArgs, RunArgs, WatchArgs};
use crate::cmd;
use crate::error::Failure;
use crate::export::Unit;
use crate::lab::guest;
use crate::lab::plan::{Length, Measurement};
use crate::profile::Clock;

/// Runs the task in the file `task`.
///
/// # Errors
/// With the exit code of what failed.
pub fn run(task: &Path) -> Result<(), Failure> {
    guest::run(task, |measurement| cmd::run::run(&run_args(measurement)))
}

/// What `profiler run` takes, with the defaults of its command line where a measurement sets nothing.
fn run_args(measurement: &Measurement) -> RunArgs {
    let spec = &measurement.spec;
    let (operations, duration) = match spec.length {
        Length::Operations(count) => (Some(count), None),
        Length::Time(time) => (None, Some(time)),
    };
    RunArgs {
        module: Some(measurement.module.clone()),
        handlers: spec.handlers.clone(),
        no_probe: false,
        duration,
        warmup: Duration::ZERO,
        repeat: 1,
        interval: None,
        json: Some(guest::RESULT.into()),
        export: Vec::new(),
        unit: Unit::Auto,
        precision: Digits::Three,
        clock: match spec.clock {
            Clock::Wall => ClockArg::Wall,
            Clock::Virtual => ClockArg::Virtual,
        },
        builtin: Some(spec.loads.clone()),
        rate: spec.rate,
        workers: Some(spec.workers),
        pin: false,
        operations,
        load_dir: None,
        ltp: LtpArgs {
            profile: None,
            profiles_folders: Vec::new(),
            suite: None,
            tests: None,
            root: None,
            runner: None,
            time_limit: Duration::from_secs(300),
            iterations: None,
            allow_destructive: false,
        },
        max_loss: 0.1,
        confine: ConfineArgs { load_user: None, load_cpu_max: None, load_memory_max: None },
        watch: WatchArgs { watch: Vec::new(), sample: None },
        allow_shared: false,
        backend: None,
        force: false,
        self_time: false,
        trace_buffer: None,
        plot: false,
        no_progress: false,
        quiet: true,
        load: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::lab::plan::{RunSpec, Task};
    use crate::load::BuiltinKind;

    /// The same as the command line that a user would write, after the way into the guest.
    #[test]
    fn a_measurement_is_a_run_with_its_defaults() {
        let measurement = |length, clock, rate: Option<&str>| Measurement {
            module: "driver".to_owned(),
            spec: RunSpec {
                clock,
                handlers: vec!["a_*".to_owned(), "b".to_owned()],
                loads: vec![BuiltinKind::Connect, BuiltinKind::Bind],
                workers: 2,
                rate: rate.map(|rate| rate.parse().unwrap()),
                length,
            },
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
            let task = serde_json::to_vec(&Task::Measure(measurement)).unwrap();
            let Ok(Task::Measure(read)) = serde_json::from_slice(&task) else { panic!("{task:?}") };
            let line = format!(
                "profiler run --quiet --module driver --json /run/profiler-lab/run.json --handler a_* --handler b \
                 --builtin connect --builtin bind --workers 2 {more}"
            );
            let parsed = Cli::try_parse_from(line.split_whitespace()).unwrap().command;
            let Command::Run(parsed) = parsed else { panic!("{parsed:?}") };
            assert_eq!(format!("{:?}", run_args(&read)), format!("{parsed:?}"));
        }
    }
}
