//! Collects lines: matches nested calls, groups durations by function and counts losses.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::line::{Fault, Line, Owner, Source, parse};
use super::names::Names;
use super::values::{ShortCounts, Values};

/// Distinct durations that are kept, over all functions. With the tables' slack they take at most
/// 60 MB; a published measurement of 90 seconds has about 1,500 for each function.
const MAX_DISTINCT: usize = 1 << 20;
/// After so many calls a function's short durations are counted in an array of 64 KiB; and the number
/// of functions that may have one.
const BUSY: u64 = 1000;
const MAX_BUSY: usize = 64;
/// Tasks inside a call at the same time.
const MAX_STACKS: usize = 16_384;
/// Nested calls of one task. The kernel's own return stack holds 50.
const MAX_DEPTH: usize = 128;
/// Leading bits of a value that are kept when there are too many distinct ones, step by step: the
/// first is the precision of a histogram of three digits.
const COARSER: [u32; 3] = [11, 7, 3];
/// Functions with fewer distinct durations stay exact in the first step.
const FEW: usize = 4096;
/// Faults that are reported with their line.
pub const MAX_FAULTS_REPORTED: usize = 5;

/// One function of the file.
#[derive(Debug, Default)]
pub struct Function {
    /// Its name, with its module if the text has it.
    pub name: Box<str>,
    /// Its calls.
    pub values: Values,
    /// Lines that name it and cannot be used.
    pub unparsable: u64,
    /// Calls whose return is not in the file.
    pub unreturned: u64,
}

/// What is wrong with one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultAt {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong.
    pub fault: Fault,
}

/// Counts of everything but calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines in all.
    pub lines: u64,
    /// function_graph lines of trace-cmd.
    pub trace_cmd_lines: u64,
    /// function_graph lines of the kernel's own text.
    pub ftrace_lines: u64,
    /// Lines that cannot be used.
    pub unparsable: u64,
    /// The first of them.
    pub faults: Vec<FaultAt>,
    /// Lines longer than any line of a trace.
    pub overlong: u64,
    /// Line with the first decimal comma in a duration, from 1.
    pub comma: Option<u64>,
    /// Records that the tracer lost, as far as their number is in the text.
    pub lost_events: u64,
    /// Places where it lost an unknown number of them.
    pub lost_unknown: u64,
    /// Returns whose call is not in the file, and whose function is not named.
    pub unmatched_returns: u64,
    /// Calls whose return is not in the file, of all functions.
    pub unreturned: u64,
    /// Calls of functions beyond the limit on functions.
    pub beyond_functions: u64,
    /// The report's number of CPUs.
    pub cpus: Option<u32>,
    /// The last line has no newline and cannot be parsed.
    pub cut_off: bool,
}

/// Calls of one function that a worker has counted.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) name: Box<[u8]>,
    pub(super) short: ShortCounts,
    /// From trace-cmd, and from ftrace.
    pub(super) lines: [u64; 2],
}

/// Collects functions and counts from lines.
#[derive(Debug, Default)]
pub struct Collector {
    names: Names,
    functions: Vec<Function>,
    stacks: HashMap<Owner, Vec<Option<Frame>>, RandomState>,
    distinct: usize,
    busy: usize,
    coarser: usize,
    full: bool,
    counts: Counts,
}

/// A call that has not returned: its function, or `None` if it has no name or is beyond the limit.
type Frame = Option<u32>;

impl Collector {
    /// Takes the next line, without its newline.
    #[inline]
    pub fn line(&mut self, line: &[u8]) {
        self.counts.lines += 1;
        match parse(line) {
            Line::Leaf { name, ps, source } => {
                self.seen(source);
                match self.id(name) {
                    Some(id) => self.record(id, ps),
                    None => self.counts.beyond_functions += 1,
                }
            }
            Line::Enter { name, depth, owner, source } => {
                self.seen(source);
                let id = name.and_then(|name| self.id(name));
                self.enter(owner, depth, id);
            }
            Line::Exit { name, depth, ps, owner, source } => {
                self.seen(source);
                self.exit(owner, depth, ps, name);
            }
            Line::Lost(count) => self.lost(count),
            Line::Cpus(cpus) => self.counts.cpus = Some(cpus),
            Line::Faulty { fault, name } => self.faulty(fault, name),
            Line::Other => {}
        }
    }

