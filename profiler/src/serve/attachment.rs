//! The probes on one load of a module: what they measure, cut into intervals, and added to the sum of its build.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tracing::{info, warn};

use super::account::Account;
use super::budget::{Action, Budget};
use super::config;
use super::coverage::{Coverage, partly};
use super::state::{Build, HandlerSum, NotMeasured};
use crate::kernel::host::HostFacts;
use crate::kernel::module::{self, ModuleFacts};
use crate::kernel::target::{KernelFiles, LeftOut, Target};
use crate::probe::{self, Drained, Precision, ProbeError, Probes, Session};
use crate::recording::measure::{HandlerMeasure, Losses};
use crate::recording::unlike::{Difference, Use, differences};
use crate::recording::warning::{Handlers, SHED, Warning, WarningRecord};
use crate::recording::{Backend, Clock, HandlerRecording, HistogramLayout, Meter, Recording};
use crate::stats::nanoseconds;
use crate::text::{listed, plural};

/// How long a call whose entry was skipped may still be under way: see [`Account::add`].
const AGE: Duration = Duration::from_secs(9);

/// Shortest time over which calls per second are computed: for display, and for the budget.
const SHORTEST_RATE: Duration = Duration::from_millis(500);
const SHORTEST_DECISION: Duration = Duration::from_secs(5);

/// A wall clock that differs from the monotonic one by more than this was stepped.
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
    /// Functions that cannot be measured, including those that only a glob matches.
    left_out: Vec<LeftOut>,
    not_measured: BTreeMap<String, NotMeasured>,
    is_detached: bool,
    /// When the interval began, by both clocks.
    started: Timestamp,
    began: Instant,
    /// Until when calls were counted.
    until: Instant,
    /// Until when time was added to the sum of the build.
    added: Instant,
    /// When skipped entries were last forgotten.
    aged: Instant,
    /// Until when calls are counted in the last decision about the budget.
    decided: Instant,
    /// Until when calls are counted in the rates that are shown.
    rated: Instant,
}

/// One handler.
struct Handler {
    name: String,
    /// Of the interval so far.
    measure: HandlerMeasure,
    account: Account,
    /// When it had probes.
    coverage: Coverage,
    /// Its index among those of the build, and the losses of the build's intervals before.
    sum: usize,
    before: Losses,
    /// Calls since they were shown as a rate.
    unrated: u64,
    /// Calls since the budget was decided.
    undecided: u64,
}

