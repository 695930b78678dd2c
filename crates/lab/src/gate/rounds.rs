//! Runs of both builds: of all loads under one placement first, then of those under which they differ under more.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_base::text::listed;
use profiler_load::BuiltinKind;
use profiler_recording::{Recording, SeriesPosition};
use profiler_verdict::{
    self as verdict, FIRST_PLACEMENTS, HookReport, MOST_PLACEMENTS, Rule, Run, Side, Sides,
};

use super::Planned;
use crate::plan::Job;
use crate::runs::{Lab, tasks};
use crate::session::Reach;
use crate::subject::Subject;
use crate::{Measured, count};

/// What was measured so far.
pub(super) struct Rounds<'a> {
    planned: &'a Planned,
    progress: &'a mut Progress,
    /// With what the loads do not reach.
    pub(super) rule: Rule,
    /// One for each kernel that was measured.
    pub(super) reach: Vec<Reach>,
    /// What the builds register, of all kernels; `None` where that is not known.
    pub(super) registered: Option<HookReport>,
    /// Loads under which the baseline alone was counted, as it called nothing that differs.
    pub(super) alike: BTreeSet<String>,
    /// By build and load, why a load failed.
    pub(super) failed: BTreeMap<String, Failure>,
    /// Of the baseline and of the candidate.
    pub(super) runs: [Vec<Run>; 2],
    /// The same with all handlers, and what was measured before: what is here is not measured again.
    pub(super) known: [Vec<Recording>; 2],
}

/// The parts whose figures are open.
type Parts = BTreeSet<Option<String>>;

impl<'a> Rounds<'a> {
    /// What is planned, of which this is `known` of both builds.
    pub(super) fn new(
        planned: &'a Planned,
        rule: Rule,
        known: [Vec<Recording>; 2],
        progress: &'a mut Progress,
    ) -> Self {
        let (reach, registered, alike, failed, runs) = Default::default();
        Self { planned, progress, rule, reach, registered, alike, failed, runs, known }
    }

    /// Measures each kernel until the placements agree about the limits of the rule.
    pub(super) fn all(&mut self) -> Result<(), Failure> {
        let Planned { benches, options, .. } = self.planned;
        for (number, bench) in benches.iter().enumerate() {
            let lab = Lab::open(bench, &options.lab, &|line| self.progress.say(line))?;
            self.kernel(number, &lab)?;
        }
        Ok(())
    }

    fn kernel(&mut self, number: usize, lab: &Lab<'_>) -> Result<(), Failure> {
        let session = &self.planned.session;
        let kernel = self.planned.kernel(number);
        let cached = self.planned.cached_of(number).and_then(|cached| cached.runs.as_ref());
        let known = &mut self.known[0];
        let more = cached.into_iter().flatten();
        // A release that is the baseline was measured.
        let more = more.filter(|run| known.iter().all(|known| known.place != run.place));
        let more: Vec<Recording> = more.cloned().collect();
        known.extend(more);
        let mut work = session.work(kernel);
        work.retain(|job| self.planned.measured.has_load_of(job));
        if let Some(changed) = self.planned.changed_alone(&self.rule) {
            let functions = Arc::new(changed.functions.clone());
            for job in &mut work {
                if job.run.loads.iter().all(|load| BuiltinKind::GENERAL.contains(load)) {
                    job.only_if_called = Some(Arc::clone(&functions));
                }
            }
        }
        let mut placements = 0..1;
        let mut jobs = work.clone();
        while !jobs.is_empty() {
            let mut measured = both(lab, placements.clone(), &jobs, &mut self.known, self.progress);
            let is_first = self.reach.len() == number;
            self.keep_failed(&mut measured, is_first);
            if is_first {
                let alike = self.take_alike(&jobs, &mut measured.runs[0]);
                // They are of both builds in what the loads reach, and of neither in what is judged.
                measured.runs.iter_mut().for_each(|runs| runs.extend_from_slice(&alike));
                let reach = self.reached(kernel, &measured);
                self.reach.push(reach);
                measured.runs.iter_mut().for_each(|runs| runs.truncate(runs.len() - alike.len()));
            }
            self.add(number, &measured);
            measured.failure.map_or(Ok(()), Err)?;
            let open = self.open(number);
            jobs = again(&work, &open);
            placements = placements.end..next_end(placements.end);
            if placements.is_empty() {
                break;
            }
            if !jobs.is_empty() {
                let names: Vec<&String> = open.iter().flatten().collect();
                self.progress.say(&format!(
                    "the builds differ under {}: placements up to {}",
                    listed(&names),
                    placements.end
                ));
            }
        }
        let release = Some(&self.planned.benches[number].kernel.release);
        let known = self.known[0].iter();
        let of_kernel = known.filter(|run| run.host.kernel_release.as_ref() == release);
        let baseline: Vec<Recording> = of_kernel.cloned().collect();
        self.planned.remember(number, &baseline, self.progress);
        Ok(())
    }

