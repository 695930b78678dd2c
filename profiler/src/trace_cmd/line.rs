//! Parses one line of function_graph text: a pure function of its bytes.
//!
//! The columns are those of `print_graph_duration` and its neighbours in the kernel's
//! kernel/trace/trace_functions_graph.c (raw ftrace), and of lib/trace-cmd/trace-ftrace.c, which
//! prints the same after `comm-pid [cpu] time: funcgraph_entry:`. A line is parsed backwards from
//! the bar before the function, because the text before the duration may be anything: a command's
//! name may have spaces, brackets, colons and bars in it.

use std::hash::{DefaultHasher, Hasher as _};

use memchr::{memchr, memchr_iter, memmem, memrchr};

use super::names::{MAX_NAME, Recent};

/// Bars that are tried as the one before the function; raw text has up to four before it.
const MAX_BARS: usize = 8;
/// Fewest spaces that mean "no duration" in raw text.
const BLANK_DURATION: usize = 10;
/// Eight spaces.
const SPACES: u64 = u64::from_le_bytes([b' '; 8]);
/// Overhead marks: 10 us, 100 us, 1 ms, 10 ms, 100 ms and 1 s.
pub(super) const MARKS: &[u8] = b"+!#*@$";

/// Powers of ten from 1 to the picoseconds of a second.
const POWERS: [u64; 13] = {
    let mut powers = [1; 13];
    let mut exponent = 1;
    while exponent < powers.len() {
        powers[exponent] = powers[exponent - 1] * 10;
        exponent += 1;
    }
    powers
};

/// Whose call stack a nested call is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A task, by its pid.
    Task {
        /// What stands before its name, as a [`file`]'s hash: `trace-cmd report -i A -i B` writes the file there, or the buffer
        /// instance, and two machines have tasks of one pid.
        file: u64,
        /// Its pid.
        pid: u32,
    },
    /// The idle task of a CPU: all of them are pid 0.
    Idle {
        /// As of a task.
        file: u64,
        /// The CPU.
        cpu: u32,
    },
    /// Whatever runs on a CPU. Raw ftrace text names the function of a return wherever it is not
    /// that of the last call of that depth on that CPU, so this is exact there.
    Cpu(u32),
}

/// What printed a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `trace-cmd report`.
    TraceCmd,
    /// The kernel's `trace` or `trace_pipe`.
    Ftrace,
}

/// Why a function_graph line cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The duration is written with a decimal comma.
    Comma,
    /// The duration is not a number.
    Duration,
    /// The unit is not one of s, ms, us and ns.
    Unit,
    /// The task and CPU of a nested call cannot be parsed.
    Task,
    /// The function cannot be parsed.
    Function,
}

impl Fault {
    /// What is wrong, as part of a sentence.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Comma => "a duration with a decimal comma",
            Self::Duration => "a duration that is not a number",
            Self::Unit => "a duration without one of the units s, ms, us and ns",
            Self::Task => "no task and CPU that a nested call could be matched by",
            Self::Function => "no function that can be read",
        }
    }
}

/// A parsed line. Durations are in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// A call that made no traced call: entry and return in one line.
    Leaf {
        /// Function.
        name: &'a [u8],
        /// Its duration.
        ps: u64,
        /// What printed this.
        source: Source,
    },
    /// The entry of a call whose return is on a later line.
    Enter {
        /// Function; trace-cmd omits a name that it cannot resolve.
        name: Option<&'a [u8]>,
        /// Calls around it.
        depth: usize,
        /// Whose stack it is on.
        owner: Owner,
        /// What printed this.
        source: Source,
    },
    /// The return of a call.
    Exit {
        /// Function, if it is named.
        name: Option<&'a [u8]>,
        /// Calls around it.
        depth: usize,
        /// Its duration.
        ps: u64,
        /// Whose stack it is on.
        owner: Owner,
        /// What printed this.
        source: Source,
    },
    /// Lost records, with their number if it is known.
    Lost(Option<u64>),
    /// The number of CPUs in a report's head.
    Cpus(u32),
    /// A function_graph line that cannot be used.
    Faulty {
        /// Why.
        fault: Fault,
        /// The function, if at least that can be parsed.
        name: Option<&'a [u8]>,
    },
    /// Anything else: headers, comments, other events.
    Other,
}

/// What stands before the bar.
struct Columns<'a> {
    /// Picoseconds; `None` of an entry whose return is elsewhere.
    duration: Option<Result<u64, Fault>>,
    context: Context<'a>,
}

/// What stands before the duration.
#[derive(Clone, Copy)]
enum Context<'a> {
    /// `comm-pid [cpu] time:`, from trace-cmd or the kernel's event form.
    Event(&'a [u8], Source),
    /// The columns of the kernel's function_graph tracer.
    Graph(&'a [u8]),
}

impl Context<'_> {
    fn source(self) -> Source {
        match self {
            Self::Event(_, source) => source,
            Self::Graph(_) => Source::Ftrace,
        }
    }
}

