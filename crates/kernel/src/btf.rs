//! The kernel's type information (BTF), also that of modules: functions and structures by name.
//!
//! A module's BTF is *split*: its type ids and string offsets continue those of vmlinux.
//! aya-obj parses only complete BTF, so split BTF is parsed here. Format: Documentation/bpf/btf.rst.

use std::{
    ffi::CStr,
    fs,
    path::Path,
    sync::{Arc, OnceLock},
};

use profiler_base::bytes::array;
use profiler_base::error::{Failure, exit};

/// Where the kernel shows its BTF.
pub const BTF_FOLDER: &str = "/sys/kernel/btf";

const MAGIC: u16 = 0xeb9f;
const HEADER_LEN: usize = 24;
const TYPE_LEN: usize = 12;

/// Types of the kernel image or of a module, checked: functions and structures by name.
#[derive(Debug)]
pub struct Btf {
    /// The image's types, which a module's refer to.
    base: Option<Arc<Self>>,
    types: Vec<u8>,
    strings: Vec<u8>,
    /// Id of the first type; a module's follow those of the image.
    first: u32,
    /// Offset of each type in `types`.
    places: Vec<u32>,
    /// Ids of the structures and functions, in order of kind, name and id; sorted on first use, as the image has 70,000.
    named: OnceLock<Vec<u32>>,
}

impl Btf {
    /// Types of the kernel image, or of a loaded module. The running kernel's image is parsed once per process:
    /// it has some 150,000 types and does not change.
    ///
    /// # Errors
    /// When the BTF is not there or cannot be understood.
    pub fn of(module: Option<&str>, folder: &Path) -> Result<Arc<Self>, Failure> {
        static RUNNING: OnceLock<Arc<Btf>> = OnceLock::new();
        let is_running = folder == Path::new(BTF_FOLDER);
        let image = match RUNNING.get() {
            Some(image) if is_running => image.clone(),
            _ => Self::read(&folder.join("vmlinux"), None)?,
        };
        if is_running {
            RUNNING.get_or_init(|| image.clone());
        }
        match module {
            None => Ok(image),
            Some(module) => Self::read(&folder.join(module), Some(image)),
        }
    }

    fn read(path: &Path, base: Option<Arc<Self>>) -> Result<Arc<Self>, Failure> {
        let bytes = fs::read(path)
            .map_err(|error| unusable(format!("cannot read {}: {error}", path.display())))?;
        Self::parse(&bytes, path, base)
    }

    /// Types of a kernel image whose BTF is in memory, or of a module on those of its image.
    ///
    /// # Errors
    /// When it cannot be understood; the path is for the message.
    pub fn parse(bytes: &[u8], path: &Path, base: Option<Arc<Self>>) -> Result<Arc<Self>, Failure> {
        let parsed = Self::parts(bytes, base).map_err(|what| {
            unusable(format!("{} is not BTF that this program can read: {what}", path.display()))
        })?;
        Ok(Arc::new(parsed))
    }

    fn parts(bytes: &[u8], base: Option<Arc<Self>>) -> Result<Self, String> {
        let magic = array(bytes, 0).map(u16::from_ne_bytes);
        if magic != Some(MAGIC) {
            return Err("it does not begin with the magic number of this byte order".to_owned());
        }
        if bytes.len() < HEADER_LEN {
            return Err("it is shorter than its header".to_owned());
        }
        let types = section(bytes, 8).ok_or("its types lie outside it")?;
        let strings = section(bytes, 16).ok_or("its strings lie outside it")?;
        let (mut places, mut at) = (Vec::new(), 0);
        while at < types.len() {
            let length =
                type_len(&types, at).map_err(|what| format!("{what} (byte {at} of the types)"))?;
            places.push(at as u32);
            at += length;
        }
        // Each type takes at least its header of a blob whose length is a `u32`.
        let first = base.as_ref().map_or(0, |base| base.places.len() as u32) + 1;
        Ok(Self { base, types, strings, first, places, named: OnceLock::new() })
    }

    /// Type ids of the functions of this name, more than one if they share it. Of a module: without the image's.
    pub fn ids(&self, name: &str) -> &[u32] {
        self.ids_of(KIND_FUNC, name)
    }

    /// The same of functions or of structures.
    fn ids_of(&self, kind: u32, name: &str) -> &[u32] {
        let ids = self.named();
        let from = ids.partition_point(|&id| self.key(id) < (kind, name));
        let to = from + ids[from..].partition_point(|&id| self.key(id) == (kind, name));
        &ids[from..to]
    }

    /// Number of functions. Of a module: without the image's.
    pub fn count(&self) -> usize {
        let ids = self.named();
        ids.len() - ids.partition_point(|&id| self.key(id).0 < KIND_FUNC)
    }

