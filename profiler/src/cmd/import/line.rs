//! Parses one line of function_graph text: a pure function of its bytes.
//!
//! The columns are those of `print_graph_duration` and its neighbours in the kernel's kernel/trace/trace_functions_graph.c,
//! and of lib/trace-cmd/trace-ftrace.c, which prints the same after `comm-pid [cpu] time: funcgraph_entry:`. What stands
//! before the time may be anything: a command's name may have spaces, brackets, colons and bars in it.

use memchr::{memchr, memchr_iter, memrchr};

/// Longest function name with its module: the kernel's own limit (`KSYM_NAME_LEN`).
const MAX_NAME: usize = 512;
/// Longest file and pid of a task: there may be thousands of tasks.
const MAX_OWNER: usize = 1024;
/// Bars that are tried as the one before the function; the kernel's text has up to four before it.
const MAX_BARS: usize = 8;
/// Fewest spaces that mean "no duration" in the kernel's text.
const BLANK_DURATION: usize = 10;
/// Events of function_graph in trace-cmd's text, with their colon.
const EVENTS: [&[u8]; 3] = [b"funcgraph_entry:", b"funcgraph_exit:", b"fgraph_retaddr_entry:"];

/// Whose call stack a nested call is on: a task's, by its pid and the CPU of idle tasks, which all have pid 0; before the pid
/// stands the file or buffer instance that the line is from (`trace-cmd report -i A -i B`), as two machines have tasks of one
/// pid. In the kernel's text without a task, whatever runs on a CPU: it names the function of a return wherever that is not the
/// last call of that depth on that CPU, so this is exact.
pub(super) type Owner = (Vec<u8>, u64);

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

/// A function_graph line that cannot be used, and the function of a call if at least that can be read.
pub(super) type Faulty<'a> = (Fault, Option<&'a str>);

/// A call that made no traced call, or one end of another one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Row<'a> {
    /// Who printed it.
    pub(super) by: &'static str,
    /// In nanoseconds of the trace's clock.
    pub(super) time_ns: Option<u64>,
    /// The function with its module. Most returns have none, and trace-cmd leaves out what it cannot resolve.
    pub(super) name: Option<&'a str>,
    /// How long the call took; `None` if its return is on a later line.
    pub(super) ns: Option<u64>,
    /// Whether its entry was on an earlier line.
    pub(super) is_return: bool,
    /// The number of calls around it.
    pub(super) depth: usize,
    /// Of one end of a call; else of nobody.
    pub(super) owner: Owner,
}

/// Records that the tracer has lost before a line that says so; 0 if it does not know how many.
pub(super) fn lost_records(line: &[u8]) -> Option<u64> {
    if !matches!(line, [b'C' | b'#', ..]) {
        return None;
    }
    let text = str::from_utf8(line).ok()?.trim_end();
    if let Some(counts) = text.strip_prefix("# entries-in-buffer/entries-written: ") {
        let (kept, written) = counts.split_once(' ')?.0.split_once('/')?;
        let lost = written.parse::<u64>().ok()?.checked_sub(kept.parse().ok()?);
        return lost.filter(|lost| *lost > 0);
    }
    let (cpu, what) = text.strip_prefix("CPU:")?.strip_suffix(']')?.split_once(" [")?;
    cpu.parse::<u32>().ok()?;
    // The kernel writes LOST 17 EVENTS, trace-cmd 17 EVENTS DROPPED; both without a number where they know none.
    let is_loss =
        what.ends_with("EVENTS") && what.starts_with("LOST ") || what.ends_with("EVENTS DROPPED");
    is_loss.then(|| what.split(' ').find_map(|word| word.parse().ok()).unwrap_or_default())
}

