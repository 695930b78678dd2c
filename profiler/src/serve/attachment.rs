//! The probes on one load of a module: what they measure, cut into intervals, and added to the sum of its build.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tracing::{info, warn};

use super::account::Account;
use super::budget::{Action, Budget};
use super::config;
use super::coverage::{Coverage, partly};
use super::logs::ALWAYS;
use super::state::{Build, NotMeasured};
use crate::kernel::host::HostFacts;
use crate::kernel::module::{self, ModuleFacts};
use crate::kernel::target::{KernelFiles, LeftOut};
use crate::probe::{self, Drained, Precision, ProbeError, Probes, Session};
use crate::recording::measure::{HandlerMeasure, Losses};
use crate::recording::unlike::{Difference, Use, differences};
use crate::recording::warning::{Handlers, SHED, Warning, WarningRecord};
use crate::recording::{Backend, Clock, HandlerRecording, HistogramLayout, Meter, Recording};
use crate::stats::nanoseconds;
use crate::text::{listed, plural};

/// For so long a call may be under way whose entry was skipped: see [`Account::add`].
const AGE: Duration = Duration::from_secs(9);

/// Shortest time over which calls per second are found.
const SHORTEST_RATE: Duration = Duration::from_millis(500);

/// Shortest time that a rate is known by.
const SHORTEST: Duration = Duration::from_secs(5);

/// A wall clock that went this much further or less than the monotonic one was stepped.
const STEP: SignedDuration = SignedDuration::from_secs(1);

/// The probes on one load of a module.
pub(super) struct Attachment {
    session: Box<dyn Session>,
    /// The number of that load.
    pub(super) load: u64,
    facts: ModuleFacts,
    host: HostFacts,
    precision: Precision,
    handlers: Vec<Handler>,
    left_out: Vec<LeftOut>,
    not_measured: BTreeMap<String, NotMeasured>,
    /// When the interval began, by both clocks.
    started: Timestamp,
    began: Instant,
    /// Until when calls were counted.
    until: Instant,
    /// Length of the build's intervals before, in nanoseconds.
    window_ns: u64,
    /// How much of it each handler had probes, by name.
    covered_ns: BTreeMap<String, u64>,
    /// When skipped entries were forgotten the last time.
    aged: Instant,
    /// Until when the budget was decided.
    decided: Instant,
    /// Until when calls per second were found.
    rated: Instant,
}

/// One handler.
struct Handler {
    /// Of the interval so far.
    measure: HandlerMeasure,
    account: Account,
    /// Losses of the build's intervals before, and those published.
    before: Losses,
    shown: Losses,
    calls_per_s: f64,
    /// Calls since that was found.
    unrated: u64,
    /// Calls since the budget was decided.
    undecided: u64,
    /// When it had probes.
    coverage: Coverage,
}

/// What a drain changed of the recording of a build.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// The handlers that changed, as they are now.
    handlers: Vec<HandlerRecording>,
    in_flight: BTreeMap<String, u64>,
    not_measured: BTreeMap<String, NotMeasured>,
    left_out: Vec<LeftOut>,
    window_ns: u64,
    covered_ns: BTreeMap<String, u64>,
}

impl Change {
    pub(super) fn apply(self, build: &mut Build) {
        for new in self.handlers {
            let known = build.recording.handlers.iter_mut().find(|known| known.name == new.name);
            if let Some(known) = known {
                *known = new;
            }
        }
        build.in_flight = self.in_flight;
        build.not_measured = self.not_measured;
        build.last = build.last.max(Timestamp::now());
        let recording = &mut build.recording;
        recording.window_ns = self.window_ns;
        let names = || recording.handlers.iter().map(|handler| handler.name.as_str());
        let warning = partly(names(), &self.covered_ns, self.window_ns);
        // One that was measured before it was shed has its figures.
        let left_out = self.left_out.into_iter();
        let left_out = left_out
            .filter(|left| left.reason != SHED || names().all(|name| name != left.name))
            .collect();
        recording.left_out = left_out;
        recording.warnings = warning.map(WarningRecord::from).into_iter().collect();
        build.covered_ns = self.covered_ns;
    }
}