impl Attachment {
    /// Puts probes on the handlers of a load of a module. Leaves out those that cannot be measured, and those that the `known`
    /// budget of the same build has shed.
    ///
    /// # Errors
    /// If no handler can be measured.
    pub(super) fn attach(
        config: &config::Module,
        load: u64,
        precision: Precision,
        host: &HostFacts,
        known: Option<&(String, Budget)>,
    ) -> Result<Self, Box<dyn Error>> {
        let facts = module::collect(&config.name)?;
        let mut found =
            KernelFiles::default().resolve_present(Some(&config.name), &config.handlers)?;
        if let (true, Some(LeftOut { name, reason, .. })) =
            (found.targets.is_empty(), found.left_out.first())
        {
            return Err(format!("none of its handlers can be measured: {name}: {reason}").into());
        }
        let known = known.filter(|(id, _)| id == build_id(&facts));
        let shed = known.into_iter().flat_map(|(_, budget)| budget.shed());
        let mut shed: HashSet<String> = shed.map(str::to_owned).collect();
        if found.targets.iter().all(|target| shed.contains(&target.label())) {
            // Retry all handlers; the back-off still doubles.
            shed.clear();
        }
        found.targets.retain(|target| !shed.contains(&target.label()));
        let named: HashSet<String> =
            found.targets.iter().filter(|target| !target.by_glob).map(Target::label).collect();
        // A handler that no backend can measure is left out even if it was named.
        found.targets.iter_mut().for_each(|target| target.by_glob = true);
        let options = probe::Options {
            precision,
            backend: config.backend,
            keeper: true,
            ..probe::Options::default()
        };
        let probes = Probes::attach(&found.targets, options)?;
        for probe::FellBack { handler, backend, reason } in &probes.fell_back {
            info!("handler {handler} of {} is measured by {backend}: {reason}", config.name);
        }
        // Functions that a glob matches and that cannot have a probe are in no list of missing handlers.
        let wanted = found.left_out.iter().filter(|left| config.handlers.contains(&left.name));
        let missing = wanted
            .chain(&probes.left_out)
            .map(|left| (left.name.clone(), NotMeasured::Missing(left.reason.clone())));
        let shed = shed.into_iter().map(|name| (name, NotMeasured::Shed));
        let not_measured = missing.chain(shed).collect();
        let left_out = [&found.left_out[..], &probes.left_out].concat();
        let mut attachment = Self::begin(Box::new(probes), load, precision, facts, host)?;
        (attachment.not_measured, attachment.left_out) = (not_measured, left_out);
        for handler in &mut attachment.handlers {
            handler.measure.target.by_glob = !named.contains(&handler.name);
        }
        attachment.log_begin();
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
        let handlers = session.handlers().into_iter().zip(&first);
        let handlers = handlers.map(|((target, backend), first)| Handler {
            name: target.label(),
            measure: HandlerMeasure::empty(target.clone(), Some(backend), precision.durations()),
            account: Account::begin(first),
            coverage: Coverage::begin(began),
            sum: 0,
            before: Losses::default(),
            unrated: 0,
            undecided: 0,
        });
        Ok(Self {
            handlers: handlers.collect(),
            session,
            load,
            facts,
            host: host.clone(),
            precision,
            left_out: Vec::new(),
            not_measured: BTreeMap::new(),
            is_detached: false,
            started: Timestamp::now(),
            began,
            until: began,
            added: began,
            aged: began,
            decided: began,
            rated: began,
        })
    }