    /// The name of the function of this id; `None` if it is no function.
    pub fn function_name(&self, id: u32) -> Option<&str> {
        let header = self.header(id).filter(|header| header.kind() == KIND_FUNC)?;
        self.string(header.name)
    }

    /// The name of the struct that the first argument of the function with this id points to; `None` if it is no such pointer.
    pub fn first_argument(&self, function: u32) -> Option<&str> {
        let function = self.header(function).filter(|of| of.kind() == KIND_FUNC)?;
        let types = self.header(function.third);
        let types = types.filter(|of| of.kind() == KIND_FUNC_PROTO && of.members() > 0)?;
        let pointer = self.header(word(types.rest, 4)?).filter(|of| of.kind() == KIND_PTR)?;
        let mut pointed = self.header(pointer.third)?;
        // Tags such as `__user` stand in between; more than some are a circle of damaged types.
        for _ in 0..8 {
            if pointed.kind() == KIND_TYPE_TAG {
                pointed = self.header(pointed.third)?;
            }
        }
        // One that is declared alone has the flag if it is a union.
        let is_struct =
            pointed.kind() == KIND_STRUCT || pointed.kind() == KIND_FWD && !pointed.flag();
        self.string(pointed.name).filter(|_| is_struct)
    }

    /// Whether a struct has a direct member of this name; `None` if BTF does not describe the struct.
    pub fn has_member(&self, structure: &str, member: &str) -> Option<bool> {
        self.structures(structure).map(|it| it.offset(member).is_some()).reduce(|a, b| a || b)
    }

    /// The first struct of this name.
    pub fn structure(&self, name: &str) -> Option<Structure<'_>> {
        self.structures(name).next()
    }

    fn structures(&self, name: &str) -> impl Iterator<Item = Structure<'_>> {
        self.ids_of(KIND_STRUCT, name).iter().filter_map(|id| {
            let header = self.header(*id)?;
            // In bits; with bit fields, the upper byte is their length.
            let mask = if header.flag() { 0xff_ffff } else { u32::MAX };
            let members = (0..header.members()).filter_map(|at| {
                let bits = word(header.rest, at * 12 + 8)? & mask;
                Some((self.string(word(header.rest, at * 12)?)?, u64::from(bits) / 8))
            });
            Some(Structure { size: header.third.into(), members: members.collect() })
        })
    }

    fn named(&self) -> &[u32] {
        self.named.get_or_init(|| {
            let kind = |id: u32| self.header(id).map_or(0, |header| header.kind());
            let all = (self.first..).take(self.places.len());
            let mut named: Vec<u32> =
                all.filter(|id| [KIND_STRUCT, KIND_FUNC].contains(&kind(*id))).collect();
            named.sort_by_cached_key(|id| self.key(*id));
            named
        })
    }

    fn key(&self, id: u32) -> (u32, &str) {
        self.header(id).map_or((0, ""), |of| (of.kind(), self.string(of.name).unwrap_or_default()))
    }

    fn header(&self, id: u32) -> Option<Header<'_>> {
        let Some(own) = id.checked_sub(self.first) else { return self.base.as_ref()?.header(id) };
        Header::at(&self.types, *self.places.get(own as usize)? as usize)
    }

    /// A string by its offset: a module's types also use strings of vmlinux.
    pub fn string(&self, offset: u32) -> Option<&str> {
        let before = self.base.as_ref().map_or(0, |base| base.strings.len());
        let Some(own) = (offset as usize).checked_sub(before) else {
            return self.base.as_ref()?.string(offset);
        };
        CStr::from_bytes_until_nul(self.strings.get(own..)?).ok()?.to_str().ok()
    }
}

/// A struct of C, in bytes.
#[derive(Debug, Clone)]
pub struct Structure<'a> {
    pub(super) size: u64,
    /// Its direct members by name, with their offsets.
    pub(super) members: Vec<(&'a str, u64)>,
}

impl Structure<'_> {
    pub(super) fn offset(&self, member: &str) -> Option<u64> {
        self.members.iter().find_map(|(name, offset)| (*name == member).then_some(*offset))
    }
}

/// A type's header of three words, and the bytes that follow it.
struct Header<'a> {
    name: u32,
    info: u32,
    /// Size or type, by kind.
    third: u32,
    rest: &'a [u8],
}

impl<'a> Header<'a> {
    fn at(types: &'a [u8], at: usize) -> Option<Self> {
        Some(Self {
            name: word(types, at)?,
            info: word(types, at + 4)?,
            third: word(types, at + 8)?,
            rest: &types[at + TYPE_LEN..],
        })
    }

    fn kind(&self) -> u32 {
        (self.info >> 24) & 0x1f
    }

    fn members(&self) -> usize {
        (self.info & 0xffff) as usize
    }

