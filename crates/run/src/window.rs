//! One measured window: the load begins, warms up, is measured, and is stopped.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use profiler_base::error::Failure;
use profiler_base::progress::Progress;
use profiler_base::stats::nanoseconds;
use profiler_load::{HitCount, HitQuestion, LoadRun, RunningLoads, StopReason};
use profiler_probe::{Drained, Precision, Session, recorder::Recorder};
use profiler_recording::{Clock, HandlerRecording, HistogramLayout, Meter, Recording};

use super::jobs::Job;
use super::live;
use super::seconds;
use super::signals::Signals;

/// Longest time between two drains: kernel counters have 32 bits, which no CPU fills so soon.
const DRAIN_EVERY: Duration = Duration::from_secs(10);

/// Time to the first drain: by then a probe that the kernel skips each time has shown itself.
const FIRST_DRAIN: Duration = Duration::from_millis(500);

/// How often a bar on a terminal moves.
const TICK: Duration = Duration::from_millis(250);

/// How often [`Window::settle`] tries with the probes on.
const SETTLE_ATTEMPTS: u32 = 5;

/// What happened between the first and the last drain.
pub(super) struct Window {
    recorder: Recorder,
    started: jiff::Timestamp,
    began: Instant,
    /// Until when calls were counted.
    ended: Instant,
    warmup: Duration,
    loads: Vec<LoadRun>,
    /// When the table on the terminal was drawn last, while the loads run and there is one.
    drawn: Option<Instant>,
    /// The signal that ended it, if one did.
    pub(super) signal: Option<Signal>,
    /// The error that ended it, if one did: what was measured until then is kept.
    pub(super) trouble: Option<Failure>,
}

/// What a run uses all along.
pub(super) struct Context<'a> {
    pub(super) session: &'a mut dyn Session,
    pub(super) signals: &'a mut Signals,
    pub(super) progress: &'a mut Progress,
}

impl Window {
    /// Runs warm-up and window of a job. When this returns no load is running any more.
    ///
    /// # Errors
    /// Only if nothing could be measured at all; later errors are in [`Window::trouble`].
    pub(super) async fn record(
        job: &Job,
        warmup: Duration,
        precision: Precision,
        context: &mut Context<'_>,
    ) -> Result<Self, Failure> {
        let mut recorder = Recorder::new(context.session.handlers(), precision);
        // Exits of calls that had entered before the probes were there.
        recorder.begin(&context.session.drain()?);
        let began = drained_until(context.session);
        let mut window = Self {
            recorder,
            started: jiff::Timestamp::now(),
            began,
            ended: began,
            warmup: Duration::ZERO,
            loads: Vec::new(),
            drawn: None,
            signal: None,
            trouble: None,
        };
        let mut running = Running::start(job, warmup);
        if !warmup.is_zero() {
            window.warm_up(warmup, &mut running, context).await?;
        }
        window.warmup = window.began.saturating_duration_since(running.loads.began);
        running.measured = true;
        match job.duration {
            Some(duration) => context.progress.say(&format!("measuring for {}", seconds(duration))),
            None => context.progress.say("measuring until the load has ended"),
        }
        context.progress.begin("measuring", job.duration);
        window.drawn = context.progress.is_drawn().then_some(window.began);
        window.drain_until_over(job.duration, &mut running, context).await;

        window.drawn = None;
        (window.loads, window.signal) = running.finish(context).await;
        // After trouble this may fail again: the first error is reported.
        let last = window.drain(context);
        window.trouble = window.trouble.or(last.err());
        Ok(window)
    }

