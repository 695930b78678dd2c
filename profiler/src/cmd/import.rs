//! `profiler import`: latencies that another tool recorded, as a recording.
//!
//! Import of function_graph text: the output of `trace-cmd report`, or the kernel's `trace` and `trace_pipe`. One pass in
//! bounded memory groups the durations by function, exactly, and makes a [`Recording`] of them.

mod collect;
mod line;

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::slice;

use clap::{Args, Subcommand};
use itertools::Itertools as _;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, bail};
use profiler_base::stats::at_rank;
use profiler_base::text::plural;
use profiler_export::cell::full_name;
use profiler_export::document::{Table, or_dash};
use profiler_export::{Unit, table};
use profiler_kernel::host::HostFacts;
use profiler_kernel::module::ModuleFacts;
use profiler_recording::warning::Warning;
use profiler_recording::{Clock, Distribution, HistogramLayout, Meter, Recording};

use super::{data_to_stdout, stdout_width};
use collect::{Collector, Function};
use line::COMMA;

/// Tools whose recordings are read.
#[derive(Debug, Subcommand)]
pub enum ImportSource {
    /// function_graph text: what `trace-cmd report` prints, or ftrace's `trace` and `trace_pipe`.
    TraceCmd(TraceCmdArgs),
}

const EXAMPLES: &str = "\
Examples:
  # a file with the output of trace-cmd report
  profiler import trace-cmd bind_entry_handler.txt
  # straight from trace.dat
  trace-cmd report -i trace.dat | profiler import trace-cmd -";

/// Arguments of `profiler import trace-cmd`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TraceCmdArgs {
    /// The text (`-` is standard input).
    pub file: PathBuf,
    /// Write the recording to this file (`-` is standard output): `report`, `compare` and `merge` read it.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Prints the table and the percentiles of a file of function_graph text, and writes its recording.
///
/// # Errors
/// If the file cannot be read or has no call, or an output cannot be written. A closed pipe is not an
/// error.
pub fn trace_cmd(args: &TraceCmdArgs) -> Result<(), Failure> {
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let is_stdin = args.file == Path::new("-");
    let import = if is_stdin {
        Import::read(&mut io::stdin().lock(), "standard input")?
    } else {
        let mut file = File::open(&args.file).map_err(Failure::cannot_read(&args.file))?;
        Import::read(&mut file, &args.file.display().to_string())?
    };

    if !json.as_ref().is_some_and(OutputFile::is_stdout) {
        let width = stdout_width();
        let figures = table(slice::from_ref(&import.recording), Unit::Us, width);
        let text = format!("{figures}\n{}", import.percentiles(width));
        data_to_stdout(text.as_bytes())?;
    }
    if let Some(json) = json {
        json.commit(&import.recording.to_json())?;
    }
    Ok(())
}

/// Longest line that is parsed.
const MAX_LINE: usize = 256 << 10;
/// Window of a text without times, or with one.
const NO_WINDOW_NS: u64 = 1_000_000_000;

/// A text of function_graph as a recording.
#[derive(Debug)]
pub struct Import {
    /// Functions by their total time, to the precision of histograms.
    pub recording: Recording,
    /// The durations of each of its handlers as they stand in the text, ascending, each with its calls.
    values: Vec<Vec<(u64, u64)>>,
}

impl Import {
    /// Reads `input` to its end. `file` is its name in messages.
    ///
    /// Memory stays below 100 MB whatever the input is.
    ///
    /// # Errors
    /// If it cannot be read, has a decimal comma, or has no call.
    pub fn read(input: &mut dyn Read, file: &str) -> Result<Self, Failure> {
        let mut collector = Collector::default();
        scan(input, &mut collector).map_err(Failure::cannot_read(Path::new(file)))?;
        if let Some((_, line)) = collector.faults.get(COMMA) {
            bail!(
                BAD_INPUT,
                "{file}, line {line}: {COMMA}: trace-cmd and the kernel write points, so another program changed them; \
                 turn each back into a point, or print the report again"
            );
        }
        let faults = collector.faults.iter();
        let faults: Vec<String> = faults
            .map(|(fault, (count, line))| format!("{count} x {fault}, first in line {line}"))
            .collect();
        let faults = faults.join("; ");
        let functions = collector.finish();
        if functions.iter().all(|function| function.handler.count == 0) {
            let lines = collector.lines;
            let found = if faults.is_empty() { faults } else { format!(" ({faults})") };
            bail!(
                BAD_INPUT,
                "{file} has no function_graph call in {lines} line{}{found}: import what `trace-cmd report` prints of \
                 `trace-cmd record -p function_graph -l HANDLER`, or ftrace's own `trace`",
                plural(lines)
            );
        }
        let mut import = Self { recording: recording(&collector), values: Vec::new() };
        if !faults.is_empty() {
            let warning = Warning::Imported(format!("not all of {file} could be used: {faults}"));
            import.recording.warnings.push(warning.into());
        }
        for function in functions {
            import.add(function, collector.lost_records);
        }
        import.recording.warn();
        Ok(import)
    }