/// Parses one line, with or without its end. Headers, comments and other events are no row.
///
/// The columns are `DURATION | FUNCTION` in trace-cmd's text, `TIME | CPU) TASK | FLAGS | DURATION | FUNCTION` in the kernel's, of
/// which only the last two are always there. The function's bar is the first with the text of a function behind it.
pub(super) fn parse(line: &[u8]) -> Result<Option<Row<'_>>, Faulty<'_>> {
    let line = line.trim_ascii_end();
    let event = event(line);
    let (by, body, mut time_ns) = match &event {
        Some(event) if EVENTS.contains(&event.name) => (TRACE_CMD, event.body, seconds(event.time)),
        Some(event) if event.name.is_empty() => (KERNEL, event.body, seconds(event.time)),
        // What another event prints may look like a row.
        Some(_) => return Ok(None),
        None => (KERNEL, line, None),
    };
    let (mut cpu, mut has_duration, mut from) = (None, false, 0);
    for bar in memchr_iter(b'|', body).take(MAX_BARS).chain([body.len()]) {
        let mut column = &body[from..bar];
        from = (bar + 1).min(body.len());
        let (word, rest) = first_word(column);
        if let Some(number) = word.strip_suffix(b")").and_then(|digits| scaled(digits, 0)) {
            (cpu, column) = (cpu.or(Some(number)), rest);
        }
        time_ns = time_ns.or_else(|| seconds(column.trim_ascii()));
        let duration = duration(column);
        has_duration |= matches!(duration, Ok(Some(_)));
        let is_duration = match duration {
            _ if by == TRACE_CMD => true,
            Ok(None) => column.len() >= BLANK_DURATION,
            Ok(Some(_)) => true,
            Err(_) => cpu.is_some() || word.first().is_some_and(u8::is_ascii_digit),
        };
        let text = body[from..].trim_ascii_start();
        if is_duration && text.starts_with(b"/*") {
            return Ok(None);
        }
        let Some(function) = function(text).filter(|_| is_duration) else { continue };
        let depth = (body.len() - from - text.len()).saturating_sub(2) / 2;
        let owner = || match &event {
            Some(event) => task(event.head),
            None => Some((Vec::new(), cpu.unwrap_or(0))),
        };
        let row = row(duration, function, text.starts_with(b"}"), owner)?;
        return Ok(Some(Row { by, time_ns, depth, ..row }));
    }
    match by == TRACE_CMD || cpu.is_some() && has_duration {
        true => Err((NO_FUNCTION, None)),
        false => Ok(None),
    }
}

/// A line of an event.
struct Event<'a> {
    /// What stands before the time: task, CPU and flags.
    head: &'a [u8],
    time: &'a [u8],
    /// With its colon; empty in the kernel's own text.
    name: &'a [u8],
    body: &'a [u8],
}

/// Parts a line at the first time with an event's name behind it, or else at the last time.
fn event(line: &[u8]) -> Option<Event<'_>> {
    let mut last = None;
    for colon in memchr_iter(b':', line) {
        let (head, time) = last_word(&line[..colon]);
        let (name, body) = first_word(&line[colon + 1..]);
        let is_time = matches!(time, [b'0'..=b'9', ..])
            && time.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'.'));
        match name {
            _ if !is_time => {}
            [_, .., b':'] => return Some(Event { head, time, name, body }),
            _ => last = Some(Event { head, time, name: b"", body: &line[colon + 1..] }),
        }
    }
    last
}

/// The name in the text behind the bar, if it has one, and what follows; `None` if that is not a function's text.
fn function(text: &[u8]) -> Option<(Option<&str>, &[u8])> {
    Some(match text {
        [b'}'] | [b'}', b' ', b'(', ..] | [b')', ..] => (None, text),
        [b'}', b' ', b'/', b'*', b' ', named @ .., b'*', b'/'] => (Some(name(named)?.0), text),
        _ => {
            let (name, tail) = name(text)?;
            (Some(name), tail.strip_prefix(b"(")?)
        }
    })
}

