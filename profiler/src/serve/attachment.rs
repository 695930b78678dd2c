//! The probes on one load of a module: what they measure, cut into intervals, and added to the sum of its build.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tracing::{info, warn};

use profiler_base::stats::nanoseconds;
use profiler_base::text::{listed, plural};
use profiler_kernel::host::HostFacts;
use profiler_kernel::module::{self, ModuleFacts};
use profiler_kernel::target::{KernelFiles, LeftOut, Target};
use profiler_probe::{self as probe, Drained, Precision, ProbeError, Probes, Session};
use profiler_recording::measure::{HandlerMeasure, Losses};
use profiler_recording::unlike::{Difference, Use, differences};
use profiler_recording::warning::{Handlers, SHED, Warning, WarningRecord};
use profiler_recording::{Backend, Clock, HandlerRecording, HistogramLayout, Meter, Recording};

use super::account::Account;
use super::budget::{Action, Budget};
use super::config;
use super::state::{Build, HandlerSum, NotMeasured, partly_measured};

/// How often skipped entries are aged: those from one to two of these ago are forgotten, see [`Account::age`].
const AGE: Duration = Duration::from_secs(9);

/// Shortest time over which calls per second are computed: for display, and for the budget.
const SHORTEST_RATE: Duration = Duration::from_millis(500);
const SHORTEST_DECISION: Duration = Duration::from_secs(5);

/// The probes on one load of a module.
pub(super) struct Attachment {
    session: Box<dyn Session>,
    /// The number of that load of the module.
    pub(super) load: u64,
    /// Its build, to whose sums it adds. The frame has the facts that each interval begins with.
    pub(super) build: Build,
    handlers: Vec<Handler>,
    /// When the interval began, by both clocks.
    started: Timestamp,
    began: Instant,
    /// Until when calls and time were counted.
    until: Instant,
    /// When skipped entries were last forgotten.
    aged: Instant,
    /// Until when calls are counted in the last decision about the budget.
    decided: Instant,
    /// Until when calls are counted in the rates that are shown.
    rated: Instant,
}

