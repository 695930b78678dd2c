//! The daemon: measures the handlers of modules for as long as it runs, each build for itself, and shows what it knows.

pub mod expose;
pub mod otlp;
pub mod state;