/// What a duration, blank or not, says with a function's text behind it.
fn row<'a>(
    duration: Result<Option<u64>, Fault>,
    (name, tail): (Option<&'a str>, &[u8]),
    is_return: bool,
    owner: impl FnOnce() -> Option<Owner>,
) -> Result<Row<'a>, Faulty<'a>> {
    let of_call = name.filter(|_| !is_return);
    let ns = duration.map_err(|fault| (fault, of_call))?;
    let owner = match ns {
        Some(_) if !is_return && name.is_some() && tail.contains(&b';') => Some(Owner::default()),
        Some(_) if !is_return => return Err((NO_FUNCTION, None)),
        None if is_return || !tail.contains(&b'{') => return Err((NO_NUMBER, of_call)),
        _ => owner(),
    };
    let owner = owner.ok_or((NO_TASK, of_call))?;
    Ok(Row { name, ns, is_return, owner, ..Row::default() })
}

/// Splits `text` after the function's name, and its module if there is one.
fn name(text: &[u8]) -> Option<(&str, &[u8])> {
    let mut end = text.iter().position(ends_a_symbol).unwrap_or(text.len());
    if let Some(module) = text[end..].strip_prefix(b" [") {
        let length = module.iter().position(ends_a_symbol)?;
        end += if length > 0 && module[length] == b']' { length + 3 } else { 0 };
    }
    let name = str::from_utf8(&text[..end]).ok()?;
    (1..=MAX_NAME).contains(&end).then_some((name, &text[end..]))
}

/// Whether a byte ends a symbol in a trace, or does not print.
fn ends_a_symbol(byte: &u8) -> bool {
    !byte.is_ascii_graphic()
        || matches!(
            byte,
            b'(' | b')' | b'{'..=b'}' | b'[' | b']' | b';' | b',' | b'/' | b'"' | b'`'
        )
}

/// The nanoseconds of `[MARK] NUMBER us`, where the mark is the tracer's for long calls; `None` if there is only blank.
fn duration(column: &[u8]) -> Result<Option<u64>, Fault> {
    let (mut number, mut unit) = first_word(column);
    if matches!(number, [b'+' | b'!' | b'#' | b'*' | b'@' | b'$']) {
        (number, unit) = first_word(unit);
    }
    if number.is_empty() {
        return Ok(None);
    }
    if unit.trim_ascii() != b"us" {
        return Err(NO_UNIT);
    }
    let is_comma =
        number.contains(&b',') && number.iter().all(|b| matches!(b, b'0'..=b'9' | b'.' | b','));
    scaled(number, 3).map(Some).ok_or(if is_comma { COMMA } else { NO_NUMBER })
}

/// A time like `6020.687057`, in nanoseconds. Clocks that count something else have no point.
fn seconds(text: &[u8]) -> Option<u64> {
    text.contains(&b'.').then(|| scaled(text, 9)).flatten()
}

/// A number with up to so many decimals that are not zero, without its point; `None` if it is not below 2^64.
fn scaled(number: &[u8], decimals: u32) -> Option<u64> {
    let (mut value, mut left) = (0_u64, None);
    for byte in number {
        match byte {
            b'.' if left.is_none() && decimals > 0 => left = Some(decimals),
            b'0' if left == Some(0) => {}
            b'0'..=b'9' if left != Some(0) => {
                value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                left = left.map(|left| left - 1);
            }
            _ => return None,
        }
    }
    let ends = [number.first()?, number.last()?];
    let value = value.checked_mul(10_u64.pow(left.unwrap_or(decimals)));
    value.filter(|_| ends.iter().all(|byte| byte.is_ascii_digit()))
}