    /// Lets the loads run, and discards what is drained then.
    async fn warm_up(
        &mut self,
        length: Duration,
        running: &mut Running,
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        context.progress.say(&format!("warming up for {}", seconds(length)));
        context.progress.begin("warming up", Some(length));
        let began = running.loads.began;
        let is_warm = running.wait(began + length, context, began).await;
        let drained = context.session.drain()?;
        if is_warm {
            self.recorder.begin(&drained);
            self.began = drained_until(context.session);
            self.ended = self.began;
            self.started = jiff::Timestamp::now();
        } else {
            // The load ended within the warm-up, so the report covers the warm-up.
            self.add(&drained, drained_until(context.session));
        }
        Ok(())
    }

    /// Drains from time to time until `duration` is over, the loads have ended, or a signal or an error ends it.
    async fn drain_until_over(
        &mut self,
        duration: Option<Duration>,
        running: &mut Running,
        context: &mut Context<'_>,
    ) {
        let end = duration.map(|duration| self.began.max(running.loads.began) + duration);
        let drain_every = if self.drawn.is_some() { live::EVERY } else { DRAIN_EVERY };
        let mut next_drain = self.began + FIRST_DRAIN;
        while running.signal.is_none() {
            let until = end.map_or(next_drain, |end| end.min(next_drain));
            let is_going_on = running.wait(until, context, self.began).await;
            if !is_going_on || end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            if let Err(error) = self.drain(context) {
                self.trouble = Some(error);
                break;
            }
            next_drain = Instant::now() + drain_every;
        }
    }

    /// Adds what has come in since the last time, here and to the table on the terminal.
    fn drain(&mut self, context: &mut Context<'_>) -> Result<(), Failure> {
        let drained = context.session.drain()?;
        self.add(&drained, drained_until(context.session));
        if let Some(drawn) = &mut self.drawn {
            let seconds = drawn.elapsed().as_secs_f64().max(1e-3);
            *drawn = Instant::now();
            context.progress.table(|lines| live::table(&self.recorder, &drained, seconds, lines));
        }
        Ok(())
    }

    /// The recording of what was measured.
    pub(super) fn recording(self, clock: Clock, histogram: HistogramLayout) -> Recording {
        let window_ns = nanoseconds(self.length());
        let measures = self.recorder.finish();
        let handlers: Vec<_> = measures.iter().map(HandlerRecording::from_measure).collect();
        Recording {
            window_ns,
            warmup_ns: nanoseconds(self.warmup),
            loads: self.loads,
            handlers,
            ..Recording::new(self.started, clock, Meter::default(), histogram)
        }
    }

    /// How long calls were counted.
    pub(super) fn length(&self) -> Duration {
        self.ended - self.began
    }

    /// Adds what was drained at its end, which has all calls `until` then: the window is as
    /// long as the time in which what it counts could come in.
    fn add(&mut self, drained: &[Drained], until: Instant) {
        self.recorder.add(drained);
        self.ended = self.ended.max(until);
    }