    /// Takes out the baseline's runs that call nothing which differs: the candidate has none of these.
    fn take_alike(&mut self, jobs: &[Job], baseline: &mut Vec<Recording>) -> Vec<Recording> {
        let guests = alike(jobs, baseline);
        let alike = baseline.extract_if(.., |run| {
            job_of(run, jobs).is_some_and(|(_, guest)| guests.contains(&guest))
        });
        let alike: Vec<Recording> = alike.collect();
        self.alike.extend(alike.iter().filter_map(|run| run.place.as_ref()?.part.clone()));
        alike
    }

    /// What the loads reached on a kernel; what the builds register there is kept.
    fn reached(&mut self, kernel: Option<&str>, measured: &Measured) -> Reach {
        let Planned { session, options, .. } = self.planned;
        let [base, candidate] = &measured.runs;
        for pattern in session.not_found(base, candidate) {
            let text = format!("--handler {pattern}: neither build has a handler of that name");
            self.failed.insert(pattern.to_owned(), Failure::new(exit::NO_TARGET, text));
        }
        let mut reach = self.planned.measured.reach(kernel, base, candidate);
        // What the user says of a handler comes after it, and counts.
        self.rule.handlers.splice(0..0, std::mem::take(&mut reach.rules));
        let [base, candidate] = [base, candidate].map(Vec::from_iter);
        match HookReport::of(
            &base,
            &candidate,
            &self.rule,
            &|hook| options.asks_about(hook),
            &|handler| session.load_for(handler),
        ) {
            Some(found) => {
                // Where a BPF program is attached may not be known, so its name is all there is.
                if !options.lab.subjects[0].iter().any(Subject::is_command) {
                    reach.unreached.clear();
                }
                self.registered.get_or_insert_default().add(found, kernel);
            }
            None => reach.not_judged.extend(unreadable(&[base, candidate].concat(), kernel)),
        }
        reach
    }

    /// Keeps which loads failed; if the first placement has nothing to judge that is why.
    fn keep_failed(&mut self, measured: &mut Measured, is_first: bool) {
        let mut failed = std::mem::take(&mut measured.failed);
        if is_first && measured.failure.is_none() && measured.runs.iter().any(Vec::is_empty) {
            measured.failure = failed.pop_first().map(|(_, failure)| failure);
        }
        for (load, failure) in failed {
            self.failed.entry(load).or_insert(failure);
        }
    }

    /// The parts of a kernel that need more placements; none if the runs cannot be compared, which the gate reports.
    fn open(&self, number: usize) -> Parts {
        let release = Some(&self.planned.benches[number].kernel.release);
        let [base, candidate] = self.runs.each_ref().map(|runs| {
            let runs = runs.iter();
            let of_kernel = runs.filter(|it| it.recording.host.kernel_release.as_ref() == release);
            of_kernel.cloned().collect::<Vec<_>>()
        });
        Sides::new(&base, &candidate, &self.planned.options.allowed(), false)
            .map_or_else(|_| Parts::new(), |sides| verdict::open_parts(&sides, &self.rule))
    }

    /// Keeps runs, with the handlers that are judged there.
    fn add(&mut self, number: usize, measured: &Measured) {
        let bench = &self.planned.benches[number];
        let sides = measured.runs.iter().zip(&bench.builds);
        for (kept, (runs, build)) in self.runs.iter_mut().zip(sides) {
            let mut runs = runs.clone();
            self.reach[number].keep(&mut runs);
            kept.extend(named(&build.given, runs));
        }
    }
}

