//! From arguments to the options of a run.

use crate::cli::{LtpArgs, RunArgs};
use crate::probe;
use crate::run::{Ltp, Options};

impl From<&RunArgs> for Options {
    fn from(args: &RunArgs) -> Self {
        Self {
            module: args.module.clone(),
            handlers: args.handlers.clone(),
            no_probe: args.no_probe,
            probes: probe::Options {
                precision: args.precision.unwrap_or_default(),
                allow_shared: args.allow_shared,
                room_for: 0,
                pair: probe::Pair::Measuring,
                backend: args.backend,
                force: args.force,
                trace_buffer_kib: args.trace_buffer,
                call_tree: false,
                keeper: true,
            },
            may_coarsen: args.precision.is_none(),
            clock: args.clock,
            duration: args.duration,
            warmup: args.warmup,
            interval: args.interval,
            repeat: args.repeat,
            profile: args.ltp.profile.clone(),
            profiles_folders: args.ltp.profiles_folders.clone(),
            command: args.load.clone(),
            builtin: args.builtin.clone(),
            rate: args.rate,
            workers: args.workers,
            pin: args.pin,
            operations: args.operations,
            ltp: (&args.ltp).into(),
            sandbox: args.confine.sandbox(args.load_dir.clone()),
            watch: args.watch.watch.clone(),
            sample: args.watch.every(),
            max_loss: args.max_loss,
        }
    }
}

impl From<&LtpArgs> for Ltp {
    fn from(args: &LtpArgs) -> Self {
        Self {
            suite: args.suite.clone(),
            tests: args.tests.clone(),
            skip: args.skip.clone(),
            root: args.root.clone(),
            runner: args.runner,
            time_limit: args.time_limit,
            iterations: args.iterations,
            allow_destructive: args.allow_destructive,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::lab::guest;
    use crate::lab::plan::{Length, RunSpec};
    use crate::load::BuiltinKind;
    use crate::recording::{Clock, Meter};

    fn parsed(line: &str) -> Options {
        let line = format!("profiler run {line}");
        let command = Cli::try_parse_from(line.split_whitespace()).unwrap().command;
        let Command::Run(args) = command else { panic!("{command:?}") };
        Options::from(&*args)
    }

    #[test]
    fn what_is_not_asked_for_is_the_default() {
        let handlers = vec!["x".to_owned()];
        let default = Options { handlers, ..Options::default() };
        assert_eq!(format!("{default:?}"), format!("{:?}", parsed("-H x")));
    }

    /// The same as the command line that a user would write, after the way into the guest.
    #[test]
    fn a_measurement_of_the_lab_is_a_run_with_its_defaults() {
        let measurement = |length, clock, rate: Option<&str>| RunSpec {
            meter: Meter::Probes,
            clock,
            handlers: vec!["a_*".to_owned(), "b".to_owned()],
            loads: vec![BuiltinKind::Connect, BuiltinKind::Bind],
            workers: 2,
            rate: rate.map(|rate| rate.parse().unwrap()),
            dimensions: crate::load::Dimensions::default(),
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
                "--quiet --module driver --handler a_* --handler b --builtin connect --builtin bind \
                 --workers 2 {more}"
            );
            let options = guest::options("driver", &read);
            assert_eq!(format!("{options:?}"), format!("{:?}", parsed(&line)));
        }
    }
}
