//! Parses one line of function_graph text: a pure function of its bytes.
//!
//! The columns are those of `print_graph_duration` and its neighbours in the kernel's kernel/trace/trace_functions_graph.c,
//! and of lib/trace-cmd/trace-ftrace.c, which prints the same after `comm-pid [cpu] time: funcgraph_entry:`. What stands
//! before the time may be anything: a command's name may have spaces, brackets, colons and bars in it.

use memchr::memchr_iter;

/// Longest function name with its module: the kernel's own limit (`KSYM_NAME_LEN`).
const MAX_NAME: usize = 512;
/// Bars that are tried as the one before the function; the kernel's text has up to four before it.
const MAX_BARS: usize = 8;
/// Fewest spaces that mean "no duration" in the kernel's text.
const BLANK_DURATION: usize = 10;
/// Events of function_graph in trace-cmd's text, with their colon.
const EVENTS: [&[u8]; 3] = [b"funcgraph_entry:", b"funcgraph_exit:", b"fgraph_retaddr_entry:"];

/// Whose call stack a nested call is on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// A task, by its pid; idle tasks, which all have pid 0, by their CPU, too. Before the pid stands the file or buffer
    /// instance that the line is from (`trace-cmd report -i A -i B`): two machines have tasks of one pid.
    Task(Vec<u8>),
    /// Whatever runs on a CPU. The kernel names the function of a return wherever it is not that of the last call of
    /// that depth on that CPU, so this is exact in its text.
    Cpu(u64),
}

/// What of a line cannot be used, in words that follow a count.
pub(super) type Fault = &'static str;

/// Thousands or decimals: nobody knows which.
pub(super) const COMMA: Fault = "duration with a decimal comma";
/// Both programs print three decimals of a microsecond.
pub(super) const NO_NUMBER: Fault = "duration that is not a number of whole nanoseconds";
pub(super) const NO_UNIT: Fault = "duration that is not in us";
pub(super) const NO_TASK: Fault = "nested call without task and CPU";
pub(super) const NO_FUNCTION: Fault = "row without a function";

/// Who printed a row.
pub(super) const TRACE_CMD: &str = "trace-cmd report";
pub(super) const KERNEL: &str = "ftrace";

/// What one line says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A call, or one end of one, the time of that in nanoseconds of the trace's clock, and who printed it.
    Row(Row<'a>, Option<u64>, &'static str),
    /// Lost records, with their number if it is known.
    Lost(Option<u64>),
    /// The number of CPUs in a report's head.
    Cpus(u32),
    /// A function_graph line that cannot be used, and the function of a call if at least that can be read.
    Faulty(Fault, Option<&'a str>),
    /// Anything else: headers, comments, other events.
    Other,
}

/// A call, or one end of one. `depth` is the number of calls around it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Row<'a> {
    /// A call that made no traced call: entry and return in one line.
    Leaf { name: &'a str, ns: u64 },
    /// The entry of a call whose return is on a later line; trace-cmd leaves out a name that it cannot resolve.
    Enter { name: Option<&'a str>, depth: usize, owner: Owner },
    /// The return of a call, with its function where the text names it.
    Exit { name: Option<&'a str>, depth: usize, ns: u64, owner: Owner },
}

/// A line that begins as an event's does.
struct Event<'a> {
    /// What stands before the time: task, CPU and flags.
    head: &'a [u8],
    time: &'a [u8],
    /// With its colon; empty in the kernel's own text.
    name: &'a [u8],
    body: &'a [u8],
}

/// Parses one line, with or without its end.
pub(super) fn parse(line: &[u8]) -> Line<'_> {
    let line = line.trim_ascii_end();
    if let Some(found) = about_the_trace(line) {
        return found;
    }
    match event(line) {
        // What another event prints may look like a row.
        Some(event) if !event.name.is_empty() && !EVENTS.contains(&event.name) => Line::Other,
        event => columns(line, event),
    }
}

