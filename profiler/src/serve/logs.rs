//! Log messages: to the journal with their priorities where standard error is the journal, else as lines on standard error.
//!
//! The journal limits how many a unit may write (`LogRateLimitIntervalSec` in docs/systemd/profiler.service), so that
//! repeated messages do not fill the disk.

use std::io;

use nix::sys::stat::fstat;
use tracing::level_filters::LevelFilter;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// Starts to log.
///
/// # Errors
/// When this process logs already.
pub(crate) fn init_logs() -> Result<(), TryInitError> {
    let subscriber = tracing_subscriber::registry().with(LevelFilter::INFO);
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let journal = is_journal(stream.as_deref(), io::stderr()).then(journal);
    match journal.and_then(Result::ok) {
        Some(journal) => subscriber.with(journal).try_init(),
        None => {
            let lines = tracing_subscriber::fmt::layer().compact().with_target(false);
            subscriber.with(lines.with_ansi(false).with_writer(io::stderr)).try_init()
        }
    }
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
    let known = [device, inode].map(str::parse);
    fstat(file).is_ok_and(|stat| known == [Ok(stat.st_dev), Ok(stat.st_ino)])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

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
