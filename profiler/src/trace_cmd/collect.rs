//! Collects lines: matches nested calls, groups durations by function and counts losses.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use super::line::{Fault, Line, Owner, Row, parse};
use profiler_recording::{Backend, HandlerRecording};

/// Different durations that are kept, over all functions; as many more are kept to the precision of the recording's
/// histograms. 60 MB at most: a published measurement of 90 seconds has about 1,500 of each function, as the text has three
/// decimals of a microsecond.
const MAX_EXACT: usize = 1 << 19;
/// Leading bits of a duration that are kept beyond that.
const ROUNDED_BITS: u32 = 11;
/// Functions. A trace of everything in a busy kernel has a few thousand.
const MAX_FUNCTIONS: usize = 16_384;
/// Tasks inside a call at the same time, and nested calls of one; the kernel's own return stack holds 50.
const MAX_STACKS: usize = 16_384;
const MAX_DEPTH: usize = 128;

/// One function of the text.
#[derive(Debug, Default)]
pub(super) struct Function {
    /// Still without count and histogram. Of its losses there are `carried_in`: returns that name it and whose entry is not in the
    /// text; `in_flight`: calls under way at the end; `lost`: calls whose return or duration is not in the text.
    pub(super) handler: HandlerRecording,
    /// Calls by their duration in nanoseconds.
    pub(super) counts: HashMap<u64, u64>,
}

/// Collects functions and losses from lines.
#[derive(Debug, Default)]
pub(super) struct Collector {
    numbers: HashMap<String, usize>,
    pub(super) functions: Vec<Function>,
    /// Calls under way: their depth and function, which is not known of all.
    stacks: HashMap<Owner, Vec<(usize, Option<usize>)>>,
    distinct: usize,
    pub(super) lines: u64,
    pub(super) printers: BTreeSet<&'static str>,
    pub(super) cpus: Option<u32>,
    /// First and last time of a row, in nanoseconds.
    pub(super) times_ns: Option<(u64, u64)>,
    /// What cannot be used: how often, and the first line, from 1.
    pub(super) faults: BTreeMap<Fault, (u64, u64)>,
    /// Records that the tracer lost, as far as their number is known.
    pub(super) lost_records: u64,
}

impl Collector {
    /// Takes the next line; only the last one of a text may lack its end.
    pub(super) fn line(&mut self, line: &[u8]) {
        self.lines += 1;
        let mut parsed = parse(line);
        let is_whole = self.printers.is_empty()
            || line.ends_with(b"\n")
            || line.starts_with(b"#")
            || line.trim_ascii().is_empty();
        if !is_whole && matches!(parsed, Line::Faulty(..) | Line::Other) {
            parsed = Line::Faulty("line that is cut off (copy the file again)", None);
        }
        match parsed {
            Line::Row(row, time_ns, by) => {
                self.printers.insert(by);
                match (time_ns, self.times_ns) {
                    (None, _) => self.fault("row without a time, so that window and calls/s mean nothing (set funcgraph-abstime)"),
                    (Some(ns), None) => self.times_ns = Some((ns, ns)),
                    (Some(ns), Some((first, last))) => {
                        self.times_ns = Some((first.min(ns), last.max(ns)))
                    }
                }
                self.row(row);
            }
            Line::Lost(count) => {
                match count {
                    Some(count) => self.lost_records = self.lost_records.saturating_add(count),
                    None => {
                        self.fault("place where the tracer lost records, how many is not known")
                    }
                }
                // The next return may be of a call that is not in the text. The kernel checks that, and names the function.
                let functions = &mut self.functions;
                let gone = self.stacks.extract_if(|owner, _| matches!(owner, Owner::Task(_)));
                gone.flat_map(|(_, stack)| stack).for_each(|(_, frame)| lose(functions, frame));
            }
            Line::Cpus(cpus) => self.cpus = Some(cpus),
            Line::Faulty(fault, name) => {
                self.fault(fault);
                let id = name.and_then(|name| self.id(name));
                lose(&mut self.functions, id);
            }
            Line::Other => {}
        }
    }

