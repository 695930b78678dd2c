//! JSON: the lossless form, which `profiler report` and every later command read.

use super::Exporter;
use crate::profile::Profile;
pub(crate) use crate::profile::json::indented;

/// Indented JSON with each bucket on one line, and an end of line at its end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl Exporter for Json {
    fn serialize(&self, profile: &Profile) -> Vec<u8> {
        profile.to_json()
    }
}
