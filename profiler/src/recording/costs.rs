//! What a recording says of CPU time, memory and context switches of what was watched in its window.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Something whose costs are sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Watched {
    /// The whole machine.
    Machine,
    /// This program, without its loads.
    Profiler,
    /// All processes of that name, those started later included.
    Name {
        /// As in `/proc/PID/comm` (its first 15 bytes), or the file name of the program.
        name: String,
    },
    /// One process.
    Pid {
        /// Its number.
        pid: i32,
    },
    /// A control group (cgroup version 2) with all below it.
    Cgroup {
        /// Its path below the mount.
        path: String,
    },
}

impl Watched {
    /// Its name in tables.
    pub fn label(&self) -> String {
        match self {
            Self::Machine => "the machine".to_owned(),
            Self::Profiler => "profiler".to_owned(),
            Self::Name { name } => name.clone(),
            Self::Pid { pid } => format!("process {pid}"),
            Self::Cgroup { path } => format!("cgroup {path}"),
        }
    }
}

impl FromStr for Watched {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "`{text}` cannot be watched: expected the name of a program, a process id, or the path of a control group, which \
                 starts with `/`"
            )
        };
        if text.is_empty() {
            return Err(bad());
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return match text.parse() {
                Ok(pid) if pid > 0 => Ok(Self::Pid { pid }),
                _ => Err(bad()),
            };
        }
        if text.starts_with('/') {
            return Ok(Self::Cgroup { path: text.to_owned() });
        }
        if text.contains('/') {
            return Err(bad());
        }
        Ok(Self::Name { name: text.to_owned() })
    }
}

/// What something has used since the start of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Usage {
    /// CPU time in user mode, in nanoseconds; for processes and the machine in steps of the kernel's
    /// clock tick (usually 10 ms).
    pub user_ns: u64,
    /// CPU time in the kernel, in nanoseconds, in the same steps.
    pub system_ns: u64,
    /// Memory in use at that time: resident pages of processes, `memory.current` of a control group,
    /// all but `MemAvailable` of the machine; `null` if unknown.
    pub memory_bytes: Option<u64>,
    /// Voluntary context switches, all switches of the machine; `null` of a control group.
    pub voluntary_switches: Option<u64>,
    /// Involuntary context switches; `null` of the machine and a control group.
    pub involuntary_switches: Option<u64>,
    /// Processes at that time.
    pub processes: u32,
}

/// Usage at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sample {
    /// Time since the start of the window.
    pub at_ns: u64,
    /// Usage from the start of the window until then.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The costs of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CostRow {
    /// What it is.
    pub of: Watched,
    /// Distinct processes seen.
    pub seen: u32,
    /// How many of them ended; what each used after its last sample is not counted.
    pub ended: u32,
    /// The samples, oldest first; the last is from the end of the window.
    pub samples: Vec<Sample>,
}

impl CostRow {
    /// Usage over the whole window.
    pub fn total(&self) -> Usage {
        self.samples.last().map(|sample| sample.usage).unwrap_or_default()
    }

    /// The most memory of any sample.
    pub fn memory_max_bytes(&self) -> Option<u64> {
        self.samples.iter().filter_map(|sample| sample.usage.memory_bytes).max()
    }
}

/// The costs of one window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Costs {
    /// Time between two samples; `null` if only start and end were sampled.
    pub sample_every_ns: Option<u64>,
    /// From the first sample to the last, in nanoseconds.
    pub window_ns: u64,
    /// One entry for each thing watched; the machine and this program come first.
    pub rows: Vec<CostRow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_things_are_parsed() {
        assert_eq!("42".parse(), Ok(Watched::Pid { pid: 42 }));
        assert_eq!("auditd".parse(), Ok(Watched::Name { name: "auditd".to_owned() }));
        assert_eq!(
            "/system.slice".parse(),
            Ok(Watched::Cgroup { path: "/system.slice".to_owned() })
        );
        for bad in ["", "0", "99999999999", "./x", "a/b"] {
            let error = bad.parse::<Watched>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{bad}` cannot be watched")), "{error}");
        }
    }
}
