//! Reports as JSON.

pub(crate) use crate::recording::json::indented;
