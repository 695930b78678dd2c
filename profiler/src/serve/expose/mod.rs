//! What the daemon shows over HTTP: metrics for Prometheus in two formats, and recordings.
//!
//! [`Seen`] turns a [`State`](super::state::State) into families of metrics, once for all formats.

mod accept;
mod durations;
mod family;
mod http;
mod protobuf;
mod text;

pub use accept::Format;
pub use durations::{BOUNDS_NS, Native, SCHEMA, ZERO_THRESHOLD, classic, native};
pub use family::{FAMILIES, Family, Kind, Point, Seen, Value, seconds};
pub use http::{CONNECTIONS, serve};

use super::state::State;

/// All metrics of `state` in this format: the body of `/metrics`.
pub fn metrics(state: &State, format: Format) -> Vec<u8> {
    let seen = Seen::of(state);
    match format {
        Format::Text => text::render(&seen),
        Format::Protobuf => protobuf::render(&seen),
    }
}