/// A line that is about the trace.
fn about_the_trace(line: &[u8]) -> Option<Line<'_>> {
    if !matches!(line, [b'C' | b'c' | b'#', ..]) {
        return None;
    }
    let text = str::from_utf8(line).ok()?;
    if let Some(cpus) = text.strip_prefix("cpus=") {
        return cpus.parse().ok().map(Line::Cpus);
    }
    if let Some(counts) = text.strip_prefix("# entries-in-buffer/entries-written: ") {
        let (kept, written) = counts.split_once(' ')?.0.split_once('/')?;
        let lost: u64 = written.parse::<u64>().ok()?.checked_sub(kept.parse().ok()?)?;
        return (lost > 0).then_some(Line::Lost(Some(lost)));
    }
    let (cpu, what) = text.strip_prefix("CPU:")?.strip_suffix(']')?.split_once(" [")?;
    cpu.parse::<u32>().ok()?;
    // The kernel writes LOST 17 EVENTS, trace-cmd 17 EVENTS DROPPED; both without a number where they know none.
    let is_loss =
        what.ends_with("EVENTS") && what.starts_with("LOST ") || what.ends_with("EVENTS DROPPED");
    is_loss.then(|| Line::Lost(what.split(' ').find_map(|word| word.parse().ok())))
}

/// The first time with an event's name behind it, or else the last time.
fn event(line: &[u8]) -> Option<Event<'_>> {
    let mut found = None;
    for colon in memchr_iter(b':', line) {
        let (head, time) = last_word(&line[..colon]);
        if !time.first().is_some_and(u8::is_ascii_digit)
            || !time.iter().all(|b| matches!(b, b'0'..=b'9' | b'.'))
        {
            continue;
        }
        let rest = &line[colon + 1..];
        let (mut name, mut body) = first_word(rest);
        // The difference to the record before, of `trace-cmd report --ts-diff`.
        if name.starts_with(b"(+") {
            (name, body) = first_word(body);
        }
        if matches!(name, [_, .., b':']) {
            return Some(Event { head, time, name, body });
        }
        found = Some(Event { head, time, name: b"", body: rest });
    }
    found
}

/// Columns up to the function: `DURATION | FUNCTION` in trace-cmd's text, `TIME | CPU) TASK | FLAGS | DURATION | FUNCTION`
/// in the kernel's, of which only the last two are always there. The function's bar is the first with the text of a function
/// behind it.
fn columns<'a>(line: &'a [u8], event: Option<Event<'a>>) -> Line<'a> {
    let by = match &event {
        Some(event) if !event.name.is_empty() => TRACE_CMD,
        _ => KERNEL,
    };
    let body = event.as_ref().map_or(line, |event| event.body);
    let mut time_ns = event.as_ref().and_then(|event| seconds(event.time));
    let (mut cpu, mut has_duration, mut from) = (None, false, 0);
    for bar in memchr_iter(b'|', body).take(MAX_BARS).chain([body.len()]) {
        let mut column = &body[from..bar];
        from = (bar + 1).min(body.len());
        let (word, rest) = first_word(column);
        if let Some(number) = word.strip_suffix(b")").and_then(decimal) {
            (cpu, column) = (cpu.or(Some(number)), rest);
        }
        time_ns = time_ns.or_else(|| seconds(column.trim_ascii()));
        let duration = duration(column);
        has_duration |= matches!(duration, Some(Ok(_)));
        let may_end_here = match duration {
            _ if by == TRACE_CMD => true,
            None => column.len() >= BLANK_DURATION,
            Some(Ok(_)) => true,
            Some(Err(_)) => cpu.is_some() || word.first().is_some_and(u8::is_ascii_digit),
        };
        let row = row(duration, &body[from..], || match &event {
            Some(event) => task(event.head),
            None => Some(Owner::Cpu(cpu.unwrap_or(0))),
        });
        match row.filter(|_| may_end_here) {
            Some(Ok(row)) => return Line::Row(row, time_ns, by),
            Some(Err(other)) => return other,
            None => {}
        }
    }
    match by == TRACE_CMD || cpu.is_some() && has_duration {
        true => Line::Faulty(NO_FUNCTION, None),
        false => Line::Other,
    }
}

