//! What all parts of the profiler use: how the program ends, its terminal, files, text and statistics. It knows nothing of
//! what is measured.

pub mod atomic_file;
pub mod bytes;
pub mod emulator;
pub mod error;
pub mod limits;
pub mod progress;
pub mod stats;
pub mod stop;
pub mod terminal;
pub mod text;
pub mod toml_file;
