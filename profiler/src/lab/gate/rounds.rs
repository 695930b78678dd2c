//! Runs of both builds: of all loads first, and then more of those under which the builds differ.

use std::path::{Path, PathBuf};

use super::Planned;
use crate::error::Failure;
use crate::lab::session::{self, Design, Reach};
use crate::lab::{Settings, run_with_progress};
use crate::progress::Progress;
use crate::recording::Recording;
use crate::recording::unlike::What;
use crate::text::listed;
use crate::verdict::{self, Rule, Run, Sides};

/// What was measured so far, and what that takes.
pub(super) struct Rounds<'a> {
    planned: &'a Planned,
    /// One for each kernel that was measured.
    pub(super) reach: Vec<Reach>,
    /// Of the baseline and of the candidate.
    pub(super) runs: [Vec<Run>; 2],
}

impl<'a> Rounds<'a> {
    /// Nothing yet of what is planned.
    pub(super) fn new(planned: &'a Planned) -> Self {
        Self { planned, reach: Vec::new(), runs: [Vec::new(), Vec::new()] }
    }

    /// Measures all loads, and those under which the builds differ until a figure can fail. What the loads do not
    /// reach goes into `rule`.
    pub(super) fn all(
        &mut self,
        allowed: &[What],
        rule: &mut Rule,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        for number in 0..self.planned.benches.len() {
            let cached = self.planned.cached.get(number).and_then(|cached| cached.runs.clone());
            self.measure(number, session::FIRST, 0, &|_| true, cached, progress)?;
        }
        for reach in &mut self.reach {
            // What the user says of a handler comes after it, and counts.
            rule.handlers.splice(0..0, std::mem::take(&mut reach.rules));
        }
        // The gate reports a refusal.
        let Ok(sides) = Sides::new(&self.runs[0], &self.runs[1], allowed, false) else {
            return Ok(());
        };
        let undecided = verdict::undecided(&sides, rule);
        if undecided.parts.is_empty() {
            return Ok(());
        }
        let names: Vec<&String> = undecided.parts.iter().flatten().collect();
        progress.say(&format!("the builds differ under {}: more runs of that", listed(&names)));
        let is_open = |name: &str| names.iter().any(|open| *open == name);
        for number in 0..self.planned.benches.len() {
            let is_cached =
                self.planned.cached.get(number).is_some_and(|cached| cached.runs.is_some());
            let first = (!is_cached).then_some(session::FIRST);
            let design = session::further(first, rule.alpha, undecided.comparisons);
            self.measure(number, design, session::FIRST.boots, &is_open, None, progress)?;
            if is_cached {
                // Runs of different boots cannot show that a figure differs: those of the same boots alone count for it.
                let kernel = &self.planned.benches[number].kernel.release;
                for runs in &mut self.runs {
                    runs.retain(|run| !is_first_of_open(run, kernel, &is_open));
                }
            }
        }
        Ok(())
    }

    /// Measures the loads that `is_wanted` on a kernel, of the candidate alone if the baseline's runs are `cached`. What there
    /// is when it fails is kept.
    fn measure(
        &mut self,
        number: usize,
        design: Design,
        first_boot: u32,
        is_wanted: &dyn Fn(&str) -> bool,
        cached: Option<Vec<Recording>>,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let Planned { session, lab, folder, benches, side_by_side, .. } = self.planned;
        let kernel = self.planned.kernel(number);
        let mut bench = benches[number].clone();
        let files = [Some(&bench.baseline), bench.candidate.as_ref()];
        let files = files.map(|build| build.map_or_else(PathBuf::new, |build| build.given.clone()));
        let mut repeat = design.repeat;
        if cached.is_some()
            && let Some(candidate) = bench.candidate.take()
        {
            // As many runs as it has in turns with the other. They come at other places of a boot, by which figures of Elkeid's
            // driver moved by 0.08 % at most.
            (bench.baseline, repeat) = (candidate, 2 * repeat);
        }
        let work = session.work(kernel, is_wanted);
        if work.is_empty() {
            return Ok(());
        }
        let below = folder.path().join(format!("kernel-{number}"));
        let settings = Settings {
            first_boot,
            boots: design.boots,
            jobs: (*side_by_side).min(design.boots),
            repeat,
            work,
            ..lab.settings(folder.path(), &below)
        };
        let mut measured = run_with_progress(&bench, &settings, progress);
        if let Some(cached) = cached {
            measured.candidate = std::mem::replace(&mut measured.baseline, cached);
        } else if self.reach.len() == number {
            self.planned.remember(number, &measured, progress);
        }
        if self.reach.len() == number {
            let reach = session.reach(kernel, &measured.baseline, &measured.candidate);
            self.reach.push(reach);
        }
        let sides = [measured.baseline, measured.candidate].into_iter().zip(&files);
        for (kept, (mut runs, file)) in self.runs.iter_mut().zip(sides) {
            self.reach[number].keep(&mut runs);
            kept.extend(named(file, runs));
        }
        measured.failure.map_or(Ok(()), Err)
    }
}

/// Whether a run is one of the first boots on a kernel, and of a part that `is_open`.
fn is_first_of_open(run: &Run, kernel: &str, is_open: &dyn Fn(&str) -> bool) -> bool {
    let on_kernel = run.recording.host.kernel_release.as_deref() == Some(kernel);
    on_kernel
        && run.recording.place.as_ref().is_some_and(|place| {
            place.boot < session::FIRST.boots && place.part.as_deref().is_some_and(is_open)
        })
}

fn named(file: &Path, recordings: Vec<Recording>) -> impl Iterator<Item = Run> {
    let name = |recording: &Recording| {
        let place = recording.place.as_ref();
        place.map_or(String::new(), |place| format!(", boot {}, run {}", place.boot, place.order))
    };
    recordings.into_iter().map(move |recording| Run {
        name: format!("{}{}", file.display(), name(&recording)),
        recording,
    })
}
