//! Source lines of the instructions of BPF programs: the guest's kernel has their addresses, and the programs' BTF the lines.

use serde::{Deserialize, Serialize};

use profiler_recording::call_tree::TreePlace;

/// Most characters of a line's text, and of its file, that are kept: BTF has room for megabytes, which each recording would have.
const MOST_TEXT: usize = 160;
const MOST_FILE: usize = 512;

/// The beginning of a line's file, and of its text.
pub(super) fn cut([file, text]: [&str; 2]) -> [String; 2] {
    [file.chars().take(MOST_FILE).collect(), text.trim().chars().take(MOST_TEXT).collect()]
}

/// A line in C: its file, as the compiler was given it, its number, and its text, which may be empty. Number 0 is for instructions of
/// no line, such as what the compiler makes of several.
type Line = (String, u32, String);

/// The lines of all programs of a guest, which sends them as JSON behind the symbols.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BpfLines {
    /// Each line once.
    pub(super) lines: Vec<Line>,
    /// Addresses in JIT images from which on instructions are of a line, and the line's index. Those of a function's
    /// prologue are of none.
    pub(super) starts: Vec<(u64, u32)>,
}

impl BpfLines {
    /// Those that a guest sent; none of an empty text.
    ///
    /// # Errors
    /// If they are damaged.
    pub(super) fn parse(json: &str) -> Result<Self, String> {
        if json.is_empty() {
            return Ok(Self::default());
        }
        let mut found: Self = serde_json::from_str(json).map_err(|error| error.to_string())?;
        found.starts.sort_unstable();
        for (file, _, text) in &mut found.lines {
            [*file, *text] = cut([file, text]);
        }
        Ok(found)
    }

    /// The line of the instruction at `address`, which is `offset` bytes into its function; `None` if that has no lines, or it is of none.
    pub(super) fn place(&self, address: u64, offset: u64) -> Option<TreePlace> {
        let after = self.starts.partition_point(|(start, _)| *start <= address);
        let (start, line) = self.starts.get(after.checked_sub(1)?)?;
        let (file, number, text) = self.lines.get(*line as usize)?;
        (address - start <= offset && *number > 0).then(|| TreePlace {
            file: Some(file.clone()),
            line: Some(*number),
            text: (!text.is_empty()).then(|| text.clone()),
            ..TreePlace::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_of_the_line_that_starts_last_before_it_in_its_function() {
        let [text, file] = [MOST_TEXT, MOST_FILE].map(|most| "x".repeat(most + 1));
        let json = format!(
            r#"{{"lines": [["a.bpf.c", 7, "  return 0;"], ["a.bpf.c", 9, "{text}"], ["b.h", 1, ""], ["b.h", 0, ""], ["{file}", 1, ""]],
                "starts": [[100, 0], [300, 2], [120, 1], [320, 3], [130, 0], [400, 4]]}}"#
        );
        let lines = BpfLines::parse(&json).unwrap();
        let at = |address, offset| {
            let place = lines.place(address, offset)?;
            Some((place.file.unwrap(), place.line.unwrap(), place.text))
        };
        let first = Some(("a.bpf.c".to_owned(), 7, Some("return 0;".to_owned())));
        assert_eq!(
            [at(100, 0), at(119, 19), at(130, 30), at(299, 199)],
            [(); 4].map(|()| first.clone())
        );
        assert_eq!(at(120, 20).unwrap().2.unwrap().len(), MOST_TEXT);
        assert_eq!(at(400, 0).unwrap().0.len(), MOST_FILE);
        assert_eq!(at(301, 1), Some(("b.h".to_owned(), 1, None)));
        // Before all, in a function without lines behind one that has some, and of no line.
        assert_eq!([at(99, 0), at(310, 5), at(325, 100)], [const { None }; 3]);
    }

    #[test]
    fn what_is_damaged_is_refused() {
        assert_eq!(BpfLines::parse(""), Ok(BpfLines::default()));
        for json in [r#"{"lines": []}"#, "[", r#"{"lines": [["a", -1, ""]], "starts": []}"#] {
            BpfLines::parse(json).unwrap_err();
        }
    }
}
