//! What the daemon does over time: it attaches when modules come, drains, closes intervals, and publishes what it
//! knows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;
use tracing::{error, info, warn};

use super::attachment::{Attachment, Change};
use super::budget::{Action, Budget, FIRST_WAIT, LONGEST_WAIT, Share};
use super::config::{self, Config};
use super::control::{Answer, Question, Released, Request};
use super::costs::Costs;
use super::logs::{ALWAYS, Logs};
use super::modules::{Event, Presence};
use super::notify::Notifier;
use super::own::{self, CpuShare};
use super::state::{Build, Module, NotMeasured, Own, Phase, State};
use super::status::{Measured, OfModule, Status};
use super::store::{Store, StoreError};
use super::{Error, Source, otlp};
use crate::error::exit;
use crate::kernel::host::{self, HostFacts};
use crate::kernel::module::references;
use crate::probe::ProbeError;
use crate::recording::{Backend, Recording};
use crate::stats::nanoseconds;
use crate::text::plural;

/// Longest time between two drains: kernel counters have 32 bits, which no CPU fills so soon.
const DRAIN_EVERY: Duration = Duration::from_secs(10);

/// Minimum interval between drains triggered by status requests. A client that asks less often gets all calls that had ended by then.
const DRAIN_FOR_STATUS: Duration = Duration::from_millis(500);

/// How long drains may fail before the probes are taken off: the kernel's counters would overflow.
const LONGEST_FAILURE: Duration = Duration::from_secs(60);

/// Time between two looks at how often messages were left out.
const TICK: Duration = Duration::from_secs(60);

/// Time to the next look at a module whose initialisation is under way (kernels before 5.11 report it too early).
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How often a module may be replaced while probes are put on it, before it has to wait for its next event.
const MOST_TRIES: u32 = 5;

/// Builds that are kept in memory, and shown: the one that was met first goes when there are more.
pub const MOST_BUILDS: usize = 16;

/// How long the kernel may hold a module after its probes are off.
const MODULE_RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The engine of the daemon.
pub(super) struct Engine {
    config: Config,
    source: Source,
    host: HostFacts,
    watched: Vec<Watched>,
    state: watch::Sender<Arc<State>>,
    store: Store,
    own: Own,
    next_drain: Instant,
    next_interval: Instant,
    /// When the last drain was for one who asked what the daemon does.
    last_asked: Option<Instant>,
    outputs: Outputs,
    next_decision: Instant,
    next_tick: Instant,
    /// Last ping of the watchdog.
    last_ping: Instant,
    /// CPU time of measuring, which the budget goes by: drains and intervals. Excludes status requests, so that a client cannot
    /// trigger shedding, and attaching, which shedding does not save.
    measuring_ns: u64,
    cpu: CpuShare,
    costs: Costs,
}

/// What the engine reports to, apart from its state.
pub(super) struct Outputs {
    pub(super) logs: Logs,
    pub(super) notifier: Notifier,
    /// Pushes to the collector, if there is one.
    pub(super) pushes: Option<Arc<otlp::Counts>>,
}

/// A module, and what is done about it.
struct Watched {
    config: config::Module,
    doing: Doing,
    /// Of the build that was measured last.
    budget: Option<(String, Budget)>,
    /// The load that was refused last, and how long it waited for the next try.
    refused: Option<(u64, Duration)>,
}

enum Doing {
    /// It is not loaded; the time is when to look again.
    Waiting(Option<Instant>),
    /// Since when its drains fail, if they do.
    Measuring(Box<Attachment>, Option<Instant>),
    /// The load with this number is let go.
    Released(u64),
    /// The load with this number cannot be measured, and why. What stands in the way may pass: the time is of the next try.
    Refused(u64, String, Instant),
    /// All handlers of the load with this number are shed by a backend that has to attach anew without them: none is left.
    /// The time is of the next trial.
    Shed(u64, Instant),
}

impl Watched {
    fn new(config: config::Module) -> Self {
        Self { config, doing: Doing::Waiting(None), budget: None, refused: None }
    }

    fn phase(&self) -> Phase {
        match &self.doing {
            Doing::Waiting(_) => Phase::Waiting,
            Doing::Measuring(..) => Phase::Measuring,
            Doing::Released(_) => Phase::Released,
            Doing::Refused(_, why, _) => Phase::Refused(why.clone()),
            Doing::Shed(..) => Phase::Shed,
        }
    }

    /// Handlers that bear the daemon's own time: those that are measured, and those that are shed.
    fn budgeted(&self) -> usize {
        let Doing::Measuring(attachment, _) = &self.doing else { return 0 };
        attachment.rates().count() + attachment.shed()
    }

    fn look_again(&self) -> Option<Instant> {
        match self.doing {
            Doing::Waiting(again) => again,
            Doing::Refused(.., again) | Doing::Shed(_, again) => Some(again),
            _ => None,
        }
    }

    /// A load cannot be measured: it is tried again, ever more rarely. Its next load is tried at once.
    fn refuse(&mut self, load: u64, why: String) {
        let before = self.refused.filter(|(of, _)| *of == load);
        let wait = before.map_or(FIRST_WAIT, |(_, wait)| (wait * 2).min(LONGEST_WAIT));
        warn!(
            target: ALWAYS,
            "module {} cannot be measured: {why}; it is tried again in {} s, and at once by `profiler release --resume {}`",
            self.config.name,
            wait.as_secs(),
            self.config.name
        );
        self.refused = Some((load, wait));
        self.doing = Doing::Refused(load, why, Instant::now() + wait);
    }
}

/// What can end or change the daemon from outside.
pub(super) struct Inputs {
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) questions: mpsc::Receiver<Question>,
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Inputs {
    /// Listens for signals from now on. To be called within a runtime.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn new(
        events: mpsc::Receiver<Event>,
        questions: mpsc::Receiver<Question>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            events,
            questions,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }
}

