//! The commonest line read quickly: a call in one line, its duration with three decimals of a
//! microsecond. Whatever looks otherwise is left to [`super::line::parse`], which says the same of
//! these lines, too.

use memchr::memchr;

use super::line::{MARKS, Source};

/// A call in one line, if the function's name is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leaf<'a> {
    /// What stands where the name does; not looked at.
    pub(super) name: &'a [u8],
    /// Its duration in nanoseconds.
    pub(super) ns: u64,
    /// What printed this.
    pub(super) source: Source,
}

/// Reads a line, given without its end, if it is of that kind.
#[inline]
pub(super) fn leaf(line: &[u8]) -> Option<Leaf<'_>> {
    let name = line.strip_suffix(b"();")?;
    let bar = memchr(b'|', name)?;
    let (before, name) = (&name[..bar], &name[bar + 1..]);
    let (before, ns) = duration(trim_spaces(before).strip_suffix(b" us")?)?;
    let before = trim_spaces(before.strip_suffix(b" ")?);
    let before = match before {
        [head @ .., b' ', mark] if MARKS.contains(mark) => trim_spaces(head),
        _ => before,
    };
    let source = match before {
        [.., b'0'..=b'9', b')'] => Source::Ftrace,
        _ if before.ends_with(b" funcgraph_entry:") => Source::TraceCmd,
        _ => return None,
    };
    Some(Leaf { name: trim_spaces_before(name), ns, source })
}

/// Nanoseconds of the number of microseconds at the end of `text`, if it has three decimals and few
/// digits before them, and what is before it.
#[inline]
fn duration(text: &[u8]) -> Option<(&[u8], u64)> {
    let [head @ .., b'.', a, b, c] = text else { return None };
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let mut ns = digit(a)? * 100 + digit(b)? * 10 + digit(c)?;
    let (mut head, mut scale) = (head, 1000);
    while let [rest @ .., byte @ b'0'..=b'9'] = head {
        ns += u64::from(byte - b'0') * scale;
        scale *= 10;
        head = rest;
        if scale > 1_000_000_000_000 {
            return None;
        }
    }
    (scale > 1000).then_some((head, ns))
}

/// `text` without the spaces at its end, eight at a time.
#[inline]
fn trim_spaces(mut text: &[u8]) -> &[u8] {
    while let Some((head, last)) = text.split_last_chunk::<8>() {
        let other = u64::from_le_bytes(*last) ^ u64::from_le_bytes([b' '; 8]);
        if other != 0 {
            return &text[..text.len() - (other.leading_zeros() / 8) as usize];
        }
        text = head;
    }
    while let [head @ .., b' '] = text {
        text = head;
    }
    text
}