impl Attachment {
    /// Puts probes on the handlers of a load of a module. Those that cannot be measured are left out, and those of the
    /// same build that `known` says are shed.
    ///
    /// # Errors
    /// Why none can, in a sentence.
    pub(super) fn attach(
        config: &config::Module,
        load: u64,
        precision: Precision,
        host: &HostFacts,
        known: Option<&(String, Budget)>,
    ) -> Result<Self, String> {
        let name = Some(config.name.as_str());
        let facts = module::collect(&config.name).map_err(|error| error.to_string())?;
        let found = KernelFiles::default().resolve_present(name, &config.handlers);
        let mut found = found.map_err(|error| error.to_string())?;
        if let (true, Some(left)) = (found.targets.is_empty(), found.left_out.first()) {
            return Err(format!(
                "none of its handlers can be measured: {}: {}",
                left.name, left.reason
            ));
        }
        let shed = known.filter(|(id, _)| id == build_id(&facts)).map(|(_, budget)| budget.shed());
        let mut shed: HashSet<String> = shed.into_iter().flatten().map(str::to_owned).collect();
        if found.targets.iter().all(|target| shed.contains(&target.label())) {
            // Retry all handlers; the back-off still doubles.
            shed.clear();
        }
        found.targets.retain(|target| !shed.contains(&target.label()));
        let mut not_measured: Vec<LeftOut> = found.left_out.clone();
        // Of what globs match, functions that cannot have a probe are nobody's wish.
        not_measured.retain(|left| config.handlers.contains(&left.name));
        let named =
            found.targets.iter().filter(|target| !target.by_glob).map(|target| target.label());
        let named: HashSet<String> = named.collect();
        for target in &mut found.targets {
            // One that no backend can measure is left out, whoever named it.
            target.by_glob = true;
        }
        let options = probe::Options {
            precision,
            backend: config.backend,
            keeper: true,
            ..probe::Options::default()
        };
        let probes = Probes::attach(&found.targets, options).map_err(|error| error.to_string())?;
        for fell_back in probes.fell_back() {
            let probe::FellBack { handler, backend, reason } = fell_back;
            info!("handler {handler} of {} is measured by {backend}: {reason}", config.name);
        }
        not_measured.extend_from_slice(probes.left_out());
        let left_out = [&found.left_out[..], probes.left_out()].concat();
        let mut attachment = Self::begin(Box::new(probes), load, precision, facts, host)
            .map_err(|error| error.to_string())?;
        for handler in &mut attachment.handlers {
            handler.measure.target.by_glob = !named.contains(&handler.measure.target.label());
        }
        let missing = |left: LeftOut| (left.name, NotMeasured::Missing(left.reason));
        attachment.not_measured = not_measured.into_iter().map(missing).collect();
        attachment.not_measured.extend(shed.into_iter().map(|name| (name, NotMeasured::Shed)));
        attachment.left_out = left_out;
        attachment.say();
        Ok(attachment)
    }

    /// Begins to measure with probes that are there.
    ///
    /// # Errors
    /// If they cannot be read.
    fn begin(
        mut session: Box<dyn Session>,
        load: u64,
        precision: Precision,
        facts: ModuleFacts,
        host: &HostFacts,
    ) -> Result<Self, ProbeError> {
        // Exits of calls that had entered before the probes were there.
        let first = session.drain()?;
        let began = session.drained_until().unwrap_or_else(Instant::now);
        let handler = |((target, backend), drained): ((_, _), &Drained)| {
            let durations = precision.durations().map_err(adding)?;
            let losses = Losses::default();
            let target: &crate::kernel::target::Target = target;
            let (target, backend) = (target.clone(), Some(backend));
            let measure = HandlerMeasure { target, backend, durations, losses };
            let account = Account::begin(drained);
            Ok(Handler {
                measure,
                account,
                before: losses,
                shown: losses,
                calls_per_s: 0.0,
                unrated: 0,
                undecided: 0,
                coverage: Coverage::begin(began),
            })
        };
        let all = session.targets().into_iter().zip(session.backends()).zip(&first);
        let handlers = all.map(handler).collect::<Result<_, ProbeError>>()?;
        Ok(Self {
            session,
            load,
            facts,
            host: host.clone(),
            precision,
            handlers,
            left_out: Vec::new(),
            not_measured: BTreeMap::new(),
            started: Timestamp::now(),
            began,
            until: began,
            window_ns: 0,
            covered_ns: BTreeMap::new(),
            aged: began,
            decided: began,
            rated: began,
        })
    }

    fn say(&self) {
        let count = self.handlers.len();
        let name = &self.facts.name;
        let in_use = match self.backends().any(Backend::holds_module) {
            true => format!(
                "; before `rmmod {name}`, run `profiler release {name}`: the kernel says that a module with probes \
                 is in use, and the daemon is not asked"
            ),
            false => String::new(),
        };
        info!(
            target: ALWAYS,
            "measuring {count} handler{} of module {name} (build {}), with {} KiB of kernel memory{in_use}",
            plural(count),
            self.build_id(),
            self.kernel_memory_bytes() / 1024,
        );
        for (name, why) in &self.not_measured {
            if let NotMeasured::Missing(why) = why {
                warn!("handler {name} of module {} is not measured: {why}", self.facts.name);
            }
        }
    }