impl Engine {
    /// An engine that has not begun.
    pub(super) fn new(config: Config, source: Source, store: Store, outputs: Outputs) -> Self {
        let now = Instant::now();
        let at = Timestamp::now();
        let state =
            State { since: at, at, modules: Vec::new(), builds: Vec::new(), own: Own::default() };
        let watched = config.modules.iter().cloned().map(Watched::new).collect();
        let next_interval = now + config.interval;
        Self {
            config,
            source,
            host: host::collect(),
            watched,
            state: watch::Sender::new(Arc::new(state)),
            store,
            own: Own::default(),
            next_drain: now + DRAIN_EVERY,
            next_interval,
            last_asked: None,
            outputs,
            next_decision: now + DRAIN_EVERY,
            next_tick: now + TICK,
            last_ping: now,
            measuring_ns: 0,
            cpu: CpuShare::new(now, 0),
            costs: Costs::default(),
        }
    }

    /// What the daemon knows, from now on.
    pub(super) fn states(&self) -> watch::Receiver<Arc<State>> {
        self.state.subscribe()
    }

    /// Does all of it, until a signal ends it.
    ///
    /// # Errors
    /// If the kernel reports no more modules.
    pub(super) async fn run(&mut self, mut inputs: Inputs) -> Result<(), Error> {
        self.look_at_all();
        for watched in &self.watched {
            if matches!(watched.doing, Doing::Waiting(_)) {
                info!(target: ALWAYS, "module {} is not loaded: waiting for it", watched.config.name);
            }
        }
        self.outputs.notifier.ready(&self.in_words());
        let result = loop {
            let again = self.watched.iter().filter_map(Watched::look_again).min();
            let due = self.next_drain.min(self.next_interval);
            let due = due.min(self.next_decision).min(self.next_tick);
            let due = again.map_or(due, |again| due.min(again));
            let ping = self.outputs.notifier.every().map(|every| self.last_ping + every);
            let due = ping.map_or(due, |ping| due.min(ping));
            tokio::select! {
                () = sleep_until(due.into()) => self.on_time(),
                event = inputs.events.recv() => match event {
                    Some(Event::Module(name)) => self.look_at(&name),
                    Some(Event::Lost) => {
                        info!("the kernel had more events than could be read: looking at all modules");
                        self.look_at_all();
                    }
                    Some(Event::Ended(why)) => break Err(Error::NoEvents(why)),
                    None => break Err(Error::NoEvents("its reader ended".to_owned())),
                },
                Some((request, answer)) = inputs.questions.recv() => {
                    // Who asked may be gone.
                    let _ = answer.send(self.answer(&request));
                }
                _ = inputs.hang_up.recv() => {
                    self.outputs.notifier.reloading();
                    self.read_again();
                    self.outputs.notifier.ready(&self.in_words());
                }
                _ = inputs.terminate.recv() => break Ok("SIGTERM"),
                _ = inputs.interrupt.recv() => break Ok("SIGINT"),
            }
        };
        self.outputs.notifier.stopping();
        // With many handlers the kernel takes long to take probes off, and whoever asked may not wait for that.
        for at in 0..self.watched.len() {
            self.store_so_far(at);
        }
        for at in 0..self.watched.len() {
            self.end(at);
        }
        self.store.end();
        self.publish();
        self.outputs.logs.end();
        result.map(|signal| {
            info!("ended by {signal}: the last intervals are closed, and all probes are off")
        })
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        for at in 0..self.watched.len() {
            if self.watched[at].look_again().is_some_and(|again| now >= again) {
                self.try_again(at);
                self.publish();
            }
        }
        let (closes, decides) = (now >= self.next_interval, now >= self.next_decision);
        if closes || decides || now >= self.next_drain {
            let taken_ns = self.drain_all(closes);
            self.measuring_ns = self.measuring_ns.saturating_add(taken_ns);
        }
        // Not at each drain: `status` drains as often as it is asked.
        if decides {
            self.next_decision = Instant::now() + DRAIN_EVERY;
            self.keep_budgets();
            self.outputs.notifier.status(&self.in_words());
        }
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.outputs.logs.tick();
        }
        self.last_ping = now;
        if (0..self.watched.len()).all(|at| self.failing_since(at).is_none()) {
            self.outputs.notifier.alive(now);
        }
    }

    /// Looks at a module whose time has come. One that was refused or shed is attached to again, if it is still there.
    fn try_again(&mut self, at: usize) {
        let watched = &mut self.watched[at];
        match watched.doing {
            Doing::Refused(..) => info!("module {} is tried again", watched.config.name),
            Doing::Shed(..) => {
                info!(
                    "module {} is attached again: its handlers are on trial",
                    watched.config.name
                );
            }
            _ => {}
        }
        watched.doing = Doing::Waiting(None);
        self.look(at);
    }

    /// What it does, in a line.
    fn in_words(&self) -> String {
        let of = |watched: &Watched| {
            let what = match &watched.doing {
                Doing::Waiting(_) => "waited for".to_owned(),
                Doing::Measuring(attachment, _) => {
                    let count = attachment.rates().count();
                    format!("{count} handler{} measured", plural(count))
                }
                Doing::Released(_) => "released".to_owned(),
                Doing::Refused(..) => "refused".to_owned(),
                Doing::Shed(..) => "all handlers shed".to_owned(),
            };
            format!("{}: {what}", watched.config.name)
        };
        self.watched.iter().map(of).collect::<Vec<_>>().join("; ")
    }

    /// Takes probes off handlers that cost more than the budget allows, and puts them back on trial.
    fn keep_budgets(&mut self) {
        let now = Instant::now();
        let own = self.cpu.next(now, self.measuring_ns);
        let handlers: usize = self.watched.iter().map(Watched::budgeted).sum();
        for at in 0..self.watched.len() {
            let Some(Watched { config, doing: Doing::Measuring(attachment, _), budget, .. }) =
                self.watched.get_mut(at)
            else {
                continue;
            };
            let (Some((_, budget)), Some(rates)) = (budget, attachment.rates_to_decide()) else {
                continue;
            };
            let rates: Vec<_> = rates.iter().map(|(name, rate)| (name.as_str(), *rate)).collect();
            // The module's share; each of its handlers bears an equal part, shed or not.
            let own = own * budget.handlers(&rates) as f64 / handlers.max(1) as f64;
            let (mut anew, mut takes_up) = (false, false);
            for action in budget.decide(now, &rates, own) {
                match &action {
                    Action::Shed(name, share) => {
                        self.own.shed += 1;
                        warn!(
                            "handler {name} of {} is shed: measuring it takes {share} of a CPU",
                            config.name
                        );
                    }
                    Action::TakeUp(name) => {
                        takes_up = true;
                        info!("handler {name} of {} is measured again, on trial", config.name);
                    }
                }
                let done = attachment.carry_out(&action, Instant::now()).unwrap_or_else(|error| {
                    warn!("module {} is attached anew: {error}", config.name);
                    false
                });
                anew |= !done;
            }
            let shed: Vec<&str> = budget.shed().collect();
            let all_shed = !takes_up && rates.iter().all(|(name, _)| shed.contains(name));
            let ended = if anew { self.end(at) } else { None };
            if let Some((load, _)) = ended {
                match all_shed {
                    // Attaching tries all of them again: not at once.
                    true => self.wait_for_trial(at, load, now),
                    false => {
                        info!("module {} is attached anew", self.watched[at].config.name);
                        self.attach(at, load);
                    }
                }
            }
        }
        self.publish();
    }

    /// No handler of a load is left to measure: waits until the budget tries one again.
    fn wait_for_trial(&mut self, at: usize, load: u64, now: Instant) {
        let Some(Watched { config, doing, budget: Some((id, budget)), .. }) =
            self.watched.get_mut(at)
        else {
            return;
        };
        let again = budget.next_trial().unwrap_or(now + FIRST_WAIT);
        *doing = Doing::Shed(load, again);
        let seconds = again.saturating_duration_since(now).as_secs();
        warn!(
            "all handlers of {} are shed: it is attached again in {seconds} s; raise max-overhead, or name fewer handlers",
            config.name
        );
        self.state.send_modify(|state| {
            let builds = &mut Arc::make_mut(state).builds;
            let build = builds.iter_mut().find(|of| of.module == config.name && of.id == *id);
            let shed = budget.shed().map(|name| (name.to_owned(), NotMeasured::Shed));
            if let Some(build) = build {
                build.not_measured.extend(shed);
            }
        });
    }

    /// Drains all that is measured; `closes` ends its intervals, too. The CPU time of draining, closing and storing, in
    /// nanoseconds; that of showing it goes by who reads it.
    fn drain_all(&mut self, closes: bool) -> u64 {
        let (mut taken_ns, failures) = (0_u64, self.own.drain_failures);
        for at in 0..self.watched.len() {
            taken_ns = taken_ns.saturating_add(self.drain(at, closes));
        }
        if self.own.drain_failures == failures {
            self.own.last_drain = Some(Timestamp::now());
        }
        let now = Instant::now();
        self.next_drain = now + DRAIN_EVERY;
        if closes {
            // A build that is gone has no interval to come with.
            let before = own::thread_cpu_ns();
            self.store.write_pending();
            taken_ns = taken_ns.saturating_add(own::thread_cpu_ns().saturating_sub(before));
            // After a machine that slept there is one interval, not one for each that is missing.
            let next = self.next_interval + self.config.interval;
            self.next_interval = if next > now { next } else { now + self.config.interval };
        }
        self.publish();
        taken_ns
    }

    /// Drains a module, and ends its interval if it `closes`: the CPU time of that, in nanoseconds.
    fn drain(&mut self, at: usize, closes: bool) -> u64 {
        let Some(Watched { config, doing: Doing::Measuring(attachment, failing), .. }) =
            self.watched.get_mut(at)
        else {
            return 0;
        };
        let before = own::thread_cpu_ns();
        let (module, id) = (config.name.clone(), attachment.build_id().to_owned());
        let own = &mut self.own;
        let drained = with_recording(&self.state, &module, &id, |recording| {
            let began = Instant::now();
            let change = attachment.drain(recording, closes)?;
            own.drains += 1;
            own.drain_ns += nanoseconds(began.elapsed());
            Ok((change, closes.then(|| attachment.close()).transpose()))
        });
        let failed = match drained {
            Ok((change, interval)) => {
                *failing = None;
                let taken_ns = own::thread_cpu_ns().saturating_sub(before);
                apply(&self.state, &module, &id, change);
                match interval {
                    Ok(Some(interval)) => return taken_ns + self.store(&module, &id, interval),
                    Ok(None) => return taken_ns,
                    Err(error) => error,
                }
            }
            Err(error) => {
                failing.get_or_insert_with(Instant::now);
                self.own.drain_failures += 1;
                warn!("module {module} cannot be read: {error}");
                error
            }
        };
        if matches!(failed, ProbeError::PreemptionChanged) {
            self.end(at);
            self.look(at);
        }
        let is_too_long = |since: Instant| since.elapsed() >= LONGEST_FAILURE;
        if self.failing_since(at).is_some_and(is_too_long)
            && let Some((load, _)) = self.end(at)
        {
            self.watched[at].refuse(load, failed.to_string());
        }
        own::thread_cpu_ns().saturating_sub(before)
    }

    /// Stores an interval: the CPU time of that, in nanoseconds.
    fn store(&mut self, module: &str, build: &str, interval: Recording) -> u64 {
        let before = own::thread_cpu_ns();
        self.store.put(module, build, interval);
        own::thread_cpu_ns().saturating_sub(before)
    }

    /// Stores a module's interval so far: its last one takes the place of that.
    fn store_so_far(&mut self, at: usize) {
        let Some(Watched { config, doing: Doing::Measuring(attachment, _), .. }) =
            self.watched.get_mut(at)
        else {
            return;
        };
        let (module, id) = (config.name.clone(), attachment.build_id().to_owned());
        let so_far =
            with_recording(&self.state, &module, &id, |recording| attachment.so_far(recording));
        match so_far {
            Ok((change, interval)) => {
                apply(&self.state, &module, &id, change);
                self.store.put_ahead(&module, &id, &interval);
            }
            // The end says what comes of it.
            Err(error) => warn!("module {module} cannot be read: {error}"),
        }
    }

    fn failing_since(&self, at: usize) -> Option<Instant> {
        match self.watched.get(at)?.doing {
            Doing::Measuring(_, since) => since,
            _ => None,
        }
    }

    /// Takes the probes off a module, and stores its last interval; then nothing waits for that module. The number of
    /// the load that was measured, and what was measured last; `None` if nothing was.
    fn end(&mut self, at: usize) -> Option<(u64, Released)> {
        let watched = self.watched.get_mut(at)?;
        if !matches!(watched.doing, Doing::Measuring(..)) {
            return None;
        }
        let Doing::Measuring(attachment, _) =
            std::mem::replace(&mut watched.doing, Doing::Waiting(None))
        else {
            return None;
        };
        let module = watched.config.name.clone();
        let (load, id) = (attachment.load, attachment.build_id().to_owned());
        let mut released = Released { handlers: attachment.names(), ..Released::default() };
        let ended =
            with_recording(&self.state, &module, &id, |recording| attachment.end(recording));
        match ended {
            Ok((change, interval, is_lost)) => {
                self.own.drain_failures += u64::from(is_lost);
                apply(&self.state, &module, &id, change);
                released.calls = interval.calls();
                self.store.put(&module, &id, interval);
            }
            Err(error) => {
                let is_lost = self.store.lose_open(&module, &id);
                let what = if is_lost { "last interval" } else { "end of the last interval" };
                error!("the {what} of module {module} is lost: {error}");
            }
        }
        Some((load, released))
    }

    fn place(&self, module: &str) -> Option<usize> {
        self.watched.iter().position(|watched| watched.config.name == module)
    }

    fn look_at(&mut self, module: &str) {
        if let Some(at) = self.place(module) {
            self.look(at);
            self.publish();
        }
    }

    fn look_at_all(&mut self) {
        for at in 0..self.watched.len() {
            self.look(at);
        }
        self.publish();
    }

    /// Does what the presence of a module asks for.
    fn look(&mut self, at: usize) {
        for _ in 0..MOST_TRIES {
            let Some(watched) = self.watched.get_mut(at) else { return };
            let presence = Presence::of(&watched.config.name);
            match next(&watched.doing, presence) {
                Next::Nothing => return,
                Next::Wait => {
                    info!(target: ALWAYS, "module {} is not loaded: waiting for it", watched.config.name);
                    watched.doing = Doing::Waiting(None);
                    return;
                }
                Next::LookAgain => {
                    watched.doing = Doing::Waiting(Some(Instant::now() + LOOK_AGAIN));
                    return;
                }
                // Only backends that hold no reference let it go while they measure it.
                Next::Stop => {
                    warn!("module {} was unloaded while it was measured", watched.config.name);
                    self.end(at);
                }
                Next::Attach(load) => self.attach(at, load),
            }
        }
    }

    /// Puts probes on a load of a module.
    fn attach(&mut self, at: usize, load: u64) {
        let measured = self.measured();
        let Some(watched) = self.watched.get_mut(at) else { return };
        let config = &watched.config;
        if config.backend == Some(Backend::FunctionGraph) {
            // Its tracer is one, and the module's from then on.
            self.costs.dearest(config.backend.into_iter(), self.config.precision);
        }
        let known = watched.budget.as_ref();
        let attached = Attachment::attach(config, load, self.config.precision, &self.host, known);
        let is_same = Presence::of(&config.name) == Presence::Live(load);
        let attached = attached.and_then(|attachment| match is_same {
            true => Ok(attachment),
            false => Err("it was replaced meanwhile".to_owned()),
        });
        let begun = attached.and_then(|mut attachment| {
            let build = begin_build(&self.state, &mut attachment, &measured);
            build.map_err(|error| error.to_string()).map(|()| attachment)
        });
        watched.doing = match begun {
            Ok(attachment) => {
                let is_known = |(id, _): &(String, Budget)| id == attachment.build_id();
                if !watched.budget.as_ref().is_some_and(is_known) {
                    let cost = self.costs.dearest(attachment.backends(), self.config.precision);
                    // Without a limit nothing is shed, and the overhead is known all the same.
                    let limit = Share::new(self.config.max_overhead.unwrap_or(f64::MAX));
                    let budget = cost.map(|cost| Budget::new(limit, cost));
                    let id = attachment.build_id().to_owned();
                    watched.budget = budget.map(|budget| (id, budget));
                }
                Doing::Measuring(Box::new(attachment), None)
            }
            // The next look finds out what it is now.
            Err(_) if !is_same => Doing::Waiting(None),
            Err(why) => return watched.refuse(load, why),
        };
    }

    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Status => {
                if self.last_asked.is_none_or(|last| last.elapsed() >= DRAIN_FOR_STATUS) {
                    self.drain_all(false);
                    self.last_asked = Some(Instant::now());
                }
                Answer::Status(Status::of(&self.state.borrow(), &self.measured()))
            }
            Request::Release(module) => self.release(module),
            Request::Resume(module) => self.resume(module),
        }
    }

    fn measured(&self) -> Measured {
        let of = |watched: &Watched| match &watched.doing {
            Doing::Measuring(attachment, _) => {
                let (build, rates) =
                    (attachment.build_id().to_owned(), attachment.rates().collect());
                Some((watched.config.name.clone(), OfModule { build, rates }))
            }
            _ => None,
        };
        self.watched.iter().filter_map(of).collect()
    }

    /// Takes the probes off a module until another load of it comes.
    fn release(&mut self, module: &str) -> Answer {
        let Some(at) = self.place(&module.replace('-', "_")) else { return self.unknown(module) };
        let module = self.watched[at].config.name.clone();
        // While it initialises nothing is measured yet: it is not to be attached to afterwards either.
        let (Presence::Live(load) | Presence::Coming(load)) = Presence::of(&module) else {
            return Answer::Released(Released::default());
        };
        let mut released = self.end(at).map_or_else(Released::default, |(_, released)| released);
        self.watched[at].doing = Doing::Released(load);
        self.publish();
        released.references = let_go(&module);
        info!(target: ALWAYS, "module {module} is released: probes come back with its next load");
        Answer::Released(released)
    }

    fn resume(&mut self, module: &str) -> Answer {
        let Some(at) = self.place(&module.replace('-', "_")) else { return self.unknown(module) };
        if !matches!(self.watched[at].doing, Doing::Measuring(..)) {
            self.watched[at].doing = Doing::Waiting(None);
            self.look(at);
            self.publish();
        }
        match &self.watched[at].doing {
            Doing::Measuring(attachment, _) => Answer::Resumed(attachment.names()),
            Doing::Refused(_, why, _) => {
                let message = format!("module {module} cannot be measured: {why}");
                Answer::Refused { code: exit::CANNOT_MEASURE, message }
            }
            _ => {
                let message =
                    format!("module {module} is not loaded: it is measured when it comes");
                Answer::Refused { code: exit::NO_TARGET, message }
            }
        }
    }

    fn unknown(&self, module: &str) -> Answer {
        let known: Vec<&str> =
            self.watched.iter().map(|watched| watched.config.name.as_str()).collect();
        let message =
            format!("the daemon is not for module `{module}`, but for {}", known.join(", "));
        Answer::Refused { code: exit::NO_TARGET, message }
    }

    /// Keeps intervals as `config` says.
    fn store_as(&mut self, config: &Config) -> Result<(), StoreError> {
        if config.store == self.config.store {
            return Ok(());
        }
        // Another store in the same folder would take what this one has in memory for killed.
        if config.store.folder == self.config.store.folder {
            self.store.set_bounds(config.store.clone());
        } else {
            let old = std::mem::replace(&mut self.store, Store::open(config.store.clone())?);
            self.store.take_over(old);
        }
        Ok(())
    }

    /// Holds handlers to another limit. Where all are shed, they are tried with it at once.
    fn limit_to(&mut self, max_overhead: Option<f64>) {
        let limit = Share::new(max_overhead.unwrap_or(f64::MAX));
        for watched in &mut self.watched {
            if let Some((_, budget)) = &mut watched.budget {
                budget.set_limit(limit);
            }
            if let Doing::Shed(_, again) = &mut watched.doing {
                *again = Instant::now();
            }
        }
    }

    /// Reads the configuration again. What stays the same keeps its probes and counts.
    fn read_again(&mut self) {
        let Source::File(path) = &self.source else {
            warn!("SIGHUP ignored: started from the command line, no configuration file");
            return;
        };
        let config = match Config::read(path) {
            Ok(config) => config,
            Err(error) => {
                error!("{error}: the configuration stays as it was");
                return;
            }
        };
        if config.listen != self.config.listen || config.otlp != self.config.otlp {
            warn!("`listen` and `otlp` are read when the daemon starts: restart it for these");
        }
        if let Err(error) = self.store_as(&config) {
            error!("{error}: the configuration stays as it was");
            return;
        }
        let keeps = config.precision == self.config.precision;
        let mut old = std::mem::take(&mut self.watched);
        for module in &config.modules {
            let known = old.iter().position(|watched| watched.config == *module && keeps);
            self.watched.push(match known {
                // What was refused is tried again.
                Some(at) if matches!(old[at].doing, Doing::Refused(..)) => {
                    Watched::new(module.clone())
                }
                Some(at) => old.swap_remove(at),
                None => {
                    let mut new = Watched::new(module.clone());
                    // Whoever released it is about to unload it.
                    let released = old.iter().find(|watched| watched.config.name == module.name);
                    if let Some(Watched { doing: Doing::Released(load), .. }) = released {
                        new.doing = Doing::Released(*load);
                    }
                    new
                }
            });
        }
        if config.max_overhead != self.config.max_overhead {
            self.limit_to(config.max_overhead);
        }
        let kept = self.watched.len();
        self.watched.append(&mut old);
        for at in kept..self.watched.len() {
            self.end(at);
        }
        self.watched.truncate(kept);
        self.next_interval = self.next_interval.min(Instant::now() + config.interval);
        self.config = config;
        info!("the configuration was read again");
        self.look_at_all();
    }

    /// Modules and builds with a limit that are measured now, and whether the limit holds: not if a cost is not known.
    fn enforced(&self) -> Vec<(String, String, bool)> {
        let of = |watched: &Watched| {
            let Doing::Measuring(attachment, _) = &watched.doing else { return None };
            let is_known = self.costs.are_known(attachment.backends(), self.config.precision);
            let (module, id) = (watched.config.name.clone(), attachment.build_id().to_owned());
            Some((module, id, is_known && watched.budget.is_some()))
        };
        let has_limit = self.config.max_overhead.is_some();
        self.watched.iter().filter(|_| has_limit).filter_map(of).collect()
    }

    /// Shows what is known now.
    fn publish(&mut self) {
        let modules = self.watched.iter();
        let modules = modules
            .map(|watched| Module { name: watched.config.name.clone(), phase: watched.phase() })
            .collect();
        let attachments = self.watched.iter().filter_map(|watched| match &watched.doing {
            Doing::Measuring(attachment, _) => Some(attachment),
            _ => None,
        });
        let kernel_memory_bytes = attachments.map(|of| of.kernel_memory_bytes()).sum();
        let is_measured = |watched: &&Watched| matches!(watched.doing, Doing::Measuring(..));
        let budgets = self.watched.iter().filter(is_measured).map(|watched| &watched.budget);
        let overheads = budgets.map(|of| of.as_ref().map(|(_, budget)| budget.overhead().get()));
        let own = Own {
            cpu_ns: own::cpu_ns(),
            memory_bytes: own::memory_bytes(),
            kernel_memory_bytes,
            intervals: self.store.intervals(),
            overhead: overheads.sum(),
            pushes: self.outputs.pushes.as_ref().map(|counts| counts.get()),
            ..self.own
        };
        let enforced = self.enforced();
        self.state.send_modify(|state| {
            let state = Arc::make_mut(state);
            for build in &mut state.builds {
                let now = enforced
                    .iter()
                    .find(|(module, id, _)| *module == build.module && *id == build.id);
                build.budget_enforced = now.map(|(.., is_enforced)| *is_enforced);
            }
            (state.at, state.modules, state.own) = (Timestamp::now(), modules, own);
        });
    }
}

