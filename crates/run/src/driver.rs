//! Whether the measured driver stays the same: addresses and BTF ids are only valid until it is loaded again.

use std::io;

use profiler_base::error::{Failure, exit};
use profiler_base::terminal::say;
use profiler_base::text::plural;
use profiler_kernel::hooks::OwnProbes;
use profiler_kernel::module::{self, Loads, ModuleFacts};
use profiler_kernel::target::{KernelFiles, Resolved, Target};
use profiler_probe::{self as probe, Programs};
use profiler_recording::Recording;
use profiler_recording::warning::{Handlers, Warning, WarningRecord};

/// The module of a run, from before its handlers were looked up.
pub(super) struct Driver {
    pub(super) facts: ModuleFacts,
    loads: Loads,
    /// Its kprobes. Where they cannot be read, `profiler doctor` says why.
    own_probes: Option<OwnProbes>,
    /// The BPF programs, if these are measured.
    programs: Option<Programs>,
}

impl Driver {
    /// The module that holds `targets`; `None` for the kernel image. `files` were read while the loads were `known`.
    ///
    /// # Errors
    /// If it is not loaded any more, or BPF programs cannot be listed.
    pub(super) fn of(
        targets: &[Target],
        known: &Loads,
        files: &KernelFiles,
    ) -> Result<Option<Self>, Failure> {
        let Some(name) = targets.first().and_then(|target| target.module.as_deref()) else {
            return Ok(None);
        };
        // In this order: a load after `now` shows at the end.
        let loads = Loads::now();
        if targets.iter().any(|target| target.program.is_some()) {
            let programs = Some(Programs::of(targets).map_err(not_listed)?);
            return Ok(Some(Self { facts: probe::facts(), loads, own_probes: None, programs }));
        }
        let facts = module::collect(name)?;
        // The symbols of other modules name the places of its kprobes.
        let now = KernelFiles::default();
        let files = if loads == *known { files } else { &now };
        let own_probes = OwnProbes::of(files, &facts.name).ok();
        Ok(Some(Self { facts, loads, own_probes, programs: None }))
    }

    /// Number and missed hits of its kprobes before the run, in words.
    pub(super) fn own_probes(&self) -> Option<String> {
        let probes = &self.own_probes.as_ref()?.list;
        let most = probes.iter().filter_map(|probe| probe.maxactive);
        let missed =
            probes.iter().fold(0, |sum: u64, probe| sum.saturating_add(probe.all_missed()));
        let count = probes.len();
        (count > 0).then(|| {
            let most = match (most.clone().min(), most.max()) {
                (Some(least), Some(most)) if least == most => format!(" (maxactive {most})"),
                (Some(least), Some(most)) => format!(" (maxactive {least} to {most})"),
                _ => String::new(),
            };
            let (module, s) = (&self.facts.name, plural(count as u64));
            format!("{module} has {count} kprobe{s} of its own{most}; hits that they missed so far: {missed}")
        })
    }

    /// A warning for each kprobe of the module that has missed hits since then, if that `is_same`, and for each BPF program
    /// that the kernel has skipped, which keeps its id: the handlers were not called.
    pub(super) fn missed(&self, is_same: bool) -> Vec<WarningRecord> {
        let skipped = self.programs.iter().flat_map(Programs::skipped);
        let skipped = skipped.map(|(of, runs)| Warning::ProgramSkipped(Handlers(of), runs).into());
        let own_probes = self.own_probes.iter().filter(|_| is_same);
        let missed = own_probes.flat_map(OwnProbes::missed);
        let warnings = missed.map(|(probe, missed)| {
            let most = probe.maxactive.map_or(String::new(), |most| format!(" (maxactive {most})"));
            let place = format!("{}{most}", probe.place);
            Warning::DriverMissed(Handlers(probe.handlers.clone()), missed, place).into()
        });
        warnings.chain(skipped).collect()
    }

