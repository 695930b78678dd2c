//! What the operations of a load give handlers to walk over.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Sizes beyond what a load has by itself; 0 adds nothing. Handlers that walk over paths, arguments, descriptors or ancestors take
/// longer the more there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct Dimensions {
    /// Folders between the load's own and its files.
    pub depth: u32,
    /// Bytes of an argument of the program that `execve` executes.
    pub args: u32,
    /// Bytes of its environment.
    pub env: u32,
    /// Open file descriptors of the process.
    pub descriptors: u32,
    /// Processes between the first one and the load's.
    pub ancestors: u32,
}

impl Dimensions {
    /// Name and most of each: a path has 4,096 bytes, a process 1,024 descriptors, and an argument 128 KiB (`MAX_ARG_STRLEN`).
    const NAMES: [(&'static str, u32); 5] = [
        ("depth", 500),
        ("args", 131_000),
        ("env", 131_000),
        ("descriptors", 900),
        ("ancestors", 500),
    ];

    fn fields(&mut self) -> [&mut u32; 5] {
        [&mut self.depth, &mut self.args, &mut self.env, &mut self.descriptors, &mut self.ancestors]
    }

    /// Whether nothing is added.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl FromStr for Dimensions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut dimensions = Self::default();
        for part in text.split(',') {
            let bad = || {
                format!(
                    "`{part}` is no dimension: write NAME=NUMBER, with commas between, of depth and ancestors (up to 500), \
                     descriptors (up to 900), args and env (bytes, up to 131000)"
                )
            };
            let (name, number) = part.split_once('=').ok_or_else(bad)?;
            let at = Self::NAMES.iter().position(|(known, _)| *known == name).ok_or_else(bad)?;
            let number = number.parse().ok().filter(|number| *number <= Self::NAMES[at].1);
            *dimensions.fields()[at] = number.ok_or_else(bad)?;
        }
        Ok(dimensions)
    }
}

impl fmt::Display for Dimensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut this = *self;
        let parts = Self::NAMES.iter().zip(this.fields()).filter(|(_, number)| **number > 0);
        let parts: Vec<String> =
            parts.map(|((name, _), number)| format!("{name}={number}")).collect();
        f.write_str(&parts.join(","))
    }
}

impl TryFrom<String> for Dimensions {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Dimensions> for String {
    fn from(dimensions: Dimensions) -> Self {
        dimensions.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_and_written() {
        let given: Dimensions = "descriptors=100,depth=8".parse().unwrap();
        assert_eq!(given, Dimensions { depth: 8, descriptors: 100, ..Dimensions::default() });
        assert_eq!(given.to_string(), "depth=8,descriptors=100");
        for bad in ["", "depth", "depth=", "depth=501", "depth=-1", "width=1", "depth=1,"] {
            assert!(bad.parse::<Dimensions>().is_err(), "{bad}");
        }
    }
}