    /// Adds a function. The tracer lost `overrun` records: as many calls of any function may be missing.
    fn add(&mut self, Function { mut handler, counts }: Function, overrun: u64) {
        let mut durations: Vec<(u64, u64)> = counts.into_iter().collect();
        durations.sort_unstable();
        let losses = &mut handler.losses;
        losses.exits = handler.count;
        losses.entries = handler.count + losses.in_flight + losses.lost - losses.carried_in;
        losses.overrun = overrun;
        handler.histogram = Distribution::of_durations(&durations, &self.recording.histogram);
        let modules = &mut self.recording.modules;
        if let Some(name) = &handler.module
            && let Err(at) = modules.binary_search_by(|module| module.name.cmp(name))
        {
            modules.insert(at, ModuleFacts { name: name.clone(), ..ModuleFacts::default() });
        }
        self.recording.handlers.push(handler);
        self.values.push(durations);
    }

    /// TP90, TP95 and TP99 of each handler in microseconds, of the values themselves: as published figures of such files have
    /// them. `width` is the terminal's, in columns; `None` never wraps.
    pub fn percentiles(&self, width: Option<u16>) -> String {
        let rows = self.recording.handlers.iter().zip(&self.values).map(|(handler, values)| {
            let mut cells = vec![full_name(slice::from_ref(&self.recording), handler)];
            cells.extend([90, 95, 99].map(|percent| {
                or_dash(percentile(values, percent).map(|ns| format!("{:.4}", ns / 1e3)))
            }));
            cells
        });
        let table = Table::figures(["handler", "TP90", "TP95", "TP99"], rows).text(width);
        format!(
            "percentiles of the values themselves, interpolated linearly between the two nearest\n\n{table}"
        )
    }
}

/// The percentile `percent` (1 to 100) of ascending values in nanoseconds, by Hyndman and Fan's type 7, which is numpy's
/// default; `None` without a value.
fn percentile(values: &[(u64, u64)], percent: u8) -> Option<f64> {
    let count: u64 = values.iter().map(|(_, calls)| calls).sum();
    // In whole numbers: the place is (n - 1) * percent / 100, from 0.
    let place = u128::from(count.checked_sub(1)?) * u128::from(percent);
    let (below, part) = ((place / 100) as u64, (place % 100) as f64 / 100.0);
    let low = at_rank(values.iter().copied(), below + 1)? as f64;
    let high = at_rank(values.iter().copied(), (below + 2).min(count))? as f64;
    Some(low + (high - low) * part)
}

/// Passes the lines of `input` to `collector`, up to a decimal comma.
fn scan(input: &mut dyn Read, collector: &mut Collector) -> io::Result<()> {
    let mut input = BufReader::with_capacity(MAX_LINE, input);
    let mut line = Vec::new();
    while !collector.faults.contains_key(COMMA) {
        line.clear();
        match input.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line)? {
            0 => return Ok(()),
            MAX_LINE if !line.ends_with(b"\n") => {
                input.skip_until(b'\n')?;
                collector.lines += 1;
                collector.fault("line longer than 256 KiB");
            }
            _ => collector.line(&line),
        }
    }
    Ok(())
}

