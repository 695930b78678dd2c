//! From arguments to the lab's options.

use profiler_base::error::{Failure, exit};
use profiler_lab::plan::{Length, RunSpec};
use profiler_lab::subject::Subject;
use profiler_lab::{Options, usual_length};
use profiler_load::profile::{Hook, Library};
use profiler_recording::Meter;

use super::LabArgs;
use crate::cmd::sides::check_parameters;

/// The options of these arguments.
///
/// # Errors
/// If the load profile cannot be found or read or has no built-in load, or if arguments contradict each
/// other.
pub(super) fn of(args: &LabArgs) -> Result<Options, Failure> {
    let meter = args.meter();
    let baseline = if args.baseline.is_empty() { &args.module } else { &args.baseline };
    let mut given = Options::given([baseline, &args.candidate], &args.guests)?;
    // Without a driver the agent is what is measured.
    if given.subjects[0].is_empty() {
        given.subjects[0].extend(given.agent.take().map(Subject::Command));
    }
    let is_command = given.subjects[0].iter().any(Subject::is_command);
    let hook = args.profile.as_deref().map(|name| of_profile(args, name)).transpose()?;
    let Hook { handlers, parameter, builtin, .. } = hook.unwrap_or_default();
    let handlers = handlers.into_iter().map(|handler| handler.name).collect();
    let mut loads = args.builtin.clone();
    loads.extend(builtin.map(|builtin| builtin.kind));
    let handlers = chosen(args, handlers, is_command)?;
    // Of a load profile a command gets the load alone: the handlers are a driver's.
    let enabled = parameter.filter(|_| !is_command).map(|name| format!("{name}=1"));
    let own = [&args.baseline_params, &args.candidate_params];
    let params = own.map(|own| {
        let all = [enabled.as_deref().unwrap_or(""), &args.module_params, own].map(str::trim);
        all.into_iter().filter(|params| !params.is_empty()).collect::<Vec<_>>().join(" ")
    });
    let length = args.duration.map(Length::Time).or(args.operations.map(Length::Operations));
    let run = RunSpec {
        clock: args.clock,
        meter,
        backend: args.backend,
        length: length.unwrap_or_else(|| usual_length(meter, &loads)),
        handlers,
        loads,
        workers: args.workers,
        rate: args.rate,
        dimensions: args.dimensions.unwrap_or_default(),
    };
    let options = Options {
        kernels: args.kernel.clone(),
        params,
        run,
        placements: args.placements,
        repeat: args.repeat,
        boots: args.boots,
        jobs: args.jobs,
        cpus: args.cpus,
        memory: args.memory.clone(),
        timeout: args.timeout,
        cost: !args.no_cost,
        verify: args.verify && meter == Meter::Exact,
        ..given
    };
    options.check()?;
    check_parameters(&options, &args.module_params, own)?;
    Ok(options)
}

/// Handlers by name or glob: the user's, or else those of the load profile.
fn chosen(
    args: &LabArgs,
    of_profile: Vec<String>,
    is_command: bool,
) -> Result<Vec<String>, Failure> {
    if !args.handlers.is_empty() {
        return Ok(args.handlers.clone());
    }
    if !of_profile.is_empty() && !is_command {
        return Ok(of_profile);
    }
    // Counting costs the calls nothing; a probe on every function would.
    if is_command || args.meter() == Meter::Exact {
        return Ok(vec!["*".to_owned()]);
    }
    let text = "which handlers? Name them with --handler, or give a --profile: probes are not put on \
                every function of a driver";
    Err(Failure::new(exit::USAGE, text))
}

