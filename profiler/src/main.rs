//! The `profiler` program.

fn main() {
    profiler::load::become_helper_if_asked();
}
