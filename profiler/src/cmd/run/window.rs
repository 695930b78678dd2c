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

/// What happened between the first and the last drain.
pub(super) struct Window {
    pub(super) recorder: Recorder,
    pub(super) started: jiff::Timestamp,
    pub(super) length: Duration,
    pub(super) warmup: Duration,
    pub(super) loads: Vec<LoadRun>,
    pub(super) intervals: Vec<Interval>,
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
    recorder.begin(&session.drain()?);
    let load_began = Instant::now();
    let mut window_began = load_began;
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
                window_began = Instant::now();
                started = jiff::Timestamp::now();
            }
            // The load did not outlast the warm-up: what there is, is of the warm-up.
            Wake::LoadEnded => add(&mut recorder, &drained)?,
            Wake::Signal(caught) => {
                signal = Some(caught);
                add(&mut recorder, &drained)?;
            }
        }
    }
    let warmup = window_began - load_began;
    running.measured = true;
    let watch = Watch::begin(&watch, sample)
        .map_err(|error| internal(&format!("no thread that watches the costs: {error}")))?;

    match duration {
        Some(duration) => progress.say(&format!("measuring for {}", seconds(duration))),
        None => progress.say("measuring until the load has ended"),
    }
    progress.begin("measuring", duration);
    let end = duration.map(|duration| window_began + duration);
    let mut intervals = Vec::new();
    let mut interval = Open::new(session.targets().len(), precision, window_began)?;
    let mut live = match progress.is_drawn() {
        true => Some(Live::new(&session.targets(), precision, window_began)?),
        false => None,
    };
    let drain_every = if live.is_some() { live::EVERY } else { DRAIN_EVERY };
    let mut next_drain = window_began + FIRST_DRAIN;
    let mut next_interval = every.map(|every| window_began + every);
    let mut trouble = None;
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
        let now = Instant::now();
        next_drain = now + drain_every;
        if let (Some(due), Some(every)) = (next_interval, every)
            && now >= due
        {
            progress.say(&interval.line(window_began, now, &session.targets()));
            intervals.push(interval.close(window_began, now));
            next_interval = Some(due.max(now - every) + every);
        }
    }

    // Before the loads are taken down, which costs something too.
    let costs = watch.end();
    let reason = if signal.is_some() { StopReason::Interrupted } else { StopReason::Duration };
    let (loads, second) = running.finish(reason, session, signals).await;
    signal = second.or(signal);
    let now = Instant::now();
    // After trouble this may fail again: the first error is the one to tell.
    let last = session.drain().map_err(Failure::from).and_then(|drained| {
        add(&mut recorder, &drained)?;
        if every.is_some() {
            interval.add(&drained)?;
            intervals.push(interval.close(window_began, now));
        }
        Ok(())
    });
    let trouble = trouble.or(last.err());
    let length = now - window_began;
    Ok(Window { recorder, started, length, warmup, loads, intervals, costs, signal, trouble })
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
        if let Ok(Some(entries)) = session.entries() {
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
