//! One measured window: the load begins, warms up, is measured, and is stopped.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

use super::interval::Open;
use super::live::{self, Live};
use super::signals::Signals;
use super::{internal, seconds};
use crate::error::Failure;
use crate::load::{
    HitCount, HitQuestion, Load, LoadFailure, LoadOutcome, LoadRun, LoadSpec, LoadStatus,
    StopReason, StopSignal, run_all,
};
use crate::probe::{Drained, Precision, Session, recorder::Recorder};
use crate::profile::Interval;
use crate::progress::Progress;
use crate::watch::{Costs, Watch, Watched};

/// Longest time between two drains: kernel counters have 32 bits, which no CPU fills so soon.
const DRAIN_EVERY: Duration = Duration::from_secs(10);

/// Time to the first drain: by then a probe that the kernel skips each time has shown itself.
const FIRST_DRAIN: Duration = Duration::from_millis(500);

/// How often a bar on a terminal moves.
const TICK: Duration = Duration::from_millis(250);

/// What a window is made of.
pub(super) struct Plan {
    /// How long the load runs before the window begins.
    pub(super) warmup: Duration,
    /// Length of the window; `None` is until all loads have ended.
    pub(super) duration: Option<Duration>,
    /// Length of the pieces that the window is cut into.
    pub(super) interval: Option<Duration>,
    /// The loads that run side by side.
    pub(super) loads: Vec<Box<dyn Load>>,
    /// What the loads ask while they run.
    pub(super) questions: mpsc::Receiver<HitQuestion>,
    /// Whose costs are watched besides the machine's and the profiler's own.
    pub(super) watch: Vec<Watched>,
    /// Time between two samples of the costs.
    pub(super) sample: Option<Duration>,
}

/// How often [`Window::settle`] tries with the probes on.
const SETTLE_ATTEMPTS: u32 = 5;

