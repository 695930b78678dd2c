//! The event loop: modules that come and go, drains, intervals, signals, requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;
use toml::Spanned;
use tracing::{error, info, warn};

use profiler_base::error::{Failure, bail, exit};
use profiler_kernel::host;
use profiler_kernel::module::references;

use super::config::Config;
use super::control::{Answer, Question, Released, Request};
use super::costs::Costs;
use super::modules::Event;
use super::notify::Notifier;
use super::own;
use super::state::{Module, Own, Pushes, State};
use super::status::Status;
use super::store::Store;
use super::system_failure;
use super::task::{Shared, Task};

/// Longest time between two drains, in which no CPU can fill the kernel's 32-bit counters. The budget is decided as often.
const DRAIN_EVERY: Duration = Duration::from_secs(10);

/// How long the kernel may hold a module after its probes are off.
const MODULE_RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Engine {
    /// The configuration, which SIGHUP reads again.
    file: PathBuf,
    tasks: Vec<Task>,
    shared: Shared,
    state: watch::Sender<Arc<State>>,
    notifier: Notifier,
    /// Pushes to the collector, if there is one.
    pushes: Option<watch::Receiver<Pushes>>,
    next_drain: Instant,
    next_interval: Instant,
    /// CPU time of drains and intervals, for the budget. Excludes status requests, so that a client cannot trigger
    /// shedding, and attaching, which shedding does not save.
    measuring_ns: u64,
    /// When the budget was decided last, and `measuring_ns` then.
    decided: (Instant, u64),
}

impl Engine {
    pub(super) fn new(
        config: Config,
        file: PathBuf,
        store: Store,
        notifier: Notifier,
        pushes: Option<watch::Receiver<Pushes>>,
    ) -> Self {
        let (now, at) = (Instant::now(), Timestamp::now());
        let own = Own::default();
        let state =
            State { since: at, at, made: now, modules: Vec::new(), builds: Vec::new(), own };
        let state = watch::Sender::new(Arc::new(state));
        Self {
            file,
            tasks: config.modules.iter().map(|module| Task::new(module.as_ref().clone())).collect(),
            notifier,
            pushes,
            next_drain: now + DRAIN_EVERY,
            next_interval: now + config.interval,
            measuring_ns: 0,
            decided: (now, 0),
            shared: Shared { config, host: host::collect(), costs: Costs::default(), store, own },
            state,
        }
    }

    pub(super) fn states(&self) -> watch::Receiver<Arc<State>> {
        self.state.subscribe()
    }

    /// Runs until a signal ends it.
    ///
    /// # Errors
    /// If the system refuses to report signals, or the kernel reports no more modules.
    pub(super) async fn run(
        &mut self,
        mut events: mpsc::Receiver<Event>,
        mut questions: mpsc::Receiver<Question>,
    ) -> Result<(), Failure> {
        let listen = |kind| signal(kind).map_err(system_failure("cannot listen for signals"));
        let mut hang_up = listen(SignalKind::hangup())?;
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        self.look_at_all();
        self.notifier.ready(&self.status_line());
        let result = loop {
            tokio::select! {
                () = sleep_until(self.next_due().into()) => self.on_time(),
                event = events.recv() => match event {
                    Some(Event::Module(name)) => {
                        if let Some(at) = self.index(&name) {
                            self.tasks[at].look(&mut self.shared);
                            self.publish();
                        }
                    }
                    Some(Event::Lost) => {
                        info!("the kernel had more events than could be read: looking at all modules");
                        self.look_at_all();
                    }
                    None => break Err(Failure::new(
                        exit::INTERNAL,
                        "the kernel's events about modules ended: start the daemon again, which systemd does by itself",
                    )),
                },
                Some((request, answer)) = questions.recv() => {
                    // The client may be gone.
                    let _ = answer.send(self.answer(&request));
                }
                _ = hang_up.recv() => {
                    self.notifier.reloading();
                    self.read_again();
                    self.notifier.ready(&self.status_line());
                }
                _ = terminate.recv() => break Ok("SIGTERM"),
                _ = interrupt.recv() => break Ok("SIGINT"),
            }
        };
        self.notifier.stopping();
        self.end();
        result.map(|signal| {
            info!("ended by {signal}: the last intervals are closed, and all probes are off")
        })
    }

    /// Stores what is open, takes all probes off, and stores what came meanwhile as one more interval: the kernel takes long to
    /// remove many probes, and systemd may not wait for that.
    fn end(&mut self) {
        self.drain_all(true);
        self.each_task(|task, shared| drop(task.end(shared)));
        self.shared.store.end();
        self.publish();
    }