    fn log_begin(&self) {
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
            "measuring {count} handler{} of module {name} (build {}), with {} KiB of kernel memory{in_use}",
            plural(count),
            self.build_id(),
            self.kernel_memory_bytes() / 1024,
        );
        for (handler, why) in &self.not_measured {
            if let NotMeasured::Missing(why) = why {
                warn!("handler {handler} of module {name} is not measured: {why}");
            }
        }
    }

    /// The module.
    pub(super) fn module(&self) -> &str {
        &self.facts.name
    }

    /// Identifies its build: the build id, else the `srcversion`, else empty.
    pub(super) fn build_id(&self) -> &str {
        build_id(&self.facts)
    }

    /// The handlers, in words.
    pub(super) fn names(&self) -> Vec<String> {
        self.handlers.iter().map(|handler| handler.name.clone()).collect()
    }

    pub(super) fn kernel_memory_bytes(&self) -> u64 {
        self.session.memory_bytes()
    }

    /// How its handlers are measured.
    pub(super) fn backends(&self) -> impl Iterator<Item = Backend> + '_ {
        self.handlers.iter().filter_map(|handler| handler.measure.backend)
    }

    /// Handlers that have probes.
    pub(super) fn measured(&self) -> usize {
        self.handlers.iter().filter(|handler| handler.coverage.is_on()).count()
    }

    /// Handlers of the build that are shed.
    pub(super) fn shed(&self) -> usize {
        self.not_measured.values().filter(|why| **why == NotMeasured::Shed).count()
    }

    /// Calls per second of each handler with probes since the last call of this function; `None` if that is too short.
    pub(super) fn rates_to_decide(&mut self) -> Option<Vec<(String, f64)>> {
        let time = self.until.saturating_duration_since(self.decided);
        if time < SHORTEST_DECISION {
            return None;
        }
        self.decided = self.until;
        let rates = self.handlers.iter_mut().filter_map(|handler| {
            let calls = std::mem::take(&mut handler.undecided);
            let rate = calls as f64 / time.as_secs_f64();
            handler.coverage.is_on().then(|| (handler.name.clone(), rate))
        });
        Some(rates.collect())
    }

    /// Takes the probes off a handler at this time, or puts them back. `false` if that takes attaching anew.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn carry_out(&mut self, action: &Action, at: Instant) -> Result<bool, ProbeError> {
        let (Action::Shed(name, _) | Action::TakeUp(name)) = action;
        let index = self.handlers.iter().position(|handler| handler.name == *name);
        let Some(index) = index else { return Ok(false) };
        let coverage = &mut self.handlers[index].coverage;
        match action {
            Action::Shed(..) if self.session.pause(index)? => {
                coverage.off(at);
                self.not_measured.insert(name.clone(), NotMeasured::Shed);
            }
            Action::TakeUp(_) if self.session.resume(index)? => {
                coverage.on(at);
                self.not_measured.remove(name);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// How it is measured differently than `build` was: figures add up only if there is no difference.
    pub(super) fn unlike(&self, build: &Build) -> Vec<Difference> {
        let now = self.recording(Duration::from_nanos(1), self.stored());
        differences(&build.recording(), &now, Use::Merge)
    }

    /// The build that it adds to from now on: the one `before`, or a new one.
    pub(super) fn build(&mut self, before: Option<Build>) -> Build {
        let mut build = before.unwrap_or_else(|| Build {
            module: self.facts.name.clone(),
            id: self.build_id().to_owned(),
            last: Timestamp::now(),
            frame: self.recording(Duration::ZERO, Vec::new()),
            handlers: Vec::new(),
            not_measured: BTreeMap::new(),
            is_attached: false,
            budget_enforced: None,
        });
        build.is_attached = true;
        for handler in &mut self.handlers {
            let known = build.handlers.iter().position(|sum| sum.name == handler.name);
            handler.sum = known.unwrap_or(build.handlers.len());
            if known.is_none() {
                let HandlerMeasure { target, backend, .. } = &handler.measure;
                let durations = self.precision.growing_durations();
                let sum = HandlerMeasure::empty(target.clone(), *backend, durations);
                build.handlers.push(HandlerSum::new(sum));
            }
            handler.before = build.handlers[handler.sum].measure.losses;
            build.handlers[handler.sum].calls_per_s = Some(0.0);
        }
        self.describe(&mut build);
        build
    }

    /// Notes which handlers of the build are not measured, and why.
    fn describe(&self, build: &mut Build) {
        build.not_measured = self.not_measured.clone();
        build.frame.left_out = self.left_out();
    }

    /// Whether no call began since the last drain, which had all before: then there is nothing to drain.
    fn is_idle(&mut self) -> bool {
        let known = self.handlers.iter().map(|handler| handler.account.now.settled_entries());
        let known: Vec<Option<u64>> = known.collect();
        known.iter().all(Option::is_some)
            && self.session.entries().is_ok_and(|entries| entries == known)
    }

    /// Reads what was measured since the last drain, to be [added](Self::add); empty if no call began. `fully` also reads
    /// what the kernel skipped.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read; the next drain has what this one lacks.
    pub(super) fn drain(&mut self, fully: bool) -> Result<Vec<Drained>, ProbeError> {
        let now = Instant::now();
        if !fully && self.is_idle() {
            self.until = now;
            return Ok(Vec::new());
        }
        let drained = self.session.drain()?;
        self.counted();
        Ok(drained)
    }

    fn counted(&mut self) {
        let until = self.session.drained_until().unwrap_or_else(Instant::now);
        self.until = self.until.max(until);
    }

    /// Adds a drain, and the time that passed, to the interval and to the sum of the build.
    pub(super) fn add(&mut self, drained: Vec<Drained>, build: &mut Build) {
        let ages = !drained.is_empty() && self.until.saturating_duration_since(self.aged) >= AGE;
        if ages {
            self.aged = self.until;
        }
        let time = self.until.saturating_duration_since(self.rated);
        let is_rated = time >= SHORTEST_RATE;
        let mut drained = drained.into_iter();
        for handler in &mut self.handlers {
            let sum = &mut build.handlers[handler.sum];
            if let Some(mut drained) = drained.next() {
                handler.add(&mut drained, sum, self.is_detached);
            }
            if ages {
                handler.account.age();
            }
            sum.covered_ns += handler.coverage.advance(self.until);
            if is_rated {
                let rate = std::mem::take(&mut handler.unrated) as f64 / time.as_secs_f64();
                sum.calls_per_s = handler.coverage.is_on().then_some(rate);
            }
        }
        if is_rated {
            self.rated = self.until;
        }
        build.frame.window_ns += nanoseconds(self.until.saturating_duration_since(self.added));
        self.added = self.until;
        build.last = build.last.max(Timestamp::now());
        self.describe(build);
    }

    /// Ends the interval at the last drain, where the next one begins, and returns its recording.
    pub(super) fn close(&mut self) -> Recording {
        let interval = self.interval();
        for handler in &mut self.handlers {
            handler.coverage.interval_ns = 0;
            // Cannot overflow u64 in practice.
            let sum = handler.before.checked_add(&handler.measure.losses);
            handler.before = sum.unwrap_or(handler.before);
            handler.measure.durations.reset();
            handler.account.close();
            handler.measure.losses = Losses::default();
        }
        let ended =
            Timestamp::now() - SignedDuration::try_from(self.until.elapsed()).unwrap_or_default();
        if let Some(stepped) =
            stepped(self.started, ended, self.until.saturating_duration_since(self.began))
        {
            warn!(
                "the wall clock was stepped by {stepped:#} during an interval of {}: its length is right, its \
                 start is as the clock was then",
                self.facts.name
            );
        }
        (self.started, self.began) = (ended, self.until);
        interval
    }

    /// The interval so far as a recording, with its warnings: handlers that had no probes in it are left out.
    pub(super) fn interval(&self) -> Recording {
        let (mut recordings, mut covered, mut never) = (Vec::new(), Vec::new(), Vec::new());
        for (handler, stored) in self.handlers.iter().zip(self.stored()) {
            let Coverage { interval_ns, .. } = handler.coverage;
            if interval_ns == 0 && !handler.coverage.is_on() && stored.is_idle() {
                never.push(self.shed_one(&handler.name));
            } else {
                covered.push((handler.name.as_str(), interval_ns));
                recordings.push(stored);
            }
        }
        let length = self.until.saturating_duration_since(self.began);
        let mut interval = self.recording(length.max(Duration::from_nanos(1)), recordings);
        interval.left_out.extend(never);
        let warning = partly(covered.into_iter(), interval.window_ns);
        interval.warnings.extend(warning.map(WarningRecord::from));
        if let Ok(Some((handler, prog_id))) = self.session.foreign_program() {
            let warning = Warning::Shared(Handlers(vec![handler]), prog_id);
            warn!("{warning}");
            interval.warnings.push(warning.into());
        }
        interval.warn();
        interval
    }

    /// Handlers that it could not measure, and those that were shed when it attached.
    fn left_out(&self) -> Vec<LeftOut> {
        let shed = self.not_measured.iter().filter(|(_, why)| **why == NotMeasured::Shed);
        let never = shed.filter(|(name, _)| self.handlers.iter().all(|known| known.name != **name));
        let never = never.map(|(name, _)| self.shed_one(name));
        self.left_out.iter().cloned().chain(never).collect()
    }

    fn shed_one(&self, name: &str) -> LeftOut {
        let module = Some(self.facts.name.clone());
        LeftOut { name: name.to_owned(), module, reason: SHED.to_owned() }
    }

    /// Takes the probes off. Returns the last drain, to be [added](Self::add), and a warning if its calls are lost.
    pub(super) fn detach(&mut self) -> (Vec<Drained>, Option<Warning>) {
        self.session.detach();
        self.is_detached = true;
        let (drained, lost) = match self.session.drain() {
            Ok(drained) => (drained, None),
            Err(error) => {
                warn!("the last calls of module {} are lost: {error}", self.facts.name);
                (self.session.undelivered(), Some(Warning::EndedByError(error.to_string())))
            }
        };
        self.counted();
        let names = self.names();
        let (count, names) = (names.len(), listed(&names));
        info!("no probes on the {count} handlers of module {}: {names}", self.facts.name);
        (drained, lost)
    }

    /// The handlers of the interval so far.
    fn stored(&self) -> Vec<HandlerRecording> {
        let handlers = self.handlers.iter();
        handlers.map(|handler| HandlerRecording::from_measure(&handler.measure)).collect()
    }

    fn recording(&self, length: Duration, handlers: Vec<HandlerRecording>) -> Recording {
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
            ..Recording::new(self.started, Clock::Wall, Meter::default(), histogram)
        }
    }
}