/// What happened between the first and the last drain.
pub(super) struct Window {
    pub(super) recorder: Recorder,
    pub(super) started: jiff::Timestamp,
    began: Instant,
    /// Until when calls were counted.
    ended: Instant,
    pub(super) warmup: Duration,
    pub(super) loads: Vec<LoadRun>,
    pub(super) intervals: Vec<Interval>,
    /// The last interval, which ends when the window does; `None` where there are none.
    open: Option<Open>,
    /// Who paid.
    pub(super) costs: Option<Costs>,
    /// The signal that ended it, if one did: its exit code and name.
    pub(super) signal: Option<(u8, &'static str)>,
    /// The error that ended it, if one did: what was measured until then is kept.
    pub(super) trouble: Option<Failure>,
}

/// Runs warm-up and window. When this returns no load is running any more.
///
/// # Errors
/// Only if nothing could be measured at all; later trouble is told in [`Window::trouble`].
pub(super) async fn measure(
    plan: Plan,
    precision: Precision,
    session: &mut dyn Session,
    signals: &mut Signals,
    progress: &mut Progress,
) -> Result<Window, Failure> {
    let Plan { warmup, duration, interval: every, loads, questions, watch, sample } = plan;
    let mut recorder =
        Recorder::new(session, precision).map_err(|error| internal(&error.to_string()))?;

    // Exits of calls that had entered before the probes were there.
    let mut at_begin = session.drain()?;
    recorder.begin(&at_begin);
    let mut window_began = drained_until(session);
    let load_began = Instant::now();
    let mut started = jiff::Timestamp::now();
    let mut running = Running::start(loads, questions);
    let mut signal = None;

    if !warmup.is_zero() {
        progress.say(&format!("warming up for {}", seconds(warmup)));
        progress.begin("warming up", Some(warmup));
        let until = load_began + warmup;
        let wake = running.wait(until, session, signals, progress, load_began).await;
        let drained = session.drain()?;
        match wake {
            Wake::Time => {
                recorder.begin(&drained);
                window_began = drained_until(session);
                started = jiff::Timestamp::now();
                at_begin = drained;
            }
            // The load did not outlast the warm-up: what there is, is of the warm-up.
            Wake::LoadEnded => add(&mut recorder, &drained)?,
            Wake::Signal(caught) => {
                signal = Some(caught);
                add(&mut recorder, &drained)?;
            }
        }
    }
    let warmup = window_began.saturating_duration_since(load_began);
    running.measured = true;
    let watch = Watch::start(&watch, sample)
        .map_err(|error| internal(&format!("no thread that watches the costs: {error}")))?;

    match duration {
        Some(duration) => progress.say(&format!("measuring for {}", seconds(duration))),
        None => progress.say("measuring until the load has ended"),
    }
    progress.begin("measuring", duration);
    let end = duration.map(|duration| window_began.max(load_began) + duration);
    let mut intervals = Vec::new();
    let mut interval = Open::new(&at_begin, precision, window_began)?;
    drop(at_begin);
    let mut live = match progress.is_drawn() {
        true => Some(Live::new(&session.targets(), precision, window_began)?),
        false => None,
    };
    let drain_every = if live.is_some() { live::EVERY } else { DRAIN_EVERY };
    let mut next_drain = window_began + FIRST_DRAIN;
    let mut next_interval = every.map(|every| window_began + every);
    let mut trouble = None;
    let mut ended = window_began;
    while running.ended.is_none() && signal.is_none() {
        let until = [end, next_interval, Some(next_drain)].into_iter().flatten().min();
        let until = until.unwrap_or(next_drain);
        match running.wait(until, session, signals, progress, window_began).await {
            Wake::Time if end.is_some_and(|end| Instant::now() >= end) => break,
            Wake::Time => {}
            Wake::LoadEnded => break,
            Wake::Signal(caught) => {
                signal = Some(caught);
                break;
            }
        }
        let drained = session.drain().map_err(Failure::from).and_then(|drained| {
            add(&mut recorder, &drained)?;
            if let Some(live) = &mut live {
                live.add(&drained, Instant::now())?;
                progress.table(|lines| live.text(lines));
            }
            interval.add(&drained)
        });
        if let Err(error) = drained {
            trouble = Some(error);
            break;
        }
        ended = drained_until(session);
        let now = Instant::now();
        next_drain = now + drain_every;
        if let (Some(due), Some(every)) = (next_interval, every)
            && now >= due
        {
            progress.say(&interval.line(window_began, ended, &session.targets()));
            intervals.push(interval.close(window_began, ended));
            next_interval = Some(due.max(now - every) + every);
        }
    }

    // Before the loads are taken down, which costs something too.
    let costs = watch.end();
    let reason = if signal.is_some() { StopReason::Interrupted } else { StopReason::Duration };
    let (loads, second) = running.finish(reason, session, signals).await;
    signal = second.or(signal);
    let mut window = Window {
        recorder,
        started,
        began: window_began,
        ended,
        warmup,
        loads,
        intervals,
        open: every.map(|_| interval),
        costs,
        signal,
        trouble,
    };
    let last = session
        .drain()
        .map_err(Failure::from)
        .and_then(|drained| window.add(&drained, drained_until(session)));
    // After trouble this may fail again: the first error is the one to tell.
    window.trouble = window.trouble.or(last.err());
    Ok(window)
}

impl Window {
    /// How long calls were counted.
    pub(super) fn length(&self) -> Duration {
        self.ended - self.began
    }

    /// Adds what was drained at its end, which has all calls `until` then: the window, and its last
    /// interval, are as long as the time in which what they count could come in.
    fn add(&mut self, drained: &[Drained], until: Instant) -> Result<(), Failure> {
        add(&mut self.recorder, drained)?;
        if let Some(interval) = &mut self.open {
            interval.add(drained)?;
        }
        self.ended = self.ended.max(until);
        Ok(())
    }

    /// Ends it with what was drained last, and sees whether the books balance. After trouble it takes what
    /// there is.
    pub(super) fn settle(&mut self, session: &mut dyn Session) {
        if self.trouble.is_some()
            && let Ok(rest) = session.undelivered()
            && !rest.is_empty()
        {
            // The first error is the one to tell.
            let _ = self.add(&rest, Instant::now());
        }
        if self.ended <= self.began {
            self.ended = Instant::now();
        }
        self.recorder.end();
        if self.trouble.is_none() {
            self.trouble = self.balance(session).err();
        }
        if let Some(mut interval) = self.open.take() {
            self.intervals.push(interval.close(self.began, self.ended));
        }
    }