/// What stands after the bar.
enum Text<'a> {
    Call {
        name: &'a [u8],
        tail: &'a [u8],
    },
    /// A call of a function without a name.
    Nameless,
    Return(Option<&'a [u8]>),
    Comment,
    Unreadable,
}

/// Parses one line without its newline.
#[must_use]
#[inline]
pub fn parse(line: &[u8]) -> Line<'_> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    for bar in memchr_iter(b'|', line).take(MAX_BARS) {
        let (before, after) = (&line[..bar], &line[bar + 1..]);
        let Some(columns) = columns(before) else { continue };
        if let Some(found) = record(&columns, after) {
            return found;
        }
    }
    unbarred(line)
}

/// A call in one line: the number of what stands after its bar, its picoseconds, and what printed it.
///
/// A trace has few different texts there, so the worker parses each once: `known` numbers those that it has seen,
/// `number` a function that is new. `None` of any other line, and of one whose first bar is not the one before the
/// function: [`parse`] is for those, and says the same of these.
#[inline]
pub(super) fn known_leaf(
    line: &[u8],
    known: &mut Recent,
    number: impl FnOnce(&[u8]) -> Option<u32>,
) -> Option<(u32, u64, Source)> {
    let bar = memchr(b'|', line)?;
    let columns = columns(&line[..bar])?;
    let ps = columns.duration?.ok()?;
    let source = columns.context.source();
    let after = &line[bar + 1..];
    if let Some(id) = known.get(after) {
        return Some((id, ps, source));
    }
    let Some(Line::Leaf { name, .. }) = record(&columns, after) else { return None };
    let id = number(name)?;
    known.put(after.into(), id);
    Some((id, ps, source))
}

#[inline]
fn record<'a>(columns: &Columns<'_>, after: &'a [u8]) -> Option<Line<'a>> {
    let spaces = leading_spaces(after);
    let depth = spaces.saturating_sub(2) / 2;
    let source = columns.context.source();
    let faulty = |fault, name| Some(Line::Faulty { fault, name });
    match (text(&after[spaces..]), columns.duration) {
        (Text::Comment, _) => Some(Line::Other),
        (Text::Call { name, tail }, Some(duration)) => match duration {
            Ok(ps) if tail.contains(&b';') => Some(Line::Leaf { name, ps, source }),
            Ok(_) => faulty(Fault::Function, None),
            Err(fault) => faulty(fault, Some(name)),
        },
        (Text::Call { name, tail }, None) if memchr(b'{', tail).is_some() => {
            Some(match owner(columns.context) {
                Some(owner) => Line::Enter { name: Some(name), depth, owner, source },
                None => Line::Faulty { fault: Fault::Task, name: Some(name) },
            })
        }
        // A leaf whose duration was lost: no unit, no number.
        (Text::Call { name, .. }, None) => faulty(Fault::Duration, Some(name)),
        (Text::Nameless, None) => Some(match owner(columns.context) {
            Some(owner) => Line::Enter { name: None, depth, owner, source },
            None => Line::Faulty { fault: Fault::Task, name: None },
        }),
        (Text::Return(name), Some(duration)) => match (duration, owner(columns.context)) {
            (Ok(ps), Some(owner)) => Some(Line::Exit { name, depth, ps, owner, source }),
            (Err(fault), _) => faulty(fault, name),
            (Ok(_), None) => faulty(Fault::Task, name),
        },
        (Text::Return(name), None) => faulty(Fault::Duration, name),
        // Perhaps not the bar before the function: `funcgraph-reltime` has a time before one, too.
        (Text::Nameless | Text::Unreadable, _) => None,
    }
}

/// The columns before a bar, if it is one that ends a duration.
#[inline]
fn columns(before: &[u8]) -> Option<Columns<'_>> {
    let trimmed = trim_end(before);
    if let Some((number, exponent)) = split_unit(trimmed) {
        let (head, duration) = match three_decimals(number) {
            Some((head, thousandths)) if exponent == 6 => (head, Ok(1000 * thousandths)),
            _ => {
                let space = number.iter().rposition(|&byte| byte == b' ');
                let (head, number) = number.split_at(space.map_or(0, |space| space + 1));
                (head, picoseconds(number, exponent))
            }
        };
        let context = context(without_mark(trim_end(trim_spaces(head))))?;
        return Some(Columns { duration: Some(duration), context });
    }
    let Some(context) = context(trimmed) else { return unknown_unit(trimmed) };
    let blank = before.len() - trimmed.len() >= BLANK_DURATION;
    match context {
        Context::Graph(_) if !blank => None,
        Context::Event(_, Source::Ftrace) if !blank => None,
        _ => Some(Columns { duration: None, context }),
    }
}

