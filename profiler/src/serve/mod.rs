//! The daemon: measures the handlers of modules for as long as it runs, each build for itself, and shows what it knows.

pub mod budget;
pub mod logs;
pub mod notify;
pub mod own;
pub mod rights;
pub mod state;
