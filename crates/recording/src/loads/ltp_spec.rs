//! What a load of LTP's tests is.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::text::plural;

/// One test of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LtpTest {
    /// Its name.
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
        use sha2::Digest as _;
        let mut hash = sha2::Sha256::new();
        for LtpTest { name, command } in &self.tests {
            hash.update(format!("{name} {command}\n"));
        }
        hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }
}
