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
pub(super) const TYPE_LEN: usize = 12;

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

    /// Functions in a module's blob that is in memory, such as one just made, on its base.
    ///
    /// # Errors
    /// When one of the two cannot be understood; the paths are for the message.
    pub fn in_blobs(base: (&[u8], &Path), own: (&[u8], &Path)) -> Result<Self, BtfError> {
        let base = Blob::parse(base.0, base.1, Base::default())?;
        Blob::parse(own.0, own.1, base.end()?)?.functions()
    }

    /// How many functions there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_name.values().map(Vec::len).sum()
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

pub(super) fn read(path: &Path) -> Result<Vec<u8>, BtfError> {
    fs::read(path).map_err(|error| BtfError::Read { path: path.display().to_string(), error })
}

/// What lies before a blob: the types and strings that it builds on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Base<'a> {
    /// Types before the first of this blob, without `void`.
    types: u32,
    /// Strings before the first of this blob.
    strings: &'a [u8],
}

/// One BTF blob, its sections checked to lie within it.
pub(super) struct Blob<'a> {
    path: &'a Path,
    pub(super) types: &'a [u8],
    pub(super) strings: &'a [u8],
    base: Base<'a>,
}

/// One type's header.
pub(super) struct Type {
    id: u32,
    /// Where it begins, in bytes from the first type of its blob.
    pub(super) at: usize,
    name_offset: u32,
    kind: u32,
}