/// The owner in `[file:] comm-pid [cpu] flags`, or the latency format's `comm-pid cpuflags`.
fn task(head: &[u8]) -> Option<Owner> {
    let (mut rest, mut place) = last_word(head);
    if !matches!(place, [b'[' | b'0'..=b'9', ..]) {
        (rest, place) = last_word(rest);
    }
    rest = rest.trim_ascii_end();
    // The thread group, of ftrace's option `record-tgid`.
    if rest.ends_with(b")") {
        rest = rest[..memrchr(b'(', rest)?].trim_ascii_end();
    }
    let pid = &rest[memrchr(b'-', rest)? + 1..];
    let mut cpu = 0;
    if scaled(pid, 0)? == 0 {
        let place = place.strip_prefix(b"[").unwrap_or(place);
        let digits = place.iter().take_while(|byte| byte.is_ascii_digit()).count();
        cpu = scaled(&place[..digits], 0)?;
    }
    // A command's own name may end in a colon, too, and then does so in all its lines.
    let file = Some(first_word(head).0).filter(|word| word.ends_with(b":")).unwrap_or_default();
    (file.len() + pid.len() <= MAX_OWNER).then(|| ([file, pid].concat(), cpu))
}

/// The first word, and what stands behind it.
fn first_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    text.split_at(memchr(b' ', text).unwrap_or(text.len()))
}