    /// Ends it with what was drained last, and sees whether the books balance. After trouble it takes what
    /// there is.
    pub(super) fn settle(&mut self, session: &mut dyn Session) {
        if self.trouble.is_some() {
            let rest = session.undelivered();
            if !rest.is_empty() {
                self.add(&rest, Instant::now());
            }
        }
        if self.ended <= self.began {
            self.ended = Instant::now();
        }
        self.recorder.end();
        if self.trouble.is_none() {
            self.trouble = self.balance(session).err();
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

/// Loads that are running.
struct Running {
    loads: RunningLoads,
    questions: mpsc::Receiver<HitQuestion>,
    /// Whether the window has begun.
    measured: bool,
    /// The signal that ends them, once it has come.
    signal: Option<Signal>,
}

impl Running {
    fn start(job: &Job, warmup: Duration) -> Self {
        let (counter, questions) = mpsc::channel(1);
        let loads = RunningLoads::start(job.loads(warmup, &counter));
        Self { loads, questions, measured: false, signal: None }
    }

    /// Tells a load how often the handlers were called so far. One that gets no answer does without.
    fn answer(&self, question: HitQuestion, session: &mut dyn Session) {
        let entries = session.entries().ok();
        if let Some(entries) = entries.and_then(|entries| entries.into_iter().collect()) {
            // A load that was dropped meanwhile needs no answer.
            let _ = question.send(HitCount { entries, measured: self.measured });
        }
    }

    /// Waits for a time, and moves the bar meanwhile. False if the loads have ended or a signal has come before.
    async fn wait(&mut self, until: Instant, context: &mut Context<'_>, since: Instant) -> bool {
        loop {
            let now = Instant::now();
            context.progress.at(now - since);
            if now >= until {
                return true;
            }
            tokio::select! {
                () = sleep_until(until.min(now + TICK).into()) => {}
                () = self.loads.wait() => return false,
                signal = context.signals.next() => {
                    self.signal = Some(signal);
                    return false;
                }
                Some(question) = self.questions.recv() => self.answer(question, context.session),
            }
        }
    }

    /// Stops them and waits until they have ended. A second signal means that the user will not wait: the loads are dropped,
    /// which kills them. Returns the last signal, too.
    async fn finish(mut self, context: &mut Context<'_>) -> (Vec<LoadRun>, Option<Signal>) {
        self.loads.stop(match self.signal {
            Some(_) => StopReason::Interrupted,
            None => StopReason::Duration,
        });
        let mut why = "its task ended early; this is a fault of the profiler".to_owned();
        let mut second = None;
        while second.is_none() {
            tokio::select! {
                biased;
                () = self.loads.wait() => break,
                signal = context.signals.next() => {
                    why = format!("killed by a second {signal} while it was being stopped");
                    second = Some(signal);
                }
                Some(question) = self.questions.recv() => self.answer(question, context.session),
            }
        }
        (self.loads.end(&why).await, second.or(self.signal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_kernel::target::Target;
    use profiler_load::{CommandLoad, Load, SandboxOptions};
    use profiler_probe::{Books, ProbeError};
    use profiler_recording::Backend;

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
        fn handlers(&self) -> Vec<(&Target, Backend)> {
            vec![(&self.target, Backend::Fentry)]
        }

        fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
            self.until = self.detached.unwrap_or_else(Instant::now);
            let calls = self.calls(self.until);
            std::thread::sleep(Duration::from_millis(20));
            let books = Books { entries: self.calls(Instant::now()), ..Books::default() };
            let drained =
                profiler_tests::drained(&vec![1000; (calls - self.taken) as usize], books);
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

    fn measured(warmup: Duration, load: Load) -> Window {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut session = Busy::new();
            let duration = Some(Duration::from_millis(400));
            let job = Job { duration, loads: vec![load], ..Job::default() };
            let mut signals = Signals::new().unwrap();
            let mut progress = Progress::new(true);
            let (signals, progress) = (&mut signals, &mut progress);
            let mut context = Context { session: &mut session, signals, progress };
            let window = Window::record(&job, warmup, Precision::Three, &mut context);
            let mut window = window.await.unwrap();
            window.settle(&mut session);
            assert!(window.trouble.is_none(), "{:?}", window.trouble);
            assert!(window.recorder.is_balanced() && session.detached.is_some());
            window
        })
    }

    #[test]
    fn calls_and_time_are_of_one_window() {
        let command = CommandLoad::new("true", Vec::new(), SandboxOptions::default());
        let ends_at_once = Load::Command(Box::new(command));
        let cases = [(0, Load::Idle), (100, Load::Idle), (10_000, ends_at_once)];
        for (warmup, load) in cases {
            let window = measured(Duration::from_millis(warmup), load);
            let length = window.length();
            let measure = window.recorder.finish().remove(0);
            let (count, due) = (measure.durations.len(), length.as_micros() * PER_MS / 1000);
            assert!(u128::from(count).abs_diff(due) <= 2, "{count} calls in {length:?}, not {due}");
            assert_eq!(measure.losses.imbalance(count), 0, "{:?}", measure.losses);
        }
    }
}