    /// Drains until the books balance. Taking probes off takes the kernel long (a grace period each), so
    /// the report does not wait for it, unless other processes keep the handlers too busy for a moment
    /// in which no call began or ended. The window has ended: calls that come in meanwhile are in the books
    /// that have to balance, and in no figure.
    fn balance(&mut self, session: &mut dyn Session) -> Result<(), Failure> {
        for attempt in 0..=SETTLE_ATTEMPTS {
            if self.recorder.is_balanced() {
                break;
            }
            if attempt == SETTLE_ATTEMPTS {
                session.detach();
            }
            self.recorder.settle(&session.drain()?);
        }
        Ok(())
    }
}

/// Until when the last drain has all calls.
fn drained_until(session: &dyn Session) -> Instant {
    session.drained_until().unwrap_or_else(Instant::now)
}

fn add(recorder: &mut Recorder, drained: &[Drained]) -> Result<(), Failure> {
    recorder.add(drained).map_err(|error| internal(&error.to_string()))
}

/// Loads that are running.
struct Running {
    stop: StopSignal,
    specs: Vec<LoadSpec>,
    began: Instant,
    task: JoinHandle<Vec<LoadRun>>,
    /// What came of them, once they have ended.
    ended: Option<Vec<LoadRun>>,
    questions: mpsc::Receiver<HitQuestion>,
    /// Whether the window has begun.
    measured: bool,
}

enum Wake {
    Time,
    LoadEnded,
    Signal((u8, &'static str)),
}

impl Running {
    fn start(loads: Vec<Box<dyn Load>>, questions: mpsc::Receiver<HitQuestion>) -> Self {
        let stop = StopSignal::new();
        let specs = loads.iter().map(|load| load.describe()).collect();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { run_all(loads, &stop).await }
        });
        Self { stop, specs, began: Instant::now(), task, ended: None, questions, measured: false }
    }

    /// Tells a load how often the handlers were called so far. One that gets no answer does without.
    fn answer(&self, question: HitQuestion, session: &mut dyn Session) {
        let known = |entries: Vec<Option<u64>>| entries.into_iter().collect::<Option<_>>();
        if let Some(entries) = session.entries().ok().and_then(known) {
            // A load that was dropped meanwhile needs no answer.
            let _ = question.send(HitCount { entries, measured: self.measured });
        }
    }

    /// Waits for a time, the end of the loads or a signal, and moves the bar meanwhile.
    async fn wait(
        &mut self,
        until: Instant,
        session: &mut dyn Session,
        signals: &mut Signals,
        progress: &Progress,
        since: Instant,
    ) -> Wake {
        loop {
            let now = Instant::now();
            progress.at(now - since);
            if now >= until {
                return Wake::Time;
            }
            tokio::select! {
                () = sleep_until(until.min(now + TICK).into()) => {}
                result = &mut self.task => {
                    let text = || format!("its task broke off; {}", FAULT);
                    self.ended = Some(result.unwrap_or_else(|_| self.broken(&text())));
                    return Wake::LoadEnded;
                }
                signal = signals.next() => return Wake::Signal(signal),
                Some(question) = self.questions.recv() => self.answer(question, session),
            }
        }
    }

    /// Stops them and waits until they have ended. A second signal, which is returned, means that
    /// the user will not wait: the loads are dropped, which kills them.
    async fn finish(
        mut self,
        reason: StopReason,
        session: &mut dyn Session,
        signals: &mut Signals,
    ) -> (Vec<LoadRun>, Option<(u8, &'static str)>) {
        if let Some(ended) = self.ended.take() {
            return (ended, None);
        }
        self.stop.stop(reason);
        loop {
            tokio::select! {
                result = &mut self.task => return match result {
                    Ok(runs) => (runs, None),
                    Err(_) => (self.broken(&format!("its task broke off; {FAULT}")), None),
                },
                signal = signals.next() => {
                    self.task.abort();
                    let _ = (&mut self.task).await;
                    let text = format!("killed by a second {} while it was being stopped", signal.1);
                    return (self.broken(&text), Some(signal));
                }
                Some(question) = self.questions.recv() => self.answer(question, session),
            }
        }
    }

    /// The loads as they are reported when nothing is known of their end.
    fn broken(&self, text: &str) -> Vec<LoadRun> {
        let run = |spec: &LoadSpec| {
            let failure = LoadFailure::BrokeOff { text: text.to_owned() };
            LoadRun {
                spec: spec.clone(),
                outcome: LoadOutcome::ended(LoadStatus::Failed(failure), self.began),
            }
        };
        self.specs.iter().map(run).collect()
    }
}

const FAULT: &str = "this is a fault of the profiler";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::target::Target;
    use crate::load::{HitCounter, IdleLoad};
    use crate::probe::{Books, ProbeError};
    use crate::profile::Backend;

