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
struct Format {
    file: String,
    id: Option<u64>,
    fields: Vec<(String, Field)>,
}

impl Format {
    fn read(
        file: &str,
        read: &dyn Fn(&str) -> Result<String, ProbeError>,
    ) -> Result<Self, ProbeError> {
        let mut format = Self { file: file.to_owned(), id: None, fields: Vec::new() };
        for line in read(file)?.lines().map(str::trim) {
            if let Some(id) = line.strip_prefix("ID:") {
                format.id = id.trim().parse().ok();
            } else if let Some(field) = line.strip_prefix("field:") {
                format.fields.push(field_of(field).ok_or_else(|| {
                    format.wrong(&format!("it has a field without name, offset or size: `{line}`"))
                })?);
            }
        }
        Ok(format)
    }

    fn find(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, field)| *field)
    }

    fn field(&self, name: &str) -> Result<Field, ProbeError> {
        self.find(name).ok_or_else(|| self.lacks(&format!("a field `{name}`")))
    }

    fn event(&self) -> Result<EventFormat, ProbeError> {
        Ok(EventFormat {
            id: self.id.ok_or_else(|| self.lacks("an ID"))?,
            func: self.field("func")?,
            depth: self.field("depth")?,
            overrun: self.find("overrun"),
            times: self.find("calltime").zip(self.find("rettime")),
        })
    }

    fn lacks(&self, what: &str) -> ProbeError {
        self.wrong(&format!("it has not {what}"))
    }

    fn wrong(&self, what: &str) -> ProbeError {
        ProbeError::Other(format!(
            "cannot make sense of events/{} of tracefs: {what}; please report it with that file",
            self.file
        ))
    }
}

/// `unsigned long func; offset:8; size:8; signed:0;`, with tabs between
fn field_of(text: &str) -> Option<(String, Field)> {
    let mut parts = text.split(';').map(str::trim);
    let declaration = parts.next()?;
    let name = declaration.split_whitespace().next_back()?;
    let name = name.split('[').next()?.trim_start_matches('*');
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", number)) => offset = number.parse().ok(),
            Some(("size", number)) => size = number.parse().ok(),
            _ => {}
        }
    }
    let (offset, size): (usize, usize) = (offset?, size?);
    // What lies further cannot be of an event; sums of these must not overflow.
    (offset <= 1 << 16 && size <= 1 << 24).then(|| (name.to_owned(), Field { offset, size }))
}