    fn each_task(&mut self, mut act: impl FnMut(&mut Task, &mut Shared)) {
        self.tasks.iter_mut().for_each(|task| act(task, &mut self.shared));
    }

    /// When something has to be done without an event.
    fn next_due(&self) -> Instant {
        let again = self.tasks.iter().filter_map(Task::look_again);
        again.fold(self.next_drain.min(self.next_interval), Instant::min)
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        self.each_task(|task, shared| {
            if task.look_again().is_some_and(|again| now >= again) {
                task.look(shared);
            }
        });
        let (drains, closes) = (now >= self.next_drain, now >= self.next_interval);
        if drains || closes {
            let before = own::thread_cpu_ns();
            self.drain_all(closes);
            self.measuring_ns += own::thread_cpu_ns().saturating_sub(before);
        }
        if drains {
            self.next_drain = Instant::now() + DRAIN_EVERY;
            self.keep_budgets();
            self.notifier.alive(&self.status_line(), !self.tasks.iter().any(Task::is_failing));
        }
        self.publish();
    }

    fn status_line(&self) -> String {
        self.tasks.iter().map(Task::status_line).collect::<Vec<_>>().join("; ")
    }

    /// Applies the budget. Each handler, measured or shed, bears an equal part of the daemon's time for measuring.
    fn keep_budgets(&mut self) {
        let now = Instant::now();
        let (before, taken_before) = std::mem::replace(&mut self.decided, (now, self.measuring_ns));
        let elapsed = now.saturating_duration_since(before).max(Duration::from_millis(1));
        let taken = Duration::from_nanos(self.measuring_ns.saturating_sub(taken_before));
        let handlers: usize = self.tasks.iter().map(Task::budgeted).sum();
        let part = taken.div_duration_f64(elapsed) / handlers.max(1) as f64;
        self.each_task(|task, shared| task.keep_budget(now, part, shared));
    }

    /// Drains all that is measured; `closes` ends its intervals, too.
    fn drain_all(&mut self, closes: bool) {
        let failures = self.shared.own.drain_failures;
        self.each_task(|task, shared| task.drain(closes, shared));
        if self.shared.own.drain_failures == failures {
            self.shared.own.last_drain = Some(Timestamp::now());
        }
        if closes {
            // No further interval of a build that is gone would write these.
            self.shared.store.write_pending();
            let (now, every) = (Instant::now(), self.shared.config.interval);
            // After the machine slept there is one interval, not one for each that was missed.
            let next = self.next_interval + every;
            self.next_interval = if next > now { next } else { now + every };
        }
    }

    fn index(&self, module: &str) -> Option<usize> {
        self.tasks.iter().position(|task| task.config.name == module)
    }

    fn look_at_all(&mut self) {
        self.each_task(Task::look);
        self.publish();
    }

    fn answer(&mut self, request: &Request) -> Result<Answer, Failure> {
        let (Request::Release(module) | Request::Resume(module)) = request else {
            self.drain_all(false);
            self.publish();
            return Ok(Answer::Status(Status::of(&self.state.borrow())));
        };
        let Some(at) = self.index(&module.replace('-', "_")) else {
            let known = self.tasks.iter().map(|task| task.config.name.as_str());
            let known = known.collect::<Vec<_>>().join(", ");
            bail!(NO_TARGET, "the daemon is not for module `{module}`, but for {known}");
        };
        if matches!(request, Request::Resume(_)) {
            let resumed = self.tasks[at].resume(&mut self.shared);
            self.publish();
            return resumed.map(Answer::Resumed);
        }
        let released = self.tasks[at].release(&mut self.shared);
        self.publish();
        let references = wait_unreferenced(&self.tasks[at].config.name);
        Ok(Answer::Released(Released { references, ..released }))
    }