/// What stands before the last word, and that.
fn last_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_end();
    text.split_at(memrchr(b' ', text).map_or(0, |space| space + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Said<'a> = Result<Option<Row<'a>>, Faulty<'a>>;

    /// What a line says, without its time, and of a call in one line without its depth.
    fn untimed(line: &str) -> Said<'_> {
        let row = parse(line.as_bytes())?;
        Ok(row.map(|row| {
            let depth = if row.ns.is_none() || row.is_return { row.depth } else { 0 };
            Row { time_ns: None, depth, ..row }
        }))
    }

    const OTHER: Said<'_> = Ok(None);

    fn task_of(pid: u32) -> Owner {
        (pid.to_string().into_bytes(), 0)
    }

    fn cpu(cpu: u64) -> Owner {
        (Vec::new(), cpu)
    }

    fn leaf<'a>(name: &'a str, ns: u64, by: &'static str) -> Said<'a> {
        Ok(Some(Row { name: Some(name), ns: Some(ns), by, ..Row::default() }))
    }

    fn enter<'a>(name: &'a str, depth: usize, owner: Owner, by: &'static str) -> Said<'a> {
        Ok(Some(Row { name: Some(name), depth, owner, by, ..Row::default() }))
    }

    fn exit<'a>(
        name: Option<&'a str>,
        depth: usize,
        ns: u64,
        owner: Owner,
        by: &'static str,
    ) -> Said<'a> {
        let ns = Some(ns);
        Ok(Some(Row { name, depth, ns, owner, by, is_return: true, ..Row::default() }))
    }

    fn faulty<'a>(fault: Fault, name: Option<&'a str>) -> Said<'a> {
        Err((fault, name))
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
                "  a b [0] c-12 [001] d..1. 6020.1:   funcgraph_entry:        |      f() {",
                enter("f", 2, task_of(12), T),
            ),
            (
                "    bash-12    3d..1  6020.1: funcgraph_entry:              |    f() /* <-g */ {",
                enter("f", 1, task_of(12), T),
            ),
            (
                "  <idle>-0     [007]  6020.1: funcgraph_entry:              |  f() {",
                enter("f", 0, (b"0".to_vec(), 7), T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:              |  ) {",
                Ok(Some(Row { owner: task_of(9), by: T, ..Row::default() })),
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
            ("  x-9 [007]  6020.1: bprint:   f: text | 0.3 us |  f();", OTHER),
            (
                "  x-9 [007]  6020.1: bprint:   y-9 [007] 1.0: funcgraph_entry: 0.3 us |  f();",
                OTHER,
            ),
            ("  x-9 [007]  6020.1: print:   funcgraph_entry: 0.3 us |  f();", OTHER),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:            |  f();",
                faulty(NO_NUMBER, Some("f")),
            ),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3 us |  f", faulty(NO_FUNCTION, None)),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3 us |  f(", faulty(NO_FUNCTION, None)),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3", faulty(NO_FUNCTION, None)),
            ("  x-9 [007]  6020.1: funcgraph_exit:   0.3 us |  } /* f", faulty(NO_FUNCTION, None)),
            ("  x-9  6020.1: funcgraph_exit:   0.3 us |  }", faulty(NO_TASK, None)),
            ("  x-9 [007]  6020.1: sys_enter: funcgraph_entry", OTHER),
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
            (
                " bash-12 (  12) [004] d..1. 6020.1:                |  f() {",
                enter("f", 0, task_of(12), F),
            ),
            (" 3)               |  f() {", enter("f", 0, cpu(3), F)),
            (" 3)               |    f [m]() { /* <-g */", enter("f [m]", 1, cpu(3), F)),
            (
                "  6020.687057 |   5)   bash-12    |               |  f() {",
                enter("f", 0, cpu(5), F),
            ),
            (" 3) ! 123.400 us  |  }", exit(None, 0, 123_400, cpu(3), F)),
            (" 3)   3.400 us    |    } /* f [m] */", exit(Some("f [m]"), 1, 3_400, cpu(3), F)),
            (" 3)   3.400 us    |    } /* f ret=0x0 */", exit(Some("f"), 1, 3_400, cpu(3), F)),
            (" 3)   0.4 \u{b5}s    |  f();", faulty(NO_UNIT, Some("f"))),
            (" 3)   0.4 h    |  f();", faulty(NO_UNIT, Some("f"))),
            (" 3)   0.4us    |  f();", faulty(NO_UNIT, Some("f"))),
            (" 3) + 12.4 h    |  }", faulty(NO_UNIT, None)),
            ("   0.4 h    |  f();", faulty(NO_UNIT, Some("f"))),
            (" x-9 [007] d..1. 6020.1: bprint: f: text | 0.3 us |  f();", OTHER),
            (" 3)               |  /* printed | text */", OTHER),
            (" 3)   ==========> |", OTHER),
            (" 3)   0,4 us    |  f();", faulty(COMMA, Some("f"))),
            (" 3)   0.4 us    |  f", faulty(NO_FUNCTION, None)),
            (" 3)   0.4 us", faulty(NO_FUNCTION, None)),
            ("# tracer: function_graph", OTHER),
            ("# |     |   |                     |   |   |   |", OTHER),
            (" 1)  migration/0--1  =>  sshd-1755", OTHER),
            (" ------------------------------------------", OTHER),
            ("", OTHER),
            ("| f() {", OTHER),
            ("a table | 5 us | wide", OTHER),
        ];
        for (text, expected) in table {
            assert_eq!(untimed(text), expected, "{text}");
        }
    }

    #[test]
    fn lines_of_losses() {
        let table = [
            ("CPU:3 [LOST 17 EVENTS]\n", Some(17)),
            ("CPU:3 [LOST EVENTS]", Some(0)),
            ("CPU:3 [17 EVENTS DROPPED]", Some(17)),
            ("CPU:3 [EVENTS DROPPED]", Some(0)),
            ("CPU: [LOST 1 EVENTS]", None),
            ("CPU:3 [SUBBUFFER START]", None),
            ("CPU 3 is empty", None),
            ("# entries-in-buffer/entries-written: 140080/250280   #P:4", Some(110_200)),
            ("# entries-in-buffer/entries-written: 5/5   #P:4", None),
        ];
        for (text, expected) in table {
            assert_eq!(lost_records(text.as_bytes()), expected, "{text}");
            assert_eq!(untimed(text), OTHER, "{text}");
        }
    }

    #[test]
    fn a_row_has_its_time() {
        let time = |line: &str| parse(line.as_bytes()).unwrap().unwrap().time_ns;
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
        let owner = |line: &str| parse(line.as_bytes()).unwrap().unwrap().owner;
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
        assert!(matches!(parse(line(MAX_NAME).as_bytes()), Ok(Some(_))));
        assert_eq!(untimed(&line(MAX_NAME + 1)), faulty(NO_FUNCTION, None));
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