/// One placement, then as many as a difference needs, then one more each time.
fn next_end(measured: u32) -> u32 {
    (measured + 1).max(FIRST_PLACEMENTS as u32).min(MOST_PLACEMENTS as u32)
}

/// The jobs of further placements, by which `open` parts are decided: those of their guests up to the last that is open.
fn again(work: &[Job], open: &Parts) -> Vec<Job> {
    let mut begun = BTreeSet::new();
    let mut jobs: Vec<Job> = Vec::new();
    for job in work.iter().rev() {
        begun.extend(open.contains(&job.part).then_some(job.guest));
        let left_out = !begun.contains(&job.guest);
        jobs.push(Job { only_if_called: None, left_out, ..job.clone() });
    }
    jobs.retain(|job| begun.contains(&job.guest));
    jobs.reverse();
    jobs
}

/// The runs of both builds; those that are not in `known` are measured, and added to it.
fn both(
    lab: &Lab<'_>,
    placements: Range<u32>,
    jobs: &[Job],
    known: &mut [Vec<Recording>; 2],
    progress: &mut Progress,
) -> Measured {
    // A load that fails is lacking still when it was measured. What shares a guest is measured as a whole.
    let done = alike(jobs, &known[0]);
    let tasks = tasks(placements.clone(), jobs, |side, number, guest| {
        let is_alike = guest.iter().any(|job| done.contains(&(number, job.guest)));
        let mut jobs = guest.iter();
        (side == Side::Baseline || !is_alike)
            && jobs.any(|job| lacks(&known[side as usize], job, number))
    });
    let mut measured = count(lab, &tasks, progress);
    for (known, more) in known.iter_mut().zip(&mut measured.runs) {
        known.retain(|run| more.iter().all(|new| new.place != run.place));
        known.append(more);
        let of_jobs = known.iter().filter(|run| {
            placements.clone().any(|number| jobs.iter().any(|job| is_of(run, job, number)))
        });
        *more = of_jobs.cloned().collect();
    }
    measured
}

/// Whether a run is of the job under a placement.
fn is_of(run: &Recording, job: &Job, placement: u32) -> bool {
    let place = run.place.as_ref();
    !job.left_out && place.is_some_and(|it| (it.boot, &it.part) == (placement, &job.part))
}

/// Whether the job has no run under a placement.
fn lacks(runs: &[Recording], job: &Job, placement: u32) -> bool {
    !job.left_out && !runs.iter().any(|run| is_of(run, job, placement))
}

/// Placements and guests in which each of the baseline's runs says that the candidate's are [left out](Job::only_if_called).
fn alike(jobs: &[Job], baseline: &[Recording]) -> BTreeSet<(u32, u32)> {
    let mut called: BTreeMap<(u32, u32), Vec<bool>> = BTreeMap::new();
    for run in baseline {
        if let Some((job, guest)) = job_of(run, jobs) {
            called.entry(guest).or_default().push(job.is_called_in(run));
        }
    }
    called.retain(|(_, guest), called| {
        let of_guest = jobs.iter().filter(|job| job.guest == *guest);
        // One that failed may have called anything.
        called.len() == of_guest.count() && !called.contains(&true)
    });
    called.into_keys().collect()
}

/// The job of a run, and its placement and guest.
fn job_of<'a>(run: &Recording, jobs: &'a [Job]) -> Option<(&'a Job, (u32, u32))> {
    let place = run.place.as_ref()?;
    let job = jobs.iter().find(|job| job.part == place.part)?;
    Some((job, (place.boot, job.guest)))
}

/// Why it is not known what builds register, in words.
fn unreadable(runs: &[&Recording], kernel: Option<&str>) -> Vec<String> {
    let hooks = runs.iter().flat_map(|run| &run.modules).filter_map(|it| it.hooks.as_ref());
    let why: BTreeSet<&String> = hooks.flat_map(|hooks| &hooks.unknown).collect();
    let on = kernel.map_or(String::new(), |kernel| format!(" on {kernel}"));
    why.into_iter().map(|why| format!("what the builds register{on}: {why}")).collect()
}