/// `text` without the spaces at its begin, eight at a time.
#[inline]
fn trim_spaces_before(mut text: &[u8]) -> &[u8] {
    while let Some((first, tail)) = text.split_first_chunk::<8>() {
        let other = u64::from_le_bytes(*first) ^ u64::from_le_bytes([b' '; 8]);
        if other != 0 {
            return &text[(other.trailing_zeros() / 8) as usize..];
        }
        text = tail;
    }
    while let [b' ', tail @ ..] = text {
        text = tail;
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::collect::Collector;
    use super::super::line::{Line, parse};
    use super::*;

    #[test]
    fn lines_of_the_usual_kind() {
        let table = [
            (
                "  <...>-133788 [001]  6020.687057: funcgraph_entry:        0.367 us   |  f();",
                Some(("f", 367, Source::TraceCmd)),
            ),
            (
                "  a b-1 [001]  6020.6: funcgraph_entry:      + 10.001 us |      long_name.isra.0 [m]();",
                Some(("long_name.isra.0 [m]", 10_001, Source::TraceCmd)),
            ),
            (
                "x: funcgraph_entry:      # 123456789.001 us |  f();",
                Some(("f", 123_456_789_001, Source::TraceCmd)),
            ),
            (" 0)   0.367 us    |  f();", Some(("f", 367, Source::Ftrace))),
            (" 0) ! 100.367 us  |  f();", Some(("f", 100_367, Source::Ftrace))),
            ("funcgraph_entry:        0.367 us   |  f();", None),
            ("x: funcgraph_entry:      # 1234567890.001 us |  f();", None),
            ("x: funcgraph_entry:        0.36 us   |  f();", None),
            ("x: funcgraph_entry:        0.3670 us   |  f();", None),
            ("x: funcgraph_entry:        0,367 us   |  f();", None),
            ("x: funcgraph_entry:        .367 us   |  f();", None),
            ("x: funcgraph_entry:        0.367 ms   |  f();", None),
            ("x: funcgraph_entry:        0.367us   |  f();", None),
            ("x: funcgraph_entry:       +0.367 us   |  f();", None),
            ("x: funcgraph_exit:        0.367 us   |  f();", None),
            ("x: funcgraph_entry:        0.367 us   |  f() {", None),
            (" 3.4 | 0)   0.367 us    |  f();", None),
        ];
        for (text, expected) in table {
            let found = leaf(text.as_bytes());
            let expected =
                expected.map(|(name, ns, source)| Leaf { name: name.as_bytes(), ns, source });
            assert_eq!(found, expected, "{text}");
            if let Some(Leaf { name, ns, source }) = found {
                assert_eq!(parse(text.as_bytes()), Line::Leaf { name, ps: ns * 1000, source });
            }
        }
    }

    /// Mostly one of `good`, else some of `odd` after each other.
    fn mostly(good: &[&'static str], odd: &[&'static str]) -> impl Strategy<Value = String> {
        let odd = prop::collection::vec(prop::sample::select([good, odd].concat()), 0..4);
        prop_oneof![
            4 => prop::sample::select(good.to_vec()).prop_map(str::to_owned),
            1 => odd.prop_map(|all| all.concat()),
        ]
    }

    /// Lines that are read quickly, or nearly.
    fn line() -> impl Strategy<Value = String> {
        (
            mostly(
                &["x-1 [001] 6.1: funcgraph_entry:", " 0)"],
                &[
                    "x: funcgraph_exit:",
                    "funcgraph_entry:",
                    " ",
                    "\t",
                    "|",
                    "0.1 us",
                    "1 us |",
                    ":",
                ],
            ),
            mostly(&["  ", "        ", "          ", "  + ", "      ! "], &["\t", "+", ""]),
            mostly(&["0", "12", "345"], &["", ",", "123456789", "9999999999", " ", "-1", "0."]),
            mostly(&[".367", ".001"], &[".25", ".1234", ",367", "", ".", ".12x", "\t"]),
            mostly(&[" us   ", " us    ", " us"], &[" ms   ", "us  ", "  us\t ", " us           "]),
            mostly(&["|"], &["", " | ", "||"]),
            mostly(&["  ", "    ", "            "], &["\t", "", " \t", " 0.1 us |  "]),
            mostly(
                &["f", "g", "ff", "f [m]"],
                &["==", "}", "/*", " ", "\t", "(", "|", "(a=1)", "[m]"],
            ),
            mostly(&["();"], &["();\r", "() {", "(); ", "()", ";", "(1);"]),
        )
            .prop_map(|(a, b, c, d, e, f, g, h, i)| [a, b, c, d, e, f, g, h, i].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn quick_and_slow_are_one(lines in prop::collection::vec(line(), 1..8), twice in any::<bool>()) {
            let known = [
                " 0)   0.001 us    |  f();", " 0)   0.001 us    |  g();", " 0)   0.001 us    |  ff();",
                " 0)   0.001 us    |  f [m]();", " 0)   9.001 us    |  } /* ==f */",
            ];
            let [mut quick, mut slow] = [Collector::default(), Collector::default()];
            let all = known.iter().copied().chain(lines.iter().map(String::as_str));
            for line in all.clone().chain(all.filter(|_| twice)) {
                quick.line(line.as_bytes());
                slow.line_slowly(line.as_bytes());
            }
            let [quick, slow] = [quick, slow].map(|collector| {
                let (functions, counts) = collector.finish();
                let rows: Vec<_> = functions
                    .iter()
                    .map(|f| (f.name.clone(), f.values.count(), f.values.sum_ps(), f.unparsable, f.unreturned))
                    .collect();
                (rows, counts)
            });
            prop_assert_eq!(quick, slow);
        }
    }
}
