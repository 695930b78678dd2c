//! What a run is made of: one job, or one for each part of a load profile.

use std::time::Duration;

use profiler_base::error::{Failure, bail, exit};
use profiler_kernel::target::{KernelFiles, LeftOut, Resolved, Target};
use profiler_load::ltp::{LtpLoad, LtpOptions};
use profiler_load::profile::{Builtin, Library, LoadProfile, Wanted};
use profiler_load::{BuiltinKind, BuiltinLoad, CommandLoad, HitCounter, Load, SandboxedLoad};
use profiler_probe::resolve_programs;
use profiler_recording::LoadProfileUsed;
use profiler_recording::warning::{Handlers, Warning, WarningRecord};

use crate::args::{LtpArgs, RunArgs};

/// Window of a load that does not end by itself, where no other was asked for.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);

/// Handlers under one load.
#[derive(Default)]
pub(super) struct Job {
    /// The load profile, which says how many hits it wants of its handlers.
    pub(super) profile: Option<LoadProfile>,
    pub(super) targets: Vec<Target>,
    /// What patterns match and no probe can be placed on.
    pub(super) left_out: Vec<LeftOut>,
    /// Length of the window; `None` is until the load has ended.
    pub(super) duration: Option<Duration>,
    /// What is known before anything is measured.
    pub(super) warnings: Vec<WarningRecord>,
    /// Run side by side.
    pub(super) loads: Vec<Load>,
}

