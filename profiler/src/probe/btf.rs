//! Functions in the kernel's type information (BTF), also in that of modules.
//!
//! A module's BTF is *split*: its type ids go on where those of vmlinux end, and so do its string
//! offsets. aya-obj parses whole BTF only, so what is needed of it is read here: which functions
//! there are, and their ids. Format: Documentation/bpf/btf.rst.

use std::{collections::HashMap, fs, io, path::Path};

/// Where the kernel shows its BTF.
pub const BTF_FOLDER: &str = "/sys/kernel/btf";

const MAGIC: u16 = 0xeb9f;
const HEADER_LEN: usize = 24;
const TYPE_LEN: usize = 12;

/// Why type information cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file is not there or cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// The bytes are not BTF as this program knows it.
    #[error("{path} is not BTF that this program can read: {what}")]
    Malformed {
        /// The file.
        path: String,
        /// What is wrong, with the place.
        what: String,
    },
}

/// Functions by name, with their type ids; a name that stands twice has two ids.
#[derive(Debug, Default, Clone)]
pub struct Functions {
    by_name: HashMap<String, Vec<u32>>,
}

impl Functions {
    /// Ids of the functions of this name.
    #[must_use]
    pub fn ids(&self, name: &str) -> &[u32] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// All names, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Functions of the kernel image, or of a module that is loaded.
    ///
    /// # Errors
    /// When the BTF is not there or cannot be understood.
    pub fn of(module: Option<&str>, folder: &Path) -> Result<Self, BtfError> {
        let base_path = folder.join("vmlinux");
        let base_bytes = read(&base_path)?;
        let vmlinux = Blob::parse(&base_bytes, &base_path, Base::default())?;
        let Some(module) = module else {
            return vmlinux.functions();
        };
        let path = folder.join(module);
        let bytes = read(&path)?;
        Blob::parse(&bytes, &path, vmlinux.end()?)?.functions()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, BtfError> {
    fs::read(path).map_err(|error| BtfError::Read { path: path.display().to_string(), error })
}

/// What lies before a blob: the types and strings that it builds on.
#[derive(Debug, Clone, Copy, Default)]
struct Base<'a> {
    /// Types before the first of this blob, without `void`.
    types: u32,
    /// Strings before the first of this blob.
    strings: &'a [u8],
}

/// One BTF blob, its sections checked to lie within it.
struct Blob<'a> {
    path: &'a Path,
    types: &'a [u8],
    strings: &'a [u8],
    base: Base<'a>,
}

/// One type's header.
struct Type {
    id: u32,
    name_offset: u32,
    kind: u32,
}

impl<'a> Blob<'a> {
    fn parse(bytes: &'a [u8], path: &'a Path, base: Base<'a>) -> Result<Self, BtfError> {
        let malformed = |what: &str| BtfError::Malformed {
            path: path.display().to_string(),
            what: what.into(),
        };
        let magic = bytes.get(..2).map(|magic| u16::from_ne_bytes([magic[0], magic[1]]));
        if magic != Some(MAGIC) {
            return Err(malformed("it does not begin with the magic number of this byte order"));
        }
        if bytes.len() < HEADER_LEN {
            return Err(malformed("it is shorter than its header"));
        }
        let field = |at| word(bytes, at).unwrap_or_default() as usize;
        let header = field(4);
        let section = |offset: usize, length: usize| {
            let start = header.checked_add(offset)?;
            bytes.get(start..start.checked_add(length)?)
        };
        Ok(Self {
            path,
            types: section(field(8), field(12))
                .ok_or_else(|| malformed("its types lie outside it"))?,
            strings: section(field(16), field(20))
                .ok_or_else(|| malformed("its strings lie outside it"))?,
            base,
        })
    }

    /// Calls `visit` with each type in order of id.
    fn walk(&self, mut visit: impl FnMut(Type)) -> Result<(), BtfError> {
        let mut at = 0;
        let mut id = self.base.types;
        while at < self.types.len() {
            let (Some(name_offset), Some(info)) = (word(self.types, at), word(self.types, at + 4))
            else {
                return Err(self.malformed(at, "a type is cut off"));
            };
            let kind = (info >> 24) & 0x1f;
            let members = (info & 0xffff) as usize;
            let Some(rest) = rest_len(kind, members) else {
                return Err(self.malformed(at, &format!("kind {kind} is newer than this program")));
            };
            id += 1;
            visit(Type { id, name_offset, kind });
            at += TYPE_LEN + rest;
        }
        Ok(())
    }

    fn malformed(&self, at: usize, what: &str) -> BtfError {
        BtfError::Malformed {
            path: self.path.display().to_string(),
            what: format!("{what} (byte {at} of the types)"),
        }
    }

    /// What a blob that builds on this one starts from.
    fn end(&self) -> Result<Base<'a>, BtfError> {
        let mut types = self.base.types;
        self.walk(|found| types = found.id)?;
        Ok(Base { types, strings: self.strings })
    }

    fn functions(&self) -> Result<Functions, BtfError> {
        let mut by_name: HashMap<String, Vec<u32>> = HashMap::new();
        self.walk(|found| {
            if found.kind == KIND_FUNC
                && let Some(name) = self.string(found.name_offset)
            {
                by_name.entry(name.to_owned()).or_default().push(found.id);
            }
        })?;
        Ok(Functions { by_name })
    }

    /// A string by its offset: a module's types also use strings of vmlinux.
    fn string(&self, offset: u32) -> Option<&'a str> {
        let offset = offset as usize;
        let text = match offset.checked_sub(self.base.strings.len()) {
            Some(own) => self.strings.get(own..)?,
            None => self.base.strings.get(offset..)?,
        };
        let end = text.iter().position(|&byte| byte == 0)?;
        std::str::from_utf8(&text[..end]).ok()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

const KIND_FUNC: u32 = 12;

/// Bytes that follow a type's header, by kind; `None` for a kind this program does not know.
fn rest_len(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // INT; VAR; DECL_TAG
        1 | 14 | 17 => 4,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => 12 * members,
        // ENUM, FUNC_PROTO
        6 | 13 => 8 * members,
        _ => return None,
    })
}
