//! A part of `profiler` for the fuzzer alone.

use hyper::StatusCode;

use super::{Collector, judge};

/// A collector's answer: two bytes of status, and the body. The whole may be an address of a collector.
pub fn answer(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<Collector>();
    }
    let [high, low, body @ ..] = bytes else { return };
    let Ok(status) = StatusCode::from_u16(u16::from_be_bytes([*high, *low])) else { return };
    let refused = judge(status, body);
    assert!(
        refused.is_ok_and(|refused| refused.error_message.chars().count() <= 200)
            || !status.is_success()
    );
}
