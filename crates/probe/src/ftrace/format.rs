//! The layout of ftrace's binary data, read from the running kernel's format files.

use crate::ProbeError;

/// Place of a field, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    offset: usize,
    size: usize,
}

impl Field {
    /// The unsigned value in `bytes`; `None` where they end before.
    #[inline]
    pub(super) fn read(self, bytes: &[u8]) -> Option<u64> {
        let bytes = bytes.get(self.offset..)?.get(..self.size)?;
        Some(match *bytes {
            [a] => u64::from(a),
            [a, b] => u64::from(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => return None,
        })
    }
}

/// `funcgraph_entry` or `funcgraph_exit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventFormat {
    pub(super) id: u64,
    /// Address that was called.
    pub(super) func: Field,
    /// How many traced calls of the task it lies within.
    pub(super) depth: Field,
    /// Of an exit: calls of the task that were too deep to be traced, since it began.
    pub(super) overrun: Option<Field>,
    /// Of an exit: when the call began and ended. Kernels that leave it to the events' own times have neither.
    pub(super) times: Option<(Field, Field)>,
}

/// Where the fields of a page and of its events lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Time of the page's first event.
    pub(super) timestamp: Field,
    /// Bytes of events, with flags above.
    pub(super) commit: Field,
    /// Where events begin.
    pub(super) data: usize,
    /// Bytes of a page, head and events.
    pub(super) page_bytes: usize,
    /// An event's id.
    pub(super) id: Field,
    /// The task.
    pub(super) pid: Field,
    pub(super) entry: EventFormat,
    pub(super) exit: EventFormat,
}

impl Layout {
    /// Reads the layout through `read`, which is given names below `events`.
    ///
    /// # Errors
    /// When a file cannot be read, or lacks what is needed.
    pub(super) fn read(
        read: &dyn Fn(&str) -> Result<String, ProbeError>,
    ) -> Result<Self, ProbeError> {
        let page = Format::read("header_page", read)?;
        let entry = Format::read("ftrace/funcgraph_entry/format", read)?;
        let exit = Format::read("ftrace/funcgraph_exit/format", read)?;
        let data = page.field("data")?;
        Ok(Self {
            timestamp: page.field("timestamp")?,
            commit: page.field("commit")?,
            data: data.offset,
            page_bytes: data.offset + data.size,
            id: entry.field("common_type")?,
            pid: entry.field("common_pid")?,
            entry: entry.event()?,
            exit: exit.event()?,
        })
    }
}

/// A file of fields.
struct Format<'a> {
    file: &'a str,
    text: String,
}

impl<'a> Format<'a> {
    fn read(
        file: &'a str,
        read: &dyn Fn(&str) -> Result<String, ProbeError>,
    ) -> Result<Self, ProbeError> {
        Ok(Self { file, text: read(file)? })
    }

    fn find(&self, name: &str) -> Option<Field> {
        self.text.lines().find_map(|line| field_of(line.trim().strip_prefix("field:")?, name))
    }

    fn field(&self, name: &str) -> Result<Field, ProbeError> {
        self.find(name).ok_or_else(|| self.lacks(&format!("a field `{name}`")))
    }

    fn event(&self) -> Result<EventFormat, ProbeError> {
        let id = self.text.lines().find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok());
        Ok(EventFormat {
            id: id.ok_or_else(|| self.lacks("an ID"))?,
            func: self.field("func")?,
            depth: self.field("depth")?,
            overrun: self.find("overrun"),
            times: self.find("calltime").zip(self.find("rettime")),
        })
    }

    fn lacks(&self, what: &str) -> ProbeError {
        ProbeError::Other(format!(
            "cannot make sense of events/{} of tracefs: it has not {what}; please report it with that file",
            self.file
        ))
    }
}

/// The field of this name, if it is that of a line without its beginning:
/// `unsigned long func; offset:8; size:8; signed:0;`, with tabs between.
fn field_of(line: &str, name: &str) -> Option<Field> {
    let mut parts = line.split(';').map(str::trim);
    let declared = parts.next()?.split_whitespace().next_back()?;
    let mut number = |of: &str| parts.next()?.strip_prefix(of)?.parse().ok();
    let (offset, size): (usize, usize) = (number("offset:")?, number("size:")?);
    // What lies further cannot be of an event; sums of these must not overflow.
    let is_it = declared.split('[').next()?.trim_start_matches('*') == name;
    (is_it && offset <= 1 << 16 && size <= 1 << 24).then_some(Field { offset, size })
}
