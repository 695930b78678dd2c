//! What operations take more with each of several subjects than without any.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::agent::Agent;
use super::plan::{Job, Length};
use super::session::Session;
use super::subject::{self, Subject};
use super::{Options, Settings, builds, has_cost, private_folder, run_each};
use crate::error::{Failure, exit};
use crate::export::tax::Column;
use crate::load::BuiltinKind;
use crate::progress::Progress;

/// Counted runs of a program.
const RUNS: u64 = 20;

/// Default loads: the general ones, and two that most agents hook.
#[must_use]
pub fn usual_loads() -> Vec<BuiltinKind> {
    let hooked = [BuiltinKind::Connect, BuiltinKind::Execve];
    let general = BuiltinKind::GENERAL.iter().copied().filter(|kind| has_cost(*kind));
    general.chain(hooked).collect()
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Kernel to boot.
    pub kernel: String,
    /// Subjects: `FILE.ko`, with parameters of the module behind it, or `run: COMMAND`.
    pub with: Vec<String>,
    /// What runs beside drivers.
    pub agent: Option<Agent>,
    /// Files of the commands.
    pub files: Vec<PathBuf>,
    /// Built-in loads, each once.
    pub loads: Vec<BuiltinKind>,
    /// A program of which each run is an operation.
    pub program: Option<Agent>,
    /// Where the guests' messages are kept.
    pub logs: Option<PathBuf>,
}

impl Asked {
    /// Names of the loads, in this order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let program = |program: &Agent| format!("run: {}", label(&program.command, &[]));
        let loads = self.loads.iter().map(|kind| kind.name().to_owned());
        loads.chain(self.program.as_ref().map(program)).collect()
    }
}

/// Measures each subject under each load; what was complete before a failure is kept.
///
/// # Errors
/// If a load has no cost of its own, or a subject or the kernel cannot be read.
pub fn measure(
    asked: &Asked,
    progress: &mut Progress,
) -> Result<(Vec<Column>, Option<Failure>), Failure> {
    if let Some(kind) = asked.loads.iter().find(|kind| !has_cost(**kind)) {
        let text = format!(
            "an operation of {kind} has no cost of its own, as threads of the kernel do its work: name other loads"
        );
        return Err(Failure::new(exit::USAGE, text));
    }
    let folder = private_folder("profiler-tax-")?;
    // All of them are read before anything is measured.
    let mut benches = Vec::new();
    for (number, given) in asked.with.iter().enumerate() {
        let (options, below) = (options(asked, given)?, folder.path().join(number.to_string()));
        let found = builds::of_kernels(&options, false, &below)?;
        benches.extend(found.into_iter().map(|bench| (given, bench, options.settings(&below))));
    }
    let jobs = jobs(asked);
    let (mut columns, mut failed): (Vec<Column>, Option<Failure>) = (Vec::new(), None);
    for (given, bench, settings) in benches {
        progress.say(&format!("with {given}"));
        let program = asked.program.clone();
        let settings = Settings { work: jobs.clone(), program, ..settings };
        let measured = run_each(&bench, &settings, progress);
        if !measured.baseline.is_empty() {
            let label = label(given, &columns);
            columns.push(Column { given: given.clone(), label, runs: measured.baseline });
        }
        // The other loads of the same guest are complete.
        failed = failed.or_else(|| measured.failed.into_values().next());
        if measured.failure.is_some() {
            return Ok((columns, measured.failure));
        }
    }
    Ok((columns, failed))
}

fn options(asked: &Asked, given: &str) -> Result<Options, Failure> {
    let (subject, params) = split(given);
    let subject = Subject::of(subject, &asked.files)?;
    subject.check_parameters(params)?;
    let agent = asked.agent.clone().filter(|_| subject.command().is_none());
    Ok(Options {
        kernels: vec![asked.kernel.clone()],
        baseline: vec![subject],
        baseline_params: params.to_owned(),
        agent,
        logs: asked.logs.clone(),
        ..Options::counted()
    })
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
    let is_free = |label: &String| columns.iter().all(|column| column.label != *label);
    let numbered = (2..).map(|number: u32| format!("{name} #{number}"));
    std::iter::once(name.clone()).chain(numbered).find(is_free).unwrap_or(name)
}

/// Each load twice in one guest: once for one operation, as functions are counted while a load sets itself up, too.
fn jobs(asked: &Asked) -> Vec<Job> {
    let mut jobs = Session::of_loads(&asked.loads).work(None);
    if let (Some(_), Some(name)) = (&asked.program, asked.names().pop()) {
        // It starts a process, as that load does.
        for mut job in Session::of_loads(&[BuiltinKind::Execve]).work(None) {
            job.run.length = Length::Operations(RUNS);
            jobs.push(Job { part: Some(name.clone()), guest: u32::MAX, program: true, ..job });
        }
    }
    let twice = |many: Job| {
        let many = Job { wanted: Some(Arc::default()), ..many };
        let mut once = Job { cost: false, ..many.clone() };
        once.run.length = Length::Operations(1);
        [once, many]
    };
    jobs.into_iter().flat_map(twice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked {
            kernel: "6.1".to_owned(),
            with: vec!["d.ko".to_owned()],
            agent: None,
            files: Vec::new(),
            loads: Vec::new(),
            program: None,
            logs: None,
        }
    }

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
    fn each_load_is_made_twice_in_one_guest() {
        let loads = vec![BuiltinKind::Execve, BuiltinKind::Stat, BuiltinKind::Getppid];
        let program = Some(Agent::new("sh -c 'exit 0'", &[]).unwrap());
        let asked = Asked { loads, program, ..asked() };
        let jobs = jobs(&asked);
        let programs: Vec<bool> = jobs.iter().map(|job| job.program).collect();
        assert_eq!(programs, [false, false, false, false, false, false, true, true]);
        assert_eq!(asked.names(), ["execve", "stat", "getppid", "run: sh -c 'exit 0'"]);
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
    fn a_load_without_a_cost_is_refused() {
        let asked = Asked { loads: vec![BuiltinKind::TextPoke], ..asked() };
        let failure = measure(&asked, &mut Progress::new(true)).unwrap_err();
        assert_eq!(failure.code, exit::USAGE);
    }
}
