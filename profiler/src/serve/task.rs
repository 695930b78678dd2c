//! What the daemon does about one module: a state machine that follows the module's presence, its budget, and requests.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use profiler_base::error::{Failure, bail};
use profiler_base::stats::nanoseconds;
use profiler_base::text::plural;
use profiler_kernel::host::HostFacts;
use profiler_probe::ProbeError;
use profiler_recording::Backend;

use super::attachment::Attachment;
use super::budget::{Action, Budget, FIRST_WAIT, LONGEST_WAIT, percent};
use super::config::{self, Config};
use super::control::Released;
use super::costs::Costs;
use super::modules::Presence;
use super::state::{Build, MAX_BUILDS, NotMeasured, Own, Phase};
use super::store::Store;

/// How long drains may fail before the probes are taken off: the kernel's counters would overflow.
const LONGEST_FAILURE: Duration = Duration::from_secs(60);

/// Time to the next look at a module whose initialisation is under way (kernels before 5.11 report it too early).
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How often a module may be replaced while probes are put on it, before it has to wait for its next event.
const MOST_TRIES: u32 = 5;

/// What all modules share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) host: HostFacts,
    pub(super) costs: Costs,
    pub(super) store: Store,
    pub(super) own: Own,
}

pub(super) struct Task {
    pub(super) config: config::Module,
    pub(super) stage: Stage,
    /// Builds that were measured before, the latest last.
    builds: Vec<Build>,
    /// Of the build that was measured last.
    pub(super) budget: Option<(String, Budget)>,
    /// The load that was refused last, and how long it waited for the next try.
    refused: Option<(u64, Duration)>,
}

/// The state of a module's probes. Loads are known by their numbers.
pub(super) enum Stage {
    /// It has probes; since when its drains fail, if they do.
    Measuring(Box<Attachment>, Option<Instant>),
    /// It has none.
    Off {
        phase: Phase,
        /// The load that is not attached to before `again`; without that time, not at all.
        load: Option<u64>,
        /// When to look again without an event.
        again: Option<Instant>,
    },
}

/// What to do with a module.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Stay,
    Wait,
    LookAgain,
    Detach,
    Attach(u64),
}

impl Stage {
    pub(super) fn waiting(again: Option<Instant>) -> Self {
        Self::Off { phase: Phase::Waiting, load: None, again }
    }

    pub(super) fn off(phase: Phase, load: u64, again: Option<Instant>) -> Self {
        Self::Off { phase, load: Some(load), again }
    }

    /// What follows from the presence of the module.
    fn step(&self, presence: Presence, now: Instant) -> Step {
        match (self, presence) {
            (Self::Measuring(attachment, _), Presence::Live(load)) if load == attachment.load => {
                Step::Stay
            }
            // Only backends that hold no reference let it go while they measure it.
            (Self::Measuring(..), _) => Step::Detach,
            // It may have been released before it was ready.
            (
                Self::Off { load: Some(known), again, .. },
                Presence::Live(load) | Presence::Coming(load),
            ) if load == *known && again.is_none_or(|again| now < again) => Step::Stay,
            (_, Presence::Live(load)) => Step::Attach(load),
            (_, Presence::Coming(_)) => Step::LookAgain,
            (Self::Off { load: None, again: None, .. }, Presence::Absent) => Step::Stay,
            (_, Presence::Absent) => Step::Wait,
        }
    }
}

impl Task {
    /// A module that has not been looked at yet.
    pub(super) fn new(config: config::Module) -> Self {
        let stage = Stage::waiting(Some(Instant::now()));
        Self { config, stage, builds: Vec::new(), budget: None, refused: None }
    }