    /// Reads the configuration again. Modules whose entry stays the same keep their probes and counts.
    fn read_again(&mut self) {
        let mut config = match Config::read(&self.file) {
            Ok(config) => config,
            Err(error) => {
                error!("{error}: the configuration stays as it was");
                return;
            }
        };
        let old = &self.shared.config;
        let is_elsewhere = config.store.folder != old.store.folder;
        if config.listen != old.listen || config.otlp != old.otlp || is_elsewhere {
            warn!(
                "`listen`, `otlp` and the store's `folder` are read when the daemon starts: restart it for these"
            );
        }
        if is_elsewhere {
            // The bounds are of that folder; what is kept in the old one stays.
            config.store = old.store.clone();
        }
        self.shared.store.set_bounds(config.store.max_bytes, config.store.min_free_bytes);
        let kept = config.precision == self.shared.config.precision;
        let mut old = std::mem::take(&mut self.tasks);
        for module in config.modules.iter().map(Spanned::as_ref) {
            let known = old.iter().position(|task| task.config.name == module.name);
            let known = known.map(|at| old.swap_remove(at));
            let mut task = known.unwrap_or_else(|| Task::new(module.clone()));
            task.configure(module, kept, &mut self.shared);
            self.tasks.push(task);
        }
        old.iter_mut().for_each(|task| drop(task.end(&mut self.shared)));
        if config.budget != self.shared.config.budget {
            self.tasks.iter_mut().for_each(Task::limit_changed);
        }
        self.next_interval = self.next_interval.min(Instant::now() + config.interval);
        self.shared.config = config;
        info!("the configuration was read again");
        self.look_at_all();
    }

    fn publish(&mut self) {
        let builds = self.tasks.iter().filter_map(Task::attachment).map(|of| &of.build);
        let measured = self.tasks.iter().filter(|task| task.attachment().is_some());
        let Shared { config, costs, store, own, .. } = &mut self.shared;
        *own = Own {
            cpu_ns: own::cpu_ns(),
            memory_bytes: own::memory_bytes(),
            kernel_memory_bytes: builds.map(|of| of.frame.histogram.kernel_memory_bytes).sum(),
            intervals: store.intervals(),
            overhead: measured.map(Task::overhead).sum(),
            pushes: self.pushes.as_ref().map(|counts| *counts.borrow()),
            ..*own
        };
        let modules = self.tasks.iter();
        let modules =
            modules.map(|task| Module { name: task.config.name.clone(), phase: task.phase() });
        let state = State {
            since: self.state.borrow().since,
            at: Timestamp::now(),
            made: Instant::now(),
            modules: modules.collect(),
            builds: self.tasks.iter().flat_map(|task| task.builds(config, costs)).collect(),
            own: *own,
        };
        self.state.send_replace(Arc::new(state));
    }
}

