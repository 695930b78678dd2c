//! The file of counts, which `profiler` reads: see `profiler::lab::counts` for its form.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::count::{Beside, Calls, Counter, Node, ROOT};
use crate::files;

/// Writes all counts to `path`, which is complete or not there.
pub(crate) fn write(counter: &Counter, path: &Path) -> io::Result<()> {
    let unfinished = path.with_extension("part");
    let written = write_all(counter, &unfinished).and_then(|()| fs::rename(&unfinished, path));
    // Leaves room on a full disk for the reason.
    written.inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

fn write_all(counter: &Counter, path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(files::create(path)?);
    writeln!(out, "profiler-qemu 1")?;
    let mut used: Vec<u32> = counter.nodes.iter().map(|node| node.function).collect();
    used.sort_unstable();
    used.dedup();
    for id in used {
        let function = &counter.symbols.functions[id as usize];
        let module = if function.module.is_empty() { "-" } else { &function.module };
        writeln!(out, "function {id} {:x} {} {module}", function.address, function.name)?;
    }
    let mut watched: Vec<_> = counter.calls.iter().collect();
    watched.sort_unstable_by_key(|(id, _)| **id);
    for (id, calls) in watched {
        let Calls { entered, ended, abandoned, interrupted, interrupts, beside, .. } = calls;
        let Beside { half_iterations, ordering } = beside;
        let iterations = half_iterations / 2;
        write!(out, "calls {id} {entered} {ended} {abandoned} {interrupted} {interrupts} ")?;
        writeln!(out, "{iterations} {ordering}")?;
        distribution(&mut out, &format!("inclusive {id}"), &calls.inclusive)?;
        distribution(&mut out, &format!("own {id}"), &calls.own)?;
    }
    for (id, node) in counter.nodes.iter().enumerate() {
        let parent = if node.parent == ROOT { "-".to_owned() } else { node.parent.to_string() };
        let Node { function, calls, sums, .. } = node;
        let (instructions, iterations) = (sums.instructions, sums.beside.half_iterations / 2);
        writeln!(out, "node {id} {parent} {function} {calls} {instructions} {iterations}")?;
    }
    for cell in counter.cells.iter().filter(|cell| cell.times > 0) {
        let code = &counter.code[cell.code as usize];
        write!(out, "code {} {} {:x}", cell.node, cell.times, code.address)?;
        for size in &code.sizes {
            write!(out, " {size}")?;
        }
        writeln!(out)?;
    }
    distribution(&mut out, "operation", &counter.operations)?;
    distribution(&mut out, "within", &counter.within)?;
    writeln!(out, "operations {} {}", counter.beside.half_iterations / 2, counter.elsewhere)?;
    writeln!(out, "end")?;
    out.into_inner().map_err(|error| error.into_error())?.sync_all()
}

/// Lines of instructions and how often there were so many, ascending.
fn distribution(out: &mut impl Write, of: &str, values: &HashMap<u64, u64>) -> io::Result<()> {
    let mut values: Vec<_> = values.iter().collect();
    values.sort_unstable();
    values
        .into_iter()
        .try_for_each(|(instructions, times)| writeln!(out, "{of} {instructions} {times}"))
}
