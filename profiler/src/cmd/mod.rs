//! One module a subcommand.

pub mod report;
pub mod run;