    /// Goes on by its entry in a configuration that was read again. If that is as before, and the probes are `kept`, nothing
    /// changes; a refused one is tried again.
    pub(super) fn configure(&mut self, config: &config::Module, kept: bool, shared: &mut Shared) {
        let phase = self.phase();
        if self.config == *config && kept && !matches!(phase, Phase::Refused(_)) {
            return;
        }
        self.end(shared);
        (self.config, self.budget, self.refused) = (config.clone(), None, None);
        // One that was released is about to be unloaded.
        if phase != Phase::Released {
            self.stage = Stage::waiting(Some(Instant::now()));
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match &self.stage {
            Stage::Measuring(..) => Phase::Measuring,
            Stage::Off { phase, .. } => phase.clone(),
        }
    }

    pub(super) fn status_line(&self) -> String {
        let name = &self.config.name;
        match self.attachment().map(Attachment::measured) {
            Some(count) => format!("{name}: {count} handler{} measured", plural(count)),
            None => format!("{name}: {}", self.phase().as_ref()),
        }
    }

    pub(super) fn attachment(&self) -> Option<&Attachment> {
        match &self.stage {
            Stage::Measuring(attachment, _) => Some(attachment),
            _ => None,
        }
    }

    /// The builds that are kept, the one that is measured last, as they are shown.
    pub(super) fn builds(&self, config: &Config, costs: &Costs) -> impl Iterator<Item = Build> {
        let measured = self.attachment().map(|attachment| {
            // Without the cost of a hit nothing is shed.
            let is_enforced = costs.are_known(attachment.backends(), config.precision)
                && self.overhead().is_some();
            let budget_enforced = config.budget.max_overhead.map(|_| is_enforced);
            Build { budget_enforced, ..attachment.build.clone() }
        });
        self.builds.iter().cloned().chain(measured)
    }

    /// What its probes cost, as a share of one CPU; `None` if the cost of a hit is not known.
    pub(super) fn overhead(&self) -> Option<f64> {
        self.budget.as_ref().map(|(_, budget)| budget.overhead())
    }

    /// When to look at it again without an event.
    pub(super) fn look_again(&self) -> Option<Instant> {
        match self.stage {
            Stage::Off { again, .. } => again,
            Stage::Measuring(..) => None,
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        matches!(self.stage, Stage::Measuring(_, Some(_)))
    }

    /// Attaches to the module or lets it go, by its presence.
    pub(super) fn look(&mut self, shared: &mut Shared) {
        for _ in 0..MOST_TRIES {
            let name = &self.config.name;
            let now = Instant::now();
            match self.stage.step(Presence::of(name), now) {
                Step::Stay => return,
                Step::Wait => {
                    info!("module {name} is not loaded: waiting for it");
                    self.stage = Stage::waiting(None);
                    return;
                }
                Step::LookAgain => {
                    self.stage = Stage::waiting(Some(now + LOOK_AGAIN));
                    return;
                }
                Step::Detach => {
                    warn!("module {name} was unloaded while it was measured");
                    self.end(shared);
                }
                Step::Attach(load) => {
                    if matches!(self.phase(), Phase::Refused(_) | Phase::Shed) {
                        info!("module {name} is tried again");
                    }
                    self.attach(load, shared);
                }
            }
        }
    }

    /// Puts probes on a load of the module.
    fn attach(&mut self, load: u64, shared: &mut Shared) {
        let (config, precision) = (&self.config, shared.config.precision);
        if config.backend == Some(Backend::FunctionGraph) {
            // There is one such tracer, and the module will hold it.
            shared.costs.dearest(config.backend.into_iter(), precision);
        }
        let known = self.budget.as_ref();
        let attached = Attachment::attach(config, load, precision, &shared.host, known);
        let is_same = Presence::of(&config.name) == Presence::Live(load);
        match attached {
            // It was replaced meanwhile: the next look finds out what it is now.
            _ if !is_same => self.stage = Stage::waiting(None),
            Ok(attachment) => {
                let id = &attachment.build.id;
                // A build that comes again keeps its budget.
                if self.budget.as_ref().is_none_or(|(known, _)| known != id) {
                    let cost = shared.costs.dearest(attachment.backends(), precision);
                    self.budget = cost.map(|cost| (id.clone(), Budget::new(cost)));
                }
                self.begin(attachment);
            }
            Err(why) => self.refuse(load, why.to_string()),
        }
    }

    /// Measures a build, or goes on with what is known of it.
    pub(super) fn begin(&mut self, mut attachment: Attachment) {
        let (module, id) = (&self.config.name, &attachment.build.id);
        if let Some(at) = self.builds.iter().position(|build| build.id == *id) {
            let before = self.builds.remove(at);
            let unlike = attachment.unlike(&before);
            if unlike.is_empty() {
                attachment.continue_sums(before);
            } else {
                let unlike: Vec<String> = unlike.iter().map(ToString::to_string).collect();
                warn!(
                    "the sum of build {id} of module {module} begins anew, because it is not measured as before: {}; its \
                     intervals on disk stay",
                    unlike.join("; ")
                );
            }
        } else if self.builds.len() == MAX_BUILDS {
            let Build { id, .. } = self.builds.remove(0);
            info!("build {id} of module {module} is no longer shown: there are newer ones");
        }
        self.stage = Stage::Measuring(Box::new(attachment), None);
    }

    /// This load cannot be measured: it is tried again, less and less often. The next load is tried at once.
    fn refuse(&mut self, load: u64, why: String) {
        let before = self.refused.filter(|(of, _)| *of == load);
        let wait = before.map_or(FIRST_WAIT, |(_, wait)| (wait * 2).min(LONGEST_WAIT));
        let (name, seconds) = (&self.config.name, wait.as_secs());
        warn!(
            "module {name} cannot be measured: {why}; it is tried again in {seconds} s, and at once by \
             `profiler release --resume {name}`"
        );
        self.refused = Some((load, wait));
        self.stage = Stage::off(Phase::Refused(why), load, Some(Instant::now() + wait));
    }

    /// Drains, and ends the interval if it `closes`.
    pub(super) fn drain(&mut self, closes: bool, shared: &mut Shared) {
        let Stage::Measuring(attachment, failing) = &mut self.stage else { return };
        let began = Instant::now();
        let Err(error) = attachment.drain(closes) else {
            *failing = None;
            shared.own.drains += 1;
            shared.own.drain_ns += nanoseconds(began.elapsed());
            if closes {
                let interval = attachment.close();
                let Build { module, id, .. } = &attachment.build;
                shared.store.put(module, id, interval);
            }
            return;
        };
        let since = *failing.get_or_insert_with(Instant::now);
        shared.own.drain_failures += 1;
        warn!("module {} cannot be read: {error}", self.config.name);
        if matches!(error, ProbeError::PreemptionChanged) {
            self.end(shared);
            // Not here: a daemon that ends drains, too, and attaches nothing any more.
            self.stage = Stage::waiting(Some(Instant::now()));
        } else if since.elapsed() >= LONGEST_FAILURE
            && let Some((load, _)) = self.end(shared)
        {
            self.refuse(load, error.to_string());
        }
    }

    /// Takes the probes off, and stores the last interval. Returns the load that was measured, and its last figures; `None` if
    /// nothing was measured.
    pub(super) fn end(&mut self, shared: &mut Shared) -> Option<(u64, Released)> {
        let Stage::Measuring(attachment, _) = &mut self.stage else { return None };
        let lost = attachment.detach();
        let mut interval = attachment.close();
        if let Some(lost) = lost {
            shared.own.drain_failures += 1;
            interval.warnings.push(lost.into());
        }
        let load = attachment.load;
        let handlers = attachment.names();
        let released = Released { handlers, calls: interval.calls(), references: 0 };
        let mut build = attachment.build.clone();
        shared.store.put(&build.module, &build.id, interval);
        build.leave();
        self.builds.push(build);
        self.stage = Stage::waiting(None);
        Some((load, released))
    }

    /// Takes the probes off until another load of it comes.
    pub(super) fn release(&mut self, shared: &mut Shared) -> Released {
        let name = self.config.name.clone();
        // A module that still initialises is not measured yet, and will not be in this load.
        let (Presence::Live(load) | Presence::Coming(load)) = Presence::of(&name) else {
            return Released::default();
        };
        let released = self.end(shared).map(|(_, released)| released).unwrap_or_default();
        self.stage = Stage::off(Phase::Released, load, None);
        info!("module {name} is released: probes come back with its next load");
        released
    }

    /// Measures it again although it was released or refused. Returns its handlers.
    ///
    /// # Errors
    /// If it is not loaded, or cannot be measured.
    pub(super) fn resume(&mut self, shared: &mut Shared) -> Result<Vec<String>, Failure> {
        if self.attachment().is_none() {
            self.stage = Stage::waiting(None);
            self.look(shared);
        }
        let name = &self.config.name;
        match &self.stage {
            Stage::Measuring(attachment, _) => Ok(attachment.names()),
            Stage::Off { phase: Phase::Refused(why), .. } => {
                bail!(CANNOT_MEASURE, "module {name} cannot be measured: {why}")
            }
            Stage::Off { .. } => {
                bail!(NO_TARGET, "module {name} is not loaded: it is measured when it comes")
            }
        }
    }

    /// Number of handlers that share the daemon's own time: measured ones, and shed ones.
    pub(super) fn budgeted(&self) -> usize {
        self.attachment().map_or(0, |attachment| attachment.measured() + attachment.shed())
    }

    /// The limit has changed: where all handlers are shed, they are tried with it at once.
    pub(super) fn limit_changed(&mut self) {
        if let Stage::Off { phase: Phase::Shed, again, .. } = &mut self.stage {
            *again = Some(Instant::now());
        }
    }

    /// Takes probes off handlers that exceed the budget, and puts them back on trial. `part` is each handler's part of the
    /// daemon's own time, as a share of a CPU.
    pub(super) fn keep_budget(&mut self, now: Instant, part: f64, shared: &mut Shared) {
        let Stage::Measuring(attachment, _) = &mut self.stage else { return };
        let (Some((_, budget)), Some(rates)) = (&mut self.budget, attachment.rates_to_decide())
        else {
            return;
        };
        let rates: Vec<_> = rates.iter().map(|(name, rate)| (name.as_str(), *rate)).collect();
        let actions = budget.decide(now, &rates, part, shared.config.limit());
        let mut is_done = true;
        let module = &self.config.name;
        for action in &actions {
            match action {
                Action::Shed(name, share) => {
                    shared.own.shed += 1;
                    let share = percent(*share);
                    warn!(
                        "handler {name} of {module} is shed: measuring it takes {share} of a CPU"
                    );
                }
                Action::TakeUp(name) => {
                    info!("handler {name} of {module} is measured again, on trial");
                }
            }
            is_done &= attachment.carry_out(action, Instant::now()).unwrap_or_else(|error| {
                warn!("handler probes of {module} cannot be switched: {error}");
                false
            });
        }
        if is_done {
            return;
        }
        let takes_up = actions.iter().any(|action| matches!(action, Action::TakeUp(_)));
        let mut names = rates.iter().map(|(name, _)| *name);
        let all_shed = !takes_up && names.all(|name| budget.shed().any(|shed| shed == name));
        let Some((load, _)) = self.end(shared) else { return };
        if all_shed {
            // Attaching tries all of them again: not at once.
            self.wait_for_trial(load, now);
        } else {
            info!("module {} is attached anew", self.config.name);
            self.attach(load, shared);
        }
    }

    /// All handlers of a load are shed: waits until the budget tries one again.
    pub(super) fn wait_for_trial(&mut self, load: u64, now: Instant) {
        let Some((_, budget)) = &self.budget else { return };
        let again = budget.next_trial().unwrap_or(now + FIRST_WAIT);
        self.stage = Stage::off(Phase::Shed, load, Some(again));
        let (name, seconds) = (&self.config.name, again.saturating_duration_since(now).as_secs());
        warn!(
            "all handlers of {name} are shed: it is attached again in {seconds} s; raise max-overhead, or name fewer handlers"
        );
        if let Some(build) = self.builds.last_mut() {
            let shed = budget.shed().map(|name| (name.to_owned(), NotMeasured::Shed));
            build.not_measured.extend(shed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::attachment::tests::attachment;
    use super::*;

    #[test]
    fn what_a_modules_presence_asks_for() {
        let (absent, coming) = (Presence::Absent, Presence::Coming(8));
        let [same, other] = [7, 8].map(Presence::Live);
        let now = Instant::now();
        let later = now + FIRST_WAIT;
        let measuring = || Stage::Measuring(Box::new(attachment("aa", Vec::new())), None);
        let refused = |again| Stage::off(Phase::Refused(String::new()), 7, Some(again));
        let shed = |again| Stage::off(Phase::Shed, 7, Some(again));
        let released = |load| Stage::off(Phase::Released, load, None);
        for (stage, presence, expected) in [
            (Stage::waiting(None), absent, Step::Stay),
            (Stage::waiting(Some(now)), absent, Step::Wait),
            (Stage::waiting(None), coming, Step::LookAgain),
            (Stage::waiting(None), same, Step::Attach(7)),
            (measuring(), same, Step::Stay),
            (measuring(), other, Step::Detach),
            (measuring(), absent, Step::Detach),
            (measuring(), coming, Step::Detach),
            (released(7), same, Step::Stay),
            (released(7), other, Step::Attach(8)),
            (released(7), absent, Step::Wait),
            (released(7), coming, Step::LookAgain),
            (released(8), coming, Step::Stay),
            (shed(later), same, Step::Stay),
            (shed(now), same, Step::Attach(7)),
            (shed(later), other, Step::Attach(8)),
            (shed(later), absent, Step::Wait),
            (refused(later), same, Step::Stay),
            (refused(now), same, Step::Attach(7)),
            (refused(later), other, Step::Attach(8)),
            (refused(later), absent, Step::Wait),
        ] {
            assert_eq!(stage.step(presence, now), expected, "{presence:?}");
        }
    }

    #[test]
    fn what_was_refused_is_tried_again_ever_more_rarely() {
        let config =
            config::Module { name: "no_such".to_owned(), handlers: Vec::new(), backend: None };
        let mut task = Task::new(config);
        let mut waits = Vec::new();
        for load in [7; 8].into_iter().chain([8]) {
            let before = Instant::now();
            task.refuse(load, "no memory".to_owned());
            assert_eq!(task.phase(), Phase::Refused("no memory".to_owned()));
            waits.push((task.look_again().unwrap() - before).as_secs());
        }
        assert_eq!(waits, [60, 120, 240, 480, 960, 1920, 3600, 3600, 60]);
    }
}