    /// The module.
    pub(super) fn module(&self) -> &str {
        &self.facts.name
    }

    /// What tells its build from others: its build id, else its `srcversion`, else nothing.
    pub(super) fn build_id(&self) -> &str {
        build_id(&self.facts)
    }

    /// The handlers, in words.
    pub(super) fn names(&self) -> Vec<String> {
        self.handlers.iter().map(|handler| handler.measure.target.label()).collect()
    }

    pub(super) fn kernel_memory_bytes(&self) -> u64 {
        self.session.memory_bytes()
    }

    /// How its handlers are measured.
    pub(super) fn backends(&self) -> impl Iterator<Item = Backend> + '_ {
        self.handlers.iter().filter_map(|handler| handler.measure.backend)
    }

    /// Calls a second of each handler that has probes, by the last drain.
    pub(super) fn rates(&self) -> impl Iterator<Item = (String, f64)> + '_ {
        let measured = self.handlers.iter().filter(|handler| handler.coverage.is_on());
        measured.map(|handler| (handler.measure.target.label(), handler.calls_per_s))
    }

    /// Handlers of the build that are shed.
    pub(super) fn shed(&self) -> usize {
        self.not_measured.values().filter(|why| **why == NotMeasured::Shed).count()
    }

    /// Calls a second of each handler that has probes since this was asked before; `None` if that is too short a time.
    pub(super) fn rates_to_decide(&mut self) -> Option<Vec<(String, f64)>> {
        let time = self.until.saturating_duration_since(self.decided);
        if time < SHORTEST {
            return None;
        }
        self.decided = self.until;
        let rates = self.handlers.iter_mut().filter_map(|handler| {
            let calls = std::mem::take(&mut handler.undecided);
            let rate = calls as f64 / time.as_secs_f64();
            handler.coverage.is_on().then(|| (handler.measure.target.label(), rate))
        });
        Some(rates.collect())
    }

    /// Takes the probes off a handler at this time, or puts them back. `false` if that takes attaching anew.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn carry_out(&mut self, action: &Action, at: Instant) -> Result<bool, ProbeError> {
        let (name, is_shed) = match action {
            Action::Shed(name, _) => (name, true),
            Action::TakeUp(name) => (name, false),
        };
        let mut handlers = self.handlers.iter_mut().enumerate();
        let Some((place, handler)) =
            handlers.find(|(_, handler)| handler.measure.target.label() == *name)
        else {
            return Ok(false);
        };
        let is_done = match is_shed {
            true => self.session.pause(place)?,
            false => self.session.resume(place)?,
        };
        if is_done {
            match is_shed {
                true => {
                    handler.coverage.off(at);
                    self.not_measured.insert(name.clone(), NotMeasured::Shed);
                }
                false => {
                    handler.coverage.on(at);
                    self.not_measured.remove(name);
                }
            }
        }
        Ok(is_done)
    }

    /// In what it is measured in another way than `build` was: figures add up only if there is nothing.
    ///
    /// # Errors
    /// Never for histograms of one precision; the library's own check is passed on.
    pub(super) fn unlike(&self, build: &Build) -> Result<Vec<Difference>, ProbeError> {
        let handlers = self.handlers.iter();
        let handlers = handlers.map(|handler| HandlerRecording::from_measure(&handler.measure));
        let handlers = handlers.collect::<Result<Vec<_>, _>>().map_err(adding)?;
        let now = self.recording(self.started, Duration::from_nanos(1), handlers);
        Ok(differences(&build.recording, &now, Use::Merge))
    }

    /// The build that it goes on with: what was measured `before`, or nothing so far.
    ///
    /// # Errors
    /// Never for histograms of one precision; the library's own check is passed on.
    pub(super) fn build(&mut self, before: Option<&Build>) -> Result<Build, ProbeError> {
        let mut recording = match before {
            Some(before) => before.recording.clone(),
            None => self.recording(self.started, Duration::from_nanos(1), Vec::new()),
        };
        self.window_ns = before.map_or(0, |before| before.recording.window_ns);
        self.covered_ns = before.map(|before| before.covered_ns.clone()).unwrap_or_default();
        for handler in &mut self.handlers {
            let name = handler.measure.target.label();
            match recording.handlers.iter().find(|known| known.name == name) {
                Some(known) => (handler.before, handler.shown) = (known.losses, known.losses),
                None => recording
                    .handlers
                    .push(HandlerRecording::from_measure(&handler.measure).map_err(adding)?),
            }
        }
        let (left_out, covered_ns) = (self.left_out(), self.covered_ns.clone());
        let is_known = |name: &str| recording.handlers.iter().any(|known| known.name == name);
        let unknown = |left: &LeftOut| left.reason != SHED || !is_known(&left.name);
        recording.left_out = left_out.into_iter().filter(unknown).collect();
        Ok(Build {
            module: self.facts.name.clone(),
            id: self.build_id().to_owned(),
            last: Timestamp::now(),
            recording,
            not_measured: self.not_measured.clone(),
            covered_ns,
            budget_enforced: None,
            in_flight: BTreeMap::new(),
        })
    }

    /// Whether no call began since the last drain, which had all before: then there is nothing to drain.
    fn is_idle(&mut self) -> bool {
        let known = self.handlers.iter().map(|handler| handler.account.settled_entries());
        let known: Vec<Option<u64>> = known.collect();
        known.iter().all(Option::is_some)
            && self.session.entries().is_ok_and(|entries| entries == known)
    }

    /// Takes what was measured since the last time: what it changes of the build's `recording`. `fully` looks also
    /// at what the kernel skipped where no call began.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read; the next time has what this one lacks.
    pub(super) fn drain(
        &mut self,
        recording: &Recording,
        fully: bool,
    ) -> Result<Change, ProbeError> {
        let now = Instant::now();
        if !fully && self.is_idle() {
            self.until = now;
            self.rate(now);
            return Ok(self.change());
        }
        let drained = self.session.drain()?;
        let until = self.session.drained_until().unwrap_or_else(Instant::now);
        self.add(drained, until, recording, false)
    }

    /// Calls per second until now, unless that is too short a time to extrapolate a rate.
    fn rate(&mut self, until: Instant) {
        let time = until.saturating_duration_since(self.rated);
        if time < SHORTEST_RATE {
            return;
        }
        self.rated = until;
        for handler in &mut self.handlers {
            let calls = std::mem::take(&mut handler.unrated);
            handler.calls_per_s = calls as f64 / time.as_secs_f64();
        }
    }

    fn add(
        &mut self,
        drained: Vec<Drained>,
        until: Instant,
        recording: &Recording,
        is_last: bool,
    ) -> Result<Change, ProbeError> {
        self.until = self.until.max(until);
        let ages = until.saturating_duration_since(self.aged) >= AGE;
        if ages {
            self.aged = until;
        }
        let mut change = self.change();
        for (handler, mut drained) in self.handlers.iter_mut().zip(drained) {
            handler.unrated += drained.durations.len();
            handler.undecided += drained.durations.len();
            handler.account.add(&mut drained);
            if is_last {
                handler.account.end();
            }
            if ages {
                handler.account.age();
            }
            handler.measure.durations.add(&drained.durations).map_err(adding)?;
            change.handlers.extend(handler.sum(&drained, recording)?);
            change.in_flight.insert(handler.measure.target.label(), handler.account.in_flight());
        }
        self.rate(until);
        Ok(change)
    }

    /// Nothing but the time that passed.
    fn change(&self) -> Change {
        let open = nanoseconds(self.until.saturating_duration_since(self.began));
        let mut covered_ns = self.covered_ns.clone();
        for handler in &self.handlers {
            let of = covered_ns.entry(handler.measure.target.label()).or_default();
            *of = of.saturating_add(handler.coverage.until(self.until).min(open));
        }
        Change {
            not_measured: self.not_measured.clone(),
            left_out: self.left_out(),
            window_ns: self.window_ns.saturating_add(open).max(1),
            covered_ns,
            ..Change::default()
        }
    }

    /// Ends the interval with the last drain and begins the next there: a recording of it.
    ///
    /// # Errors
    /// Never for histograms of one precision; the library's own check is passed on.
    pub(super) fn close(&mut self) -> Result<Recording, ProbeError> {
        let (recording, length) = self.open_interval()?;
        for handler in &mut self.handlers {
            let covered = handler.coverage.close(self.until).min(recording.window_ns);
            let of = self.covered_ns.entry(handler.measure.target.label()).or_default();
            *of = of.saturating_add(covered);
            // Cannot overflow u64 in practice.
            let sum = handler.before.checked_add(&handler.measure.losses);
            handler.before = sum.unwrap_or(handler.before);
            handler.measure.durations.reset();
            handler.account.close();
            handler.measure.losses = Losses::default();
        }
        self.window_ns = self.window_ns.saturating_add(recording.window_ns);
        let ended =
            Timestamp::now() - SignedDuration::try_from(self.until.elapsed()).unwrap_or_default();
        if let Some(stepped) = stepped(self.started, ended, length) {
            warn!(
                "the wall clock was stepped by {stepped:#} during an interval of {}: its length is right, its \
                 start is as the clock was then",
                self.facts.name
            );
        }
        (self.started, self.began) = (ended, self.until);
        Ok(recording)
    }

    /// The interval until now with its warnings, and its length.
    fn open_interval(&mut self) -> Result<(Recording, Duration), ProbeError> {
        let length = self.until.saturating_duration_since(self.began).max(Duration::from_nanos(1));
        let mut recording = self.interval(length)?;
        if let Ok(Some((handler, prog_id))) = self.session.foreign_program() {
            let warning = Warning::Shared(Handlers(vec![handler]), prog_id);
            warn!("{warning}");
            recording.warnings.push(warning.into());
        }
        recording.warn();
        Ok((recording, length))
    }

    /// The interval of this length as a recording: handlers that had no probes in it are left out.
    fn interval(&self, length: Duration) -> Result<Recording, ProbeError> {
        let (mut profiles, mut never) = (Vec::with_capacity(self.handlers.len()), Vec::new());
        let mut covered_ns = BTreeMap::new();
        for handler in &self.handlers {
            let profile = HandlerRecording::from_measure(&handler.measure).map_err(adding)?;
            let covered = handler.coverage.until(self.until);
            if covered == 0 && !handler.coverage.is_on() && profile.is_idle() {
                never.push(self.shed_one(&profile.name));
            } else {
                covered_ns.insert(profile.name.clone(), covered);
                profiles.push(profile);
            }
        }
        let mut recording = self.recording(self.started, length, profiles);
        recording.left_out.extend(never);
        let names = covered_ns.keys().map(String::as_str);
        let warning = partly(names, &covered_ns, recording.window_ns);
        recording.warnings.extend(warning.map(WarningRecord::from));
        Ok(recording)
    }

    /// What it could not measure, and what was shed when it attached.
    fn left_out(&self) -> Vec<LeftOut> {
        let has_handler =
            |name: &str| self.handlers.iter().any(|handler| handler.measure.target.label() == name);
        let shed = self.not_measured.iter().filter(|(_, why)| **why == NotMeasured::Shed);
        let shed = shed.filter(|(name, _)| !has_handler(name)).map(|(name, _)| self.shed_one(name));
        self.left_out.iter().cloned().chain(shed).collect()
    }

    fn shed_one(&self, name: &str) -> LeftOut {
        let module = Some(self.facts.name.clone());
        LeftOut { name: name.to_owned(), module, reason: SHED.to_owned() }
    }

    /// The interval so far, which goes on; with what it changes of the build's `recording`.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read.
    pub(super) fn so_far(
        &mut self,
        recording: &Recording,
    ) -> Result<(Change, Recording), ProbeError> {
        let change = self.drain(recording, true)?;
        let (interval, _) = self.open_interval()?;
        Ok((change, interval))
    }

    /// Takes the probes off: the last change of the build's `recording`, the last interval, and whether its last calls are
    /// lost.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read any more.
    pub(super) fn end(
        mut self,
        recording: &Recording,
    ) -> Result<(Change, Recording, bool), ProbeError> {
        let count = self.handlers.len();
        self.session.detach();
        let (drained, lost) = match self.session.drain() {
            Ok(drained) => (drained, None),
            Err(error) => {
                warn!("the last calls of module {} are lost: {error}", self.facts.name);
                (self.session.undelivered()?, Some(Warning::EndedByError(error.to_string())))
            }
        };
        let until = self.session.drained_until().unwrap_or_else(Instant::now);
        let mut change = self.add(drained, until, recording, true)?;
        change.in_flight.clear();
        let mut interval = self.close()?;
        let is_lost = lost.is_some();
        interval.warnings.extend(lost.map(WarningRecord::from));
        info!(
            target: ALWAYS,
            "no probes on the {count} handlers of module {}: {}",
            self.facts.name,
            listed(&self.names())
        );
        Ok((change, interval, is_lost))
    }

    fn recording(
        &self,
        started: Timestamp,
        length: Duration,
        handlers: Vec<HandlerRecording>,
    ) -> Recording {
        let histogram = HistogramLayout {
            kernel_memory_bytes: self.kernel_memory_bytes(),
            direct: self.session.is_direct(),
            ..HistogramLayout::of_digits(self.precision.digits())
        };
        Recording {
            window_ns: nanoseconds(length),
            host: self.host.clone(),
            modules: vec![self.facts.clone()],
            handlers,
            left_out: self.left_out(),
            ..Recording::new(started, Clock::Wall, Meter::default(), histogram)
        }
    }
}

