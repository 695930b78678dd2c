//! What operations take more with each of several subjects than without any.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use profiler_base::error::{Failure, bail, exit};
use profiler_base::progress::Progress;
use profiler_export::tax::Column;
use profiler_load::BuiltinKind;
use profiler_run::args::TaxArgs;

use super::agent::Agent;
use super::plan::{Job, Length};
use super::session::Session;
use super::subject::{self, Subject};
use super::{Options, builds, has_cost, private_folder, run_with_progress};

/// Counted runs of a program.
const RUNS: u64 = 20;

/// Default loads: the general ones, and two that most agents hook.
#[must_use]
pub fn usual_loads() -> Vec<BuiltinKind> {
    let hooked = [BuiltinKind::Connect, BuiltinKind::Execve];
    let general = BuiltinKind::GENERAL.iter().copied().filter(|kind| has_cost(*kind));
    general.chain(hooked).collect()
}

/// What was measured.
#[derive(Debug)]
pub struct Taxed {
    /// Runs of each subject that was measured.
    pub columns: Vec<Column>,
    /// Names of the loads, in their order.
    pub loads: Vec<String>,
    /// Why it is not complete, if it is not.
    pub failure: Option<Failure>,
}

/// Names of the loads, in this order.
fn names(kinds: &[BuiltinKind], program: Option<&Agent>) -> Vec<String> {
    let program = program.map(|program| format!("run: {}", label(&program.command, &[])));
    kinds.iter().map(|kind| kind.name().to_owned()).chain(program).collect()
}

/// Measures each subject under each load; what was complete before a failure is kept.
///
/// # Errors
/// If a load has no cost of its own, or a subject or the kernel cannot be read.
pub fn measure(args: &TaxArgs, progress: &mut Progress) -> Result<Taxed, Failure> {
    let (kinds, program) = (kinds(args)?, program(args)?);
    let loads = names(&kinds, program.as_ref());
    let jobs = jobs(&kinds, program.zip(loads.last()));
    let folder = private_folder("profiler-tax-")?;
    // All of them are read before anything is measured.
    let mut benches = Vec::new();
    for (number, (given, options)) in options(args)?.into_iter().enumerate() {
        let below = folder.path().join(number.to_string());
        let bench = builds::of_kernels(&options, &below)?.swap_remove(0);
        benches.push((given, bench, options));
    }
    let mut taxed = Taxed { columns: Vec::new(), loads, failure: None };
    for (given, bench, options) in benches {
        progress.say(&format!("with {given}"));
        let measured = run_with_progress(&bench, &options, &jobs, progress);
        let [runs, _] = measured.runs;
        if !runs.is_empty() {
            let label = label(given, &taxed.columns);
            taxed.columns.push(Column { given: given.clone(), label, runs });
        }
        if measured.failure.is_some() {
            return Ok(Taxed { failure: measured.failure, ..taxed });
        }
        // The other loads of the same guest are complete.
        taxed.failure = taxed.failure.or_else(|| measured.failed.into_values().next());
    }
    Ok(taxed)
}

/// The built-in loads, each once.
fn kinds(args: &TaxArgs) -> Result<Vec<BuiltinKind>, Failure> {
    let is_usual = args.builtin.is_empty() && args.command.is_empty();
    let mut kinds = if is_usual { usual_loads() } else { args.builtin.clone() };
    let mut seen = HashSet::new();
    kinds.retain(|kind| seen.insert(*kind));
    if let Some(kind) = kinds.iter().find(|kind| !has_cost(**kind)) {
        bail!(
            USAGE,
            "an operation of {kind} has no cost of its own, as threads of the kernel do its work: name other loads"
        );
    }
    Ok(kinds)
}

/// The program of which each run is an operation.
fn program(args: &TaxArgs) -> Result<Option<Agent>, Failure> {
    if args.command.is_empty() {
        return Ok(None);
    }
    let words: Result<Vec<_>, _> = args.command.iter().map(|word| quoted(word)).collect();
    let command = words.map_err(|error| Failure::new(exit::USAGE, error.to_string()))?.join(" ");
    Agent::new(&command, &args.guests.agent.agent_file).map(Some)
}

/// A word for a shell, with quotes only where it needs them.
fn quoted(word: &str) -> Result<Cow<'_, str>, shlex::QuoteError> {
    let is_bare = !word.is_empty()
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "_=./:,@%+-".contains(c));
    if is_bare { Ok(Cow::Borrowed(word)) } else { shlex::try_quote(word) }
}

/// What is installed for each column.
fn options(args: &TaxArgs) -> Result<Vec<(&String, Options)>, Failure> {
    let has_command = !args.command.is_empty()
        || args.with.iter().any(|given| subject::command(Path::new(given)).is_some());
    let agent = subject::agent_beside(&args.guests.agent, has_command)?;
    let mut columns = Vec::new();
    for given in &args.with {
        let (subject, params) = split(given);
        let subject = Subject::of(subject, &args.guests.agent.agent_file)?;
        subject.check_parameters(params)?;
        let agent = agent.clone().filter(|_| !subject.is_command());
        let options = Options {
            kernels: vec![args.kernel.clone()],
            subjects: [vec![subject], Vec::new()],
            params: [params.to_owned(), String::new()],
            agent,
            logs: args.guests.logs.clone(),
            ..Options::counted()
        };
        columns.push((given, options));
    }
    Ok(columns)
}