/// All jobs of a run, in order, checked as far as can be without measuring.
pub(super) fn of(args: &RunArgs, files: &KernelFiles) -> Result<Vec<Job>, Failure> {
    let Some(name) = &args.ltp.profile else {
        return Ok(vec![job(args, None, files)?]);
    };
    let library = Library::of_user(&args.ltp.profiles_folders);
    let profile = library.find(name)?;
    let parts = library.parts(&profile)?;
    let mut jobs: Vec<Job> = Vec::new();
    let mut absent: Vec<WarningRecord> = Vec::new();
    let mut first_error = None;
    for part in &parts {
        match job(args, Some(part), files) {
            Ok(job) => jobs.push(job),
            // Drivers differ in their hooks: a table with a part missing is better than none.
            Err(error) if parts.len() > 1 && error.code == exit::NO_TARGET => {
                absent.push(Warning::PartMissing(part.name.clone(), error.to_string()).into());
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match (jobs.first_mut(), first_error) {
        (Some(first), _) => first.warnings.extend(absent),
        (None, Some(error)) => return Err(error),
        (None, None) => {}
    }
    Ok(jobs)
}

/// The handlers and loads that are named, or those of a load profile.
fn job(args: &RunArgs, profile: Option<&LoadProfile>, files: &KernelFiles) -> Result<Job, Failure> {
    // First, so that an impossible load is reported even where no driver is loaded.
    let (loads, duration) = loads(args, profile)?;
    let mut warnings = Vec::new();
    let Resolved { targets, left_out } = match profile {
        Some(profile) => of_profile(args, profile, files, &mut warnings)?,
        None if args.no_probe => Resolved::default(),
        None if !args.bpf_progs.is_empty() => resolve_programs(&args.bpf_progs)?,
        None => files.resolve(args.module.as_deref(), &args.handlers)?,
    };
    let profile = profile.cloned();
    Ok(Job { profile, targets, left_out, duration, warnings, loads })
}

fn matches(wanted: &Wanted, name: &str) -> bool {
    glob::Pattern::new(&wanted.name).is_ok_and(|pattern| pattern.matches(name))
}

/// The module that holds the handlers: the one asked for, or the first of the profile's that is loaded.
fn module(
    args: &RunArgs,
    part: &LoadProfile,
    files: &KernelFiles,
) -> Result<Option<String>, Failure> {
    if args.module.is_some() || part.modules.is_empty() {
        return Ok(args.module.clone());
    }
    let loaded = part.modules.iter().find(|module| files.require_loaded(module).is_ok());
    if loaded.is_none() {
        bail!(
            NO_TARGET,
            "load profile {}: none of its modules is loaded ({}): insmod one, or name yours with --module",
            part.name,
            part.modules.join(", ")
        );
    }
    Ok(loaded.cloned())
}

/// The handlers that exist here: versions of a driver differ, so some may be missing.
fn of_profile(
    args: &RunArgs,
    profile: &LoadProfile,
    files: &KernelFiles,
    warnings: &mut Vec<WarningRecord>,
) -> Result<Resolved, Failure> {
    let module = module(args, profile, files)?;
    let module = module.as_deref();
    let names: Vec<String> = profile.hook.handlers.iter().map(|of| of.name.clone()).collect();
    let error = match files.resolve(module, &names) {
        Ok(resolved) => return Ok(resolved),
        Err(error) if error.code == exit::CANNOT_MEASURE => return Err(error),
        Err(error) => error,
    };
    let (mut present, mut missing, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for name in names {
        match files.resolve(module, std::slice::from_ref(&name)) {
            Ok(_) => present.push(name),
            Err(error) => {
                missing.push(name);
                reasons.push(error.to_string());
            }
        }
    }
    if present.is_empty() {
        return Err(error);
    }
    let (missing, why) = (Handlers(missing), reasons.join("; "));
    warnings.push(Warning::HandlerMissing(missing, profile.name.clone(), why).into());
    files.resolve(module, &present)
}

/// The loads, and the length of the window; `None` is until they have ended.
fn loads(
    args: &RunArgs,
    profile: Option<&LoadProfile>,
) -> Result<(Vec<Load>, Option<Duration>), Failure> {
    if let [program, rest @ ..] = args.load.as_slice() {
        let load = CommandLoad::new(program, rest.to_vec(), args.sandbox());
        return Ok((vec![Load::Command(Box::new(load))], args.duration));
    }
    if let Some(kinds) = &args.builtin {
        return builtin(args, kinds, profile);
    }
    let of_profile = profile.and_then(|profile| profile.hook.ltp.as_ref());
    let suite = args.ltp.suite.clone().or(of_profile.map(|ltp| ltp.suite.clone()));
    let Some(suite) = suite else {
        if let Some(profile) = profile {
            bail!(
                USAGE,
                "load profile {} has no tests of LTP: add --builtin for its built-in load",
                profile.name
            );
        }
        let LtpArgs { tests, skip, .. } = &args.ltp;
        if tests.is_some() || skip.is_some() {
            let option = if tests.is_some() { "--ltp-tests" } else { "--ltp-skip" };
            bail!(USAGE, "{option} needs a list of tests: add --ltp-suite, such as syscalls");
        }
        return Ok((vec![Load::Idle], args.duration.or(Some(DEFAULT_DURATION))));
    };
    // A pattern of the profile is one for its own list.
    let same = of_profile.filter(|ltp| ltp.suite == suite).map(|ltp| ltp.tests.clone());
    let load = LtpLoad::prepare(LtpOptions {
        root: args.ltp.root.clone(),
        suite,
        pattern: args.ltp.tests.clone().or(same),
        skip: args.ltp.skip.clone(),
        iterations: args.ltp.iterations.or(args.duration.is_none().then_some(1)),
        time_limit: args.ltp.time_limit,
        allow_destructive: args.ltp.allow_destructive,
        sandbox: args.sandbox(),
    })?;
    Ok((vec![Load::Ltp(Box::new(load))], args.duration))
}

fn builtin(
    args: &RunArgs,
    kinds: &[BuiltinKind],
    profile: Option<&LoadProfile>,
) -> Result<(Vec<Load>, Option<Duration>), Failure> {
    let named = kinds.iter().map(|&kind| Builtin { kind, workers: 1, rate: None, operations: 0 });
    let (all, operations) = match (kinds, profile) {
        ([], None) => {
            bail!(
                USAGE,
                "--builtin needs the name of a load, such as connect; without one it is for a --profile"
            );
        }
        ([], Some(profile)) => {
            let Some(builtin) = profile.hook.builtin else {
                bail!(
                    USAGE,
                    "load profile {} has no built-in load: leave --builtin out for its tests of LTP",
                    profile.name
                );
            };
            (vec![builtin], args.duration.is_none().then_some(builtin.operations))
        }
        _ => (named.collect(), None),
    };
    let operations = args.operations.or(operations);
    let loads = all.iter().map(|builtin| {
        let load = BuiltinLoad {
            workers: args.workers.unwrap_or(builtin.workers),
            rate: args.rate.or(builtin.rate),
            operations,
            pin: args.pin,
            ..BuiltinLoad::new(builtin.kind)
        };
        Load::Builtin(Box::new(SandboxedLoad::new(load, args.sandbox())))
    });
    let duration = args.duration.or(operations.is_none().then_some(DEFAULT_DURATION));
    Ok((loads.collect(), duration))
}

impl Job {
    /// The load profile, with the hits that it wants of each of these.
    pub(super) fn profile_used(&self, targets: &[&Target]) -> Option<LoadProfileUsed> {
        let LoadProfile { name, hook, .. } = self.profile.as_ref()?;
        let wanted = targets.iter().map(|target| {
            let of_name = hook.handlers.iter().filter(|wanted| wanted.name == target.name);
            let of_glob = hook.handlers.iter().filter(|wanted| matches(wanted, &target.name));
            of_name.chain(of_glob).next()
        });
        let least_hits = wanted.map(|wanted| Some(wanted?.least_hits)).collect();
        Some(LoadProfileUsed { name: name.clone(), least_hits })
    }

    /// The loads, to be run side by side after this warm-up, which may ask `counter` for the handlers' hits.
    pub(super) fn loads(&self, warmup: Duration, counter: &HitCounter) -> Vec<Load> {
        let mut loads = self.loads.clone();
        for load in &mut loads {
            match load {
                Load::Builtin(load) => load.warm_up(warmup),
                Load::Ltp(load) => load.counter = Some(counter.clone()),
                Load::Idle | Load::Command(_) => {}
            }
        }
        loads
    }
}
