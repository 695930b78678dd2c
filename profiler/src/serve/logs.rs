//! Log messages: to the journal with their priorities where standard error is the journal, else as lines on standard error.
//!
//! A message that repeats is logged once a minute, with the number of those left out. What differs from message to message is
//! bounded, too: a collector that is down, or a hostile client, does not fill the disk by way of the journal. What becomes of a
//! module is logged each time, so that the last line about it is true: root loads and releases modules, and the budget and new
//! tries have their times.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::stat::fstat;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber, error, info, warn};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// How long a message is not repeated.
const ONCE_IN: Duration = Duration::from_secs(60);

/// Different messages in that time; more are counted together.
const DIFFERENT: usize = 256;

/// Bytes of a message by which it is known.
const KNOWN_BY: usize = 256;

/// Target of messages that are never left out.
pub(super) const ALWAYS: &str = "profiler::always";

/// The log of this process.
#[derive(Debug, Default)]
pub struct Logs(Arc<Mutex<Recent>>);

/// Starts to log what is at least as important as `level`.
///
/// # Errors
/// When this process logs already.
pub fn init_logs(level: LevelFilter) -> Result<Logs, tracing_subscriber::util::TryInitError> {
    let recent = Arc::new(Mutex::new(Recent::default()));
    let subscriber = tracing_subscriber::registry().with(level).with(Throttle(recent.clone()));
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let journal = is_journal(stream.as_deref(), io::stderr()).then(journal);
    match journal.and_then(Result::ok) {
        Some(journal) => subscriber.with(journal).try_init()?,
        None => {
            let lines = tracing_subscriber::fmt::layer().compact().with_target(false);
            subscriber.with(lines.with_ansi(false).with_writer(io::stderr)).try_init()?;
        }
    }
    Ok(Logs(recent))
}

/// Priorities as syslog(3) has them: `info` is informational, not a notice.
fn journal() -> io::Result<tracing_journald::Layer> {
    let priorities = PriorityMappings {
        info: Priority::Informational,
        debug: Priority::Debug,
        ..PriorityMappings::new()
    };
    Ok(tracing_journald::layer()?.with_priority_mappings(priorities))
}

/// Whether `file` is the stream that systemd connected to the journal: `JOURNAL_STREAM` has its device and inode
/// (systemd.exec(5)). A shell that redirects standard error leaves the variable as it is.
fn is_journal(stream: Option<&str>, file: impl std::os::fd::AsFd) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else {
        return false;
    };
    let is = |text: &str, number: u64| text.parse() == Ok(number);
    fstat(file).is_ok_and(|stat| is(device, stat.st_dev) && is(inode, stat.st_ino))
}

impl Logs {
    /// Says how many messages were left out that began to repeat more than a minute ago. Call it about once a minute.
    pub fn tick(&self) {
        self.say(ONCE_IN);
    }

    /// The same for all that repeated, at the daemon's end.
    pub fn end(&self) {
        self.say(Duration::ZERO);
    }

    fn say(&self, age: Duration) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = recent.due(Instant::now(), age);
        drop(recent);
        for (Message { level, text }, times) in due {
            match level {
                Level::ERROR => error!(target: ALWAYS, times, "repeated: {text}"),
                Level::WARN => warn!(target: ALWAYS, times, "repeated: {text}"),
                _ => info!(target: ALWAYS, times, "repeated: {text}"),
            }
        }
    }
}

/// Keeps messages that repeat from those who write them.
struct Throttle(Arc<Mutex<Recent>>);

impl<S: Subscriber> Layer<S> for Throttle {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == ALWAYS {
            return true;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        let message = Message { level: *metadata.level(), text: text.0 };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).admit(message, Instant::now())
    }
}