/// What to do about a module.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    Wait,
    LookAgain,
    Stop,
    Attach(u64),
}

fn next(doing: &Doing, presence: Presence) -> Next {
    let known = match doing {
        Doing::Waiting(_) => None,
        Doing::Measuring(attachment, _) => Some(attachment.load),
        Doing::Released(load) | Doing::Refused(load, ..) | Doing::Shed(load, _) => Some(*load),
    };
    match (doing, presence) {
        (_, Presence::Live(load)) if known == Some(load) => Next::Nothing,
        // Released before it was ready.
        (Doing::Released(load), Presence::Coming(coming)) if *load == coming => Next::Nothing,
        (Doing::Measuring(..), _) => Next::Stop,
        (_, Presence::Live(load)) => Next::Attach(load),
        (_, Presence::Coming(_)) => Next::LookAgain,
        (Doing::Waiting(None), Presence::Absent) => Next::Nothing,
        (_, Presence::Absent) => Next::Wait,
    }
}

/// Waits until nobody holds a module, but not long: the references that are left.
fn let_go(module: &str) -> u64 {
    let began = Instant::now();
    loop {
        match references(module) {
            Some(held) if held > 0 && began.elapsed() < MODULE_RELEASE_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            held => return held.unwrap_or(0),
        }
    }
}