    /// The handlers in this load of the module, if it is not the load in `known`, in which `targets` were looked
    /// up.
    ///
    /// # Errors
    /// If one that was named without a glob cannot be measured in it.
    pub(super) fn look_up(
        &self,
        targets: &[Target],
        known: &Loads,
    ) -> Result<Option<Resolved>, Failure> {
        if self.loads.agree(known, &self.facts.name) {
            return Ok(None);
        }
        let found = KernelFiles::default().resolve_again(targets);
        found.map(Some).map_err(|error| {
            let text = format!("module {} was loaded anew, and {error}", self.facts.name);
            Failure::new(error.code, text)
        })
    }

    /// What became of the module since, in words, if anything did.
    pub(super) fn change(&self) -> Option<String> {
        if let Some(programs) = &self.programs {
            let changed = programs.changed().unwrap_or_else(|error| {
                say(&format!(
                    "{}: whether they stayed as they were is not known",
                    not_listed(error)
                ));
                None
            });
            return changed.map(|what| {
                format!("BPF programs did not stay as they were during the run: {what}; calls after that are missing")
            });
        }
        let module = &self.facts.name;
        if self.loads.agree(&Loads::now(), module) {
            return None;
        }
        let after = module::collect(module).ok().map(|facts| build(&facts));
        Some(change_of(module, &build(&self.facts), after.as_deref()))
    }
}

/// What a module's build is known by.
fn build(facts: &ModuleFacts) -> String {
    match (&facts.build_id, &facts.srcversion) {
        (Some(id), _) => format!("build id {id}"),
        (None, Some(sources)) => format!("without build id, sources {sources}"),
        (None, None) => "without build id".to_owned(),
    }
}

fn not_listed(error: io::Error) -> Failure {
    Failure::new(exit::INTERNAL, format!("cannot list BPF programs and links: {error}"))
}

/// A module whose build was `before` at the start of the run, and `after` at its end, unless it was not loaded then.
fn change_of(module: &str, before: &str, after: Option<&str>) -> String {
    let what = match after {
        None => format!("was unloaded during the run ({before})"),
        Some(after) if after == before => {
            format!("was unloaded and loaded again during the run (both times {before})")
        }
        Some(after) => {
            format!("was replaced during the run: {before} at its start, and {after} at its end")
        }
    };
    format!(
        "module {module} {what}: the figures are not those of one build, and calls after that may be missing"
    )
}

/// The error after such a change.
pub(super) fn replaced(change: String) -> Failure {
    let text = format!("{change}; what was measured has been reported");
    Failure::new(exit::DRIVER_REPLACED, text)
}

/// The warning and the error if a run measured another build of its module than one before it.
pub(super) fn changed_between(
    earlier: &[Recording],
    run: &Recording,
) -> Option<(WarningRecord, Failure)> {
    let mut pairs = run.modules.iter().filter_map(|now| {
        let mut modules = earlier.iter().rev().flat_map(|recording| &recording.modules);
        Some((modules.find(|module| module.name == now.name)?, now))
    });
    let (before, now) = pairs.find(|(before, now)| {
        (&before.build_id, &before.srcversion) != (&now.build_id, &now.srcversion)
    })?;
    let text = format!(
        "module {} was replaced between two runs: {} before, and {} from then on",
        now.name,
        build(before),
        build(now)
    );
    let warning = Warning::DriverChanged(text.clone()).into();
    let failure = Failure::new(exit::DRIVER_REPLACED, format!("{text}; all runs are reported"));
    Some((warning, failure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_it_is_said() {
        let change = |after| change_of("driver", "build id aa", after);
        assert!(change(None).contains("was unloaded during the run (build id aa)"));
        let replaced = change(Some("build id bb"));
        assert!(replaced.contains("build id aa at its start, and build id bb at its end"));
        assert!(change(Some("build id aa")).contains("unloaded and loaded again"));
    }
}