/// Waits a short time until nothing holds a module; returns the references that are left.
fn wait_unreferenced(module: &str) -> u64 {
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

#[cfg(test)]
mod tests {
    use profiler_recording::Recording;

    use super::super::attachment::tests::{attachment, drains};
    use super::super::budget::{Budget, FIRST_WAIT, LONGEST_WAIT};
    use super::super::config;
    use super::super::state::{Build, Intervals, MAX_BUILDS, Phase};
    use super::super::task::Stage;
    use super::*;

    /// Calls of its first handler.
    fn calls(build: &Build) -> u64 {
        build.handlers[0].measure.durations.len()
    }

    fn engine(folder: &std::path::Path) -> Engine {
        let file = folder.join("serve.toml");
        let mut config = Config::read(&file).unwrap_or_default();
        let folder = folder.join("store");
        config.store = config::Store { folder, max_bytes: 1 << 20, min_free_bytes: 0 };
        let store = Store::open(config.store.clone()).unwrap();
        Engine::new(config, file, store, Notifier::default(), None)
    }

    /// One that measures `driver`, whose handler `busy` has so many calls at each drain.
    fn engine_with(folder: &std::path::Path, calls: &[u64]) -> Engine {
        let mut engine = engine(folder);
        let config =
            config::Module { name: "driver".to_owned(), handlers: Vec::new(), backend: None };
        engine.tasks.push(Task::new(config));
        engine.tasks[0].begin(attachment("aa", drains(calls, 9)));
        engine
    }

    fn measuring() -> Stage {
        Stage::Measuring(Box::new(attachment("aa", Vec::new())), None)
    }

    #[test]
    fn a_module_that_was_refused_and_is_gone_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine(folder.path());
        let config =
            config::Module { name: "no_such".to_owned(), handlers: Vec::new(), backend: None };
        let stage = Stage::off(Phase::Refused(String::new()), 8, Some(Instant::now()));
        engine.tasks.push(Task::new(config));
        engine.tasks[0].stage = stage;
        engine.on_time();
        assert_eq!(engine.tasks[0].phase(), Phase::Waiting);
    }

    #[test]
    fn what_waits_is_not_lost_by_other_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6]);
        let with = |engine: &mut Engine, min_free_bytes| {
            engine.shared.store.set_bounds(1 << 20, min_free_bytes);
        };
        with(&mut engine, 1 << 60);
        engine.drain_all(true);
        let figures = |engine: &Engine| {
            let Intervals { on_disk, waiting, lost, .. } = engine.shared.store.intervals();
            [on_disk, waiting, lost]
        };
        assert_eq!(figures(&engine), [0, 1, 0]);
        with(&mut engine, 0);
        engine.tasks[0].end(&mut engine.shared);
        assert_eq!(figures(&engine), [1, 0, 0]);
    }

    #[test]
    fn another_budget_tries_what_is_shed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        let later = Instant::now() + LONGEST_WAIT;
        engine.tasks[0].stage = Stage::off(Phase::Shed, 7, Some(later));
        engine.tasks[0].limit_changed();
        assert!(engine.tasks[0].look_again().is_some_and(|again| again < later));
    }

    #[test]
    fn with_all_handlers_shed_a_module_waits_for_the_trial() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        let mut budget = Budget::new(100.0);
        let now = Instant::now();
        budget.decide(now, &[("busy", 1e6), ("rare", 1e6)], 0.0, 0.001);
        engine.tasks[0].budget = Some(("aa".to_owned(), budget));
        engine.tasks[0].end(&mut engine.shared);
        engine.tasks[0].wait_for_trial(7, now);
        engine.publish();
        assert_eq!(engine.tasks[0].look_again(), Some(now + FIRST_WAIT));
        let state = engine.states().borrow().clone();
        assert_eq!(state.modules[0].phase, Phase::Shed);
        let shed: Vec<_> = state.builds[0].not_measured.keys().collect();
        assert_eq!(shed, ["busy", "rare"]);
        let module = &Status::of(&state).modules[0];
        assert_eq!((module.build.as_deref(), module.handlers, module.shed), (Some("aa"), 0, 2));
    }

    #[test]
    fn builds_are_kept_apart_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[]);
        let ids: Vec<String> = (0..MAX_BUILDS + 3).map(|n| format!("{n:02}")).collect();
        for id in &ids {
            engine.tasks[0].end(&mut engine.shared);
            engine.tasks[0].begin(attachment(id, drains(&[5], 9)));
            engine.drain_all(false);
        }
        engine.publish();
        let state = engine.states().borrow().clone();
        let kept: Vec<&str> = state.builds.iter().map(|build| build.id.as_str()).collect();
        assert_eq!(kept, ["03", "04", "05", "06"]);
        assert!(state.builds.iter().all(|build| calls(build) == 5));
    }

    #[test]
    fn an_interval_ends_on_disk_and_in_the_sum() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6, 7]);
        engine.drain_all(false);
        engine.drain_all(true);
        engine.publish();
        let state = engine.states().borrow().clone();
        assert_eq!(
            (state.own.drains, state.own.intervals.on_disk, state.modules[0].phase.clone()),
            (2, 1, Phase::Measuring)
        );
        assert_eq!((calls(&state.builds[0]), state.builds[0].handlers[0].in_flight), (11, 1));
        let status = Status::of(&state);
        let [busy, rare] = &status.handlers[..] else { panic!("{status:?}") };
        assert_eq!((busy.calls, busy.calls_per_s, rare.calls), (11, 0.6, 1));
        assert_eq!(
            (status.modules[0].handlers, status.modules[0].build.as_deref()),
            (2, Some("aa"))
        );

        let (load, released) = engine.tasks[0].end(&mut engine.shared).unwrap();
        assert_eq!((load, released.calls, released.handlers.len()), (7, 7, 2));
        assert!(matches!(
            engine.tasks[0].stage,
            Stage::Off { phase: Phase::Waiting, again: None, .. }
        ));
        engine.publish();
        let state = engine.states().borrow().clone();
        assert_eq!((state.own.intervals.on_disk, state.own.intervals.lost), (2, 0));
        assert_eq!(calls(&state.builds[0]), 18);
    }

    /// Calls of `busy` in each interval on disk, in order.
    fn stored(folder: &std::path::Path) -> Vec<u64> {
        let files = std::fs::read_dir(folder.join("store/driver-aa")).unwrap();
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        // By their numbers.
        files.sort_by_key(|file| file.to_string_lossy().rsplit('-').next().map(str::to_owned));
        files.iter().map(|file| Recording::read(file).unwrap().handlers[0].count).collect()
    }

    #[test]
    fn a_kill_while_probes_come_off_takes_nothing_that_came_before() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6, 7]);
        engine.drain_all(false);
        if let Stage::Measuring(attachment, _) = &mut engine.tasks[0].stage {
            attachment.die_at_detach();
        }
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.end()));
        assert!(killed.is_err());
        assert_eq!(stored(folder.path()), [11]);
    }

    #[test]
    fn each_call_is_in_one_interval_also_those_that_end_while_probes_come_off() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6, 7]);
        engine.drain_all(false);
        engine.end();
        assert_eq!(stored(folder.path()), [11, 7]);
        let state = engine.states().borrow().clone();
        assert_eq!((calls(&state.builds[0]), state.own.intervals.on_disk), (18, 2));
        assert_eq!((state.own.intervals.lost, state.builds[0].handlers[0].in_flight), (0, 0));
    }

    #[test]
    fn who_asks_gets_the_calls_since_the_last_drain() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6, 7]);
        engine.drain_all(false);
        let calls = |engine: &mut Engine| match engine.answer(&Request::Status) {
            Ok(Answer::Status(status)) => status.handlers[0].calls,
            other => panic!("{other:?}"),
        };
        assert_eq!(calls(&mut engine), 11);
        assert_eq!(calls(&mut engine), 18);
    }

    /// Without the cost of a hit nothing is shed.
    #[test]
    fn a_budget_that_cannot_be_kept_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        let shown = |engine: &mut Engine| {
            engine.publish();
            engine.states().borrow().builds[0].budget_enforced
        };
        assert_eq!(shown(&mut engine), None);
        engine.shared.config.budget.max_overhead = Some(0.001);
        assert_eq!(shown(&mut engine), Some(false));
        engine.tasks[0].end(&mut engine.shared);
        assert_eq!(shown(&mut engine), None);
    }

    #[test]
    fn a_drain_that_fails_is_counted_and_is_no_sign_of_life() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        engine.drain_all(false);
        let before = engine.shared.own;
        assert!(before.last_drain.is_some() && before.drains == 1);
        if let Stage::Measuring(attachment, _) = &mut engine.tasks[0].stage {
            attachment.break_off();
        }
        engine.drain_all(false);
        let expected = Own { drain_failures: 1, ..before };
        assert_eq!(engine.shared.own, expected);
        // Nor are calls lost at the end without a word.
        engine.tasks[0].end(&mut engine.shared);
        assert_eq!(
            (engine.shared.own.drain_failures, engine.shared.store.intervals().on_disk),
            (2, 1)
        );
        // With no module there is nothing that could fail.
        engine.tasks.clear();
        engine.drain_all(false);
        assert!(engine.shared.own.last_drain > before.last_drain);
    }

    /// A client of the socket can have the daemon render pages without end.
    #[test]
    fn what_others_make_the_daemon_do_sheds_no_handler() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5]);
        engine.tasks[0].budget = Some(("aa".to_owned(), Budget::new(1.0)));
        engine.shared.config.budget.max_overhead = Some(0.2);
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
        assert_eq!((engine.shared.own.shed, engine.tasks[0].phase()), (0, Phase::Measuring));
        // The time of measuring does.
        engine.drain_all(false);
        engine.measuring_ns += 10_000_000_000;
        engine.keep_budgets();
        assert_eq!(engine.shared.own.shed, 1);
    }

    #[test]
    fn what_waits_is_written_when_there_is_room_though_its_build_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine_with(folder.path(), &[5, 6]);
        let in_the_way = folder.path().join("store/driver-aa");
        std::fs::write(&in_the_way, "").unwrap();
        engine.drain_all(true);
        let figures = |engine: &Engine| {
            let Intervals { on_disk, waiting, lost, .. } = engine.shared.store.intervals();
            [on_disk, waiting, lost]
        };
        assert_eq!(figures(&engine), [0, 1, 0]);
        engine.tasks.clear();
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
        let mut engine = engine(folder.path());
        engine.tasks[0].stage = measuring();
        write(&two, "max-byte = 1\n");
        engine.read_again();
        assert_eq!(engine.tasks[0].config.name, "no_such_one");
        assert!(matches!(engine.tasks[0].stage, Stage::Measuring(..)));

        write(&format!("{two}{one}"), "");
        // It is not loaded here, so a look would end it.
        engine.tasks[0].stage = Stage::off(Phase::Released, 7, None);
        engine.read_again();
        let names: Vec<&str> = engine.tasks.iter().map(|of| of.config.name.as_str()).collect();
        assert_eq!(names, ["no_such_two", "no_such_one"]);
        write(&two, "");
        engine.read_again();
        assert_eq!(engine.tasks.len(), 1);
    }
}