fn find<'a>(builds: &'a [Build], module: &str, id: &str) -> Option<&'a Build> {
    builds.iter().find(|build| build.module == module && build.id == id)
}

/// What `take` makes of the recording of a build.
fn with_recording<T>(
    state: &watch::Sender<Arc<State>>,
    module: &str,
    id: &str,
    take: impl FnOnce(&Recording) -> Result<T, ProbeError>,
) -> Result<T, ProbeError> {
    let state = Arc::clone(&state.borrow());
    let gone = || ProbeError::ModuleGone { module: module.to_owned() };
    take(&find(&state.builds, module, id).ok_or_else(gone)?.recording)
}

fn apply(state: &watch::Sender<Arc<State>>, module: &str, id: &str, change: Change) {
    state.send_modify(|state| {
        let builds = &mut Arc::make_mut(state).builds;
        let build = builds.iter_mut().find(|build| build.module == module && build.id == id);
        if let Some(build) = build {
            change.apply(build);
        }
    });
}

/// Adds the build of an attachment, or goes on with what is known of it.
fn begin_build(
    state: &watch::Sender<Arc<State>>,
    attachment: &mut Attachment,
    measured: &Measured,
) -> Result<(), ProbeError> {
    let (module, id) = (attachment.module().to_owned(), attachment.build_id().to_owned());
    let known = Arc::clone(&state.borrow());
    let before = find(&known.builds, &module, &id);
    let unlike = before.map(|before| attachment.unlike(before)).transpose()?.unwrap_or_default();
    if !unlike.is_empty() {
        let unlike: Vec<String> = unlike.iter().map(ToString::to_string).collect();
        warn!(
            "the sum of build {id} of module {module} begins anew, because it is not measured as before: {}; its intervals \
             on disk stay",
            unlike.join("; ")
        );
    }
    let build = attachment.build(before.filter(|_| unlike.is_empty()))?;
    drop(known);
    state.send_modify(|state| {
        let builds = &mut Arc::make_mut(state).builds;
        builds.retain(|known| known.module != module || known.id != id);
        builds.push(build);
        let is_past = |build: &Build| {
            let now = measured.get(&build.module).is_some_and(|now| now.build == build.id);
            !now && (&build.module, &build.id) != (&module, &id)
        };
        if builds.len() > MOST_BUILDS
            && let Some(first) = builds.iter().position(is_past)
        {
            let gone = builds.remove(first);
            info!(
                "build {} of module {} is no longer shown: there are newer ones",
                gone.id, gone.module
            );
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::attachment::tests::{attachment, drains};
    use super::super::state::Intervals;
    use super::*;

    fn engine(folder: &std::path::Path, source: Source) -> Engine {
        let mut config = match &source {
            Source::File(path) => Config::read(path).unwrap(),
            Source::Options => Config::default(),
        };
        let folder = folder.join("store");
        config.store = config::Store { folder, max_bytes: 1 << 20, min_free_bytes: 0 };
        let store = Store::open(config.store.clone()).unwrap();
        let logs = Logs::default();
        let outputs = Outputs { logs, notifier: Notifier::default(), pushes: None };
        Engine::new(config, source, store, outputs)
    }

    /// One that measures `driver`, whose handler `busy` has so many calls at each drain.
    fn engine_with(folder: &std::path::Path, calls: &[u64]) -> Engine {
        let mut engine = engine(folder, Source::Options);
        let config =
            config::Module { name: "driver".to_owned(), handlers: Vec::new(), backend: None };
        let mut attached = attachment("aa", drains(calls, 9));
        begin_build(&engine.state, &mut attached, &Measured::new()).unwrap();
        let doing = Doing::Measuring(Box::new(attached), None);
        engine.watched.push(Watched { doing, ..Watched::new(config) });
        engine
    }

    fn measuring() -> Doing {
        Doing::Measuring(Box::new(attachment("aa", Vec::new())), None)
    }

    #[test]
    fn what_a_modules_presence_asks_for() {
        let (absent, coming) = (Presence::Absent, Presence::Coming(8));
        let [same, other] = [7, 8].map(Presence::Live);
        let later = Instant::now();
        let refused = || Doing::Refused(7, String::new(), later);
        let shed = || Doing::Shed(7, later);
        for (doing, presence, expected) in [
            (Doing::Waiting(None), absent, Next::Nothing),
            (Doing::Waiting(None), coming, Next::LookAgain),
            (Doing::Waiting(None), same, Next::Attach(7)),
            (measuring(), same, Next::Nothing),
            (measuring(), other, Next::Stop),
            (measuring(), absent, Next::Stop),
            (measuring(), coming, Next::Stop),
            (Doing::Released(7), same, Next::Nothing),
            (Doing::Released(7), other, Next::Attach(8)),
            (Doing::Released(7), absent, Next::Wait),
            (Doing::Released(7), coming, Next::LookAgain),
            (Doing::Released(8), coming, Next::Nothing),
            (shed(), same, Next::Nothing),
            (shed(), other, Next::Attach(8)),
            (shed(), absent, Next::Wait),
            (refused(), same, Next::Nothing),
            (refused(), other, Next::Attach(8)),
            (refused(), absent, Next::Wait),
        ] {
            assert_eq!(next(&doing, presence), expected, "{presence:?}");
        }
    }

    #[test]
    fn what_was_refused_is_tried_again_ever_more_rarely() {
        let config =
            config::Module { name: "no_such".to_owned(), handlers: Vec::new(), backend: None };
        let mut watched = Watched::new(config);
        let mut waits = Vec::new();
        for load in [7; 8].into_iter().chain([8]) {
            let before = Instant::now();
            watched.refuse(load, "no memory".to_owned());
            assert_eq!(watched.phase(), Phase::Refused("no memory".to_owned()));
            waits.push((watched.look_again().unwrap() - before).as_secs());
        }
        assert_eq!(waits, [60, 120, 240, 480, 960, 1920, 3600, 3600, 60]);
        // It is not there any more when its time comes.
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine(folder.path(), Source::Options);
        watched.doing = Doing::Refused(8, String::new(), Instant::now());
        engine.watched.push(watched);
        engine.on_time();
        assert_eq!(engine.watched[0].phase(), Phase::Waiting);
    }

    #[test]
    fn what_waits_is_not_lost_by_other_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6]);
        let with = |engine: &mut Engine, min_free_bytes| {
            let store = config::Store { min_free_bytes, ..engine.config.store.clone() };
            let config = Config { store, ..engine.config.clone() };
            engine.store_as(&config).unwrap();
            engine.config = config;
        };
        with(&mut engine, 1 << 60);
        engine.drain_all(true);
        let figures = |engine: &Engine| {
            let Intervals { on_disk, waiting, lost, .. } = engine.store.intervals();
            [on_disk, waiting, lost]
        };
        assert_eq!(figures(&engine), [0, 1, 0]);
        with(&mut engine, 0);
        engine.end(0);
        assert_eq!(figures(&engine), [1, 0, 0]);
    }

    #[test]
    fn another_budget_tries_what_is_shed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        let later = Instant::now() + LONGEST_WAIT;
        engine.watched[0].doing = Doing::Shed(7, later);
        engine.limit_to(Some(0.002));
        assert!(engine.watched[0].look_again().is_some_and(|again| again < later));
    }

    #[test]
    fn with_all_handlers_shed_a_module_waits_for_the_trial() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        let mut budget = Budget::new(Share::new(0.001), 100.0);
        let now = Instant::now();
        budget.decide(now, &[("busy", 1e6), ("rare", 1e6)], 0.0);
        engine.watched[0].budget = Some(("aa".to_owned(), budget));
        engine.end(0);
        engine.wait_for_trial(0, 7, now);
        engine.publish();
        assert_eq!(engine.watched[0].look_again(), Some(now + FIRST_WAIT));
        let state = engine.states().borrow().clone();
        assert_eq!(state.modules[0].phase, Phase::Shed);
        let shed: Vec<_> = state.builds[0].not_measured.keys().collect();
        assert_eq!(shed, ["busy", "rare"]);
    }

    #[test]
    fn builds_are_kept_apart_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path(), Source::Options);
        let ids: Vec<String> = (0..MOST_BUILDS + 3).map(|n| format!("{n:02}")).collect();
        let of = OfModule { build: "01".to_owned(), ..OfModule::default() };
        let measured = Measured::from([("driver".to_owned(), of)]);
        for id in &ids {
            let mut attached = attachment(id, drains(&[5], 9));
            begin_build(&engine.state, &mut attached, &measured).unwrap();
            let change = with_recording(&engine.state, "driver", id, |recording| {
                attached.drain(recording, true)
            });
            apply(&engine.state, "driver", id, change.unwrap());
        }
        let state = engine.states().borrow().clone();
        let kept: Vec<&str> = state.builds.iter().map(|build| build.id.as_str()).collect();
        assert_eq!((kept.len(), &kept[..3]), (MOST_BUILDS, &["01", "04", "05"][..]));
        assert!(state.builds.iter().all(|build| build.recording.handlers[0].count == 5));
    }

    #[test]
    fn an_interval_ends_on_disk_and_in_the_sum() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6, 7]);
        engine.drain_all(false);
        engine.drain_all(true);
        let state = engine.states().borrow().clone();
        assert_eq!(
            (state.own.drains, state.own.intervals.on_disk, state.modules[0].phase.clone()),
            (2, 1, Phase::Measuring)
        );
        assert_eq!(state.builds[0].recording.handlers[0].count, 11);
        assert_eq!(state.builds[0].in_flight["busy"], 1);
        let status = Status::of(&state, &engine.measured());
        let [busy, rare] = &status.handlers[..] else { panic!("{status:?}") };
        assert_eq!((busy.calls, busy.calls_per_s, rare.calls), (11, 0.6, 1));
        assert_eq!(
            (status.modules[0].handlers, status.modules[0].build.as_deref()),
            (2, Some("aa"))
        );

        let (load, released) = engine.end(0).unwrap();
        assert_eq!((load, released.calls, released.handlers.len()), (7, 7, 2));
        assert!(matches!(engine.watched[0].doing, Doing::Waiting(None)));
        engine.publish();
        let state = engine.states().borrow().clone();
        assert_eq!((state.own.intervals.on_disk, state.own.intervals.lost), (2, 0));
        assert_eq!(state.builds[0].recording.handlers[0].count, 18);
    }

    /// The kernel may take long to take the probes off, and systemd ends who takes too long.
    #[test]
    fn what_is_measured_is_on_disk_before_the_probes_are_off() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6, 7]);
        let on_disk = || {
            let store = folder.path().join("store/driver-aa");
            let files = std::fs::read_dir(store).unwrap().map(|file| file.unwrap().path());
            files.map(|file| Recording::read(&file).unwrap().handlers[0].count).collect::<Vec<_>>()
        };
        engine.store_so_far(0);
        assert_eq!(on_disk(), [5]);
        engine.end(0);
        assert_eq!(on_disk(), [11]);
        engine.publish();
        let state = engine.states().borrow().clone();
        assert_eq!(state.builds[0].recording.handlers[0].count, 11);
        assert_eq!((state.own.intervals.on_disk, state.own.intervals.lost), (1, 0));
    }

    #[test]
    fn who_asks_right_after_a_drain_gets_the_calls_since_then() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6, 7]);
        engine.drain_all(false);
        let calls = |engine: &mut Engine| match engine.answer(&Request::Status) {
            Answer::Status(status) => status.handlers[0].calls,
            other => panic!("{other:?}"),
        };
        assert_eq!(calls(&mut engine), 11);
        assert_eq!(calls(&mut engine), 11, "no drain for who asks again at once");
        engine.last_asked = engine.last_asked.map(|last| last - DRAIN_FOR_STATUS);
        assert_eq!(calls(&mut engine), 18);
    }

    /// Without the cost of a hit nothing is shed: whoever set a limit has to be told.
    #[test]
    fn a_budget_that_cannot_be_kept_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        let shown = |engine: &mut Engine| {
            engine.publish();
            engine.states().borrow().builds[0].budget_enforced
        };
        assert_eq!(shown(&mut engine), None);
        engine.config.max_overhead = Some(0.001);
        assert_eq!(shown(&mut engine), Some(false));
        engine.watched.clear();
        assert_eq!(shown(&mut engine), None);
    }

    #[test]
    fn a_drain_that_fails_is_counted_and_is_no_sign_of_life() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        engine.drain_all(false);
        let before = engine.own;
        assert!(before.last_drain.is_some() && before.drains == 1);
        if let Doing::Measuring(attachment, _) = &mut engine.watched[0].doing {
            attachment.break_off();
        }
        engine.drain_all(false);
        let expected = Own { drain_failures: 1, ..before };
        assert_eq!(engine.own, expected);
        // Nor are calls lost at the end without a word.
        engine.end(0);
        assert_eq!((engine.own.drain_failures, engine.store.intervals().on_disk), (2, 1));
        // With no module there is nothing that could fail.
        engine.watched.clear();
        engine.drain_all(false);
        assert!(engine.own.last_drain > before.last_drain);
    }

    /// Whoever reaches the socket can have the daemon render pages without end.
    #[test]
    fn what_others_make_the_daemon_do_sheds_no_handler() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        let limit = Share::new(0.2);
        engine.watched[0].budget = Some(("aa".to_owned(), Budget::new(limit, 1.0)));
        let spin = || {
            let began = own::thread_cpu_ns();
            while own::thread_cpu_ns() - began < 400_000_000 {}
        };
        std::thread::spawn(spin).join().unwrap();
        spin();
        engine.next_drain = Instant::now();
        engine.on_time();
        assert!(engine.measuring_ns > 0);
        engine.keep_budgets();
        assert_eq!((engine.own.shed, engine.watched[0].phase()), (0, Phase::Measuring));
        // The time of measuring does.
        engine.drain_all(false);
        engine.measuring_ns += 10_000_000_000;
        engine.keep_budgets();
        assert_eq!(engine.own.shed, 1);
    }

    #[test]
    fn what_waits_is_written_when_there_is_room_though_its_build_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6]);
        let in_the_way = folder.path().join("store/driver-aa");
        std::fs::write(&in_the_way, "").unwrap();
        engine.drain_all(true);
        let figures = |engine: &Engine| {
            let Intervals { on_disk, waiting, lost, .. } = engine.states().borrow().own.intervals;
            [on_disk, waiting, lost]
        };
        assert_eq!(figures(&engine), [0, 1, 0]);
        engine.watched.clear();
        std::fs::remove_file(in_the_way).unwrap();
        engine.drain_all(true);
        assert_eq!(figures(&engine), [1, 0, 0]);
    }

    #[test]
    fn a_bad_configuration_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("serve.toml");
        let store = folder.path().join("store");
        let write = |modules: &str, more: &str| {
            let text = format!(
                "{modules}\n[store]\nfolder = {store:?}\nmax-bytes = 1048576\nmin-free-bytes = 0\n{more}"
            );
            std::fs::write(&file, text).unwrap();
        };
        let module = |name: &str| format!("[[module]]\nname = \"{name}\"\nhandlers = [\"x\"]\n");
        // Modules that no kernel has.
        let [one, two] = ["no_such_one", "no_such_two"].map(module);
        write(&one, "");
        let mut engine = engine(folder.path(), Source::File(file.clone()));
        engine.watched[0].doing = measuring();
        write(&two, "max-byte = 1\n");
        engine.read_again();
        assert_eq!(engine.watched[0].config.name, "no_such_one");
        assert!(matches!(engine.watched[0].doing, Doing::Measuring(..)));

        write(&format!("{two}{one}"), "");
        // It is not loaded here, so a look would end it.
        engine.watched[0].doing = Doing::Released(7);
        engine.read_again();
        let names: Vec<&str> = engine.watched.iter().map(|of| of.config.name.as_str()).collect();
        assert_eq!(names, ["no_such_two", "no_such_one"]);
        write(&two, "");
        engine.read_again();
        assert_eq!(engine.watched.len(), 1);
    }
}
