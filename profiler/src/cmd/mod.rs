//! One module a subcommand.

pub mod report;
