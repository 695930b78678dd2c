//! What the daemon shows over HTTP: metrics for Prometheus in two formats, and recordings.
//!
//! [`families`] turns a [`State`] into families of metrics, for all formats.

mod accept;
mod durations;
mod family;
mod http;
mod protobuf;
mod text;

pub use accept::Format;
pub use durations::{BOUNDS_NS, Native, SCHEMA, ZERO_THRESHOLD, classic, native};
pub use family::{FAMILIES, Family, Kind, Point, Value, families, seconds};
pub use http::{CONNECTIONS, serve};

use super::state::State;

/// All metrics of `state` in this format: the body of `/metrics`.
pub fn metrics(state: &State, format: Format) -> Vec<u8> {
    match format {
        Format::Text => text::render(state),
        Format::Protobuf => protobuf::render(state),
    }
}