/// The row of a duration, blank or not, and of the text behind the bar; `None` if that is not a function's text.
fn row<'a>(
    duration: Option<Result<u64, Fault>>,
    after: &'a [u8],
    owner: impl FnOnce() -> Option<Owner>,
) -> Option<Result<Row<'a>, Line<'a>>> {
    let text = after.trim_ascii_start();
    let depth = (after.len() - text.len()).saturating_sub(2) / 2;
    let (name, tail) = match text {
        [b'/', b'*', ..] => return Some(Err(Line::Other)),
        [b'}'] | [b'}', b' ', b'(', ..] | [b')', ..] => (None, text),
        [b'}', b' ', b'/', b'*', b' ', named @ .., b'*', b'/'] => (Some(name(named)?.0), text),
        _ => {
            let (name, tail) = name(text)?;
            (Some(name), tail.strip_prefix(b"(")?)
        }
    };
    let is_return = text.starts_with(b"}");
    let faulty = |fault| Err(Line::Faulty(fault, name.filter(|_| !is_return)));
    Some(match (name, duration.transpose()) {
        (_, Err(fault)) => faulty(fault),
        (Some(name), Ok(Some(ns))) if !is_return && tail.contains(&b';') => {
            Ok(Row::Leaf { name, ns })
        }
        (_, Ok(Some(_))) if !is_return => Err(Line::Faulty(NO_FUNCTION, None)),
        (_, Ok(None)) if is_return || !tail.contains(&b'{') => faulty(NO_NUMBER),
        (_, Ok(ns)) => match (owner(), ns) {
            (None, _) => faulty(NO_TASK),
            (Some(owner), Some(ns)) => Ok(Row::Exit { name, depth, ns, owner }),
            (Some(owner), None) => Ok(Row::Enter { name, depth, owner }),
        },
    })
}

/// Splits `text` after the function's name, and its module if there is one.
fn name(text: &[u8]) -> Option<(&str, &[u8])> {
    let mut end = symbol_len(text);
    if let [b' ', b'[', module @ ..] = &text[end..] {
        let length = symbol_len(module);
        if length > 0 && module.get(length) == Some(&b']') {
            end += length + 3;
        }
    }
    let (name, rest) = text.split_at(end);
    let name = str::from_utf8(name).ok()?;
    (1..=MAX_NAME).contains(&end).then_some((name, rest))
}

fn symbol_len(text: &[u8]) -> usize {
    text.iter().position(|&byte| ends_a_name(byte)).unwrap_or(text.len())
}

/// Whether a byte ends a symbol in a trace, or does not print.
fn ends_a_name(byte: u8) -> bool {
    !byte.is_ascii_graphic()
        || matches!(
            byte,
            b'(' | b')' | b'{' | b'}' | b'[' | b']' | b';' | b',' | b'|' | b'/' | b'"' | b'`'
        )
}

/// The nanoseconds of `[MARK] NUMBER us`, where the mark is the tracer's for long calls; `None` if there is only blank.
fn duration(column: &[u8]) -> Option<Result<u64, Fault>> {
    let (mut number, mut rest) = first_word(column);
    if matches!(number, [b'+' | b'!' | b'#' | b'*' | b'@' | b'$']) {
        (number, rest) = first_word(rest);
    }
    if number.is_empty() {
        return None;
    }
    if rest.trim_ascii() != b"us" {
        return Some(Err(NO_UNIT));
    }
    let is_comma =
        number.contains(&b',') && number.iter().all(|b| matches!(b, b'0'..=b'9' | b'.' | b','));
    Some(scaled(number, 1_000).ok_or(if is_comma { COMMA } else { NO_NUMBER }))
}