/// The recording, without handlers and modules. A text knows little of its machine, and of times only those since boot.
fn recording(of: &Collector) -> Recording {
    let (first_ns, last_ns) = of.times_ns.unwrap_or_default();
    let started = jiff::Timestamp::from_nanosecond(first_ns.into()).unwrap_or_default();
    Recording {
        imported: Some(of.printers.iter().join(" and ")),
        host: HostFacts { cpus_online: of.cpus, ..HostFacts::default() },
        window_ns: Some(last_ns - first_ns).filter(|ns| *ns > 0).unwrap_or(NO_WINDOW_NS),
        ..Recording::new(started, Clock::Wall, Meter::Probes, HistogramLayout::of_digits(3))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reader that returns a few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    fn import(input: &mut dyn Read) -> Result<Import, Failure> {
        Import::read(input, "it")
    }

    #[test]
    fn a_line_too_long_is_skipped_and_counted() {
        let good = b" 0)   0.5 us    |  a();\n";
        let text = [&good[..], &b"x".repeat(3 * MAX_LINE), b"\n", good, &b"y".repeat(MAX_LINE + 1)]
            .concat();
        let import = import(&mut &text[..]).unwrap();
        assert_eq!(import.recording.calls(), 2);
        let said = &import.recording.warnings[0].text;
        assert!(said.contains("2 x line longer than 256 KiB, first in line 2"), "{said}");
    }

    #[test]
    fn a_quarter_of_a_gigabyte_in_one_line_takes_no_memory() {
        let error = import(&mut io::repeat(b'|').take(1 << 28)).unwrap_err().to_string();
        assert!(error.contains("no function_graph call in 1 line (1 x line longer"), "{error}");
    }

    #[test]
    fn the_books_balance_and_the_sources_of_a_merge_are_known() {
        let text = b"x-1 [000] 1.0: funcgraph_entry:            |  a [m]() {\n\
            CPU:0 [12 EVENTS DROPPED]\n\
            x-1 [000] 1.3: funcgraph_exit:    3.000 us |  } /* b */\n\
            x-1 [000] 1.4: funcgraph_entry:            |  b() {\n";
        let Import { recording, .. } = import(&mut &text[..]).unwrap();
        recording.check().unwrap();
        for handler in &recording.handlers {
            assert_eq!(handler.losses.imbalance(handler.count), 0, "{handler:?}");
            assert_eq!(handler.losses.overrun, 12);
        }
        let [b, a] = &recording.handlers[..] else { panic!("{recording:?}") };
        assert_eq!((b.losses.carried_in, b.losses.in_flight, a.losses.lost), (1, 1, 1));
        assert_eq!((a.name.as_str(), a.module.as_deref()), ("a", Some("m")));
        assert_eq!((recording.window_ns, recording.modules.len()), (400_000_000, 1));
        assert_eq!(recording.imported.as_deref(), Some("trace-cmd report"));
    }

    #[test]
    fn calls_beyond_a_histograms_range_are_in_its_last_bucket() {
        let text = b" 0) $ 70000000 us |  a();\n 0) $ 90000000 us |  a();\n 0)   0.5 us |  a();\n";
        let Import { recording, .. } = import(&mut &text[..]).unwrap();
        recording.check().unwrap();
        let handler = &recording.handlers[0];
        assert_eq!((handler.count, handler.losses.over_range), (3, 2));
        assert_eq!(handler.max_ns, Some(90_000_000_000));
    }

    #[test]
    fn percentiles_are_those_of_numpy() {
        let percentiles = |list: &[u64]| {
            let values: Vec<(u64, u64)> = list.iter().map(|ns| (*ns, 1)).collect();
            [25, 50, 90, 95, 99, 100].map(|percent| percentile(&values, percent).unwrap())
        };
        let close = |a: [f64; 6], b: [f64; 6]| {
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9), "{a:?} {b:?}");
        };
        close(percentiles(&[10, 20, 30, 40]), [17.5, 25.0, 37.0, 38.5, 39.7, 40.0]);
        close(percentiles(&[7]), [7.0; 6]);
        let hundred: Vec<u64> = (1..=100).collect();
        close(percentiles(&hundred), [25.75, 50.5, 90.1, 95.05, 99.01, 100.0]);
        assert_eq!(percentile(&[], 50), None);
    }

    proptest! {
        #[test]
        fn a_percentile_is_that_of_the_sorted_list(
            counts in prop::collection::btree_map(0..50_u64, 1..9_u64, 1..30),
            percent in 1..=100_u8,
        ) {
            let values: Vec<(u64, u64)> = counts.clone().into_iter().collect();
            let list: Vec<u64> =
                counts.iter().flat_map(|(&ns, &count)| std::iter::repeat_n(ns, count as usize)).collect();
            let place = (list.len() - 1) as f64 * f64::from(percent) / 100.0;
            let (low, high) = (list[place as usize], list[(place as usize + 1).min(list.len() - 1)]);
            let expected = low as f64 + (high - low) as f64 * place.fract();
            prop_assert!((percentile(&values, percent).expect("some") - expected).abs() < 1e-6);
        }

        #[test]
        fn pieces_change_nothing(
            lines in prop::collection::vec(prop::sample::select(vec![
                " 0)   0.500 us    |  a();", " 0)   9.500 us    |  a();", " 1)   0.501 us    |  b();",
                " 0)               |  a() {", " 0)   2.000 us    |  }", " 0)   2.000 us    |  } /* b */",
                "CPU:0 [LOST 3 EVENTS]", " x-1 [000] 1.0: funcgraph_entry:   0.500 us   |  a();", "", "cpus=2",
                " x-1 [000] 1.0: funcgraph_entry:        |  c() {", " x-1 [000] 1.0: funcgraph_exit:  1.0 us | }",
                " 0)   1.x us    |  a();", "CPU:1 [EVENTS DROPPED]", " 0)   99999999.1 us    |  d [m]();",
            ]), 0..60),
            piece in 1..300_usize,
        ) {
            let text = lines.join("\n");
            let whole = import(&mut text.as_bytes()).map(|import| import.recording);
            let pieces = import(&mut Slow(text.as_bytes(), piece)).map(|import| import.recording);
            match (whole, pieces) {
                (Ok(whole), Ok(pieces)) => {
                    prop_assert_eq!(whole.check(), Ok(()));
                    prop_assert!(whole.handlers.iter().all(|h| h.losses.imbalance(h.count) == 0));
                    prop_assert_eq!(whole, pieces);
                }
                (Err(whole), Err(pieces)) => prop_assert_eq!(whole.to_string(), pieces.to_string()),
                (whole, _) => prop_assert!(false, "{:?}", whole),
            }
        }
    }
}