    /// Adds to the number of lines those that a worker counted: see [`Self::add_tally`].
    pub(super) fn add_lines(&mut self, lines: u64) {
        self.counts.lines += lines;
    }

    /// Adds the calls of a function that a worker counted.
    pub(super) fn add_tally(&mut self, tally: &Tally) {
        let [trace_cmd, ftrace] = tally.lines;
        self.counts.trace_cmd_lines += trace_cmd;
        self.counts.ftrace_lines += ftrace;
        match self.id(&tally.name).and_then(|id| self.functions.get_mut(id as usize)) {
            Some(function) => function.values.add_short(&tally.short),
            None => self.counts.beyond_functions += tally.short.total(),
        }
    }

    /// Takes the last line of a file that does not end with a newline. The file was cut off there
    /// unless the line is a whole record.
    pub fn unfinished_line(&mut self, line: &[u8]) {
        let is_whole = match parse(line) {
            Line::Faulty { .. } => false,
            Line::Other => line.trim_ascii().is_empty() || line.starts_with(b"#"),
            _ => true,
        };
        self.line(line);
        let counts = &self.counts;
        let is_trace = counts.trace_cmd_lines + counts.ftrace_lines + counts.unparsable > 0;
        self.counts.cut_off = is_trace && !is_whole;
    }

    /// Counts a line that is longer than any of a trace and was skipped.
    pub fn overlong(&mut self) {
        self.counts.lines += 1;
        self.counts.overlong += 1;
    }

    /// Line of the first decimal comma; such a file cannot be imported.
    #[must_use]
    pub fn comma(&self) -> Option<u64> {
        self.counts.comma
    }

