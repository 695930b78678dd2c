//! The file of counts, which `profiler` reads: `crates/lab/src/counts.rs` has its form.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use crate::count::{Beside, Calls, Code, Counter, Node, ROOT};
use crate::symbols::Function;

/// Writes all counts to `path`, which is complete or not there.
pub(crate) fn write(counter: &Counter, path: &Path) -> io::Result<()> {
    let unfinished = path.with_extension("part");
    let written = write_all(counter, &unfinished).and_then(|()| fs::rename(&unfinished, path));
    // Leaves room on a full disk for the reason.
    written.inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

fn write_all(counter: &Counter, path: &Path) -> io::Result<()> {
    let mut used: Vec<u32> = counter.nodes.iter().map(|node| node.function).collect();
    used.sort_unstable();
    used.dedup();
    let functions = used.into_iter().map(|id| {
        let Function { address, name, module } = &counter.symbols.functions[id as usize];
        let module = if module.is_empty() { "null".to_owned() } else { format!("{module:?}") };
        format!(r#""{id}":[{address},{name:?},{module}]"#)
    });
    let mut watched: Vec<_> = counter.calls.iter().collect();
    watched.sort_unstable_by_key(|(id, _)| **id);
    let calls = watched.into_iter().map(|(id, calls)| of_calls(*id, calls));
    let nodes = counter.nodes.iter().map(|node| {
        let Node { parent, function, calls, sums, .. } = node;
        let parent = if *parent == ROOT { "null".to_owned() } else { parent.to_string() };
        let (instructions, iterations) = (sums.instructions, sums.beside.half_iterations / 2);
        format!("[{parent},{function},[{calls},{instructions},{iterations}]]")
    });
    let code = counter.cells.iter().filter(|cell| cell.times > 0).map(|cell| {
        let Code { address, sizes } = &counter.code[cell.code as usize];
        format!("[{},{},{address},{sizes:?}]", cell.node, cell.times)
    });
    let text = format!(
        r#"{{"functions":{{{}}},"calls":{{{}}},"nodes":[{}],"code":[{}],"operations":{:?},"within":{:?},"of_operations":{:?}}}"#,
        lines(functions),
        lines(calls),
        lines(nodes),
        lines(code),
        distribution(&counter.operations),
        distribution(&counter.within),
        [counter.beside.half_iterations / 2, counter.elsewhere],
    );
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn of_calls(id: u32, calls: &Calls) -> String {
    let Calls { entered, ended, abandoned, interrupted, beside, .. } = calls;
    let Beside { half_iterations, ordering } = beside;
    let iterations = half_iterations / 2;
    let [inclusive, own] = [&calls.inclusive, &calls.own].map(distribution);
    format!(
        r#""{id}":{{"entered":{entered},"ended":{ended},"abandoned":{abandoned},"interrupted":{interrupted},"iterations":{iterations},"ordering":{ordering},"inclusive":{inclusive:?},"own":{own:?}}}"#
    )
}

/// Items of a list, a line each.
fn lines(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",\n")
}

/// Instructions and how often there were so many, ascending.
fn distribution(values: &HashMap<u64, u64>) -> Vec<[u64; 2]> {
    let mut values: Vec<[u64; 2]> = values.iter().map(|(value, times)| [*value, *times]).collect();
    values.sort_unstable();
    values
}