/// The columns before a bar that ends a duration in a unit that is not known: text behind a number.
fn unknown_unit(text: &[u8]) -> Option<Columns<'_>> {
    let end = text.iter().rposition(u8::is_ascii_digit)? + 1;
    let start = text[..end].iter().rposition(|&byte| byte == b' ').map_or(0, |space| space + 1);
    let is_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b',');
    if end == text.len() || !text[start..end].iter().all(is_number) {
        return None;
    }
    let context = context(without_mark(trim_end(&text[..start])))?;
    Some(Columns { duration: Some(Err(Fault::Unit)), context })
}

/// Splits `...12.3 us` into the text before the unit, without spaces at its end, and the unit as a
/// power of ten of picoseconds.
fn split_unit(text: &[u8]) -> Option<(&[u8], usize)> {
    let (head, exponent) = match text {
        [head @ .., b' ', b'u', b's'] => (head, 6),
        [head @ .., b' ', b'n', b's'] => (head, 3),
        [head @ .., b' ', b'm', b's'] => (head, 9),
        [head @ .., b' ', b's'] => (head, 12),
        _ => return None,
    };
    Some((trim_end(head), exponent))
}

/// The number at the end of `text` in thousandths, and what stands before it, if it has up to nine digits, a point
/// and three decimals: what both programs print. Much faster than [`picoseconds`], which says the same of it.
#[inline]
fn three_decimals(text: &[u8]) -> Option<(&[u8], u64)> {
    let [head @ .., b'.', a, b, c] = text else { return None };
    let digit = |byte: u8| u64::from(byte.wrapping_sub(b'0'));
    let (a, b, c) = (digit(*a), digit(*b), digit(*c));
    if a > 9 || b > 9 || c > 9 {
        return None;
    }
    let mut value = 100 * a + 10 * b + c;
    let (mut rest, mut scale) = (head, 1000);
    while let [before @ .., byte @ b'0'..=b'9'] = rest {
        value += digit(*byte) * scale;
        (rest, scale) = (before, scale * 10);
        if scale > 1_000_000_000_000 {
            return None;
        }
    }
    (scale > 1000 && matches!(rest.last(), None | Some(b' '))).then_some((rest, value))
}

fn without_mark(text: &[u8]) -> &[u8] {
    match text {
        [head @ .., mark] if MARKS.contains(mark) && matches!(head.last(), None | Some(b' ')) => {
            trim_end(head)
        }
        _ => text,
    }
}

/// A decimal number of `10^exponent` picoseconds, exactly.
fn picoseconds(number: &[u8], exponent: usize) -> Result<u64, Fault> {
    // The digits as one number, how many decimal places are left to a picosecond, and the places that
    // a digit takes: one after the point.
    let (mut value, mut places, mut step, mut complete) = (0_u64, exponent, 0, false);
    let mut rest = number;
    while let [byte, after @ ..] = rest {
        match byte {
            b'0'..=b'9' if places >= step => {
                let tens = value.checked_mul(10).ok_or(Fault::Duration)?;
                value = tens.checked_add(u64::from(byte - b'0')).ok_or(Fault::Duration)?;
                (places, complete) = (places - step, true);
            }
            // Finer than a picosecond: nothing writes that, and it could not be kept.
            b'1'..=b'9' => return Err(Fault::Duration),
            b'0' => {
                let end = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                rest = &rest[end..];
                break;
            }
            b'.' if step == 0 && complete => (step, complete) = (1, false),
            _ => break,
        }
        rest = after;
    }
    let ps = value.checked_mul(POWERS[places]).ok_or(Fault::Duration)?;
    let is_comma = || number.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b','));
    match rest {
        [] if complete => Ok(ps),
        [_, ..] if number.contains(&b',') && is_comma() => Err(Fault::Comma),
        _ => Err(Fault::Duration),
    }
}

/// Classifies the text before a duration; `None` if it cannot stand there.
fn context(text: &[u8]) -> Option<Context<'_>> {
    if is_of_other_event(text) {
        return None;
    }
    match text {
        [] | [.., b'|'] => Some(Context::Graph(text)),
        [.., b'0'..=b'9', b')'] => Some(Context::Graph(text)),
        [.., b'0'..=b'9', b':'] => Some(Context::Event(text, Source::Ftrace)),
        [.., b':'] if ends_in_event(text) => Some(Context::Event(text, Source::TraceCmd)),
        _ => None,
    }
}

/// Names of function_graph's events, with their colon.
const EVENTS: [&[u8]; 3] = [b"funcgraph_entry:", b"funcgraph_exit:", b"fgraph_retaddr_entry:"];