/// A subject, and the parameters behind its file.
fn split(given: &str) -> (&Path, &str) {
    let end = given.find(".ko ").map(|at| at + ".ko".len());
    match end.filter(|_| subject::command(Path::new(given)).is_none()) {
        Some(end) => (Path::new(&given[..end]), given[end..].trim()),
        None => (Path::new(given), ""),
    }
}

/// The name of the file or program without its folder, with what follows it; numbered if another column has the same.
fn label(given: &str, columns: &[Column]) -> String {
    let command = subject::command(Path::new(given)).unwrap_or(given);
    let (program, more) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().unwrap_or(program);
    let name = format!("{name} {more}").trim().to_owned();
    let numbered = (2..).map(|number: u32| format!("{name} #{number}"));
    let mut labels = std::iter::once(name.clone()).chain(numbered);
    labels.find(|label| columns.iter().all(|column| column.label != *label)).unwrap_or(name)
}

/// Each load twice in one guest: once for one operation, as functions are counted while a load sets itself up, too. Runs of a program
/// are a load of this name.
fn jobs(kinds: &[BuiltinKind], program: Option<(Agent, &String)>) -> Vec<Job> {
    let mut jobs = Session::of_loads(kinds).work(None);
    if let Some((program, name)) = program {
        // It starts a process, as that load does.
        for mut job in Session::of_loads(&[BuiltinKind::Execve]).work(None) {
            job.run.length = Length::Operations(RUNS);
            let (part, program) = (Some(name.clone()), Some(program.clone()));
            jobs.push(Job { part, guest: u32::MAX, program, ..job });
        }
    }
    let twice = jobs.into_iter().flat_map(|many| {
        let many = Job { wanted: Some(Arc::default()), ..many };
        let mut once = Job { cost: false, ..many.clone() };
        once.run.length = Length::Operations(1);
        [once, many]
    });
    twice.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_parameters_and_a_name_of_its_own() {
        assert_eq!(split("/a/d.ko"), (Path::new("/a/d.ko"), ""));
        assert_eq!(split("/a/d.ko  A=1 B=2 "), (Path::new("/a/d.ko"), "A=1 B=2"));
        assert_eq!(split("run: load x.ko y").1, "", "a command's own");
        let mut columns = Vec::new();
        for (given, expected) in [
            ("/a/d.ko", "d.ko"),
            ("/b/d.ko", "d.ko #2"),
            ("/b/d.ko", "d.ko #3"),
            ("/a/d.ko A=1", "d.ko A=1"),
            ("run: /usr/sbin/opensnoop -T", "opensnoop -T"),
        ] {
            let label = label(given, &columns);
            assert_eq!(label, expected);
            columns.push(Column { given: given.to_owned(), label, runs: Vec::new() });
        }
    }

    #[test]
    fn a_program_comes_behind_the_loads() {
        let loads = [BuiltinKind::Execve, BuiltinKind::Stat, BuiltinKind::Getppid];
        let program = Agent::new("sh -c 'exit 0'", &[]).unwrap();
        let expected = ["execve", "stat", "getppid", "run: sh -c 'exit 0'"];
        assert_eq!(names(&loads, Some(&program)), expected);
        assert_eq!(names(&loads, None), expected[..3]);
    }

    #[test]
    fn each_load_is_made_twice_in_one_guest() {
        let loads = [BuiltinKind::Execve, BuiltinKind::Stat, BuiltinKind::Getppid];
        let program = Agent::new("sh -c 'exit 0'", &[]).unwrap();
        let jobs = jobs(&loads, Some((program, &"run: sh -c 'exit 0'".to_owned())));
        let programs: Vec<bool> = jobs.iter().map(|job| job.program.is_some()).collect();
        assert_eq!(programs, [false, false, false, false, false, false, true, true]);
        let of = |job: &Job| (job.part.clone().unwrap(), job.run.length, job.cost);
        let made: Vec<_> = jobs.iter().map(of).collect();
        let expected =
            [("execve", 200), ("getppid", 200), ("stat", 200), ("run: sh -c 'exit 0'", 20)];
        for ((name, operations), pair) in expected.into_iter().zip(made.chunks(2)) {
            let once = (name.to_owned(), Length::Operations(1), false);
            let many = (name.to_owned(), Length::Operations(operations), true);
            assert_eq!(pair, [once, many]);
        }
        assert_eq!(jobs[2].guest, jobs[5].guest);
        assert!(usual_loads().iter().all(|kind| has_cost(*kind)));
    }

    #[test]
    fn a_program_is_named_as_a_shell_would_have_it() {
        let command = ["sh", "-c", "exit 0"].map(str::to_owned).into();
        let program = program(&TaxArgs { command, ..TaxArgs::default() }).unwrap().unwrap();
        assert_eq!(program.command, "sh -c 'exit 0'");
    }

    #[test]
    fn a_load_without_a_cost_is_refused() {
        let args = TaxArgs { builtin: vec![BuiltinKind::TextPoke], ..TaxArgs::default() };
        let failure = measure(&args, &mut Progress::new(true)).unwrap_err();
        assert_eq!(failure.code, exit::USAGE);
    }
}
