//! The kernels the project is tested on.

use std::fmt;

use clap::ValueEnum;

/// A kernel series of Debian, of which the newest package is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Series {
    /// Debian 11.
    #[value(name = "5.10")]
    V5_10,
    /// Debian 12.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 12 with backports.
    #[value(name = "6.12")]
    V6_12,
    /// Debian's unstable.
    #[value(name = "7.2")]
    V7_2,
}

impl Series {
    /// Debian's suite that holds it, and the one of its security updates.
    pub(crate) fn suite(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::V5_10 => ("bullseye", Some("bullseye-security")),
            Self::V6_1 => ("bookworm", Some("bookworm-security")),
            Self::V6_12 => ("bookworm-backports", None),
            Self::V7_2 => ("sid", None),
        }
    }

    /// Whether modules for it are built with the compiler and tools of its own Debian release, because those of
    /// Debian 12 are too old.
    pub(crate) fn has_own_tools(self) -> bool {
        self == Self::V7_2
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No value is skipped.
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}
