//! Collects lines: matches nested calls, groups durations by function and counts losses.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use profiler_common::bucket::HIGHEST_NS;
use profiler_recording::{Backend, HandlerRecording};

use super::line::{Fault, Owner, Row, lost_records, parse};

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
    /// Still without histogram and entries. Of its losses there are `carried_in`: returns that name it and whose entry is not in
    /// the text; `in_flight`: calls under way at the end; `lost`: calls whose return or duration is not in the text.
    pub(super) handler: HandlerRecording,
    /// Calls by their duration in nanoseconds.
    pub(super) counts: HashMap<u64, u64>,
}

/// Collects functions and losses from lines.
#[derive(Debug, Default)]
pub(super) struct Collector {
    numbers: HashMap<String, usize>,
    pub(super) functions: Vec<Function>,
    /// Calls under way whose function is known: their depth and function.
    stacks: HashMap<Owner, Vec<(usize, usize)>>,
    distinct: usize,
    pub(super) lines: u64,
    /// Who printed the rows.
    pub(super) printers: BTreeSet<&'static str>,
    /// As a report's head says.
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
        let is_whole = self.printers.is_empty()
            || line.ends_with(b"\n")
            || line.starts_with(b"#")
            || line.trim_ascii().is_empty();
        if let Some(count) = lost_records(line) {
            return self.lost(count);
        }
        if let Some(cpus) = line.strip_prefix(b"cpus=") {
            let cpus = str::from_utf8(cpus).ok().and_then(|cpus| cpus.trim_end().parse().ok());
            self.cpus = cpus.or(self.cpus);
        }
        match parse(line) {
            Ok(Some(row)) => self.row(row),
            Ok(None) if is_whole => {}
            Err((fault, name)) if is_whole => {
                self.fault(fault);
                let id = name.and_then(|name| self.id(name));
                self.lose(id);
            }
            _ => self.fault("line that is cut off (copy the file again)"),
        }
    }

    /// Counts a fault of the line that was taken last.
    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults.entry(fault).or_insert((0, self.lines)).0 += 1;
    }

    /// A call has no duration: of a known function, it is missing there.
    fn lose(&mut self, id: Option<usize>) {
        if let Some(id) = id {
            self.functions[id].handler.losses.lost += 1;
        }
    }

    fn lost(&mut self, count: u64) {
        self.lost_records = self.lost_records.saturating_add(count);
        if count == 0 {
            self.fault("place where the tracer lost records, how many is not known");
        }
        // The next return of a task may be of a call that is not in the text. The kernel checks that for a CPU, and names the function.
        let gone = self.stacks.extract_if(|(task, _), _| !task.is_empty());
        for (_, id) in gone.flat_map(|(_, stack)| stack) {
            self.functions[id].handler.losses.lost += 1;
        }
    }

    fn row(&mut self, row: Row<'_>) {
        self.printers.insert(row.by);
        match row.time_ns {
            None => self.fault("row without a time, so that window and calls/s mean nothing (set funcgraph-abstime)"),
            Some(ns) => {
                let (first, last) = self.times_ns.get_or_insert((ns, ns));
                (*first, *last) = (ns.min(*first), ns.max(*last));
            }
        }
        let named = row.name.and_then(|name| self.id(name));
        if let (false, Some(ns)) = (row.is_return, row.ns) {
            return named.into_iter().for_each(|id| self.record(id, ns));
        }
        let mut stack = self.stacks.remove(&row.owner).unwrap_or_default();
        // What is there at this depth or deeper has ended, without a line of its own unless this is its return.
        let ended = stack.split_off(stack.partition_point(|(depth, _)| *depth < row.depth));
        let entered = ended.first().filter(|(depth, _)| row.is_return && *depth == row.depth);
        let entered = entered.map(|(_, id)| *id);
        for (_, id) in &ended[usize::from(entered.is_some())..] {
            self.lose(Some(*id));
        }
        match row.ns {
            Some(ns) => self.returned(named, entered, ns),
            None if row.depth < MAX_DEPTH && self.stacks.len() < MAX_STACKS => {
                stack.extend(named.map(|id| (row.depth, id)));
            }
            None => self.lose(named),
        }
        if !stack.is_empty() {
            self.stacks.insert(row.owner, stack);
        }
    }

    /// A return, with its function where the text names it, of a call whose entry is known or not.
    fn returned(&mut self, named: Option<usize>, entered: Option<usize>, ns: u64) {
        if let Some(id) = named.filter(|_| named != entered) {
            self.lose(entered);
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
        let (name, module) = match name.strip_suffix(']').and_then(|it| it.split_once(" [")) {
            Some((name, module)) => (name, Some(module.to_owned())),
            None => (name, None),
        };
        let handler = HandlerRecording {
            name: name.to_owned(),
            module,
            backend: Some(Backend::FunctionGraph),
            ..HandlerRecording::default()
        };
        self.functions.push(Function { handler, counts: HashMap::default() });
        Some(id)
    }

    fn record(&mut self, id: usize, ns: u64) {
        let value = if self.distinct < MAX_EXACT { ns } else { rounded(ns) };
        let Function { handler, counts } = &mut self.functions[id];
        let has_room = self.distinct < 2 * MAX_EXACT || counts.contains_key(&value);
        let Some(sum_ns) = handler.sum_ns.checked_add(ns).filter(|_| has_room) else {
            return self.lose(Some(id));
        };
        let calls = counts.entry(value).or_default();
        *calls += 1;
        self.distinct += usize::from(*calls == 1);
        handler.count += 1;
        handler.losses.over_range += u64::from(value > HIGHEST_NS);
        handler.sum_ns = sum_ns;
        handler.min_ns = Some(handler.min_ns.map_or(ns, |min| min.min(ns)));
        handler.max_ns = handler.max_ns.max(Some(ns));
        if value != ns {
            self.fault("duration kept to three digits, as there are too many different ones");
        }
    }

    /// The functions, by their total time.
    pub(super) fn finish(&mut self) -> Vec<Function> {
        for (_, id) in std::mem::take(&mut self.stacks).into_values().flatten() {
            self.functions[id].handler.losses.in_flight += 1;
        }
        let mut functions = std::mem::take(&mut self.functions);
        functions.sort_by(|Function { handler: a, .. }, Function { handler: b, .. }| {
            (b.sum_ns, &a.name, &a.module).cmp(&(a.sum_ns, &b.name, &b.module))
        });
        functions
    }
}

/// The shortest duration of the histogram's bucket that `ns` belongs to.
fn rounded(ns: u64) -> u64 {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(ROUNDED_BITS);
    ns >> shift << shift
}

#[cfg(test)]
mod tests;