/// Whether `text` ends with the name of a function_graph event.
fn ends_in_event(text: &[u8]) -> bool {
    EVENTS.iter().any(|name| text.strip_suffix(*name).is_some_and(|head| head.ends_with(b" ")))
}

/// Whether a time and another event's name follow each other in the line: what a program prints may look like a row.
fn is_of_other_event(line: &[u8]) -> bool {
    for colon in memchr_iter(b':', line) {
        let (head, rest) = (&line[..colon], line[colon + 1..].trim_ascii_start());
        let start = head.iter().rposition(|&byte| byte == b' ').map_or(0, |space| space + 1);
        let is_time = head.last().is_some_and(u8::is_ascii_digit)
            && head[start..].iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        if !is_time {
            continue;
        }
        // The difference to the record before, of `trace-cmd report --ts-diff`.
        let rest = match memchr(b' ', rest) {
            Some(blank) if rest.starts_with(b"(+") => rest[blank..].trim_ascii_start(),
            _ => rest,
        };
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        match &rest[..end] {
            name if EVENTS.contains(&name) => return false,
            [_, .., b':'] => return true,
            _ => {}
        }
    }
    false
}

/// Whose stack a nested call is on.
fn owner(context: Context<'_>) -> Option<Owner> {
    match context {
        Context::Event(text, Source::TraceCmd) => task(last_token(text)?.0, file(text)),
        Context::Event(text, Source::Ftrace) => task(text, 0),
        Context::Graph(text) => Some(Owner::Cpu(graph_cpu(text))),
    }
}

/// Pid and CPU of `comm-pid [cpu] flags time:`, or of the latency format's `comm-pid cpuflags time:`.
fn task(text: &[u8], file: u64) -> Option<Owner> {
    let (mut rest, mut token) = last_token(text)?;
    // The difference to the record before, of `trace-cmd report --ts-diff`.
    if token.starts_with(b"(+") {
        (rest, token) = last_token(rest)?;
    }
    if !token.ends_with(b":") {
        return None;
    }
    let (mut rest, place) = last_token(rest)?;
    let cpu = match bracketed(place) {
        Some(cpu) => cpu,
        None if place[0].is_ascii_digit() => {
            let digits = place.iter().take_while(|byte| byte.is_ascii_digit()).count();
            decimal(&place[..digits])?
        }
        None => {
            let (before, place) = last_token(rest)?;
            rest = before;
            bracketed(place)?
        }
    };
    let mut rest = trim_end(rest);
    // The thread group, of ftrace's option `record-tgid`.
    if rest.ends_with(b")") {
        rest = trim_end(&rest[..memrchr(b'(', rest)?]);
    }
    let digits = rest.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (comm, pid) = rest.split_at(rest.len() - digits);
    if comm.last() != Some(&b'-') {
        return None;
    }
    Some(match decimal(pid)? {
        0 => Owner::Idle { file, cpu },
        pid => Owner::Task { file, pid },
    })
}

/// A hash of the first word, if a colon ends it: of the file that a line is from. A task's own name may begin so, too, and then
/// does so in all its lines.
fn file(text: &[u8]) -> u64 {
    let text = text.trim_ascii_start();
    let word = &text[..memchr(b' ', text).unwrap_or(text.len())];
    let mut hasher = DefaultHasher::new();
    match word {
        [name @ .., b':'] => hasher.write(name),
        _ => return 0,
    }
    hasher.finish()
}

/// The CPU in the tracer's columns: the first `N)`. Without that column all calls are on one stack.
fn graph_cpu(text: &[u8]) -> u32 {
    memchr_iter(b')', text)
        .find_map(|end| {
            let start = text[..end].iter().rposition(|byte| !byte.is_ascii_digit());
            let start = start.map_or(0, |at| at + 1);
            let alone = start == 0 || text[start - 1] == b' ';
            alone.then(|| decimal(&text[start..end])).flatten()
        })
        .unwrap_or(0)
}

/// Classifies the text after the bar and its indentation.
#[inline]
fn text(text: &[u8]) -> Text<'_> {
    match text {
        [] => Text::Unreadable,
        [b'}', rest @ ..] => returned(rest),
        [b'/', b'*', ..] => Text::Comment,
        // The tracer's arrows around interrupts.
        [b'=', b'=', ..] | [b'<', b'=', ..] => Text::Comment,
        [b')', b' ', b'{', ..] => Text::Nameless,
        _ => match name(text) {
            Some((name, [b'(', tail @ ..])) => Text::Call { name, tail },
            _ => Text::Unreadable,
        },
    }
}