impl Handler {
    /// The handler in the sum of its build after `drained`; `None` if nothing changed.
    fn sum(
        &mut self,
        drained: &Drained,
        recording: &Recording,
    ) -> Result<Option<HandlerRecording>, ProbeError> {
        self.measure.losses = self.account.losses(&self.measure.durations);
        let losses = self.before.checked_add(&self.measure.losses).unwrap_or(self.shown);
        let name = self.measure.target.label();
        let known = recording.handlers.iter().find(|known| known.name == name);
        let Some(known) = known.filter(|_| !drained.durations.is_empty() || losses != self.shown)
        else {
            return Ok(None);
        };
        self.shown = losses;
        if drained.durations.is_empty() {
            return Ok(Some(HandlerRecording { losses, ..known.clone() }));
        }
        let mut durations = known.durations(&recording.histogram).map_err(adding)?;
        durations.add(&drained.durations).map_err(adding)?;
        let HandlerMeasure { target, backend, .. } = &self.measure;
        let (target, backend) = (target.clone(), *backend);
        let sum = HandlerMeasure { target, backend, durations, losses };
        HandlerRecording::from_measure(&sum).map(Some).map_err(adding)
    }
}

/// By how much the wall clock was stepped in an interval of this length by the monotonic clock, if it was.
fn stepped(started: Timestamp, ended: Timestamp, length: Duration) -> Option<SignedDuration> {
    let length = SignedDuration::try_from(length).unwrap_or_default();
    let stepped = ended.duration_since(started) - length;
    (stepped.abs() > STEP).then_some(stepped)
}

