//! The daemon: measures the handlers of modules for as long as it runs, each build separately, and exposes the figures.
//!
//! | module | job |
//! |---|---|
//! | `engine` | what happens when: drains, intervals, signals, requests |
//! | `task` | one module as a state machine |
//! | `modules` | the kernel's events about modules |
//! | `attachment`, `account` | the probes on one load of a module, its intervals and its books |
//! | `store`, `ledger` | completed intervals on disk, and what a kill takes of them |
//! | `control`, `status` | the local socket, and what it answers |
//! | `budget`, `costs` | which handlers cost too much, and what a hit costs |
//! | [`expose`], [`otlp`], `message` | metrics and recordings over HTTP, pushes to a collector, and protobuf for both |
//! | [`rights`], `notify`, `logs`, `own` | what it may do, systemd, its log, what it takes itself |
//! | [`config`], [`state`] | what the daemon shall do, and all that it knows |

mod account;
mod attachment;
mod budget;
pub mod config;
pub mod control;
mod costs;
mod engine;
pub mod expose;
mod ledger;
pub(crate) mod logs;
mod message;
mod modules;
mod notify;
pub mod otlp;
mod own;
pub mod rights;
pub mod state;
pub mod status;
mod store;
mod task;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tracing::info;

use profiler_base::error::{Failure, exit};
use profiler_recording::Backend;

use config::Config;
use engine::Engine;
use notify::Notifier;
use rights::Exec;
use state::Pushes;
use store::Store;

/// Requests for the engine; more wait in their connections.
const WAITING_QUESTIONS: usize = 8;

/// Measures by `config` until SIGTERM or SIGINT; SIGHUP reads it again from its `file`. Call it while this process has one
/// thread, which drops its rights.
///
/// # Errors
/// If it cannot start or go on. What was measured until then is stored.
pub fn run(config: Config, file: PathBuf) -> Result<(), Failure> {
    let folder = Path::new(control::FOLDER);
    let _lock = control::lock(folder)?;
    let store = Store::open(config.store.clone())?;
    let notifier =
        Notifier::from_env().map_err(system_failure("cannot reach systemd's NOTIFY_SOCKET"))?;
    let listener = config.listen.map(listen).transpose()?;
    for line in rights::drop_rights(exec(&config))? {
        info!("{line}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // One may render while the other answers the control socket.
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(system_failure("cannot start the async runtime"))?;
    let ended = runtime.block_on(async {
        let events =
            modules::events().map_err(system_failure("cannot listen to the kernel's events"))?;
        let (sender, questions) = mpsc::channel(WAITING_QUESTIONS);
        control::listen(folder, sender)?;
        let otlp = config.otlp.clone();
        let (counts, pushes) = watch::channel(Pushes::default());
        let pushes = otlp.is_some().then_some(pushes);
        let mut engine = Engine::new(config, file, store, notifier, pushes);
        if let Some(listener) = listener {
            let listener = tokio::net::TcpListener::from_std(listener);
            let listener = listener.map_err(system_failure("cannot listen for scrapes"))?;
            tokio::spawn(expose::serve(listener, engine.states()));
        }
        let push = otlp.map(|otlp| {
            tokio::spawn(otlp::push(otlp.endpoint, otlp.interval, engine.states(), counts))
        });
        let ended = engine.run(events, questions).await;
        // The last push has the last figures.
        drop(engine);
        if let Some(push) = push {
            let _ = tokio::time::timeout(otlp::PUSH_TIME, push).await;
        }
        ended
    });
    // A look-up of the collector's name may hang.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

fn system_failure(doing: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| {
        let text = format!(
            "{doing}: {error}: look at the limits on files and threads (LimitNOFILE, TasksMax) and at what the unit forbids"
        );
        Failure::new(exit::INTERNAL, text)
    }
}

/// What is in a folder of the daemon's cannot be used for this.
fn unusable(path: &Path, what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| {
        let text = format!(
            "cannot use {} for {what}: {error}: it has to be root's, and nobody else may be able to change it",
            path.display()
        );
        Failure::new(exit::BAD_OUTPUT, text)
    }
}

/// Before rights are dropped: a port below 1024 takes one.
fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(address);
    let bound = bound.and_then(|it| it.set_nonblocking(true).map(|()| it));
    bound.map_err(|error| {
        let text = format!(
            "cannot listen at {address}: {error}: choose another address by `listen`, or end what listens there"
        );
        Failure::new(exit::CANNOT_MEASURE, text)
    })
}

/// Backends that change tracefs start the keeper. Without a named backend, any may be chosen.
fn exec(config: &Config) -> Exec {
    let changes_tracefs = config.modules.iter().any(|module| {
        matches!(module.as_ref().backend, None | Some(Backend::FunctionGraph | Backend::Kprobe))
    });
    if changes_tracefs { Exec::Keeper } else { Exec::Never }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_taken_is_named_with_a_remedy() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let error = listen(address).unwrap_err();
        let text = &error.message;
        assert!(text.contains(&address.to_string()) && text.contains("in use"), "{text}");
        assert!(text.contains("choose another address by `listen`"), "{text}");
        assert_eq!(error.code, exit::CANNOT_MEASURE);
        drop(other);
        listen(address).unwrap();
    }
}