/// What follows the brace of a return: nothing, `/* name */`, or options' values.
fn returned(rest: &[u8]) -> Text<'_> {
    match rest {
        [] | [b' '] | [b' ', b'(', ..] => Text::Return(None),
        [b' ', b'/', b'*', b' ', rest @ ..] => match name(rest) {
            Some((name, tail)) if memmem::find(tail, b"*/").is_some() => Text::Return(Some(name)),
            _ => Text::Unreadable,
        },
        _ => Text::Unreadable,
    }
}

/// Splits `text` after the function's name, and its module if there is one.
#[inline]
fn name(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut end = word(text);
    if end == 0 {
        return None;
    }
    if let [b' ', b'[', module @ ..] = &text[end..] {
        let length = word(module);
        if length > 0 && module.get(length) == Some(&b']') {
            end += length + 3;
        }
    }
    (end <= MAX_NAME).then(|| text.split_at(end))
}

/// Length of the symbol at the start of `text`. Works on eight bytes at a time, because a CPU cannot
/// predict where a name ends and a branch for each byte would be slow.
#[inline]
fn word(text: &[u8]) -> usize {
    // One bit for each byte that ends a symbol, the first byte's lowest.
    let ends = |bytes: &[u8]| {
        bytes
            .iter()
            .enumerate()
            .fold(0, |ends, (at, &byte)| ends | u32::from(NAME_ENDS[usize::from(byte)]) << at)
    };
    let (eights, rest) = text.as_chunks::<8>();
    for (at, eight) in eights.iter().enumerate() {
        let ends = ends(eight);
        if ends != 0 {
            return 8 * at + ends.trailing_zeros() as usize;
        }
    }
    let ends = match text.last_chunk::<8>() {
        Some(last) => ends(last) >> (8 - rest.len()),
        None => ends(rest),
    };
    8 * eights.len() + rest.len().min(ends.trailing_zeros() as usize)
}

/// 1 for bytes that end a symbol in a trace, and for those that do not print.
const NAME_ENDS: [u8; 256] = {
    let mut table = [1; 256];
    let mut byte = 0x21;
    while byte < 0x7f {
        table[byte] = matches!(
            byte as u8,
            b'(' | b')' | b'{' | b'}' | b'[' | b']' | b';' | b',' | b'|' | b'/' | b'"' | b'`'
        ) as u8;
        byte += 1;
    }
    table
};

/// A line without a usable bar.
fn unbarred(line: &[u8]) -> Line<'_> {
    if let Some(rest) = line.strip_prefix(b"CPU:") {
        return lost(rest).unwrap_or(Line::Other);
    }
    if let Some(cpus) = line.strip_prefix(b"cpus=") {
        return decimal(trim_end(cpus)).map_or(Line::Other, Line::Cpus);
    }
    if let Some(counts) = line.strip_prefix(b"# entries-in-buffer/entries-written: ") {
        return overwritten(counts).unwrap_or(Line::Other);
    }
    if is_of_other_event(line) {
        return Line::Other;
    }
    if is_event(line) {
        return Line::Faulty { fault: event_fault(line), name: None };
    }
    if is_graph_row(line) {
        return Line::Faulty { fault: Fault::Function, name: None };
    }
    Line::Other
}

/// Whether an event's name in the line is one of function_graph.
fn is_event(line: &[u8]) -> bool {
    memmem::find_iter(line, b"graph_").any(|at| {
        let start = line[..at].iter().rposition(|&byte| byte == b' ').map_or(0, |at| at + 1);
        let end = memchr(b':', &line[at..]).map_or(line.len(), |colon| at + colon + 1);
        let name = &line[start..end];
        let timed =
            trim_end(&line[..start]).ends_with(b":") || trim_end(&line[..start]).ends_with(b")");
        EVENTS.contains(&name) && timed
    })
}

/// Why a line with a function_graph event cannot be used.
fn event_fault(line: &[u8]) -> Fault {
    let Some(bar) = memrchr(b'|', line) else { return Fault::Function };
    match line[..bar].iter().rposition(|byte| !byte.is_ascii_whitespace()) {
        // Neither a known unit nor only the event's name.
        Some(at) if split_unit(&line[..=at]).is_none() && line[at] != b':' => Fault::Unit,
        _ => Fault::Function,
    }
}

/// Whether a line starts with the tracer's CPU column and has a duration, like one that was cut off.
fn is_graph_row(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let Some(b") ") = line.get(digits..digits + 2) else { return false };
    let rest = without_leading_mark(line[digits + 2..].trim_ascii_start());
    (1..=4).contains(&digits)
        && rest.first().is_some_and(u8::is_ascii_digit)
        && memmem::find(rest, b" us").is_some()
}

fn without_leading_mark(text: &[u8]) -> &[u8] {
    match text {
        [mark, b' ', rest @ ..] if MARKS.contains(mark) => rest.trim_ascii_start(),
        _ => text,
    }
}

