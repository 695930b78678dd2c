//! The daemon: measures the handlers of modules for as long as it runs, each build for itself, and shows what it
//! knows.
//!
//! | module | job |
//! |---|---|
//! | `engine` | what happens when: modules, drains, intervals, signals, requests |
//! | `modules` | the kernel's events about modules |
//! | `attachment`, `account` | the probes on one load of a module, its intervals and its books |
//! | `store` | completed intervals on disk |
//! | `control`, `status` | the local socket, and what it answers |
//! | [`config`], [`state`] | what the daemon is to do, and all that it knows |

mod account;
mod attachment;
pub mod budget;
pub mod config;
pub mod control;
mod engine;
pub mod expose;
pub mod logs;
mod modules;
pub mod notify;
pub mod otlp;
pub mod own;
pub mod rights;
pub mod state;
pub mod status;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use config::{Config, ConfigError};
use control::{ControlError, Lock};
pub use engine::MOST_BUILDS;
use engine::{Engine, Outside};
use state::State;
use store::Store;
pub use store::StoreError;

/// Requests that wait for the engine.
const QUESTIONS: usize = 8;

/// Where a configuration came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, which SIGHUP reads again.
    File(PathBuf),
    /// Options of the command line.
    Options,
}

/// Why the daemon could not begin, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another one runs, or its socket cannot be made.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The folder of intervals cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The kernel reports no modules any more.
    #[error("the kernel's events about modules ended: {0}")]
    NoEvents(String),
    /// The system refuses something.
    #[error("{doing}: {error}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The reason.
        error: std::io::Error,
    },
}

/// Measures what `config` says until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot begin, or not go on. What was measured until then is stored.
pub fn run(config: Config, source: Source) -> Result<(), Error> {
    let lock = Lock::take(Path::new(control::FOLDER))?;
    let store = Store::open(config.store.clone())?;
    let system = |doing| move |error| Error::System { doing, error };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(system("cannot start the async runtime"))?;
    runtime.block_on(async {
        let events = modules::events().map_err(system("cannot listen to the kernel's events"))?;
        let (sender, questions) = mpsc::channel(QUESTIONS);
        let outside =
            Outside::new(events, questions).map_err(system("cannot listen for signals"))?;
        lock.listen(sender)?;
        let mut engine = Engine::new(config.clone(), source, store);
        beside(&config, &engine.states())?;
        engine.run(outside).await
    })
}

/// Starts what shows the daemon's state beside the engine.
fn beside(_config: &Config, _states: &watch::Receiver<Arc<State>>) -> Result<(), Error> {
    Ok(())
}