impl Handler {
    /// Adds a drain to its interval and to its sum.
    fn add(&mut self, drained: &mut Drained, sum: &mut HandlerSum, is_last: bool) {
        self.unrated += drained.durations.len();
        self.undecided += drained.durations.len();
        self.account.add(drained);
        self.measure.durations += &drained.durations;
        self.measure.losses = self.account.losses(&self.measure.durations, is_last);
        sum.in_flight = self.account.now.books.in_flight;
        let losses = self.before.checked_add(&self.measure.losses);
        let losses = losses.unwrap_or(sum.measure.losses);
        if !drained.durations.is_empty() || losses != sum.measure.losses {
            let sum = Arc::make_mut(&mut sum.measure);
            sum.losses = losses;
            sum.durations += &drained.durations;
        }
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

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;
    use crate::kernel::target::Target;
    use crate::probe::Books;
    use crate::recording::unlike::What;
    use crate::recording::{Backend, Merge};

    impl Attachment {
        /// Drains, and adds that to its build.
        pub(in super::super) fn take(&mut self, build: &mut Build, fully: bool) {
            let drained = self.drain(fully).unwrap();
            self.add(drained, build);
        }

        /// Takes the probes off: the last interval.
        fn end(mut self, build: &mut Build) -> Recording {
            let (drained, lost) = self.detach();
            assert_eq!(lost, None);
            self.add(drained, build);
            self.close()
        }

        /// From now on its drains fail.
        pub(in super::super) fn break_off(&mut self) {
            self.session = Box::new(Broken);
        }
    }

    /// Cannot be read.
    struct Broken;

    impl Session for Broken {
        fn handlers(&self) -> Vec<(&Target, Backend)> {
            Vec::new()
        }

        fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
            Err(ProbeError::Other("it is broken".to_owned()))
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
        fn handlers(&self) -> Vec<(&Target, Backend)> {
            self.targets.iter().map(|target| (target, Backend::Fentry)).collect()
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
        let recording = build.recording();
        recording.check().unwrap();
        assert_eq!(recording.window_ns, sum.window_ns);
        assert_eq!(Recording { handlers: recording.handlers, ..sum.clone() }, sum);
    }

    #[test]
    fn a_build_is_the_exact_sum_of_its_intervals_and_never_less_than_before() {
        let calls = [30, 0, 200, 1, 9, 0, 77, 500];
        let mut attached = attachment("aa", drains(&calls, 4));
        let mut build = attached.build(None);
        let (mut intervals, mut before) = (Vec::new(), Vec::new());
        for at in 0..calls.len() {
            attached.take(&mut build, at % 3 == 2);
            let recording = build.recording();
            recording.check().unwrap();
            let figures =
                |of: &HandlerRecording| [of.count, of.sum_ns, of.losses.missed, of.losses.doubtful];
            let now: Vec<[u64; 4]> = recording.handlers.iter().map(figures).collect();
            let less = before.iter().flatten().zip(now.iter().flatten()).find(|(a, b)| a > b);
            assert_eq!(less, None, "after {before:?} comes {now:?}");
            before = now;
            if at % 3 == 2 {
                intervals.push(attached.close());
                assert_is_sum(&build, &intervals);
            }
        }
        intervals.push(attached.end(&mut build));
        build.leave();
        assert_is_sum(&build, &intervals);
        let figures = |build: &Build, at: usize| {
            let HandlerMeasure { durations, losses, .. } = &*build.handlers[at].measure;
            (durations.len(), *losses)
        };
        let (count, losses) = figures(&build, 0);
        // In the drain that has the skipped entry; the next has no call, and the one after that is too late.
        assert_eq!(count + losses.doubtful, calls.iter().sum::<u64>());
        assert_eq!((losses.doubtful, losses.missed), (1, 2), "{losses:?}");
        assert_eq!(figures(&build, 1).0, 3);

        // The same build comes again.
        let mut again = attachment("aa", drains(&[10, 20], 9));
        assert_eq!(again.unlike(&build), []);
        let older = build.clone();
        let mut build = again.build(Some(build));
        again.take(&mut build, true);
        intervals.push(again.close());
        intervals.push(again.end(&mut build));
        build.leave();
        assert_is_sum(&build, &intervals);
        assert_eq!(figures(&build, 0).0, count + 30);
        assert_eq!(build.handlers[0].in_flight, 0);
        assert_eq!(figures(&older, 0).0, count, "who reads an older state keeps it");
    }

    #[test]
    fn a_recording_has_a_warning_about_handlers_that_were_measured_for_a_part_of_its_window() {
        // A drain is 10 s.
        let mut attached = attachment("aa", drains(&[5; 8], 9));
        let mut build = attached.build(None);
        let shed = Action::Shed("rare".to_owned(), 0.01);
        let partly = |recording: &Recording| -> Vec<String> {
            let of = recording.warnings.iter().filter(|of| of.code == "partly-measured");
            of.map(|of| of.text.split(": ").nth(1).unwrap().to_owned()).collect()
        };
        attached.take(&mut build, true);
        assert!(partly(&attached.close()).is_empty());
        attached.take(&mut build, true);
        let at = attached.until;
        assert!(attached.carry_out(&shed, at).unwrap());
        attached.take(&mut build, true);
        let interval = attached.close();
        assert_eq!(partly(&interval), ["rare 10.0 s of 20.0 s"]);
        assert_eq!(partly(&build.recording()), ["rare 20.0 s of 30.0 s"]);
        let covered =
            |name: &str| build.handlers.iter().find(|of| of.name == name).unwrap().covered_ns;
        assert_eq!(["rare", "busy"].map(covered), [20_000_000_000, 30_000_000_000]);
        let minute = |attached: &mut Attachment, build: &mut Build| {
            attached.until += Duration::from_secs(60);
            attached.add(Vec::new(), build);
        };
        minute(&mut attached, &mut build);
        let interval = attached.close();
        let names: Vec<&str> = interval.handlers.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["busy"]);
        assert_eq!((interval.left_out[0].name.as_str(), interval.left_out.len()), ("rare", 1));
        assert_eq!(interval.left_out[0].reason, SHED);
        assert!(partly(&interval).is_empty());
        assert_eq!(build.recording().left_out, [], "it has figures");
        let at = attached.until;
        assert!(attached.carry_out(&Action::TakeUp("rare".to_owned()), at).unwrap());
        minute(&mut attached, &mut build);
        let interval = attached.close();
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
        let mut build = attached.build(None);
        let mut drained = |fully: bool| {
            attached.take(&mut build, fully);
            build.handlers[1].measure.durations.len()
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
        let mut build = attached.build(None);
        attached.started -= SignedDuration::from_hours(1);
        let started = attached.started;
        attached.take(&mut build, true);
        let interval = attached.close();
        assert_eq!((interval.started, interval.window_ns), (started, 10_000_000_000));
        assert!(attached.started > started + SignedDuration::from_mins(30));
    }

    #[test]
    fn another_way_to_measure_does_not_add_up() {
        let mut attached = attachment("aa", Vec::new());
        let build = attached.build(None);
        let mut other = build.clone();
        Arc::make_mut(&mut other.handlers[0].measure).backend = Some(Backend::Kprobe);
        let what = |attached: &Attachment, of: &Build| -> Vec<What> {
            attached.unlike(of).iter().map(|difference| difference.what).collect()
        };
        assert_eq!(what(&attached, &build), []);
        assert_eq!(what(&attached, &other), [What::Backend]);
        other = build.clone();
        other.frame.histogram.precision_digits = 2;
        assert_eq!(what(&attached, &other), [What::Precision]);
        // The same build, loaded with another parameter, is another driver.
        attached.facts.parameters.insert("hook".to_owned(), "0".to_owned());
        assert_eq!(what(&attached, &build), [What::Parameters]);
    }
}
