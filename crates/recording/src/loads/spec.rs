//! What a load is.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::text::plural;

use super::{BuiltinKind, Dimensions, LtpSpec, Rate};

/// What a load is: enough to run the same load again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LoadSpec {
    /// A load generator inside this program.
    Builtin {
        /// Which one.
        name: BuiltinKind,
        /// Threads that make the operations.
        workers: u32,
        /// Operations per second over all workers; `None` is a closed loop, as fast as possible.
        rate_per_s: Option<Rate>,
        /// Operations in total over all workers; `None` is until stopped.
        operations: Option<u64>,
        /// Whether each worker was pinned to a CPU.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pin: bool,
        /// The user that it ran as, if not the profiler's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// What its operations give handlers to walk over, such as `depth=8,args=4096`; absent if nothing is added.
        #[serde(default, skip_serializing_if = "Dimensions::is_none")]
        dimensions: Dimensions,
    },
    /// A command of the user.
    Command {
        /// Name and arguments. Bytes that are not UTF-8 are shown as U+FFFD.
        argv: Vec<String>,
    },
    /// Tests of the Linux Test Project.
    Ltp(Box<LtpSpec>),
    /// No load: what happens on the machine by itself.
    Idle,
}

impl fmt::Display for LoadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin { name, workers, rate_per_s, operations, pin, user, dimensions } => {
                let plural = plural(*workers);
                write!(f, "builtin {name}, {workers} worker{plural}")?;
                if *pin {
                    f.write_str(" pinned to CPUs")?;
                }
                if let Some(user) = user {
                    write!(f, " as {user}")?;
                }
                if !dimensions.is_none() {
                    write!(f, " with {dimensions}")?;
                }
                match rate_per_s {
                    Some(rate) => write!(f, ", {rate}")?,
                    None => f.write_str(", as fast as possible")?,
                }
                match operations {
                    Some(operations) => write!(f, ", {operations} operations"),
                    None => Ok(()),
                }
            }
            Self::Command { argv } => write!(f, "command {}", argv.join(" ")),
            Self::Ltp(spec) => spec.fmt(f),
            Self::Idle => f.write_str("none"),
        }
    }
}
