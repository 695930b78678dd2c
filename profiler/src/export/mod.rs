//! A profile as bytes for a person or a program. No exporter reads or writes anything but those.

pub(crate) mod grid;
pub mod json;
pub mod junit;
pub mod table;

pub use json::Json;
pub use table::{Table, Unit};

use crate::profile::Profile;

/// A format.
pub trait Exporter {
    /// The whole of `profile` in this format. Equal profiles give equal bytes.
    fn serialize(&self, profile: &Profile) -> Vec<u8>;
}