/// The hook of a load profile, which has a built-in load.
fn of_profile(args: &LabArgs, name: &str) -> Result<Hook, Failure> {
    let library = Library::of_user(&args.profile_folders);
    let profile = library.find(name)?;
    if profile.hook.builtin.is_some() {
        return Ok(profile.hook);
    }
    let why = if profile.parts.is_empty() {
        "has no built-in load, and the lab runs no other: give its handlers with --handler, and a load with --builtin"
            .to_owned()
    } else {
        library.parts(&profile)?;
        let parts = profile.parts.join(", ");
        format!("is made of parts, and the lab runs one at a time: name one of {parts}")
    };
    Err(Failure::new(exit::USAGE, format!("the load profile {name} {why}")))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use profiler_load::BuiltinKind;

    fn options(line: &str) -> Result<Options, Failure> {
        let line = format!("profiler lab {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Lab(args) => of(&args),
            other => panic!("{other:?}"),
        }
    }

    fn module(file: &str) -> Subject {
        Subject::Module(file.into())
    }

    #[test]
    fn an_agent_without_a_driver_is_what_is_measured() {
        let agent = options("--agent sh --profile connect").unwrap();
        assert!(agent.subjects[0][0].command().is_some() && agent.agent.is_none());
        assert_eq!(
            (agent.run.handlers, agent.run.loads),
            (vec!["*".to_owned()], vec![BuiltinKind::Connect])
        );
        let beside = options("-m d.ko --agent sh --builtin bind").unwrap();
        assert_eq!(
            (beside.subjects, beside.agent.is_some()),
            ([vec![module("d.ko")], Vec::new()], true)
        );
        for (line, why) in [
            ("--agent sh --builtin bind --module-params x=1", "module parameters are for a driver"),
            ("-m d.ko --builtin bind --agent-file x", "is for --agent"),
            ("--agent sh --builtin bind -H x --meter probes", "for --meter exact"),
        ] {
            let failure = options(line).unwrap_err();
            assert!(failure.code == exit::USAGE && failure.message.contains(why), "{failure}");
        }
    }

    #[test]
    fn arguments_become_values() {
        let one = options("-m d.ko -H a,b --builtin bind --operations 5 --no-cost").unwrap();
        assert_eq!(one.subjects, [vec![module("d.ko")], Vec::new()]);
        assert_eq!((one.run.length, one.cost), (Length::Operations(5), false));
        let two = options(
            "--baseline a.ko --candidate b.ko -H x --builtin bind --module-params m=1 \
             --candidate-params c=2 --duration 3s --meter probes",
        )
        .unwrap();
        assert_eq!(two.subjects, [vec![module("a.ko")], vec![module("b.ko")]]);
        assert_eq!(two.params, ["m=1", "m=1 c=2"]);
        assert_eq!(two.run.length, Length::Time(std::time::Duration::from_secs(3)));
        let all = options("-m d.ko --builtin bind").unwrap();
        assert_eq!(all.run.handlers, ["*"]);
        let unnamed = options("-m d.ko --builtin bind --meter probes").unwrap_err();
        assert_eq!(unnamed.code, exit::USAGE);
        let failure = options("-m d.ko -H x --builtin bind --cpus 2").unwrap_err();
        assert_eq!(failure.code, exit::USAGE);
    }

    #[test]
    fn a_load_profile_names_handlers_and_load() {
        let of_profile = options("-m d.ko --profile connect").unwrap();
        assert_eq!(of_profile.run.loads, [BuiltinKind::Connect]);
        let handlers = ["connect_syscall_handler", "connect_syscall_entry_handler"];
        assert_eq!(of_profile.run.handlers, handlers);
        let one = options("-m d.ko --profile connect -H connect_syscall_handler").unwrap();
        assert_eq!(one.run.handlers, ["connect_syscall_handler"]);
    }

    #[test]
    fn a_profile_of_parts_is_refused_with_its_parts() {
        let failure = options("-m d.ko --profile elkeid").unwrap_err();
        assert_eq!(failure.code, exit::USAGE);
        assert!(failure.message.contains("name one of") && failure.message.contains("connect"));
        assert!(options("-m d.ko --profile no-such-profile").is_err());
    }

    #[test]
    fn what_clap_can_tell_is_refused_by_it() {
        let parse = |more: &str| {
            let line = format!("profiler lab -H x --builtin bind {more}");
            Cli::try_parse_from(line.split_whitespace()).map(|_| ())
        };
        for wrong in [
            "",
            "--baseline a.ko",
            "--candidate a.ko",
            "-m a.ko --baseline a.ko --candidate b.ko",
            "-m a.ko --baseline-params x=1",
            "-m a.ko --operations 0",
            "-m a.ko --operations 5 --duration 1s",
            "--baseline a.ko --candidate b.ko --json x.json",
            "-m a.ko --repeat 0",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("-m a.ko --profile connect").is_err(), "a profile has its own load");
        assert!(parse("--baseline a.ko --candidate b.ko --candidate-params x=1 --out o").is_ok());
    }
}
