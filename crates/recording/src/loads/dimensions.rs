//! What the operations of a load give handlers to walk over.

use std::fmt;
use std::str::FromStr;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BuiltinKind;

/// Sizes beyond what a load has by itself; 0 adds nothing. Handlers that walk over paths, arguments, descriptors or ancestors take
/// longer the more there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
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
    fn fields(&mut self) -> [(&'static str, u32, &mut u32); 5] {
        [
            ("depth", 500, &mut self.depth),
            ("args", 131_000, &mut self.args),
            ("env", 131_000, &mut self.env),
            ("descriptors", 900, &mut self.descriptors),
            ("ancestors", 500, &mut self.ancestors),
        ]
    }

    /// Sets one by `NAME=NUMBER`; `None` if the text is none.
    fn set(&mut self, text: &str) -> Option<()> {
        let (name, number) = text.split_once('=')?;
        let (_, most, field) = self.fields().into_iter().find(|(known, ..)| *known == name)?;
        *field = number.parse().ok().filter(|number| *number <= most)?;
        Some(())
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
            dimensions.set(part).ok_or_else(|| {
                format!(
                    "`{part}` is no dimension: write NAME=NUMBER, with commas between, of depth and ancestors (up to 500), \
                     descriptors (up to 900), args and env (bytes, up to 131000)"
                )
            })?;
        }
        Ok(dimensions)
    }
}

impl fmt::Display for Dimensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut this = *self;
        let parts = this.fields().into_iter().filter(|(.., number)| **number > 0);
        write!(f, "{}", parts.map(|(name, _, number)| format!("{name}={number}")).format(","))
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

/// Fewer points do not tell a line from a curve.
const LEAST_POINTS: usize = 3;

/// A dimension, and how much of it there is in each run: ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Points {
    /// Its name, such as `depth`.
    pub name: String,
    /// At least three.
    pub numbers: Vec<u32>,
}

impl Points {
    /// A load whose handlers usually walk over it.
    #[must_use]
    pub fn usual_load(&self) -> BuiltinKind {
        if self.name == "depth" { BuiltinKind::Open } else { BuiltinKind::Execve }
    }

    /// The name of the runs of a point: `depth=16`.
    #[must_use]
    pub fn part(&self, number: u32) -> String {
        format!("{}={number}", self.name)
    }

    /// A point of them.
    ///
    /// # Errors
    /// If the dimension is unknown, or does not go so far.
    pub fn dimensions(&self, number: u32) -> Result<Dimensions, String> {
        self.part(number).parse()
    }
}

fn no_points(text: &str) -> String {
    format!(
        "`{text}` has no points: write NAME=N,N,N, such as depth=0,16,64, at least three and ascending"
    )
}

impl FromStr for Points {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, numbers) = text.split_once('=').ok_or_else(|| no_points(text))?;
        let numbers = numbers.split(',').map(|number| number.parse().map_err(|_| no_points(text)));
        let points = Self { name: name.to_owned(), numbers: numbers.collect::<Result<_, _>>()? };
        if points.numbers.len() < LEAST_POINTS || !points.numbers.is_sorted_by(|a, b| a < b) {
            return Err(no_points(text));
        }
        points.numbers.iter().try_for_each(|number| points.dimensions(*number).map(drop))?;
        Ok(points)
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

    #[test]
    fn points_are_ascending_and_within_the_dimension() {
        let points: Points = "depth=0,16,64".parse().unwrap();
        assert_eq!((points.name.as_str(), &*points.numbers), ("depth", &[0, 16, 64][..]));
        assert_eq!(points.dimensions(16).unwrap().depth, 16);
        for bad in [
            "depth",
            "depth=",
            "depth=0,1",
            "depth=0,2,1",
            "depth=0,1,501",
            "rules=1,2,3",
            "depth=0,0,1",
        ] {
            assert!(bad.parse::<Points>().is_err(), "{bad}");
        }
    }
}
