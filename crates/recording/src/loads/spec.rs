//! What a load is.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use profiler_base::text::plural;

use super::{BuiltinKind, Dimensions, Rate};

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

/// One test of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LtpTest {
    pub name: String,
    /// Its command with arguments, as the list has it.
    pub command: String,
}

impl LtpTest {
    /// What to execute, as LTP's own runners do: the words of the command, or a shell if it has special
    /// characters of a shell.
    pub fn argv(&self) -> Vec<String> {
        if self.needs_shell() {
            return ["/bin/sh", "-c", &self.command].map(str::to_owned).into();
        }
        self.command.split_ascii_whitespace().map(str::to_owned).collect()
    }

    fn needs_shell(&self) -> bool {
        self.command
            .contains(['"', '\'', ';', '|', '&', '<', '>', '$', '\\', '`', '(', '*', '?', '~'])
            || self.program().contains('=')
    }

    /// The first word of the command.
    pub fn program(&self) -> &str {
        self.command.split_ascii_whitespace().next().unwrap_or_default()
    }

    /// The program, unless a shell runs the command.
    pub fn plain_program(&self) -> Option<&str> {
        (!self.needs_shell()).then(|| self.program())
    }
}

/// What an LTP load is: enough to run the same one again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LtpSpec {
    /// LTP's own version; `null` if it does not state one.
    pub ltp_version: Option<String>,
    /// The file in `runtest`.
    pub suite: String,
    /// Regular expression by which the tests were chosen; `null` is all of them.
    pub pattern: Option<String>,
    /// The tests in their order.
    pub tests: Vec<LtpTest>,
    /// Rounds through the list; `null` is until stopped.
    pub iterations: Option<u64>,
    /// Tests that run at the same time.
    pub workers: u32,
    /// Timeout of one test, in nanoseconds.
    pub time_limit_ns: u64,
    /// The user that the tests ran as, if not the profiler's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl fmt::Display for LtpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.tests.len();
        write!(f, "LTP {}, {count} test{}", self.suite, plural(count))?;
        if let Some(pattern) = &self.pattern {
            write!(f, " {pattern}")?;
        }
        write!(f, " (list {})", self.digest())?;
        match self.iterations {
            Some(iterations) => write!(f, ", {iterations} round{}", plural(iterations))?,
            None => f.write_str(", over and over")?,
        }
        if self.workers > 1 {
            write!(f, ", {} workers", self.workers)?;
        }
        match &self.user {
            Some(user) => write!(f, ", as {user}"),
            None => Ok(()),
        }
    }
}

impl LtpSpec {
    /// Identifies the list of tests: the first 8 digits of the SHA-256 of its lines.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for LtpTest { name, command } in &self.tests {
            hash.update(format!("{name} {command}\n"));
        }
        hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }
}
