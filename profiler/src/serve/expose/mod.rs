//! What the daemon shows over HTTP: metrics for Prometheus in three formats, recordings, and whether it is well.
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
pub use family::{FAMILIES, Family, MAX_BUILDS, Point, Seen, Value};
pub use http::{CONNECTIONS, FRESH, serve};

use super::state::State;

/// All metrics of `state` in this format: the body of `/metrics`.
pub fn metrics(state: &State, format: Format) -> Vec<u8> {
    let seen = Seen::of(state);
    match format {
        Format::Text => text::render(&seen, false),
        Format::OpenMetrics => text::render(&seen, true),
        Format::Protobuf => protobuf::render(&seen),
    }
}