impl<'a> Blob<'a> {
    pub(super) fn parse(bytes: &'a [u8], path: &'a Path, base: Base<'a>) -> Result<Self, BtfError> {
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
    pub(super) fn walk(&self, mut visit: impl FnMut(Type)) -> Result<(), BtfError> {
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
            let next = at + TYPE_LEN + rest;
            if next > self.types.len() {
                return Err(self.malformed(at, "a type is cut off"));
            }
            id += 1;
            visit(Type { id, at, name_offset, kind });
            at = next;
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
    pub(super) fn end(&self) -> Result<Base<'a>, BtfError> {
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

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

pub(super) const KIND_FUNC: u32 = 12;

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

/// Hand-made blobs for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Kinds that tests build (include/uapi/linux/btf.h).
    pub(crate) mod kind {
        pub(crate) const INT: u32 = 1;
        pub(crate) const PTR: u32 = 2;
        pub(crate) const ARRAY: u32 = 3;
        pub(crate) const STRUCT: u32 = 4;
        pub(crate) const TYPEDEF: u32 = 8;
        pub(crate) const CONST: u32 = 10;
        pub(crate) const FUNC: u32 = 12;
        pub(crate) const FUNC_PROTO: u32 = 13;
    }

    /// A blob under construction; ids go on from those of its base.
    pub(crate) struct Builder {
        pub(crate) types: Vec<u8>,
        strings: Vec<u8>,
        base_strings: usize,
        next: u32,
    }

    impl Builder {
        pub(crate) fn base() -> Self {
            Self { types: Vec::new(), strings: vec![0], base_strings: 0, next: 1 }
        }

        /// A module's blob on this one.
        pub(crate) fn split(&self) -> Self {
            Self {
                types: Vec::new(),
                strings: Vec::new(),
                base_strings: self.base_strings + self.strings.len(),
                next: self.next,
            }
        }

        pub(crate) fn name(&mut self, text: &str) -> u32 {
            if text.is_empty() {
                return 0;
            }
            let offset = self.base_strings + self.strings.len();
            self.strings.extend(text.as_bytes());
            self.strings.push(0);
            offset as u32
        }

        /// Appends a type and gives its id: `third` is the size or type word, `rest` what follows.
        pub(crate) fn add(
            &mut self,
            name: &str,
            kind: u32,
            members: u32,
            third: u32,
            rest: &[u32],
        ) -> u32 {
            let name = self.name(name);
            for word in [name, kind << 24 | members, third].iter().chain(rest) {
                self.types.extend(word.to_ne_bytes());
            }
            self.next += 1;
            self.next - 1
        }

        pub(crate) fn int(&mut self, name: &str) -> u32 {
            self.add(name, kind::INT, 0, 4, &[32])
        }

        /// A struct with members of type `int`-like id 1.
        pub(crate) fn structure(&mut self, name: &str, members: &[&str]) -> u32 {
            let mut rest = Vec::new();
            for member in members {
                rest.extend([self.name(member), 1, 0]);
            }
            self.add(name, kind::STRUCT, members.len() as u32, 8, &rest)
        }

        /// A function with its prototype; a parameter is name and type.
        pub(crate) fn function(&mut self, name: &str, ret: u32, params: &[(&str, u32)]) -> u32 {
            let mut rest = Vec::new();
            for (name, id) in params {
                rest.extend([self.name(name), *id]);
            }
            let proto = self.add("", kind::FUNC_PROTO, params.len() as u32, ret, &rest);
            self.add(name, kind::FUNC, 0, proto, &[])
        }

        pub(crate) fn bytes(&self) -> Vec<u8> {
            let mut bytes = MAGIC.to_ne_bytes().to_vec();
            bytes.extend([1, 0]);
            let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
            for word in [HEADER_LEN as u32, 0, types, types, strings] {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend(&self.types);
            bytes.extend(&self.strings);
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testing::{Builder, kind};
    use super::*;

    /// A base with a function `vfs_open`, and a module's blob with two.
    fn blobs() -> (Builder, Builder) {
        let mut base = Builder::base();
        let int = base.int("int");
        base.function("vfs_open", int, &[("path", int)]);
        let mut split = base.split();
        let pointer = split.add("", kind::PTR, 0, int, &[]);
        split.function("bind_handler", int, &[("regs", pointer)]);
        split.function("same", int, &[]);
        split.function("same", int, &[]);
        (base, split)
    }

    fn parse(base: &[u8], own: &[u8]) -> Result<Functions, BtfError> {
        Functions::in_blobs((base, Path::new("vmlinux")), (own, Path::new("module")))
    }

    #[test]
    fn ids_of_a_module_go_on_from_the_base() {
        let (base, split) = blobs();
        let functions = parse(&base.bytes(), &split.bytes()).unwrap();
        // Base: int, prototype, function. Module: pointer 4, prototype 5, function 6.
        assert_eq!(functions.ids("bind_handler"), [6]);
        assert_eq!(functions.ids("same"), [8, 10]);
        assert!(functions.ids("vfs_open").is_empty(), "that one is the kernel's");
        assert_eq!(functions.count(), 3);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("vmlinux"), base.bytes()).unwrap();
        fs::write(folder.path().join("driver"), split.bytes()).unwrap();
        assert_eq!(Functions::of(None, folder.path()).unwrap().ids("vfs_open"), [3]);
        assert_eq!(Functions::of(Some("driver"), folder.path()).unwrap().ids("bind_handler"), [6]);
        assert!(matches!(
            Functions::of(Some("other"), folder.path()),
            Err(BtfError::Read { path, .. }) if path.ends_with("other")
        ));
    }

    #[test]
    fn a_module_may_use_strings_of_the_kernel() {
        let mut base = Builder::base();
        let int = base.int("int");
        let shared = base.name("shared_name");
        let mut split = base.split();
        let proto = split.add("", kind::FUNC_PROTO, 0, int, &[]);
        split
            .types
            .extend([shared, kind::FUNC << 24, proto].iter().flat_map(|word| word.to_ne_bytes()));
        assert_eq!(parse(&base.bytes(), &split.bytes()).unwrap().ids("shared_name"), [3]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let (base, split) = blobs();
        let (base, split) = (base.bytes(), split.bytes());
        let mut foreign = split.clone();
        foreign[0] ^= 0xff;
        let mut beyond = split.clone();
        beyond[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        let mut strings = split.clone();
        strings[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
        let mut newer = Builder::base();
        newer.add("x", 31, 0, 0, &[]);
        for (bytes, wanted) in [
            (&foreign[..], "magic number"),
            (&[], "magic number"),
            (&split[..20], "shorter than its header"),
            (&beyond, "types lie outside"),
            (&strings, "strings lie outside"),
            (&newer.bytes(), "kind 31 is newer"),
        ] {
            let error = parse(&base, bytes).unwrap_err().to_string();
            assert!(error.starts_with("module is not BTF") && error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_type_that_is_cut_off_is_an_error() {
        let mut base = Builder::base();
        base.structure("module", &["name", "btf_data"]);
        let whole = base.types.clone();
        for length in 1..whole.len() {
            base.types = whole[..length].to_vec();
            let error = parse(&base.bytes(), &base.split().bytes()).unwrap_err().to_string();
            assert!(error.contains("cut off (byte 0"), "{length}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let (base, _) = blobs();
            let _ = parse(&base.bytes(), &bytes);
            let _ = parse(&bytes, &bytes);
        }

        #[test]
        fn no_damage_makes_it_panic(
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
            cut in any::<prop::sample::Index>(),
        ) {
            let (base, split) = blobs();
            let (base, mut split) = (base.bytes(), split.bytes());
            for (at, byte) in damage {
                let at = at.index(split.len());
                split[at] = byte;
            }
            let _ = parse(&base, &split);
            split.truncate(cut.index(split.len()));
            let _ = parse(&base, &split);
        }
    }
}
