//! Output to terminals: no control characters, and no panic when the reader is gone.

use std::borrow::Cow;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileTypeExt as _;

/// Writes a line to standard error, or several: the only way to it. A reader that is gone, a closed terminal or a full disk
/// is no reason to lose what was measured, and `eprintln!` would panic.
pub fn say(text: &str) {
    // At once, so that lines of several processes do not mix.
    let _ = io::stderr().write_all((clean_lines(text) + "\n").as_bytes());
}

/// Replaces characters by which text from a file could control the reader's terminal.
pub fn clean(text: &str) -> Cow<'_, str> {
    replaced(text, is_unsafe)
}

/// As [`clean`], but for text of several lines.
pub fn clean_lines(text: &str) -> Cow<'_, str> {
    replaced(text, |c| c != '\n' && is_unsafe(c))
}

fn replaced(text: &str, is_unsafe: fn(char) -> bool) -> Cow<'_, str> {
    if text.contains(is_unsafe) {
        Cow::Owned(text.replace(is_unsafe, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Control characters, those that reorder the text around them, and those that some readers take for the end of a line.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Writes to standard output. A reader that is gone, by a closed pipe or terminal, is not an error.
///
/// # Errors
/// If the disk is full, or the like.
pub fn write(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if is_gone(&error) => Ok(()),
        result => result,
    }
}

fn is_gone(error: &io::Error) -> bool {
    // Of a file, EIO is a broken disk. A terminal that was closed is still a device.
    error.kind() == ErrorKind::BrokenPipe
        || (error.raw_os_error() == Some(libc::EIO)
            && fs::metadata("/proc/self/fd/1").is_ok_and(|it| it.file_type().is_char_device()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_replaced() {
        let of = |text| (clean(text).into_owned(), clean_lines(text).into_owned());
        assert_eq!(of("a é"), ("a é".to_owned(), "a é".to_owned()));
        let bad = "\u{1b}]0;x\u{7}\r\u{9b}\u{7f}\u{202e}";
        assert_eq!(clean(bad), "\u{fffd}]0;x\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}");
        for c in ['\u{61c}', '\u{200e}', '\u{2028}', '\u{2029}', '\u{202a}', '\u{2069}'] {
            assert_eq!(clean(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
            assert_eq!(clean_lines(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
        assert_eq!(of("a\nb\r"), ("a\u{fffd}b\u{fffd}".to_owned(), "a\nb\u{fffd}".to_owned()));
    }
}