fn named(given: &str, recordings: Vec<Recording>) -> impl Iterator<Item = Run> {
    recordings.into_iter().map(move |recording| {
        let mut name = given.to_owned();
        if let Some(SeriesPosition { boot, part, .. }) = &recording.place {
            name.extend(part.iter().map(|part| format!(", {part}")));
            name.push_str(&format!(", placement {boot}"));
        }
        Run { name, recording }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;
    use profiler_kernel::hooks::Hooks;
    use profiler_kernel::module::ModuleFacts;
    use profiler_tests::recording::{drawn, runs};

    #[test]
    fn placements_grow_to_the_most() {
        let ends: Vec<u32> =
            std::iter::successors(Some(1), |end| Some(next_end(*end))).take(9).collect();
        assert_eq!(ends, [1, 3, 4, 5, 6, 7, 8, 9, 9]);
    }

    #[test]
    fn further_placements_end_with_the_last_load_that_is_open() {
        use BuiltinKind::{Accept, Bind, Connect, Dns, Tcp};
        let work = Session::of_loads(&[Connect, Bind, Dns, Accept, Tcp]).work(None);
        let open = Parts::from(["bind", "dns"].map(|load| Some(load.to_owned())));
        let jobs = again(&work, &open);
        let named = |left_out: bool| {
            let jobs = jobs.iter().filter(|job| job.left_out == left_out);
            jobs.filter_map(|job| job.part.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!([named(false), named(true)], ["connect bind dns", "accept"]);
        assert!(again(&work, &Parts::new()).is_empty());
        let none = [];
        assert!(lacks(&none, &jobs[0], 0) && !lacks(&none, &jobs[3], 0));
    }

    #[test]
    fn guests_in_which_the_baseline_calls_nothing_that_differs_are_the_baselines_alone() {
        let differs = Arc::new(BTreeSet::from(["fill.cold".to_owned()]));
        let session =
            Session::of_loads(&[BuiltinKind::Connect, BuiltinKind::Bind, BuiltinKind::Tcp]);
        let mut jobs = session.work(None);
        let run = |(job, text): (&Job, &str)| {
            let mut run = runs(&[drawn(text)]).remove(0);
            run.place = Some(SeriesPosition { boot: 0, order: 0, part: job.part.clone() });
            run
        };
        let with = |texts: [&str; 3]| jobs.iter().zip(texts).map(run).collect::<Vec<_>>();
        let (other, same) = ("hook 2 3=4", "hook 2 3=4\n  fill 1 9=2");
        let [none, first, last] =
            [[other; 3], [same, other, other], [other, other, same]].map(with);
        let guests = jobs.iter().map(|job| job.guest).collect::<Vec<_>>();
        assert_eq!((guests[0] == guests[1], guests[1] == guests[2]), (true, false));
        assert!(alike(&jobs, &none).is_empty(), "each is wanted");
        jobs.iter_mut().for_each(|job| job.only_if_called = Some(Arc::clone(&differs)));
        let of = |runs: &[Recording]| Vec::from_iter(alike(&jobs, runs));
        assert_eq!(of(&none), [(0, guests[0]), (0, guests[2])]);
        assert_eq!(of(&first), [(0, guests[2])], "what shares a guest is measured as a whole");
        assert_eq!(of(&last), [(0, guests[0])]);
        assert_eq!(of(&none[1..]), [(0, guests[2])], "a load that failed");
    }

    #[test]
    fn what_cannot_be_read_is_said_once_for_its_kernel() {
        let mut run = runs(&[profiler_recording::CallTree::default()]).remove(0);
        let hooks = Hooks { list: Vec::new(), unknown: vec!["no symbols".to_owned()] };
        run.modules = vec![ModuleFacts { hooks: Some(hooks), ..ModuleFacts::default() }];
        let said = |kernel| unreadable(&[&run, &run], kernel);
        assert_eq!(said(None), ["what the builds register: no symbols"]);
        assert_eq!(said(Some("6.1-arm64")), ["what the builds register on 6.1-arm64: no symbols"]);
    }
}