/// A time like `6020.687057`, in nanoseconds. Clocks that count something else have no point.
fn seconds(text: &[u8]) -> Option<u64> {
    text.contains(&b'.').then(|| scaled(text, 1_000_000_000)).flatten()
}

/// A decimal number times `scale`, a power of ten; `None` if that is not a whole number below 2^64.
fn scaled(number: &[u8], scale: u64) -> Option<u64> {
    let point = number.iter().position(|&byte| byte == b'.');
    let (whole, fraction) =
        point.map_or((number, &b"0"[..]), |at| (&number[..at], &number[at + 1..]));
    let mut value = decimal(whole)?.checked_mul(scale)?;
    let mut unit = scale;
    for digit in fraction {
        unit /= 10;
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        if unit == 0 && digit > 0 {
            return None;
        }
        value = value.checked_add(digit * unit)?;
    }
    (!fraction.is_empty()).then_some(value)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let value = digits.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    });
    value.filter(|_| !digits.is_empty())
}

/// The owner in `[file:] comm-pid [cpu] flags`, or the latency format's `comm-pid cpuflags`.
fn task(head: &[u8]) -> Option<Owner> {
    let (mut rest, mut place) = last_word(head);
    if !matches!(place, [b'[' | b'0'..=b'9', ..]) {
        (rest, place) = last_word(rest);
    }
    let place = place.strip_prefix(b"[").unwrap_or(place);
    let cpu = &place[..place.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    let mut rest = rest.trim_ascii_end();
    // The thread group, of ftrace's option `record-tgid`.
    if rest.ends_with(b")") {
        rest = rest[..memchr::memrchr(b'(', rest)?].trim_ascii_end();
    }
    let pid = &rest[memchr::memrchr(b'-', rest)? + 1..];
    let cpu = if decimal(pid)? == 0 { decimal(cpu).map(|_| cpu)? } else { b"" };
    // A command's own name may end in a colon, too, and then does so in all its lines.
    let file = Some(first_word(head).0).filter(|word| word.ends_with(b":")).unwrap_or_default();
    Some(Owner::Task([file, pid, b" ", cpu].concat()))
}

/// The first word, and what stands behind it.
fn first_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    text.split_at(memchr::memchr(b' ', text).unwrap_or(text.len()))
}