struct Handler {
    name: String,
    /// Of the interval so far.
    measure: HandlerMeasure,
    account: Account,
    /// From when its time with probes is not counted yet; `None` while it is shed.
    since: Option<Instant>,
    /// Time with probes in the interval so far, in nanoseconds.
    covered_ns: u64,
    /// Its index among the build's sums.
    sum: usize,
    /// Losses of earlier intervals.
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
        let mut shed: BTreeSet<String> = shed.map(str::to_owned).collect();
        if found.targets.iter().all(|target| shed.contains(&target.label())) {
            // Retry all handlers; the back-off still doubles.
            shed.clear();
        }
        found.targets.retain(|target| !shed.contains(&target.label()));
        let of_globs = found.targets.iter().filter(|target| target.by_glob);
        let of_globs: HashSet<String> = of_globs.map(Target::label).collect();
        // A handler that no backend can measure is left out even if it was named: so all pass as found by a glob.
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
            .map(|left| (left.name.clone(), NotMeasured::Missing(left.reason.clone())))
            .collect();
        let left_out = [&found.left_out[..], &probes.left_out].concat();
        let mut attachment =
            Self::begin(Box::new(probes), load, precision, facts, host, &of_globs)?;
        let build = &mut attachment.build;
        (build.not_measured, build.frame.left_out) = (missing, left_out);
        for name in shed {
            build.frame.left_out.push(left_out_as_shed(&build.module, &name));
            build.not_measured.insert(name, NotMeasured::Shed);
        }
        attachment.log_begin();
        Ok(attachment)
    }

    /// Begins to measure with probes that are there. `of_globs` are the handlers that a glob alone matched.
    ///
    /// # Errors
    /// If they cannot be read.
    fn begin(
        mut session: Box<dyn Session>,
        load: u64,
        precision: Precision,
        facts: ModuleFacts,
        host: &HostFacts,
        of_globs: &HashSet<String>,
    ) -> Result<Self, ProbeError> {
        // What came before the probes were all on is in no interval.
        let first = session.drain()?;
        let began = session.drained_until().unwrap_or_else(Instant::now);
        let started = Timestamp::now();
        let (mut handlers, mut sums) = (Vec::new(), Vec::new());
        for ((target, backend), first) in session.handlers().into_iter().zip(&first) {
            let name = target.label();
            let target = Target { by_glob: of_globs.contains(&name), ..target.clone() };
            let empty = |durations| HandlerMeasure::empty(target.clone(), Some(backend), durations);
            handlers.push(Handler {
                name,
                measure: empty(precision.durations()),
                account: Account::begin(first),
                since: Some(began),
                covered_ns: 0,
                sum: sums.len(),
                before: Losses::default(),
                unrated: 0,
                undecided: 0,
            });
            let sum = HandlerSum::new(empty(precision.growing_durations()));
            sums.push(HandlerSum { calls_per_s: Some(0.0), ..sum });
        }
        let histogram = HistogramLayout {
            kernel_memory_bytes: session.memory_bytes(),
            direct: session.is_direct(),
            ..HistogramLayout::of_digits(precision.digits())
        };
        let build = Build {
            module: facts.name.clone(),
            id: build_id(&facts).to_owned(),
            last: started,
            frame: Recording {
                host: host.clone(),
                modules: vec![facts],
                ..Recording::new(started, Clock::Wall, Meter::default(), histogram)
            },
            handlers: sums,
            not_measured: BTreeMap::new(),
            budget_enforced: None,
        };
        Ok(Self {
            session,
            load,
            build,
            handlers,
            started,
            began,
            until: began,
            aged: began,
            decided: began,
            rated: began,
        })
    }

    fn log_begin(&self) {
        let count = self.handlers.len();
        let Build { module: name, id, .. } = &self.build;
        let in_use = match self.backends().any(Backend::holds_module) {
            true => format!(
                "; before `rmmod {name}`, run `profiler release {name}`: the kernel says that a module with probes \
                 is in use, and the daemon is not asked"
            ),
            false => String::new(),
        };
        info!(
            "measuring {count} handler{} of module {name} (build {id}), with {} KiB of kernel memory{in_use}",
            plural(count),
            self.build.frame.histogram.kernel_memory_bytes / 1024,
        );
        for (handler, why) in &self.build.not_measured {
            if let NotMeasured::Missing(why) = why {
                warn!("handler {handler} of module {name} is not measured: {why}");
            }
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.handlers.iter().map(|handler| handler.name.clone()).collect()
    }

    pub(super) fn backends(&self) -> impl Iterator<Item = Backend> + '_ {
        self.handlers.iter().filter_map(|handler| handler.measure.backend)
    }

    /// Handlers that have probes.
    pub(super) fn measured(&self) -> usize {
        self.handlers.iter().filter(|handler| handler.since.is_some()).count()
    }

    /// Handlers of the build that are shed.
    pub(super) fn shed(&self) -> usize {
        self.build.not_measured.values().filter(|why| **why == NotMeasured::Shed).count()
    }

    /// Calls per second of each handler with probes since rates were last returned; `None` if that is less than 5 s ago.
    pub(super) fn rates_to_decide(&mut self) -> Option<Vec<(String, f64)>> {
        let time = self.until.saturating_duration_since(self.decided);
        if time < SHORTEST_DECISION {
            return None;
        }
        self.decided = self.until;
        let rates = self.handlers.iter_mut().filter_map(|handler| {
            let calls = std::mem::take(&mut handler.undecided);
            let rate = calls as f64 / time.as_secs_f64();
            handler.since.is_some().then(|| (handler.name.clone(), rate))
        });
        Some(rates.collect())
    }

    /// Takes the probes off a handler at this time, or puts them back. `false` if that takes attaching anew, as it is
    /// if the handler has no place in this session.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn carry_out(&mut self, action: &Action, at: Instant) -> Result<bool, ProbeError> {
        let (Action::Shed(name, _) | Action::TakeUp(name)) = action;
        let index = self.handlers.iter().position(|handler| handler.name == *name);
        let Some(index) = index else { return Ok(false) };
        let handler = &mut self.handlers[index];
        let sum = &mut self.build.handlers[handler.sum];
        match action {
            Action::Shed(..) if self.session.pause(index)? => {
                handler.count_time(at, sum);
                (handler.since, sum.calls_per_s) = (None, None);
                self.build.not_measured.insert(name.clone(), NotMeasured::Shed);
            }
            Action::TakeUp(_) if self.session.resume(index)? => {
                (handler.since, sum.calls_per_s) = (Some(at), Some(0.0));
                self.build.not_measured.remove(name);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// In what it is measured otherwise than `build` was; figures add up only if in nothing.
    pub(super) fn unlike(&self, build: &Build) -> Vec<Difference> {
        differences(&build.recording(), &self.build.recording(), Use::Merge)
    }

    /// Goes on with the sums of `before`, which was measured alike.
    pub(super) fn continue_sums(&mut self, before: Build) {
        let fresh = std::mem::replace(&mut self.build.handlers, before.handlers);
        let sums = &mut self.build.handlers;
        for (handler, sum) in self.handlers.iter_mut().zip(fresh) {
            let known = sums.iter().position(|sum| sum.name == handler.name);
            handler.sum = known.unwrap_or(sums.len());
            if known.is_none() {
                sums.push(sum);
            }
            let sum = &mut sums[handler.sum];
            sum.calls_per_s = Some(0.0);
            handler.before = sum.measure.losses;
        }
        let Recording { started, window_ns, .. } = before.frame;
        (self.build.frame.started, self.build.frame.window_ns) = (started, window_ns);
        self.build.last = before.last;
    }

    /// Whether no call began since the last drain, which had all before: then there is nothing to drain.
    fn is_idle(&mut self) -> bool {
        let known = self.handlers.iter().map(|handler| handler.account.now.settled_entries());
        let known: Vec<Option<u64>> = known.collect();
        known.iter().all(Option::is_some)
            && self.session.entries().is_ok_and(|entries| entries == known)
    }

    /// Adds what was measured since the last drain to the interval and to the sum of the build. `fully` also reads what the
    /// kernel skipped, though no call began.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read; the next drain has what this one lacks.
    pub(super) fn drain(&mut self, fully: bool) -> Result<(), ProbeError> {
        let now = Instant::now();
        if !fully && self.is_idle() {
            self.add_drain(Vec::new(), now, false);
            return Ok(());
        }
        let drained = self.session.drain()?;
        self.add_drain(drained, self.session.drained_until().unwrap_or_else(Instant::now), false);
        Ok(())
    }

    /// Adds a drain, and the time `until` then. The `last` one was after the probes were off.
    fn add_drain(&mut self, drained: Vec<Drained>, until: Instant, is_last: bool) {
        let until = self.until.max(until);
        let passed = until.saturating_duration_since(self.until);
        self.until = until;
        let ages = !drained.is_empty() && until.saturating_duration_since(self.aged) >= AGE;
        if ages {
            self.aged = until;
        }
        let time = until.saturating_duration_since(self.rated);
        let is_rated = time >= SHORTEST_RATE;
        let mut drained = drained.into_iter();
        for handler in &mut self.handlers {
            let sum = &mut self.build.handlers[handler.sum];
            if let Some(mut drained) = drained.next() {
                handler.add_drain(&mut drained, sum, is_last);
            }
            if ages {
                handler.account.age();
            }
            handler.count_time(until, sum);
            if is_rated {
                let rate = std::mem::take(&mut handler.unrated) as f64 / time.as_secs_f64();
                sum.calls_per_s = handler.since.map(|_| rate);
            }
        }
        if is_rated {
            self.rated = until;
        }
        self.build.frame.window_ns += nanoseconds(passed);
        self.build.last = self.build.last.max(Timestamp::now());
    }

    /// Ends the interval at the last drain, where the next one begins, and returns its recording.
    pub(super) fn close(&mut self) -> Recording {
        let interval = self.interval();
        for handler in &mut self.handlers {
            handler.covered_ns = 0;
            handler.before += handler.measure.losses;
            handler.measure.durations.reset();
            handler.account.close();
            handler.measure.losses = Losses::default();
        }
        let ended =
            Timestamp::now() - SignedDuration::try_from(self.until.elapsed()).unwrap_or_default();
        (self.started, self.began) = (ended, self.until);
        interval
    }

    /// The interval so far as a recording, with its warnings: handlers that had no probes in it are left out.
    fn interval(&self) -> Recording {
        let length = self.until.saturating_duration_since(self.began);
        let window_ns = nanoseconds(length).max(1);
        let mut interval =
            Recording { started: self.started, window_ns, ..self.build.frame.clone() };
        let mut covered = Vec::new();
        for Handler { name, measure, since, covered_ns, .. } in &self.handlers {
            let stored = HandlerRecording::from_measure(measure);
            if *covered_ns == 0 && since.is_none() && stored.is_idle() {
                interval.left_out.push(left_out_as_shed(&self.build.module, name));
            } else {
                covered.push((name.as_str(), *covered_ns));
                interval.handlers.push(stored);
            }
        }
        let warning = partly_measured(covered.into_iter(), window_ns);
        interval.warnings.extend(warning.map(WarningRecord::from));
        if let Ok(Some((handler, prog_id))) = self.session.foreign_program() {
            let warning = Warning::Shared(Handlers(vec![handler]), prog_id);
            warn!("{warning}");
            interval.warnings.push(warning.into());
        }
        interval.warn();
        interval
    }

    /// Takes the probes off, and adds the last drain. Returns a warning if its calls are lost.
    pub(super) fn detach(&mut self) -> Option<Warning> {
        self.session.detach();
        let module = &self.build.module;
        let (drained, lost) = match self.session.drain() {
            Ok(drained) => (drained, None),
            Err(error) => {
                warn!("the last calls of module {module} are lost: {error}");
                (self.session.undelivered(), Some(Warning::EndedByError(error.to_string())))
            }
        };
        let names = self.names();
        let (count, names) = (names.len(), listed(&names));
        info!("no probes on the {count} handlers of module {module}: {names}");
        self.add_drain(drained, self.session.drained_until().unwrap_or_else(Instant::now), true);
        lost
    }
}

impl Handler {
    /// Counts the time with probes until `at`.
    fn count_time(&mut self, at: Instant, sum: &mut HandlerSum) {
        if let Some(since) = &mut self.since {
            let more_ns = nanoseconds(at.saturating_duration_since(*since));
            self.covered_ns += more_ns;
            sum.covered_ns += more_ns;
            *since = at.max(*since);
        }
    }

    /// To its interval and to its sum.
    fn add_drain(&mut self, drained: &mut Drained, sum: &mut HandlerSum, is_last: bool) {
        self.unrated += drained.durations.len();
        self.undecided += drained.durations.len();
        self.account.add_drain(drained);
        self.measure.durations += &drained.durations;
        self.measure.losses = self.account.losses(&self.measure.durations, is_last);
        sum.in_flight = self.account.now.books.in_flight;
        let mut losses = self.before;
        losses += self.measure.losses;
        if !drained.durations.is_empty() || losses != sum.measure.losses {
            let sum = Arc::make_mut(&mut sum.measure);
            sum.losses = losses;
            sum.durations += &drained.durations;
        }
    }
}

/// A handler of a module that had no probes, because of the budget.
fn left_out_as_shed(module: &str, name: &str) -> LeftOut {
    LeftOut { name: name.to_owned(), module: Some(module.to_owned()), reason: SHED.to_owned() }
}

/// Its build id, else its `srcversion`, else nothing.
fn build_id(facts: &ModuleFacts) -> &str {
    facts.build_id.as_deref().or(facts.srcversion.as_deref()).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;
    use profiler_kernel::target::Target;
    use profiler_probe::Books;
    use profiler_recording::unlike::What;
    use profiler_recording::{Backend, Merge};

    impl Attachment {
        /// Takes the probes off: the last interval.
        fn end(&mut self) -> Recording {
            assert_eq!(self.detach(), None);
            let interval = self.close();
            self.build.leave();
            interval
        }

        /// From now on its drains fail.
        pub(in super::super) fn break_off(&mut self) {
            self.session = Box::new(Broken);
        }

        /// Whoever takes its probes off is killed.
        pub(in super::super) fn die_at_detach(&mut self) {
            let session = std::mem::replace(&mut self.session, Box::new(Broken));
            self.session = Box::new(Deadly(session));
        }
    }

    struct Deadly(Box<dyn Session>);

    impl Session for Deadly {
        fn handlers(&self) -> Vec<(&Target, Backend)> {
            self.0.handlers()
        }

        fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
            self.0.drain()
        }

        fn drained_until(&self) -> Option<Instant> {
            self.0.drained_until()
        }

        fn detach(&mut self) {
            panic!("killed");
        }

        fn memory_bytes(&self) -> u64 {
            self.0.memory_bytes()
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
                None => {
                    self.books.iter().map(|books| profiler_tests::drained(&[], *books)).collect()
                }
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
        let first = vec![profiler_tests::drained(&[], Books::default()); 2];
        let session = Scripted {
            targets: vec![target("busy"), target("rare")],
            drains: [vec![first], drains].concat(),
            books: vec![Books::default(); 2],
            taken: 0,
            until: Instant::now() - Duration::from_secs(1000),
        };
        let build_id = Some(id.to_owned());
        let facts = ModuleFacts { name: "driver".to_owned(), build_id, ..ModuleFacts::default() };
        let (host, none) = (HostFacts::default(), HashSet::new());
        Attachment::begin(Box::new(session), 7, Precision::Three, facts, &host, &none).unwrap()
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
            vec![profiler_tests::drained(&durations, busy), profiler_tests::drained(rare, of_rare)]
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
        let (mut intervals, mut before) = (Vec::new(), Vec::new());
        for at in 0..calls.len() {
            attached.drain(at % 3 == 2).unwrap();
            let recording = attached.build.recording();
            recording.check().unwrap();
            let figures =
                |of: &HandlerRecording| [of.count, of.sum_ns, of.losses.missed, of.losses.doubtful];
            let now: Vec<[u64; 4]> = recording.handlers.iter().map(figures).collect();
            let less = before.iter().flatten().zip(now.iter().flatten()).find(|(a, b)| a > b);
            assert_eq!(less, None, "after {before:?} comes {now:?}");
            before = now;
            if at % 3 == 2 {
                intervals.push(attached.close());
                assert_is_sum(&attached.build, &intervals);
            }
        }
        intervals.push(attached.end());
        assert_is_sum(&attached.build, &intervals);
        let figures = |build: &Build, at: usize| {
            let HandlerMeasure { durations, losses, .. } = &*build.handlers[at].measure;
            (durations.len(), *losses)
        };
        let older = attached.build;
        let (count, losses) = figures(&older, 0);
        // In the drain that has the skipped entry; the next has no call, and the one after that is too late.
        assert_eq!(count + losses.doubtful, calls.iter().sum::<u64>());
        assert_eq!((losses.doubtful, losses.missed), (1, 2), "{losses:?}");
        assert_eq!(figures(&older, 1).0, 3);

        // The same build comes again.
        let mut again = attachment("aa", drains(&[10, 20], 9));
        assert_eq!(again.unlike(&older), []);
        again.continue_sums(older.clone());
        again.drain(true).unwrap();
        intervals.push(again.close());
        intervals.push(again.end());
        assert_is_sum(&again.build, &intervals);
        assert_eq!(figures(&again.build, 0).0, count + 30);
        assert_eq!(again.build.handlers[0].in_flight, 0);
        assert_eq!(figures(&older, 0).0, count, "who reads an older state keeps it");
    }

    #[test]
    fn a_recording_has_a_warning_about_handlers_that_were_measured_for_a_part_of_its_window() {
        // A drain is 10 s.
        let mut attached = attachment("aa", drains(&[5; 8], 9));
        let shed = Action::Shed("rare".to_owned(), 0.01);
        let partly = |recording: &Recording| -> Vec<String> {
            let of = recording.warnings.iter().filter(|of| of.code == "partly-measured");
            of.map(|of| of.text.split(": ").nth(1).unwrap().to_owned()).collect()
        };
        attached.drain(true).unwrap();
        assert!(partly(&attached.close()).is_empty());
        attached.drain(true).unwrap();
        let at = attached.until;
        assert!(attached.carry_out(&shed, at).unwrap());
        attached.drain(true).unwrap();
        let interval = attached.close();
        assert_eq!(partly(&interval), ["rare 10.0 s of 20.0 s"]);
        assert_eq!(partly(&attached.build.recording()), ["rare 20.0 s of 30.0 s"]);
        let sums = attached.build.handlers.iter();
        let covered = |name: &str| sums.clone().find(|of| of.name == name).unwrap().covered_ns;
        assert_eq!(["rare", "busy"].map(covered), [20_000_000_000, 30_000_000_000]);
        let minute = |attached: &mut Attachment| {
            let until = attached.until + Duration::from_secs(60);
            attached.add_drain(Vec::new(), until, false);
        };
        minute(&mut attached);
        let interval = attached.close();
        let names: Vec<&str> = interval.handlers.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["busy"]);
        assert_eq!((interval.left_out[0].name.as_str(), interval.left_out.len()), ("rare", 1));
        assert_eq!(interval.left_out[0].reason, SHED);
        assert!(partly(&interval).is_empty());
        assert_eq!(attached.build.recording().left_out, [], "it has figures");
        let at = attached.until;
        assert!(attached.carry_out(&Action::TakeUp("rare".to_owned()), at).unwrap());
        minute(&mut attached);
        let interval = attached.close();
        assert_eq!((interval.handlers.len(), interval.left_out.len()), (2, 0));
        assert!(partly(&interval).is_empty());
    }

    #[test]
    fn what_did_not_happen_is_not_drained() {
        let nothing = profiler_tests::drained(&[], Books::default());
        let entered = Books { entries: 1, ..Books::default() };
        let script = [
            nothing.clone(),
            nothing.clone(),
            profiler_tests::drained(&[], entered),
            profiler_tests::drained(&[400], entered),
        ];
        let script = script.into_iter().map(|rare| vec![nothing.clone(), rare]).collect();
        let mut attached = attachment("aa", script);
        let mut drained = |fully: bool| {
            attached.drain(fully).unwrap();
            attached.build.handlers[1].measure.durations.len()
        };
        // The first of the script is never taken but at the end of an interval, for what the kernel may have skipped.
        assert_eq!([false, false, false, true, true].map(&mut drained), [0; 5]);
        // Then one call enters and leaves while its counters are read: it is in the next drain.
        assert_eq!([false, false, false].map(&mut drained), [0, 1, 1]);
    }

    #[test]
    fn a_step_of_the_wall_clock_is_no_time() {
        // The interval after a step has the length of the monotonic clock, and the next begins where it ended.
        let mut attached = attachment("aa", drains(&[5, 6], 9));
        attached.started -= SignedDuration::from_hours(1);
        let started = attached.started;
        attached.drain(true).unwrap();
        let interval = attached.close();
        assert_eq!((interval.started, interval.window_ns), (started, 10_000_000_000));
        assert!(attached.started > started + SignedDuration::from_mins(30));
    }

    #[test]
    fn another_way_to_measure_does_not_add_up() {
        let mut attached = attachment("aa", Vec::new());
        let build = attached.build.clone();
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
        attached.build.frame.modules[0].parameters.insert("hook".to_owned(), "0".to_owned());
        assert_eq!(what(&attached, &build), [What::Parameters]);
    }
}