/// `3 [LOST 5 EVENTS]` of the kernel, `3 [5 EVENTS DROPPED]` of trace-cmd; both also without a number.
fn lost(rest: &[u8]) -> Option<Line<'static>> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = rest[digits..].trim_ascii().strip_prefix(b"[")?.strip_suffix(b"]")?;
    if digits == 0 {
        return None;
    }
    if rest == b"LOST EVENTS" || rest == b"EVENTS DROPPED" {
        return Some(Line::Lost(None));
    }
    let number = match rest.strip_prefix(b"LOST ") {
        Some(rest) => rest.strip_suffix(b" EVENTS")?,
        None => rest.strip_suffix(b" EVENTS DROPPED")?,
    };
    decimal_u64(number).map(|count| Line::Lost(Some(count)))
}

/// `140080/250280   #P:4` in the head of the kernel's `trace`: records that later ones overwrote.
fn overwritten(counts: &[u8]) -> Option<Line<'static>> {
    let slash = memchr(b'/', counts)?;
    let written = &counts[slash + 1..];
    let digits = written.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let gone = decimal_u64(&written[..digits])?.checked_sub(decimal_u64(&counts[..slash])?)?;
    (gone > 0).then_some(Line::Lost(Some(gone)))
}

fn last_token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = trim_end(text);
    let start = text.iter().rposition(u8::is_ascii_whitespace).map_or(0, |space| space + 1);
    (start < text.len()).then(|| text.split_at(start))
}

fn bracketed(token: &[u8]) -> Option<u32> {
    decimal(token.strip_prefix(b"[")?.strip_suffix(b"]")?)
}

fn decimal(digits: &[u8]) -> Option<u32> {
    decimal_u64(digits).and_then(|value| u32::try_from(value).ok())
}

