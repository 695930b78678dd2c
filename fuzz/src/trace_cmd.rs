//! Text of function_graph, from trace-cmd or the kernel, and what is made of it.

use profiler::trace_cmd::{Import, Percentile, json, table};

pub fn target(text: &[u8]) {
    let mut input = text;
    let Ok(import) = Import::read(&mut input, "fuzz", &mut |_| ()) else { return };
    assert_eq!(import.bytes, text.len() as u64);
    for function in &import.functions {
        let values = &function.values;
        let (min, max) = (values.min_ps(), values.max_ps());
        assert_eq!(min.is_some(), values.count() > 0);
        assert!(min <= max);
        for method in [Percentile::Linear, Percentile::NearestRank, Percentile::Seed] {
            if let Some(found) = values.sorted().percentile(99, method) {
                assert!(found <= max.unwrap_or(0) as f64, "{} {method:?}", function.name);
            }
        }
    }
    // A day of nanoseconds in each histogram: two of them are enough to try.
    if import.functions.len() <= 2 {
        let bytes = json::document(&import, Percentile::Linear).expect("figures can be stored");
        assert!(bytes.ends_with(b"}\n"));
    }
    assert!(!table::table(&import, Percentile::Linear, Some(80)).contains('\u{1b}'));
}