    /// The functions, by their total time, and the counts of everything else.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Function>, Counts) {
        self.drop_stacks(|_| true);
        self.functions.sort_by(|a, b| {
            (b.values.sum_ps().cmp(&a.values.sum_ps())).then_with(|| a.name.cmp(&b.name))
        });
        (self.functions, self.counts)
    }

    fn seen(&mut self, source: Source) {
        match source {
            Source::TraceCmd => self.counts.trace_cmd_lines += 1,
            Source::Ftrace => self.counts.ftrace_lines += 1,
        }
    }

    fn id(&mut self, name: &[u8]) -> Option<u32> {
        let id = self.names.id(name)?;
        if id as usize == self.functions.len() {
            let name = String::from_utf8_lossy(name).into();
            self.functions.push(Function { name, ..Function::default() });
        }
        Some(id)
    }

    fn record(&mut self, id: u32, ps: u64) {
        let Some(function) = self.functions.get_mut(id as usize) else { return };
        if function.values.record(ps, self.full) {
            self.distinct += 1;
            if self.distinct > MAX_DISTINCT {
                self.coarsen();
            } else if function.values.count() >= BUSY
                && self.busy < MAX_BUSY
                && let Some(moved) = function.values.keep_short()
            {
                self.busy += 1;
                self.distinct -= moved;
            }
        }
    }

    /// Makes room: first, functions with many distinct durations keep fewer bits of them.
    fn coarsen(&mut self) {
        let count = |functions: &[Function]| functions.iter().map(|f| f.values.distinct()).sum();
        for (least, step) in [(FEW, 0), (0, 0), (0, 1), (0, 2)] {
            let Some(&bits) = COARSER.get(step.max(self.coarser)) else { continue };
            for function in self.functions.iter_mut().filter(|f| f.values.distinct() >= least) {
                function.values.coarsen(bits);
            }
            self.distinct = count(&self.functions);
            if self.distinct <= MAX_DISTINCT / 4 * 3 {
                return;
            }
            if least == 0 {
                self.coarser = self.coarser.max(step);
            }
        }
        self.full = true;
    }

    fn enter(&mut self, owner: Owner, depth: usize, frame: Frame) {
        if depth >= MAX_DEPTH
            || (self.stacks.len() >= MAX_STACKS && !self.stacks.contains_key(&owner))
        {
            self.unreturned(frame);
            return;
        }
        let stack = self.stacks.entry(owner).or_default();
        // What is still there at this depth or deeper has returned without a line.
        let gone: Vec<Frame> =
            if depth < stack.len() { stack.drain(depth..).flatten().collect() } else { Vec::new() };
        stack.resize(depth, None);
        stack.push(Some(frame));
        for frame in gone {
            self.unreturned(frame);
        }
    }

    fn exit(&mut self, owner: Owner, depth: usize, ps: u64, name: Option<&[u8]>) {
        let mut opened = None;
        let mut gone = Vec::new();
        if let Some(stack) = self.stacks.get_mut(&owner)
            && depth < stack.len()
        {
            gone.extend(stack.drain(depth + 1..).flatten());
            opened = stack.pop().flatten();
            if stack.iter().all(Option::is_none) {
                self.stacks.remove(&owner);
            }
        }
        for frame in gone {
            self.unreturned(frame);
        }
        let id = match name {
            Some(name) => {
                let id = self.id(name);
                if let Some(frame) = opened
                    && frame.is_some()
                    && frame != id
                {
                    self.unreturned(frame);
                }
                if id.is_none() {
                    self.counts.beyond_functions += 1;
                }
                id
            }
            None => {
                let id = opened.flatten();
                if id.is_none() {
                    self.counts.unmatched_returns += 1;
                }
                id
            }
        };
        if let Some(id) = id {
            self.record(id, ps);
        }
    }

    /// Records are lost. The next return may belong to a call that is not in the text, so open calls
    /// are dropped rather than matched with it.
    fn lost(&mut self, count: Option<u64>) {
        match count {
            Some(count) => self.counts.lost_events = self.counts.lost_events.saturating_add(count),
            None => self.counts.lost_unknown += 1,
        }
        // The kernel checks the function itself, and names it where it differs.
        self.drop_stacks(|owner| !matches!(owner, Owner::Cpu(_)));
    }

    fn drop_stacks(&mut self, which: impl Fn(&Owner) -> bool) {
        let gone: Vec<Frame> = self
            .stacks
            .extract_if(|owner, _| which(owner))
            .flat_map(|(_, stack)| stack.into_iter().flatten())
            .collect();
        for frame in gone {
            self.unreturned(frame);
        }
    }

    fn unreturned(&mut self, frame: Frame) {
        self.counts.unreturned += 1;
        if let Some(function) = frame.and_then(|id| self.functions.get_mut(id as usize)) {
            function.unreturned += 1;
        }
    }

    fn faulty(&mut self, fault: Fault, name: Option<&[u8]>) {
        self.counts.unparsable += 1;
        let line = self.counts.lines;
        if self.counts.faults.len() < MAX_FAULTS_REPORTED {
            self.counts.faults.push(FaultAt { line, fault });
        }
        if fault == Fault::Comma {
            self.counts.comma.get_or_insert(line);
        }
        if let Some(id) = name.and_then(|name| self.id(name))
            && let Some(function) = self.functions.get_mut(id as usize)
        {
            function.unparsable += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::MAX_FUNCTIONS;
    use super::*;

    /// Name, calls, their nanoseconds, unparsable lines, calls without return.
    type TestRow = (String, u64, u128, u64, u64);

    fn collect(text: &str) -> (Vec<TestRow>, Counts) {
        let mut collector = Collector::default();
        for line in text.lines() {
            collector.line(line.as_bytes());
        }
        let (functions, counts) = collector.finish();
        let rows = functions
            .iter()
            .map(|f| {
                let v = &f.values;
                (f.name.to_string(), v.count(), v.sum_ps() / 1000, f.unparsable, f.unreturned)
            })
            .collect();
        (rows, counts)
    }

    fn row(name: &str, count: u64, ns: u128, unparsable: u64, unreturned: u64) -> TestRow {
        (name.to_owned(), count, ns, unparsable, unreturned)
    }

    #[test]
    fn nested_calls_of_tasks_that_take_turns_and_move() {
        let (rows, counts) = collect(
            "x-1 [000] 1.0: funcgraph_entry:            |  outer() {\n\
             y-2 [000] 1.1: funcgraph_entry:            |  other() {\n\
             x-1 [001] 1.2: funcgraph_entry:   0.500 us |    inner();\n\
             y-2 [000] 1.3: funcgraph_exit:    7.000 us |  }\n\
             x-1 [001] 1.4: funcgraph_exit:    2.000 us |  }\n",
        );
        assert_eq!(
            rows,
            [row("other", 1, 7000, 0, 0), row("outer", 1, 2000, 0, 0), row("inner", 1, 500, 0, 0)]
        );
        assert_eq!((counts.unmatched_returns, counts.unreturned), (0, 0));
    }

    #[test]
    fn idle_tasks_are_told_apart_by_their_cpu() {
        let (rows, _) = collect(
            "<idle>-0 [000] 1.0: funcgraph_entry:            |  a() {\n\
             <idle>-0 [001] 1.1: funcgraph_entry:            |  b() {\n\
             <idle>-0 [000] 1.2: funcgraph_exit:    2.000 us |  }\n\
             <idle>-0 [001] 1.3: funcgraph_exit:    3.000 us |  }\n",
        );
        assert_eq!(rows, [row("b", 1, 3000, 0, 0), row("a", 1, 2000, 0, 0)]);
    }

    #[test]
    fn a_return_after_a_loss_is_not_given_to_an_earlier_call() {
        let (rows, counts) = collect(
            "x-1 [000] 1.0: funcgraph_entry:            |  a() {\n\
             CPU:0 [12 EVENTS DROPPED]\n\
             x-1 [000] 1.2: funcgraph_exit:    2.000 us |  }\n\
             x-1 [000] 1.3: funcgraph_exit:    3.000 us |  } /* b */\n",
        );
        assert_eq!(rows, [row("b", 1, 3000, 0, 0), row("a", 0, 0, 0, 1)]);
        assert_eq!((counts.lost_events, counts.unmatched_returns), (12, 1));
    }

    #[test]
    fn the_kernel_names_what_does_not_match() {
        let (rows, counts) = collect(
            " 0)               |  a() {\n\
             CPU:0 [LOST 12 EVENTS]\n\
             \x20 0)   3.000 us    |  } /* b */\n\
             \x20 0)               |  c() {\n\
             CPU:0 [LOST EVENTS]\n\
             \x20 0)   4.000 us    |  }\n",
        );
        assert_eq!(rows, [row("c", 1, 4000, 0, 0), row("b", 1, 3000, 0, 0), row("a", 0, 0, 0, 1)]);
        assert_eq!((counts.lost_events, counts.lost_unknown, counts.unreturned), (12, 1, 1));
    }

    #[test]
    fn calls_without_return_and_returns_without_call() {
        let (rows, counts) = collect(
            "x-1 [000] 1.0: funcgraph_exit:    9.000 us |    }\n\
             x-1 [000] 1.0: funcgraph_entry:            |  a() {\n\
             x-1 [000] 1.1: funcgraph_entry:            |    b() {\n\
             x-1 [000] 1.2: funcgraph_exit:    2.000 us |  }\n\
             x-1 [000] 1.3: funcgraph_entry:            |  c() {\n\
             x-1 [000] 1.4: funcgraph_entry:            |  d() {\n",
        );
        assert_eq!(
            rows,
            [
                row("a", 1, 2000, 0, 0),
                row("b", 0, 0, 0, 1),
                row("c", 0, 0, 0, 1),
                row("d", 0, 0, 0, 1)
            ]
        );
        assert_eq!((counts.unmatched_returns, counts.unreturned), (1, 3));
    }

    #[test]
    fn faults_are_counted_with_their_line_and_function() {
        let (rows, counts) = collect(
            " 0)   0.5 us    |  a();\n 0)   0x5 us    |  a();\n 0)   0,5 us    |  a();\n 0)   0.5 us    |\n",
        );
        assert_eq!(rows, [row("a", 1, 500, 2, 0)]);
        assert_eq!((counts.unparsable, counts.comma), (3, Some(3)));
        assert_eq!(counts.faults[0], FaultAt { line: 2, fault: Fault::Duration });
    }

    #[test]
    fn too_many_different_durations_cost_digits_and_not_calls() {
        let mut collector = Collector::default();
        let many = MAX_DISTINCT as u64 + 10_000;
        for at in 0..many {
            collector
                .line(format!(" 0)   {}.{:03} us    |  a();", at / 1000, at % 1000).as_bytes());
        }
        collector.line(b" 0)   0.500 us    |  b();");
        assert!(collector.distinct < MAX_DISTINCT / 4);
        let (functions, _) = collector.finish();
        assert_eq!(functions[0].values.count(), many);
        assert!(!functions[0].values.is_exact());
        assert!(functions[1].values.is_exact());
    }

    #[test]
    fn functions_beyond_the_limit_are_counted() {
        let mut collector = Collector::default();
        for at in 0..MAX_FUNCTIONS + 7 {
            collector.line(format!(" 0)   0.100 us    |  f{at}();").as_bytes());
        }
        let (functions, counts) = collector.finish();
        assert_eq!((functions.len(), counts.beyond_functions), (MAX_FUNCTIONS, 7));
    }
}
