//! One module a subcommand.

pub mod cost;
pub mod report;
pub mod run;
