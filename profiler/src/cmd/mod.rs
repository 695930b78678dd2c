//! One module a subcommand.

pub mod cost;
pub mod import;
pub mod report;
pub mod run;