    fn flag(&self) -> bool {
        self.info >> 31 != 0
    }
}

/// The section whose offset stands at `at` in a blob's header, and its length behind that.
fn section(bytes: &[u8], at: usize) -> Option<Vec<u8>> {
    let [header, offset, length] = [word(bytes, 4)?, word(bytes, at)?, word(bytes, at + 4)?];
    let start = (header as usize).checked_add(offset as usize)?;
    Some(bytes.get(start..start.checked_add(length as usize)?)?.to_vec())
}

/// Bytes of the type at an offset.
fn type_len(types: &[u8], at: usize) -> Result<usize, String> {
    let header = Header::at(types, at).ok_or("a type is cut off")?;
    let kind = header.kind();
    let rest = rest_len(kind, header.members())
        .ok_or_else(|| format!("kind {kind} is newer than this program"))?;
    if rest > header.rest.len() {
        return Err("a type is cut off".to_owned());
    }
    Ok(TYPE_LEN + rest)
}

fn unusable(text: String) -> Failure {
    Failure::new(exit::CANNOT_MEASURE, text)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

// Kinds of include/uapi/linux/btf.h.
const KIND_PTR: u32 = 2;
const KIND_STRUCT: u32 = 4;
const KIND_FWD: u32 = 7;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_TYPE_TAG: u32 = 18;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use profiler_tests::btf::{Builder, kind};

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

    fn parse(base: &[u8], own: &[u8]) -> Result<Arc<Btf>, Failure> {
        let base = Btf::parse(base, Path::new("vmlinux"), None)?;
        Btf::parse(own, Path::new("module"), Some(base))
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
        assert_eq!(Btf::of(None, folder.path()).unwrap().ids("vfs_open"), [3]);
        assert_eq!(Btf::of(Some("driver"), folder.path()).unwrap().ids("bind_handler"), [6]);
        let error = Btf::of(Some("other"), folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains("/other: "), "{error}");
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

    #[test]
    fn the_struct_that_a_first_argument_points_to() {
        let mut base = Builder::base();
        let int = base.int("int");
        let probe = base.structure("kprobe", &["addr"]);
        let regs = base.structure("pt_regs", &["ax"]);
        let mut split = base.split();
        let declared = split.add("kretprobe_instance", kind::FWD, 0, 0, &[]);
        let union = split.add("sigval", kind::FWD | kind::FLAG, 0, 0, &[]);
        let tagged = split.add("user", kind::TYPE_TAG, 0, declared, &[]);
        let tagged = split.add("rcu", kind::TYPE_TAG, 0, tagged, &[]);
        let [to_probe, to_regs, to_tagged, to_union] =
            [probe, regs, tagged, union].map(|of| split.add("", kind::PTR, 0, of, &[]));
        let handler = split.function("pre", int, &[("p", to_probe), ("regs", to_regs)]);
        let plain = split.function("plain", int, &[("length", int), ("regs", to_regs)]);
        let none = split.function("stop", 0, &[]);
        let entry = split.function("entry", int, &[("ri", to_tagged), ("regs", to_regs)]);
        let of_union = split.function("of_union", int, &[("value", to_union)]);
        let types = parse(&base.bytes(), &split.bytes()).unwrap();
        assert_eq!(types.first_argument(handler), Some("kprobe"));
        assert_eq!(types.first_argument(entry), Some("kretprobe_instance"));
        for other in [plain, none, of_union, to_probe, 0, u32::MAX] {
            assert_eq!(types.first_argument(other), None, "{other}");
        }
    }

    #[test]
    fn members_are_found() {
        let mut base = Builder::base();
        base.int("int");
        base.structure("module", &["name", "btf_data"]);
        let types = Btf::parse(&base.bytes(), Path::new("vmlinux"), None).unwrap();
        assert_eq!(types.has_member("module", "btf_data"), Some(true));
        assert_eq!(types.has_member("module", "btf"), Some(false));
        assert_eq!(types.has_member("nothing", "btf"), None);
    }

    proptest! {
        #[test]
        fn damaged_types_never_panic(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        ) {
            let mut base = Builder::base();
            let int = base.int("int");
            let structure = base.structure("s", &["a", "b"]);
            let pointer = base.add("", kind::PTR, 0, structure, &[]);
            base.function("f", int, &[("x", pointer), ("y", int)]);
            let mut bytes = base.bytes();
            for (at, byte) in damage {
                // The header stays, so that the types are reached.
                let at = 24 + at.index(bytes.len() - 24);
                bytes[at] = byte;
            }
            if let Ok(types) = Btf::parse(&bytes, Path::new("vmlinux"), None) {
                for id in 0..32 {
                    let _ = types.first_argument(id);
                }
                let _ = types.has_member("s", "a");
            }
        }

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
