//! Text of function_graph, from trace-cmd or the kernel, and the recording that is made of it.

use profiler::cmd::import::Import;

pub fn target(text: &[u8]) {
    let Ok(import) = Import::read(&mut &*text, "fuzz") else { return };
    import.recording.check().expect("it agrees with itself");
    for handler in &import.recording.handlers {
        assert_eq!(handler.losses.imbalance(handler.count), 0, "{}", handler.name);
    }
    assert!(!import.percentiles(Some(80)).contains('\u{1b}'));
}