    /// Counts a fault of the line that was taken last.
    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults.entry(fault).or_insert((0, self.lines)).0 += 1;
    }

    fn row(&mut self, row: Row<'_>) {
        match row {
            Row::Leaf { name, ns } => {
                if let Some(id) = self.id(name) {
                    self.record(id, ns);
                }
            }
            Row::Enter { name, depth, owner } => {
                let frame = name.and_then(|name| self.id(name));
                let has_room = self.stacks.len() < MAX_STACKS || self.stacks.contains_key(&owner);
                if depth >= MAX_DEPTH || !has_room {
                    return lose(&mut self.functions, frame);
                }
                let stack = self.stacks.entry(owner).or_default();
                // What is still there at this depth or deeper has returned without a line.
                while let Some((_, gone)) = stack.pop_if(|(at, _)| *at >= depth) {
                    lose(&mut self.functions, gone);
                }
                stack.push((depth, frame));
            }
            Row::Exit { name, depth, ns, owner } => self.exit(name, depth, ns, &owner),
        }
    }

    fn exit(&mut self, name: Option<&str>, depth: usize, ns: u64, owner: &Owner) {
        let mut entered = None;
        if let Some(stack) = self.stacks.get_mut(owner) {
            while let Some((at, frame)) = stack.pop_if(|(at, _)| *at >= depth) {
                match at == depth {
                    true => entered = frame,
                    false => lose(&mut self.functions, frame),
                }
            }
            if stack.is_empty() {
                self.stacks.remove(owner);
            }
        }
        let named = name.and_then(|name| self.id(name));
        if let Some(id) = named.filter(|_| named != entered) {
            lose(&mut self.functions, entered);
            self.functions[id].handler.losses.carried_in += 1;
        }
        match named.or(entered) {
            Some(id) => self.record(id, ns),
            None => self.fault("return of a function that is not known (`trace-cmd report -O fgraph:tailprint` names it)"),
        }
    }

    /// The number of a function, a new one for a new name; `None` beyond the limit.
    fn id(&mut self, name: &str) -> Option<usize> {
        if let Some(&id) = self.numbers.get(name) {
            return Some(id);
        }
        let id = self.functions.len();
        if id == MAX_FUNCTIONS {
            self.fault("function more than are kept");
            return None;
        }
        self.numbers.insert(name.to_owned(), id);
        let (function, module) = match name.strip_suffix(']').and_then(|it| it.split_once(" [")) {
            Some((function, module)) => (function, Some(module.to_owned())),
            None => (name, None),
        };
        let handler = HandlerRecording {
            name: function.to_owned(),
            module,
            backend: Some(Backend::FunctionGraph),
            ..HandlerRecording::default()
        };
        self.functions.push(Function { handler, counts: HashMap::default() });
        Some(id)
    }

    fn record(&mut self, id: usize, ns: u64) {
        let is_rounded = self.distinct >= MAX_EXACT;
        let value = if is_rounded { rounded(ns) } else { ns };
        let Function { handler, counts } = &mut self.functions[id];
        let sum_ns = handler.sum_ns.checked_add(ns);
        let has_room = self.distinct < 2 * MAX_EXACT || counts.contains_key(&value);
        let Some(sum_ns) = sum_ns.filter(|_| has_room) else {
            handler.losses.lost += 1;
            return;
        };
        let calls = counts.entry(value).or_default();
        *calls += 1;
        self.distinct += usize::from(*calls == 1);
        handler.sum_ns = sum_ns;
        handler.min_ns = Some(handler.min_ns.map_or(ns, |min| min.min(ns)));
        handler.max_ns = handler.max_ns.max(Some(ns));
        if is_rounded && value != ns {
            self.fault("duration kept to three digits, as there are too many different ones");
        }
    }

    /// The functions, by their total time.
    pub(super) fn finish(&mut self) -> Vec<Function> {
        for id in self.stacks.drain().flat_map(|(_, stack)| stack).filter_map(|(_, id)| id) {
            self.functions[id].handler.losses.in_flight += 1;
        }
        let mut functions = std::mem::take(&mut self.functions);
        functions.sort_by(|Function { handler: a, .. }, Function { handler: b, .. }| {
            (b.sum_ns, &a.name, &a.module).cmp(&(a.sum_ns, &b.name, &b.module))
        });
        functions
    }
}

/// A call has no duration: of a known function, it is missing there.
fn lose(functions: &mut [Function], id: Option<usize>) {
    if let Some(id) = id {
        functions[id].handler.losses.lost += 1;
    }
}

/// The shortest duration of the histogram's bucket that `ns` belongs to.
fn rounded(ns: u64) -> u64 {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(ROUNDED_BITS);
    ns >> shift << shift
}

#[cfg(test)]
mod tests;