fn decimal_u64(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Number of spaces at the start of `text`, counted eight at a time.
fn leading_spaces(text: &[u8]) -> usize {
    let (eights, rest) = text.as_chunks();
    for (at, eight) in eights.iter().enumerate() {
        let others = u64::from_le_bytes(*eight) ^ SPACES;
        if others != 0 {
            return 8 * at + (others.trailing_zeros() / 8) as usize;
        }
    }
    8 * eights.len() + rest.iter().take_while(|&&byte| byte == b' ').count()
}

/// `text` without the spaces at its end, eight at a time.
fn trim_spaces(mut text: &[u8]) -> &[u8] {
    while let Some((head, last)) = text.split_last_chunk() {
        let others = u64::from_le_bytes(*last) ^ SPACES;
        if others != 0 {
            return &text[..text.len() - (others.leading_zeros() / 8) as usize];
        }
        text = head;
    }
    text
}

/// `text` without the spaces and tabs at its end.
fn trim_end(mut text: &[u8]) -> &[u8] {
    while let [head @ .., b' ' | b'\t'] = text {
        text = head;
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What [`known_leaf`] says, of a new text and of one that is known, has to be what [`parse`] does.
    fn assert_leaf_agrees(line: &[u8]) {
        let mut known = Recent::default();
        let mut named = None;
        let first = known_leaf(line, &mut known, |name| {
            named = Some(name.to_vec());
            Some(7)
        });
        let again = known_leaf(line, &mut known, |_| Some(7));
        assert_eq!(first, again, "{line:?}");
        if let Some((id, ps, source)) = first {
            let name = named.expect("a new text");
            assert_eq!((parse(line), id), (Line::Leaf { name: &name, ps, source }, 7), "{line:?}");
        }
    }

    fn task_of(pid: u32) -> Owner {
        Owner::Task { file: 0, pid }
    }

    fn leaf(name: &str, ps: u64, source: Source) -> Line<'_> {
        Line::Leaf { name: name.as_bytes(), ps, source }
    }

    fn enter(name: &str, depth: usize, owner: Owner, source: Source) -> Line<'_> {
        Line::Enter { name: Some(name.as_bytes()), depth, owner, source }
    }

    fn exit(name: Option<&str>, depth: usize, ps: u64, owner: Owner, source: Source) -> Line<'_> {
        Line::Exit { name: name.map(str::as_bytes), depth, ps, owner, source }
    }

    fn faulty(fault: Fault, name: Option<&str>) -> Line<'_> {
        Line::Faulty { fault, name: name.map(str::as_bytes) }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of lines")]
    fn lines_of_trace_cmd() {
        use Source::TraceCmd as T;
        let table = [
            (
                " <...>-133788 [001]  6020.687057: funcgraph_entry:        0.367 us   |  bind_entry();",
                leaf("bind_entry", 367_000, T),
            ),
            (
                "  bash-12 [001]  6020.687057123: funcgraph_entry:      + 10.001 us  |  f();",
                leaf("f", 10_001_000, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:      ! 100.5 us |      f(a=1, b={2}); (2) (ret=0x0)",
                leaf("f", 100_500_000, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:      # 1000000.1 us |  f();\r",
                leaf("f", 1_000_000_100_000, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:      $ 12345678 us |  f();",
                leaf("f", 12_345_678_000_000, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:      @ 1.5 s |  f();",
                leaf("f", 1_500_000_000_000, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:      * 2.25 ms |  f();",
                leaf("f", 2_250_000_000, T),
            ),
            (
                "  bash-12 [001]  6020.1: funcgraph_entry:        7.125 ns |  f();",
                leaf("f", 7_125, T),
            ),
            (
                "  bash-12 [001]  6020.1: fgraph_retaddr_entry:   0.1 us |  f(); /* <-g */",
                leaf("f", 100_000, T),
            ),
            (
                "  a|b [x]: y-12 [001]  6020.1: funcgraph_entry:   0.1 us |  f.isra.0();",
                leaf("f.isra.0", 100_000, T),
            ),
            (
                "  bash-12    3d..1  6020.1: funcgraph_entry:   0.1 us |  f();",
                leaf("f", 100_000, T),
            ),
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
                enter("f", 0, Owner::Idle { file: 0, cpu: 7 }, T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:              |  ) {",
                Line::Enter { name: None, depth: 0, owner: task_of(9), source: T },
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_exit:    ! 120.004 us |  }",
                exit(None, 0, 120_004_000, task_of(9), T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_exit:      0.004 us |    } /* f */",
                exit(Some("f"), 1, 4_000, task_of(9), T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_exit:      0.004 us |    } (1) (ret=0x0)",
                exit(None, 1, 4_000, task_of(9), T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   0,367 us |  f();",
                faulty(Fault::Comma, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   1.234,5 us |  f();",
                faulty(Fault::Comma, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   0.3.4 us |  f();",
                faulty(Fault::Duration, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   nan us |  f();",
                faulty(Fault::Duration, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   -1.5 us |  f();",
                faulty(Fault::Duration, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   1. us |  f();",
                faulty(Fault::Duration, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   99999999999999999999 us |  f();",
                faulty(Fault::Duration, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   0.0000001 us |  f();",
                faulty(Fault::Duration, Some("f")),
            ),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3000000 us |  f();", leaf("f", 300_000, T)),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   18446744.073709 s |  f();",
                leaf("f", 18_446_744_073_709_000_000, T),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   18446744.073709552 s |  f();",
                faulty(Fault::Duration, Some("f")),
            ),
            // A fault before the comma.
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   18446744073710,5 us |  f();",
                faulty(Fault::Duration, Some("f")),
            ),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:   0.3 h |  f();",
                faulty(Fault::Unit, Some("f")),
            ),
            ("  x-9 [007]  6020.1: bprint:   f: text | 0.3 us |  f();", Line::Other),
            ("  x-9 [007]  6020.1: (+13) bprint:   f: 3) 0.3 us |  f();", Line::Other),
            (
                "  x-9 [007]  6020.1: bprint:   y-9 [007] 1.0: funcgraph_entry: 0.3 us |  f();",
                Line::Other,
            ),
            ("  x-9 [007]  6020.1: print:   funcgraph_entry: 0.3 us |  f();", Line::Other),
            (
                "  x-9 [007]  6020.1: funcgraph_entry:            |  f();",
                faulty(Fault::Duration, Some("f")),
            ),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3 us |  f", faulty(Fault::Function, None)),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3 us |  f(", faulty(Fault::Function, None)),
            ("  x-9 [007]  6020.1: funcgraph_entry:   0.3", faulty(Fault::Function, None)),
            (
                "  x-9 [007]  6020.1: funcgraph_exit:   0.3 us |  } /* f",
                faulty(Fault::Function, None),
            ),
            ("  x-9  6020.1: funcgraph_exit:   0.3 us |  }", faulty(Fault::Task, None)),
            ("  x-9 [007]  6020.1: sys_enter: funcgraph_entry", Line::Other),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
            assert_leaf_agrees(text.as_bytes());
        }
    }

    #[test]
    fn lines_of_ftrace() {
        use Source::Ftrace as F;
        let table = [
            (" 0)   0.367 us    |  f();", leaf("f", 367_000, F)),
            (" 11) + 12.367 us   |    f [hids_driver]();", leaf("f [hids_driver]", 12_367_000, F)),
            (" 0)   0.1 us    |  f(); /* <-g+0x1/0x2 ret=0x0 */", leaf("f", 100_000, F)),
            ("   0.367 us    |  f();", leaf("f", 367_000, F)),
            ("  6020.687057 |   0)   bash-12    |   0.3 us    |  f();", leaf("f", 300_000, F)),
            ("      123 us |   0)   0.3 us    |  f();", leaf("f", 300_000, F)),
            (" 0)   bash-12    |  d..1. |   0.3 us    |  f();", leaf("f", 300_000, F)),
            ("    a | b-12 [000] d..1. 6020.1:   0.3 us    |  f();", leaf("f", 300_000, F)),
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
            (" 3) ! 123.400 us  |  }", exit(None, 0, 123_400_000, Owner::Cpu(3), F)),
            (
                " 3)   3.400 us    |    } /* f [m] */",
                exit(Some("f [m]"), 1, 3_400_000, Owner::Cpu(3), F),
            ),
            (
                " 3)   3.400 us    |    } /* f ret=0x0 */",
                exit(Some("f"), 1, 3_400_000, Owner::Cpu(3), F),
            ),
            (" 3)   0.4 \u{b5}s    |  f();", faulty(Fault::Unit, Some("f"))),
            (" 3)   0.4 h    |  f();", faulty(Fault::Unit, Some("f"))),
            (" 3)   0.4us    |  f();", faulty(Fault::Unit, Some("f"))),
            (" 3) + 12.4 h    |  }", faulty(Fault::Unit, None)),
            ("   0.4 h    |  f();", faulty(Fault::Unit, Some("f"))),
            (" x-9 [007] d..1. 6020.1: bprint: f: text | 0.3 us |  f();", Line::Other),
            (" 3)               |  /* printed | text */", Line::Other),
            (" 3)   ==========> |", Line::Other),
            (" 3)   0,4 us    |  f();", faulty(Fault::Comma, Some("f"))),
            (" 3)   0.4 us    |  f", faulty(Fault::Function, None)),
            (" 3)   0.4 us", faulty(Fault::Function, None)),
            ("# tracer: function_graph", Line::Other),
            ("# |     |   |                     |   |   |   |", Line::Other),
            (" 1)  migration/0--1  =>  sshd-1755", Line::Other),
            (" ------------------------------------------", Line::Other),
            ("", Line::Other),
            ("| f() {", Line::Other),
            ("a table | 5 us | wide", Line::Other),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
            assert_leaf_agrees(text.as_bytes());
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
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
            assert_leaf_agrees(text.as_bytes());
        }
    }

    #[test]
    fn the_file_that_a_line_is_from_tells_tasks_of_one_pid_apart() {
        let owner = |line: &str| match parse(line.as_bytes()) {
            Line::Enter { owner, .. } => owner,
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
        assert!(matches!(parse(line(MAX_NAME).as_bytes()), Line::Leaf { .. }));
        assert_eq!(parse(line(MAX_NAME + 1).as_bytes()), faulty(Fault::Function, None));
    }

    #[test]
    fn names_and_indentations_of_any_length() {
        for length in 1..40 {
            let (name, indentation) = ("f".repeat(length), " ".repeat(length));
            for module in ["", " [m]", " [hids_driver]"] {
                let function = format!("{name}{module}");
                let line = format!(" 0)   0.1 us    |{indentation}{function}();");
                assert_eq!(parse(line.as_bytes()), leaf(&function, 100_000, Source::Ftrace));
                let line = format!(" 0)               |{indentation}{function}() {{");
                let depth = length.saturating_sub(2) / 2;
                let expected = enter(&function, depth, Owner::Cpu(0), Source::Ftrace);
                assert_eq!(parse(line.as_bytes()), expected);
            }
            let line = format!(" 0)   0.1 us    |{indentation}{name}");
            assert_eq!(parse(line.as_bytes()), faulty(Fault::Function, None));
        }
    }

    proptest! {
        #[test]
        fn any_bytes(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
            assert_leaf_agrees(&line);
        }

        #[test]
        fn any_pieces(pieces in prop::collection::vec(prop::sample::select(vec![
            " ", "   ", "          ", "|", "us", " us ", "ms", "s", "0.1", "12", ",", ".", "f", "();", "()", " {", "}",
            "/*", "*/", "/* ", "funcgraph_entry:", "funcgraph_exit:", "[001]", "[", "]", "(", ")", "-", "comm-12",
            "6020.1:", "3d..1", "+", "!", "CPU:", "1 [LOST ", "5", " EVENTS]", "cpus=", "\r", "(+", "graph_", ":",
        ]), 0..16)) {
            let _ = parse(pieces.concat().as_bytes());
            assert_leaf_agrees(pieces.concat().as_bytes());
        }

        #[test]
        fn any_duration(us in 0..10_000_000_u64, ns in 0..1000_u64, gap in 1..30_usize) {
            let line = format!(" 1.0: funcgraph_entry:{:gap$}{us}.{ns:03} us    |  f();", "");
            prop_assert_eq!(parse(line.as_bytes()), leaf("f", (us * 1000 + ns) * 1000, Source::TraceCmd));
        }
    }
}
