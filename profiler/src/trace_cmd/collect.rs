//! Collects lines: matches nested calls, groups durations by function and counts losses.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::line::{Fault, Line, Owner, Row, parse};

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

/// One function of the text. Durations are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Function {
    /// With its module if the text has it.
    pub(super) name: String,
    /// Calls by their duration.
    pub(super) counts: HashMap<u64, u64>,
    pub(super) sum_ns: u64,
    pub(super) min_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    /// Returns that name it and whose entry is not in the text.
    pub(super) carried_in: u64,
    /// Calls that were under way at the end.
    pub(super) in_flight: u64,
    /// Calls whose return or duration is not in the text.
    pub(super) lost: u64,
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
            self.functions[id].carried_in += 1;
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
        self.functions.push(Function { name: name.to_owned(), ..Function::default() });
        Some(id)
    }

    fn record(&mut self, id: usize, ns: u64) {
        let is_rounded = self.distinct >= MAX_EXACT;
        let value = if is_rounded { rounded(ns) } else { ns };
        let function = &mut self.functions[id];
        let sum_ns = function.sum_ns.checked_add(ns);
        let has_room = self.distinct < 2 * MAX_EXACT || function.counts.contains_key(&value);
        let Some(sum_ns) = sum_ns.filter(|_| has_room) else {
            function.lost += 1;
            return;
        };
        let calls = function.counts.entry(value).or_default();
        *calls += 1;
        self.distinct += usize::from(*calls == 1);
        function.sum_ns = sum_ns;
        function.min_ns = Some(function.min_ns.map_or(ns, |min| min.min(ns)));
        function.max_ns = function.max_ns.max(Some(ns));
        if is_rounded && value != ns {
            self.fault("duration kept to three digits, as there are too many different ones");
        }
    }

    /// The functions, by their total time.
    pub(super) fn finish(&mut self) -> Vec<Function> {
        for (_, frame) in self.stacks.drain().flat_map(|(_, stack)| stack) {
            if let Some(id) = frame {
                self.functions[id].in_flight += 1;
            }
        }
        let mut functions = std::mem::take(&mut self.functions);
        functions.sort_by(|a, b| b.sum_ns.cmp(&a.sum_ns).then_with(|| a.name.cmp(&b.name)));
        functions
    }
}

/// A call has no duration: of a known function, it is missing there.
fn lose(functions: &mut [Function], id: Option<usize>) {
    if let Some(id) = id {
        functions[id].lost += 1;
    }
}

/// The shortest duration of the histogram's bucket that `ns` belongs to.
fn rounded(ns: u64) -> u64 {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(ROUNDED_BITS);
    ns >> shift << shift
}

#[cfg(test)]
mod tests {
    use super::super::line::{COMMA, NO_FUNCTION, NO_NUMBER};
    use super::*;

    /// Name, calls, their nanoseconds, calls without duration.
    type TestRow = (String, u64, u64, u64);

    fn collect(text: &str) -> (Vec<TestRow>, Collector) {
        let mut collector = Collector::default();
        text.split_inclusive('\n').for_each(|line| collector.line(line.as_bytes()));
        let rows = collector.finish().into_iter().map(|of| {
            let calls = of.counts.values().sum();
            (of.name, calls, of.sum_ns, of.lost + of.in_flight)
        });
        (rows.collect(), collector)
    }

    fn row(name: &str, calls: u64, ns: u64, gone: u64) -> TestRow {
        (name.to_owned(), calls, ns, gone)
    }

    fn faults(of: &Collector) -> Vec<(u64, u64)> {
        of.faults.values().copied().collect()
    }

    #[test]
    fn nested_calls_of_tasks_that_take_turns_and_move() {
        let (rows, of) = collect(
            "x-1 [000] 1.0: funcgraph_entry:            |  outer() {\n\
             y-2 [000] 1.1: funcgraph_entry:            |  other() {\n\
             x-1 [001] 1.2: funcgraph_entry:   0.500 us |    inner();\n\
             y-2 [000] 1.3: funcgraph_exit:    7.000 us |  }\n\
             x-1 [001] 1.4: funcgraph_exit:    2.000 us |  }\n",
        );
        assert_eq!(
            rows,
            [row("other", 1, 7000, 0), row("outer", 1, 2000, 0), row("inner", 1, 500, 0)]
        );
        assert!(of.faults.is_empty());
    }

    #[test]
    fn idle_tasks_are_told_apart_by_their_cpu() {
        let (rows, _) = collect(
            "<idle>-0 [000] 1.0: funcgraph_entry:            |  a() {\n\
             <idle>-0 [001] 1.1: funcgraph_entry:            |  b() {\n\
             <idle>-0 [000] 1.2: funcgraph_exit:    2.000 us |  }\n\
             <idle>-0 [001] 1.3: funcgraph_exit:    3.000 us |  }\n",
        );
        assert_eq!(rows, [row("b", 1, 3000, 0), row("a", 1, 2000, 0)]);
    }

    #[test]
    fn a_return_after_a_loss_is_not_given_to_an_earlier_call() {
        let (rows, of) = collect(
            "x-1 [000] 1.0: funcgraph_entry:            |  a() {\n\
             CPU:0 [12 EVENTS DROPPED]\n\
             x-1 [000] 1.2: funcgraph_exit:    2.000 us |  }\n\
             x-1 [000] 1.3: funcgraph_exit:    3.000 us |  } /* b */\n",
        );
        assert_eq!(rows, [row("b", 1, 3000, 0), row("a", 0, 0, 1)]);
        assert_eq!((of.lost_records, faults(&of)), (12, vec![(1, 3)]));
    }

