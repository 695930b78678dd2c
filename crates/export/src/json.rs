//! Reports as JSON.

pub use profiler_recording::json::indented;