/// What stands before the last word, and that.
fn last_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_end();
    text.split_at(memchr::memrchr(b' ', text).map_or(0, |space| space + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a line says, without its time.
    fn untimed(line: &str) -> Line<'_> {
        match parse(line.as_bytes()) {
            Line::Row(row, _, by) => Line::Row(row, None, by),
            other => other,
        }
    }

    fn task_of(pid: u32) -> Owner {
        Owner::Task(format!("{pid} ").into_bytes())
    }

    fn leaf<'a>(name: &'a str, ns: u64, by: &'static str) -> Line<'a> {
        Line::Row(Row::Leaf { name, ns }, None, by)
    }

    fn enter<'a>(name: &'a str, depth: usize, owner: Owner, by: &'static str) -> Line<'a> {
        Line::Row(Row::Enter { name: Some(name), depth, owner }, None, by)
    }

    fn exit<'a>(
        name: Option<&'a str>,
        depth: usize,
        ns: u64,
        owner: Owner,
        by: &'static str,
    ) -> Line<'a> {
        Line::Row(Row::Exit { name, depth, ns, owner }, None, by)
    }

    fn faulty<'a>(fault: Fault, name: Option<&'a str>) -> Line<'a> {
        Line::Faulty(fault, name)
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of lines")]
    fn lines_of_trace_cmd() {
        const T: &str = TRACE_CMD;
        let table = [
            (
                " <...>-133788 [001]  6020.687057: funcgraph_entry:        0.367 us   |  bind_entry();",
                leaf("bind_entry", 367, T),
            ),
            (
                "  bash-12 [001]  6020.687057123: funcgraph_entry:      + 10.001 us  |  f();",
                leaf("f", 10_001, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:      ! 100.5 us |      f(a=1, b={2}); (2) (ret=0x0)",
                leaf("f", 100_500, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:      # 1000000.1 us |  f();\r",
                leaf("f", 1_000_000_100, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:      $ 12345678 us |  f();",
                leaf("f", 12_345_678_000, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:      @ 1.5 s |  f();",
                faulty(NO_UNIT, Some("f")),
            ),
            (
                "  bash-12 [001]  6020.1: fgraph_retaddr_entry:   0.1 us |  f(); /* <-g */",
                leaf("f", 100, T),
            ),
            (
                "  a|b [x]: y-12 [001]  6020.1: funcgraph_entry:   0.1 us |  f.isra.0();",
                leaf("f.isra.0", 100, T),
            ),
            ("  bash-12    3d..1  6020.1: funcgraph_entry:   0.1 us |  f();", leaf("f", 100, T)),
            (
                "  \u{e9}\u{3042}-12 [001] .... 6020.1: funcgraph_entry:        |  f() {",
                enter("f", 0, task_of(12), T),
            ),
            (
                "  a b [0] c-12 [001] d..1. 6020.1: (+13)   funcgraph_entry:        |      f() {",
                enter("f", 2, task_of(12), T),
            ),
            (
                "    bash-12    3d..1  6020.1: funcgraph_entry:              |    f() /* <-g */ {",
                enter("f", 1, task_of(12), T),
            ),
            (
                "  <idle>-0     [007]  6020.1: funcgraph_entry:              |  f() {",
                enter("f", 0, Owner::Task(b"0 007".to_vec()), T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:              |  ) {",
                Line::Row(Row::Enter { name: None, depth: 0, owner: task_of(9) }, None, T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_exit:    ! 120.004 us |  }",
                exit(None, 0, 120_004, task_of(9), T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_exit:      0.004 us |    } /* f */",
                exit(Some("f"), 1, 4, task_of(9), T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_exit:      0.004 us |    } (1) (ret=0x0)",
                exit(None, 1, 4, task_of(9), T),
            ),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0,367 us |  f();", faulty(COMMA, Some("f"))),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   1.234,5 us |  f();",
                faulty(COMMA, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   0.3.4 us |  f();",
                faulty(NO_NUMBER, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   nan us |  f();",
                faulty(NO_NUMBER, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   -1.5 us |  f();",
                faulty(NO_NUMBER, Some("f")),
            ),
            ("  x-9 [007]  6020.1: funcgraph_entry:   1. us |  f();", faulty(NO_NUMBER, Some("f"))),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   99999999999999999999 us |  f();",
                faulty(NO_NUMBER, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   0.0000001 us |  f();",
                faulty(NO_NUMBER, Some("f")),
            ),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3000000 us |  f();", leaf("f", 300, T)),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   18446744073710,5 us |  f();",
                faulty(COMMA, Some("f")),
            ),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3 h |  f();", faulty(NO_UNIT, Some("f"))),
            ("  x-9 [007]  6020.1: bprint:   f: text | 0.3 us |  f();", Line::Other),
            ("  x-9 [007]  6020.1: (+13) bprint:   f: 3) 0.3 us |  f();", Line::Other),
            (
                "  x-9 [007]  6020.1: bprint:   y-9 [007] 1.0: funcgraph_entry: 0.3 us |  f();",
                Line::Other,
            ),
            ("  x-9 [007]  6020.1: print:   funcgraph_entry: 0.3 us |  f();", Line::Other),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:            |  f();",
                faulty(NO_NUMBER, Some("f")),
            ),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3 us |  f", faulty(NO_FUNCTION, None)),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3 us |  f(", faulty(NO_FUNCTION, None)),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3", faulty(NO_FUNCTION, None)),
            ("  x-9 [007]  6020.1: funcgraph_exit:   0.3 us |  } /* f", faulty(NO_FUNCTION, None)),
            ("  x-9  6020.1: funcgraph_exit:   0.3 us |  }", faulty(NO_TASK, None)),
            ("  x-9 [007]  6020.1: sys_enter: funcgraph_entry", Line::Other),
        ];
        for (text, expected) in table {
            assert_eq!(untimed(text), expected, "{text}");
        }
    }

    #[test]
    fn lines_of_ftrace() {
        const F: &str = KERNEL;
        let table = [
            (" 0)   0.367 us    |  f();", leaf("f", 367, F)),
            (" 11) + 12.367 us   |    f [hids_driver]();", leaf("f [hids_driver]", 12_367, F)),
            (" 0)   0.1 us    |  f(); /* <-g+0x1/0x2 ret=0x0 */", leaf("f", 100, F)),
            ("   0.367 us    |  f();", leaf("f", 367, F)),
            ("  6020.687057 |   0)   bash-12    |   0.3 us    |  f();", leaf("f", 300, F)),
            ("      123 us |   0)   0.3 us    |  f();", leaf("f", 300, F)),
            (" 0)   bash-12    |  d..1. |   0.3 us    |  f();", leaf("f", 300, F)),
            ("    a | b-12 [000] d..1. 6020.1:   0.3 us    |  f();", leaf("f", 300, F)),
            (" 3)               |  f() {", enter("f", 0, Owner::Cpu(3), F)),
            (" 3)               |    f [m]() { /* <-g */", enter("f [m]", 1, Owner::Cpu(3), F)),
            (
                "  6020.687057 |   5)   bash-12    |               |  f() {",
                enter("f", 0, Owner::Cpu(5), F),
            ),
            (
                " bash-12 (  12) [004] d..1. 6020.1:                |  f() {",
                enter("f", 0, task_of(12), F),
            ),
            (" 3) ! 123.400 us  |  }", exit(None, 0, 123_400, Owner::Cpu(3), F)),
            (
                " 3)   3.400 us    |    } /* f [m] */",
                exit(Some("f [m]"), 1, 3_400, Owner::Cpu(3), F),
            ),
            (
                " 3)   3.400 us    |    } /* f ret=0x0 */",
                exit(Some("f"), 1, 3_400, Owner::Cpu(3), F),
            ),
            (" 3)   0.4 \u{b5}s    |  f();", faulty(NO_UNIT, Some("f"))),
            (" 3)   0.4 h    |  f();", faulty(NO_UNIT, Some("f"))),
            (" 3)   0.4us    |  f();", faulty(NO_UNIT, Some("f"))),
            (" 3) + 12.4 h    |  }", faulty(NO_UNIT, None)),
            ("   0.4 h    |  f();", faulty(NO_UNIT, Some("f"))),
            (" x-9 [007] d..1. 6020.1: bprint: f: text | 0.3 us |  f();", Line::Other),
            (" 3)               |  /* printed | text */", Line::Other),
            (" 3)   ==========> |", Line::Other),
            (" 3)   0,4 us    |  f();", faulty(COMMA, Some("f"))),
            (" 3)   0.4 us    |  f", faulty(NO_FUNCTION, None)),
            (" 3)   0.4 us", faulty(NO_FUNCTION, None)),
            ("# tracer: function_graph", Line::Other),
            ("# |     |   |                     |   |   |   |", Line::Other),
            (" 1)  migration/0--1  =>  sshd-1755", Line::Other),
            (" ------------------------------------------", Line::Other),
            ("", Line::Other),
            ("| f() {", Line::Other),
            ("a table | 5 us | wide", Line::Other),
        ];
        for (text, expected) in table {
            assert_eq!(untimed(text), expected, "{text}");
        }
    }

    #[test]
    fn lines_around() {
        let table = [
            ("cpus=8", Line::Cpus(8)),
            ("cpus=many", Line::Other),
            ("CPU:3 [LOST 17 EVENTS]", Line::Lost(Some(17))),
            ("CPU:3 [LOST EVENTS]", Line::Lost(None)),
            ("CPU:3 [17 EVENTS DROPPED]", Line::Lost(Some(17))),
            ("CPU:3 [EVENTS DROPPED]", Line::Lost(None)),
            ("CPU:3 [SUBBUFFER START]", Line::Other),
            ("CPU: [LOST 1 EVENTS]", Line::Other),
            ("CPU 3 is empty", Line::Other),
            (
                "# entries-in-buffer/entries-written: 140080/250280   #P:4",
                Line::Lost(Some(110_200)),
            ),
            ("# entries-in-buffer/entries-written: 5/5   #P:4", Line::Other),
        ];
        for (text, expected) in table {
            assert_eq!(untimed(text), expected, "{text}");
        }
    }

    #[test]
    fn a_row_has_its_time() {
        let time = |line: &str| match parse(line.as_bytes()) {
            Line::Row(_, time_ns, _) => time_ns,
            other => panic!("{other:?}"),
        };
        let event = |time: &str| format!("  x-9 [007]  {time}: funcgraph_entry:   0.3 us |  f();");
        assert_eq!(time(&event("6020.687057")), Some(6_020_687_057_000));
        assert_eq!(time(&event("6020.687057123")), Some(6_020_687_057_123));
        assert_eq!(time(&event("602068705")), None, "a clock of another unit");
        assert_eq!(time(&event("99999999999.5")), None);
        assert_eq!(
            time("  6020.5 |   0)   bash-12    |   0.3 us    |  f();"),
            Some(6_020_500_000_000)
        );
        assert_eq!(time(" b-12 [000] d..1. 6020.5:   0.3 us    |  f();"), Some(6_020_500_000_000));
        assert_eq!(time(" 0)   0.3 us    |  f();"), None);
    }

    #[test]
    fn the_file_that_a_line_is_from_tells_tasks_of_one_pid_apart() {
        let owner = |line: &str| match parse(line.as_bytes()) {
            Line::Row(Row::Enter { owner, .. }, ..) => owner,
            other => panic!("{other:?}"),
        };
        let lines =
            ["  x.dat: a-9 [0] 1.0: ", " long.dat: b-9 [0] 1.0: ", "           c-9 [0] 1.0: "]
                .map(|head| owner(&format!("{head}funcgraph_entry:         |  f() {{")));
        assert_eq!(lines[2], task_of(9));
        assert!(lines[0] != lines[1] && lines[0] != lines[2] && lines[1] != lines[2]);
        let renamed = owner("  x.dat: other-9 [1] 2.0: funcgraph_entry:         |  f() {");
        assert_eq!(renamed, lines[0], "a task's name may change meanwhile");
    }

    #[test]
    fn a_name_has_the_kernels_length() {
        let line = |length: usize| format!(" 0)   0.1 us    |  {}();", "f".repeat(length));
        assert!(matches!(parse(line(MAX_NAME).as_bytes()), Line::Row(..)));
        assert_eq!(parse(line(MAX_NAME + 1).as_bytes()), faulty(NO_FUNCTION, None));
    }

    proptest! {
        #[test]
        fn any_bytes(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }

        #[test]
        fn any_pieces(pieces in prop::collection::vec(prop::sample::select(vec![
            " ", "   ", "          ", "|", "us", " us ", "ms", "s", "0.1", "12", ",", ".", "f", "();", "()", " {", "}",
            "/*", "*/", "/* ", "funcgraph_entry:", "funcgraph_exit:", "[001]", "[", "]", "(", ")", "-", "comm-12",
            "6020.1:", "3d..1", "+", "!", "CPU:", "1 [LOST ", "5", " EVENTS]", "cpus=", "\r", "(+", "graph_", ":",
        ]), 0..16)) {
            let _ = parse(pieces.concat().as_bytes());
        }

        #[test]
        fn any_duration(us in 0..10_000_000_u64, ns in 0..1000_u64, gap in 1..30_usize) {
            let line = format!(" 1.0: funcgraph_entry:{:gap$}{us}.{ns:03} us    |  f();", "");
            prop_assert_eq!(untimed(&line), leaf("f", us * 1000 + ns, TRACE_CMD));
        }
    }
}