    #[test]
    fn the_kernel_names_what_does_not_match() {
        let (rows, of) = collect(
            " 0)               |  a() {\n\
             CPU:0 [LOST 12 EVENTS]\n\
             \x20 0)   3.000 us    |  } /* b */\n\
             \x20 0)               |  c() {\n\
             CPU:0 [LOST EVENTS]\n\
             \x20 0)   4.000 us    |  }\n",
        );
        assert_eq!(rows, [row("c", 1, 4000, 0), row("b", 1, 3000, 0), row("a", 0, 0, 1)]);
        assert_eq!(of.lost_records, 12);
        assert!(of.faults.keys().any(|fault| fault.starts_with("place where the tracer lost")));
    }

    #[test]
    fn calls_without_return_and_returns_without_call() {
        let (rows, of) = collect(
            "x-1 [000] 1.0: funcgraph_exit:    9.000 us |    }\n\
             x-1 [000] 1.0: funcgraph_entry:            |  a() {\n\
             x-1 [000] 1.1: funcgraph_entry:            |    b() {\n\
             x-1 [000] 1.2: funcgraph_exit:    2.000 us |  }\n\
             x-1 [000] 1.3: funcgraph_entry:            |  c() {\n\
             x-1 [000] 1.4: funcgraph_entry:            |  d() {\n",
        );
        assert_eq!(
            rows,
            [row("a", 1, 2000, 0), row("b", 0, 0, 1), row("c", 0, 0, 1), row("d", 0, 0, 1)]
        );
        assert_eq!(faults(&of), [(1, 1)]);
    }

    #[test]
    fn faults_are_counted_with_their_line_and_function() {
        let (rows, of) = collect(
            "x-1 [0] 1.0: funcgraph_entry:   0.5 us    |  a();\nx-1 [0] 1.0: funcgraph_entry:   0x5 us    |  a();\n\
             x-1 [0] 1.0: funcgraph_entry:   0,5 us    |  a();\nx-1 [0] 1.0: funcgraph_entry:   0.5 us    |\n",
        );
        assert_eq!(rows, [row("a", 1, 500, 2)]);
        assert_eq!(of.faults, [(COMMA, (1, 3)), (NO_NUMBER, (1, 2)), (NO_FUNCTION, (1, 4))].into());
    }

    #[test]
    fn the_last_line_may_lack_its_end() {
        for (end, is_cut_off) in [
            ("x-1 [0] 1.0: funcgraph_entry:   0.5 us    |  a(", true),
            ("x-1 [0] 1.0: funcgraph_entry:   0.5 us    |  a();", false),
            ("x-1 [0] 1.0: funcg", true),
            (" 0)", true),
            ("# tracer", false),
            ("  ", false),
            ("CPU:0 [LOST 3 EVENTS]", false),
            ("x-1 [0] 1.0: funcgraph_entry:        |  a() {", false),
        ] {
            let (_, of) =
                collect(&format!("x-1 [0] 1.0: funcgraph_entry:   0.5 us    |  a();\n{end}"));
            let cut: Vec<_> = of.faults.keys().filter(|fault| fault.contains("cut off")).collect();
            assert_eq!(cut.len(), usize::from(is_cut_off), "{end}");
        }
        assert!(collect("some text").1.faults.is_empty());
    }

    #[test]
    fn too_many_different_durations_cost_digits_and_not_calls() {
        let mut collector = Collector::default();
        let id = collector.id("a").unwrap();
        let many = MAX_EXACT as u64 + 10_000;
        (0..many).for_each(|ns| collector.record(id, ns));
        assert_eq!(collector.functions[id].counts.values().sum::<u64>(), many);
        assert_eq!(collector.functions[id].sum_ns, many * (many - 1) / 2);
        assert!(collector.distinct < MAX_EXACT + 100, "{}", collector.distinct);
        assert!(collector.faults.keys().any(|fault| fault.contains("three digits")));
        // Each function has some of its own, until there is no room at all.
        let ids: Vec<usize> = (0..500).filter_map(|of| collector.id(&of.to_string())).collect();
        for at in 0..2 * MAX_EXACT {
            collector.record(ids[at % ids.len()], at as u64 * 4099);
        }
        assert_eq!(collector.distinct, 2 * MAX_EXACT);
        let calls = |of: &Function| of.counts.values().sum::<u64>() + of.lost;
        assert_eq!(collector.finish().iter().map(calls).sum::<u64>(), many + 2 * MAX_EXACT as u64);
    }

    #[test]
    fn a_sum_beyond_the_format_is_lost_calls() {
        let mut collector = Collector::default();
        let id = collector.id("a").unwrap();
        [u64::MAX - 5, 3, 7].iter().for_each(|ns| collector.record(id, *ns));
        let of = &collector.functions[id];
        assert_eq!((of.counts.len(), of.sum_ns, of.lost), (2, u64::MAX - 2, 1));
    }

    #[test]
    fn functions_beyond_the_limit_are_counted() {
        let mut collector = Collector::default();
        for at in 0..MAX_FUNCTIONS + 7 {
            collector
                .line(format!("x-1 [0] 1.0: funcgraph_entry:   0.1 us |  f{at}();\n").as_bytes());
        }
        assert_eq!(faults(&collector), [(7, MAX_FUNCTIONS as u64 + 1)]);
        assert_eq!(collector.finish().len(), MAX_FUNCTIONS);
    }
}