/// A message's text and fields.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.0.len() >= KNOWN_BY {
            return;
        }
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        if let Some((end, _)) = self.0.char_indices().find(|(at, _)| *at >= KNOWN_BY) {
            self.0.truncate(end);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Message {
    level: Level,
    text: String,
}

/// What was logged within the last minute.
#[derive(Debug, Default)]
struct Recent {
    /// When it was logged, and how often it came again.
    messages: HashMap<Message, (Instant, u64)>,
    /// Messages for which there was no room.
    others: u64,
}

impl Recent {
    /// Whether a message is to be logged.
    fn admit(&mut self, message: Message, now: Instant) -> bool {
        if let Some((logged, again)) = self.messages.get_mut(&message) {
            let is_due = now.saturating_duration_since(*logged) >= ONCE_IN;
            if is_due {
                *logged = now;
            } else {
                *again += 1;
            }
            return is_due;
        }
        if self.messages.len() >= DIFFERENT {
            // Nobody has called `due`.
            let is_recent = |logged: Instant| now.saturating_duration_since(logged) < ONCE_IN;
            self.messages.retain(|_, (logged, again)| *again > 0 || is_recent(*logged));
        }
        let has_room = self.messages.len() < DIFFERENT;
        if has_room {
            self.messages.insert(message, (now, 0));
        } else {
            self.others += 1;
        }
        has_room
    }

    /// What came again of messages of this age, and how often; it may be logged again from now on.
    fn due(&mut self, now: Instant, age: Duration) -> Vec<(Message, u64)> {
        let is_over = |logged: &Instant| now.saturating_duration_since(*logged) >= age;
        let over = self.messages.extract_if(|_, (logged, _)| is_over(logged));
        let over = over.map(|(message, (_, again))| (message, again));
        let mut due: Vec<_> = over.filter(|(_, again)| *again > 0).collect();
        due.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.text.cmp(&b.0.text)));
        let others = std::mem::take(&mut self.others);
        if others > 0 {
            let text = format!("other messages, beyond {DIFFERENT} different ones a minute");
            due.push((Message { level: Level::WARN, text }, others));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn message(text: &str) -> Message {
        Message { level: Level::WARN, text: text.to_owned() }
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_message_that_repeats_is_logged_once_a_minute_with_the_number_left_out() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        let down = || message("collector is down");
        let logged: Vec<u64> = (0..59).filter(|&s| recent.admit(down(), at(start, s))).collect();
        assert_eq!(logged, [0]);
        assert!(recent.admit(message("something else"), at(start, 30)));
        assert_eq!(recent.due(at(start, 59), ONCE_IN), [], "not yet");
        assert_eq!(recent.due(at(start, 60), ONCE_IN), [(down(), 58)]);
        assert!(recent.admit(down(), at(start, 60)) && !recent.admit(down(), at(start, 61)));
        let worse = Message { level: Level::ERROR, ..down() };
        assert!(recent.admit(worse, at(start, 61)), "of another level it is another one");
        // Without a repetition there is nothing to say.
        assert_eq!(recent.due(at(start, 120), ONCE_IN), [(down(), 1)]);
        assert_eq!(recent.due(at(start, 999), ONCE_IN), []);
        assert!(recent.messages.is_empty(), "{recent:?}");
    }

    #[test]
    fn different_messages_are_bounded_too() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        let of = |n: usize| message(&format!("client {n}"));
        let logged = (0..1_000).filter(|&n| recent.admit(of(n), start)).count();
        assert_eq!(logged, DIFFERENT);
        assert_eq!(recent.due(start, ONCE_IN)[0].1, 1_000 - 256);
        // Also where nobody asks what was left out: those of the last minute make room.
        assert!(!recent.admit(of(1_000), at(start, 59)));
        assert!(!recent.admit(of(0), at(start, 59)));
        let logged = (1_000..2_000).filter(|&n| recent.admit(of(n), at(start, 61))).count();
        assert_eq!(logged, DIFFERENT - 1);
        assert_eq!(
            recent.due(at(start, 61), ONCE_IN),
            [
                (of(0), 1),
                (message("other messages, beyond 256 different ones a minute"), 1 + 1_000 - 255),
            ]
        );
    }

    /// What a subscriber has been given.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn events_go_through_the_throttle_by_text_and_fields() {
        let written = Written::default();
        let lines = tracing_subscriber::fmt::layer().compact().without_time().with_ansi(false);
        let writer = written.clone();
        let recent = Arc::new(Mutex::new(Recent::default()));
        let subscriber = tracing_subscriber::registry()
            .with(LevelFilter::INFO)
            .with(Throttle(recent.clone()))
            .with(lines.with_target(false).with_writer(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..1_000 {
                warn!(handler = "f", "shed");
                warn!(handler = if n % 2 == 0 { "g" } else { "h" }, "shed");
                tracing::debug!("drained");
            }
            for _ in 0..2 {
                info!(target: ALWAYS, "measuring");
            }
            let long = "ä".repeat(1_000);
            info!("{long}1");
            info!("{long}2");
            Logs(recent.clone()).tick();
            info!(target: ALWAYS, "not yet");
            Logs(recent.clone()).end();
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let mut lines: Vec<&str> = text.lines().map(str::trim).collect();
        let long = lines.remove(5);
        assert!(long.starts_with("INFO ää") && long.ends_with("ä1"), "{long}");
        let cut = lines.pop().unwrap();
        assert_eq!(cut, format!("INFO repeated: {} times=1", "ä".repeat(128)));
        let expected = [
            "WARN shed handler=\"f\"",
            "WARN shed handler=\"g\"",
            "WARN shed handler=\"h\"",
            "INFO measuring",
            "INFO measuring",
            "INFO not yet",
            "WARN repeated: shed handler=\"f\" times=999",
            "WARN repeated: shed handler=\"g\" times=499",
            "WARN repeated: shed handler=\"h\" times=499",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        let file = tempfile::tempfile().unwrap();
        let stat = file.metadata().unwrap();
        let (device, inode) = (stat.dev(), stat.ino());
        for (stream, is) in [
            (Some(format!("{device}:{inode}")), true),
            (Some(format!("{device}:{}", inode + 1)), false),
            (Some(format!("{}:{inode}", device + 1)), false),
            (Some(format!("{device}")), false),
            (Some(String::new()), false),
            (None, false),
        ] {
            assert_eq!(is_journal(stream.as_deref(), &file), is, "{stream:?}");
        }
    }
}