/// Its build id, else its `srcversion`, else nothing.
fn build_id(facts: &ModuleFacts) -> &str {
    facts.build_id.as_deref().or(facts.srcversion.as_deref()).unwrap_or_default()
}

fn adding(error: impl std::error::Error + Send + Sync + 'static) -> ProbeError {
    ProbeError::System { doing: "adding up what was drained", error: io::Error::other(error) }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;
    use crate::kernel::target::Target;
    use crate::probe::Books;
    use crate::recording::unlike::What;
    use crate::recording::{Backend, Merge};

    impl Attachment {
        /// From now on its drains fail.
        pub(in super::super) fn break_off(&mut self) {
            self.session = Box::new(Broken);
        }
    }

    /// Cannot be read.
    struct Broken;

    impl Session for Broken {
        fn targets(&self) -> Vec<&Target> {
            Vec::new()
        }

        fn backends(&self) -> Vec<Backend> {
            Vec::new()
        }

        fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
            Err(adding(io::Error::other("it is broken")))
        }

        fn detach(&mut self) {}

        fn memory_bytes(&self) -> u64 {
            0
        }
    }

    /// Gives these drains, one after the other, and then nothing more.
    struct Scripted {
        targets: Vec<Target>,
        drains: Vec<Vec<Drained>>,
        books: Vec<Books>,
        taken: usize,
        until: Instant,
    }

    impl Session for Scripted {
        fn targets(&self) -> Vec<&Target> {
            self.targets.iter().collect()
        }

        fn backends(&self) -> Vec<Backend> {
            vec![Backend::Fentry; self.targets.len()]
        }

        fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
            let drained = match self.drains.get(self.taken) {
                Some(drained) => drained.clone(),
                None => self.books.iter().map(|books| Drained::of(&[], *books)).collect(),
            };
            self.taken += 1;
            self.until += Duration::from_secs(10);
            self.books = drained.iter().map(|drained| drained.books).collect();
            Ok(drained)
        }

        fn drained_until(&self) -> Option<Instant> {
            Some(self.until)
        }

        fn entries(&mut self) -> Result<Vec<Option<u64>>, ProbeError> {
            let next = self.drains.get(self.taken);
            let books =
                next.map_or(self.books.clone(), |next| next.iter().map(|of| of.books).collect());
            Ok(books.iter().map(|books| Some(books.entries)).collect())
        }

        fn detach(&mut self) {}

        fn pause(&mut self, _: usize) -> Result<bool, ProbeError> {
            Ok(true)
        }

        fn resume(&mut self, _: usize) -> Result<bool, ProbeError> {
            Ok(true)
        }

        fn memory_bytes(&self) -> u64 {
            4096
        }
    }

    /// Probes on the handlers `busy` and `rare` of a build of `driver`, which give these drains after the first.
    pub(in super::super) fn attachment(id: &str, drains: Vec<Vec<Drained>>) -> Attachment {
        let target = |name: &str| Target {
            name: name.to_owned(),
            module: Some("driver".to_owned()),
            ..Target::default()
        };
        let first = vec![Drained::of(&[], Books::default()); 2];
        let session = Scripted {
            targets: vec![target("busy"), target("rare")],
            drains: [vec![first], drains].concat(),
            books: vec![Books::default(); 2],
            taken: 0,
            until: Instant::now() - Duration::from_secs(1000),
        };
        let build_id = Some(id.to_owned());
        let facts = ModuleFacts { name: "driver".to_owned(), build_id, ..ModuleFacts::default() };
        Attachment::begin(Box::new(session), 7, Precision::Three, facts, &HostFacts::default())
            .unwrap()
    }

    /// Drains in which `busy` has these many more calls each time and one under way, and `rare` one in each third.
    pub(in super::super) fn drains(calls: &[u64], doubtful_from: usize) -> Vec<Vec<Drained>> {
        let (mut of_busy, mut of_rare) = (0, 0);
        let drain = |(at, count): (usize, &u64)| {
            of_busy += count;
            let skipped = u64::from(at >= doubtful_from);
            let busy = Books {
                entries: of_busy + 1,
                in_flight: 1,
                doubtful: skipped,
                skipped_entries: skipped,
                missed: 2 * skipped,
                ..Books::default()
            };
            let durations: Vec<u64> = (0..*count).map(|n| 100 + 7919 * n % 1_000_003).collect();
            let rare: &[u64] = if at % 3 == 0 { &[5_000_000_000] } else { &[] };
            of_rare += rare.len() as u64;
            let of_rare = Books { entries: of_rare, ..Books::default() };
            vec![Drained::of(&durations, busy), Drained::of(rare, of_rare)]
        };
        calls.iter().enumerate().map(drain).collect()
    }

    /// What a file of it holds.
    fn stored(interval: &Recording) -> Recording {
        Recording::parse(&interval.to_json(), Path::new("interval.json")).unwrap()
    }

    fn assert_is_sum(build: &Build, intervals: &[Recording]) {
        let mut merge = Merge::new(What::ALL);
        for (at, interval) in intervals.iter().enumerate() {
            merge.add(stored(interval), &at.to_string()).unwrap();
        }
        let sum = merge.finish().unwrap();
        let of_build = Recording { handlers: build.recording.handlers.clone(), ..sum.clone() };
        assert_eq!(of_build, sum);
        assert_eq!(build.recording.window_ns, sum.window_ns);
        build.recording.check().unwrap();
    }

    #[test]
    fn a_build_is_the_exact_sum_of_its_intervals_and_never_less_than_before() {
        let calls = [30, 0, 200, 1, 9, 0, 77, 500];
        let mut attached = attachment("aa", drains(&calls, 4));
        let mut build = attached.build(None).unwrap();
        let (mut intervals, mut before) = (Vec::new(), Vec::new());
        for at in 0..calls.len() {
            attached.drain(&build.recording, at % 3 == 2).unwrap().apply(&mut build);
            build.recording.check().unwrap();
            let figures =
                |of: &HandlerRecording| [of.count, of.sum_ns, of.losses.missed, of.losses.doubtful];
            let now: Vec<[u64; 4]> = build.recording.handlers.iter().map(figures).collect();
            let less = before.iter().flatten().zip(now.iter().flatten()).find(|(a, b)| a > b);
            assert_eq!(less, None, "after {before:?} comes {now:?}");
            before = now;
            if at % 3 == 2 {
                intervals.push(attached.close().unwrap());
                assert_is_sum(&build, &intervals);
            }
        }
        let (change, last, _) = attached.end(&build.recording).unwrap();
        change.apply(&mut build);
        intervals.push(last);
        assert_is_sum(&build, &intervals);
        let busy = &build.recording.handlers[0];
        // In the drain that has the skipped entry; the next has no call, and the one after that is too late.
        let [count, doubtful] = [busy.count, busy.losses.doubtful];
        assert_eq!(count + doubtful, calls.iter().sum::<u64>());
        assert_eq!(doubtful, 1, "{:?}", busy.losses);
        assert_eq!((busy.losses.missed, build.recording.handlers[1].count), (2, 3));

        // The same build comes again.
        let mut again = attachment("aa", drains(&[10, 20], 9));
        assert_eq!(again.unlike(&build).unwrap(), []);
        let mut build = again.build(Some(&build)).unwrap();
        again.drain(&build.recording, true).unwrap().apply(&mut build);
        intervals.push(again.close().unwrap());
        let (change, last, _) = again.end(&build.recording).unwrap();
        change.apply(&mut build);
        intervals.push(last);
        assert_is_sum(&build, &intervals);
        assert_eq!(build.recording.handlers[0].count, count + 30);
        assert!(build.in_flight.is_empty());
    }

    #[test]
    fn a_recording_says_for_how_much_of_its_window_a_handler_was_measured() {
        // A drain is 10 s.
        let mut attached = attachment("aa", drains(&[5; 8], 9));
        let mut build = attached.build(None).unwrap();
        let shed = Action::Shed("rare".to_owned(), "1%".parse().unwrap());
        let partly = |recording: &Recording| -> Vec<String> {
            let of = recording.warnings.iter().filter(|of| of.code == "partly-measured");
            of.map(|of| of.text.split(": ").nth(1).unwrap().to_owned()).collect()
        };
        let drain = |attached: &mut Attachment, build: &mut Build| {
            attached.drain(&build.recording, true).unwrap().apply(build);
        };
        drain(&mut attached, &mut build);
        assert!(partly(&attached.close().unwrap()).is_empty());
        drain(&mut attached, &mut build);
        let at = attached.until;
        assert!(attached.carry_out(&shed, at).unwrap());
        drain(&mut attached, &mut build);
        let interval = attached.close().unwrap();
        assert_eq!(partly(&interval), ["rare 10.0 s of 20.0 s"]);
        assert_eq!(partly(&build.recording), ["rare 20.0 s of 30.0 s"]);
        assert_eq!(build.covered_ns["rare"], 20_000_000_000);
        assert_eq!(build.covered_ns["busy"], 30_000_000_000);
        attached.until += Duration::from_secs(60);
        let interval = attached.close().unwrap();
        let names: Vec<&str> = interval.handlers.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["busy"]);
        assert_eq!((interval.left_out[0].name.as_str(), interval.left_out.len()), ("rare", 1));
        assert_eq!(interval.left_out[0].reason, SHED);
        assert!(partly(&interval).is_empty());
        let at = attached.until;
        assert!(attached.carry_out(&Action::TakeUp("rare".to_owned()), at).unwrap());
        attached.until += Duration::from_secs(60);
        let interval = attached.close().unwrap();
        assert_eq!((interval.handlers.len(), interval.left_out.len()), (2, 0));
        assert!(partly(&interval).is_empty());
    }

    #[test]
    fn what_did_not_happen_is_not_drained() {
        let nothing = Drained::of(&[], Books::default());
        let entered = Books { entries: 1, ..Books::default() };
        let script = [
            nothing.clone(),
            nothing.clone(),
            Drained::of(&[], entered),
            Drained::of(&[400], entered),
        ];
        let script = script.into_iter().map(|rare| vec![nothing.clone(), rare]).collect();
        let mut attached = attachment("aa", script);
        let mut build = attached.build(None).unwrap();
        let mut drained = |fully: bool| {
            attached.drain(&build.recording, fully).unwrap().apply(&mut build);
            build.recording.handlers[1].count
        };
        // The first of the script is never taken but at the end of an interval, for what the kernel may have skipped.
        assert_eq!([false, false, false, true, true].map(&mut drained), [0; 5]);
        // Then one call enters and leaves while its counters are read: it is in the next drain.
        assert_eq!([false, false, false].map(&mut drained), [0, 1, 1]);
    }

    #[test]
    fn a_step_of_the_wall_clock_is_no_time() {
        let start: Timestamp = "2026-11-23T00:00:00Z".parse().unwrap();
        let minute = Duration::from_secs(60);
        let after = |seconds: i64| start + SignedDuration::from_secs(seconds);
        let step = |seconds| stepped(start, after(seconds), minute).map(|step| step.as_secs());
        assert_eq!([59, 60, 61].map(step), [None; 3], "clocks are slewed, and rounded");
        assert_eq!(step(3660), Some(3600));
        assert_eq!(step(-3540), Some(-3600));
        // The interval after a step has the length of the monotonic clock, and the next begins where it ended.
        let mut attached = attachment("aa", drains(&[5, 6], 9));
        let mut build = attached.build(None).unwrap();
        attached.started -= SignedDuration::from_hours(1);
        let started = attached.started;
        attached.drain(&build.recording, true).unwrap().apply(&mut build);
        let interval = attached.close().unwrap();
        assert_eq!((interval.started, interval.window_ns), (started, 10_000_000_000));
        assert!(attached.started > started + SignedDuration::from_mins(30));
    }

    #[test]
    fn another_way_to_measure_does_not_add_up() {
        let mut attached = attachment("aa", Vec::new());
        let build = attached.build(None).unwrap();
        let mut other = build.clone();
        other.recording.handlers[0].backend = Some(Backend::Kprobe);
        let what = |attached: &Attachment, of: &Build| -> Vec<What> {
            attached.unlike(of).unwrap().iter().map(|difference| difference.what).collect()
        };
        assert_eq!(what(&attached, &build), []);
        assert_eq!(what(&attached, &other), [What::Backend]);
        other = build.clone();
        other.recording.histogram.precision_digits = 2;
        assert_eq!(what(&attached, &other), [What::Precision]);
        // The same build, loaded with another parameter, is another driver.
        attached.facts.parameters.insert("hook".to_owned(), "0".to_owned());
        assert_eq!(what(&attached, &build), [What::Parameters]);
    }
}