    const PER_MS: u128 = 100;

    /// Probes on a handler that is called all the time, whose drains and end take long. Its books balance
    /// when the probes are off.
    struct Busy {
        target: Target,
        attached: Instant,
        taken: u64,
        until: Instant,
        detached: Option<Instant>,
    }

    impl Busy {
        fn new() -> Self {
            let target = Target { name: "busy".to_owned(), ..Target::default() };
            let now = Instant::now();
            Self { target, attached: now, taken: 0, until: now, detached: None }
        }

        fn calls(&self, now: Instant) -> u64 {
            let time = self.detached.unwrap_or(now) - self.attached;
            u64::try_from(time.as_micros() * PER_MS / 1000).unwrap()
        }
    }

    impl Session for Busy {
        fn targets(&self) -> Vec<&Target> {
            vec![&self.target]
        }

        fn backends(&self) -> Vec<Backend> {
            vec![Backend::Fentry]
        }

        fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
            self.until = self.detached.unwrap_or_else(Instant::now);
            let calls = self.calls(self.until);
            std::thread::sleep(Duration::from_millis(20));
            let books = Books { entries: self.calls(Instant::now()), ..Books::default() };
            let drained = Drained::of(&vec![1000; (calls - self.taken) as usize], books);
            self.taken = calls;
            Ok(vec![drained])
        }

        fn drained_until(&self) -> Option<Instant> {
            Some(self.until)
        }

        fn detach(&mut self) {
            std::thread::sleep(Duration::from_millis(200));
            self.detached.get_or_insert_with(Instant::now);
        }

        fn memory_bytes(&self) -> u64 {
            0
        }
    }

    fn measured(warmup: Duration) -> Window {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut session = Busy::new();
            let (_, questions) = HitCounter::channel();
            let plan = Plan {
                warmup,
                duration: Some(Duration::from_millis(400)),
                interval: Some(Duration::from_millis(150)),
                loads: vec![Box::new(IdleLoad)],
                questions,
                watch: Vec::new(),
                sample: None,
            };
            let mut signals = Signals::new().unwrap();
            let mut progress = Progress::new(true);
            let window = measure(plan, Precision::Three, &mut session, &mut signals, &mut progress);
            let mut window = window.await.unwrap();
            window.settle(&mut session);
            assert!(window.trouble.is_none(), "{:?}", window.trouble);
            assert!(window.recorder.is_balanced() && session.detached.is_some());
            window
        })
    }

    #[test]
    fn calls_and_time_are_of_one_window_and_intervals_add_up_to_it() {
        for warmup in [Duration::ZERO, Duration::from_millis(100)] {
            let window = measured(warmup);
            let length = window.length();
            let intervals = window.intervals;
            let measure = window.recorder.finish().remove(0);
            let (count, due) = (measure.durations.len(), length.as_micros() * PER_MS / 1000);
            assert!(u128::from(count).abs_diff(due) <= 2, "{count} calls in {length:?}, not {due}");
            let of_intervals: u64 =
                intervals.iter().map(|interval| interval.handlers[0].count).sum();
            assert_eq!(of_intervals, count);
            assert_eq!(measure.losses.imbalance(count), 0, "{:?}", measure.losses);
            let mut end = 0;
            for interval in &intervals {
                assert_eq!(interval.start_ns, end, "a gap between intervals");
                end += interval.duration_ns;
                let due = u128::from(interval.duration_ns / 1000) * PER_MS / 1000;
                let count = interval.handlers[0].count;
                assert!(u128::from(count).abs_diff(due) <= 2, "{count} calls, not {due}");
            }
            assert_eq!(u128::from(end), length.as_nanos());
        }
    }
}
