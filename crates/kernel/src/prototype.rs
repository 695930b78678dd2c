//! Types of BTF in C's notation: the prototype of a function, and which members a struct has.

use super::btf::{Btf, KIND_FUNC, KIND_STRUCT, word};

/// Most types visited for one prototype: damaged BTF may contain cycles.
const MAX_STEPS: u32 = 500;

// Kinds of include/uapi/linux/btf.h.
const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC_PROTO: u32 = 13;
const FLOAT: u32 = 16;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

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

impl Btf {
    /// The prototype of the function with this id, as in C, without a semicolon; `None` if there
    /// is no such function.
    pub fn prototype(&self, function: u32) -> Option<String> {
        let header = self.header(function)?;
        if header.kind() != KIND_FUNC {
            return None;
        }
        let name = self.string(header.name)?;
        Some(self.declare(header.third, name.to_owned(), &mut MAX_STEPS.clone()))
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

    /// The declaration of `declarator` with the type `id`. C declares inside out: the type that a pointer
    /// points to surrounds the pointer.
    fn declare(&self, id: u32, declarator: String, steps: &mut u32) -> String {
        *steps = steps.saturating_sub(1);
        if *steps == 0 {
            return join("...", &declarator);
        }
        if id == 0 {
            return join("void", &declarator);
        }
        let Some(header) = self.header(id) else { return join("?", &declarator) };
        let name = self.string(header.name).filter(|name| !name.is_empty());
        let tagged = |word: &str| join(&format!("{word} {}", name.unwrap_or("{...}")), &declarator);
        match header.kind() {
            INT | FLOAT | TYPEDEF => join(name.unwrap_or("?"), &declarator),
            KIND_STRUCT => tagged("struct"),
            UNION => tagged("union"),
            ENUM | ENUM64 => tagged("enum"),
            FWD => tagged(if header.flag() { "union" } else { "struct" }),
            PTR => {
                // Brackets and parentheses bind tighter than the star.
                let inner = if matches!(self.kind(header.third), Some(ARRAY | FUNC_PROTO)) {
                    format!("(*{declarator})")
                } else {
                    format!("*{declarator}")
                };
                self.declare(header.third, inner, steps)
            }
            CONST => self.qualify("const", header.third, &declarator, steps),
            VOLATILE => self.qualify("volatile", header.third, &declarator, steps),
            RESTRICT => self.qualify("restrict", header.third, &declarator, steps),
            TYPE_TAG => self.declare(header.third, declarator, steps),
            ARRAY => {
                let element = word(header.rest, 0).unwrap_or(0);
                let length = word(header.rest, 8).unwrap_or(0);
                self.declare(element, format!("{declarator}[{length}]"), steps)
            }
            FUNC_PROTO => {
                let parameters: Vec<String> = (0..header.members())
                    .map_while(|number| {
                        if *steps == 0 {
                            return None;
                        }
                        let at = number * 8;
                        let name = word(header.rest, at)?;
                        let id = word(header.rest, at + 4)?;
                        if name == 0 && id == 0 {
                            return Some("...".to_owned());
                        }
                        let name = self.string(name).unwrap_or_default().to_owned();
                        Some(self.declare(id, name, steps))
                    })
                    .collect();
                let list =
                    if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
                self.declare(header.third, format!("{declarator}({list})"), steps)
            }
            _ => join("?", &declarator),
        }
    }

    /// A pointer's qualifier follows its star, any other precedes the type.
    fn qualify(&self, word: &str, id: u32, declarator: &str, steps: &mut u32) -> String {
        if self.kind(id) == Some(PTR) {
            let inner = if declarator.is_empty() {
                word.to_owned()
            } else {
                format!("{word} {declarator}")
            };
            self.declare(id, inner, steps)
        } else {
            format!("{word} {}", self.declare(id, declarator.to_owned(), steps))
        }
    }

    fn kind(&self, id: u32) -> Option<u32> {
        self.header(id).map(|header| header.kind())
    }
}

fn join(name: &str, declarator: &str) -> String {
    if declarator.is_empty() {
        name.to_owned()
    } else if declarator.starts_with(['[', '(']) && !declarator.starts_with("(*") {
        format!("{name}{declarator}")
    } else {
        format!("{name} {declarator}")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use profiler_base::error::Failure;
    use profiler_tests::btf::{Builder, kind};

    fn types(base: &[u8], split: Option<&[u8]>) -> Result<Arc<Btf>, Failure> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("vmlinux"), base).unwrap();
        if let Some(split) = split {
            fs::write(folder.path().join("driver"), split).unwrap();
        }
        Btf::of(split.map(|_| "driver"), folder.path())
    }

    #[test]
    fn prototypes_of_a_module_use_types_of_the_kernel() {
        let mut base = Builder::base();
        let int = base.int("int");
        let regs = base.structure("pt_regs", &["ax"]);
        let size = base.add("size_t", kind::TYPEDEF, 0, int, &[]);
        let mut split = base.split();
        let pointer = split.add("", kind::PTR, 0, regs, &[]);
        let own = split.structure("event", &["id"]);
        let read_only = split.add("", kind::CONST, 0, own, &[]);
        let to_read_only = split.add("", kind::PTR, 0, read_only, &[]);
        let id = split.function(
            "bind_handler",
            int,
            &[("regs", pointer), ("event", to_read_only), ("length", size)],
        );
        let none = split.function("stop", 0, &[]);
        let types = types(&base.bytes(), Some(&split.bytes())).unwrap();
        assert_eq!(
            types.prototype(id).unwrap(),
            "int bind_handler(struct pt_regs *regs, const struct event *event, size_t length)"
        );
        assert_eq!(types.prototype(none).unwrap(), "void stop(void)");
        assert_eq!(types.prototype(pointer), None);
        assert_eq!(types.prototype(0), None);
        assert_eq!(types.prototype(u32::MAX), None);
    }

    #[test]
    fn declarators_are_inside_out() {
        let mut base = Builder::base();
        let int = base.int("int");
        let char_type = base.int("char");
        let array = base.add("", kind::ARRAY, 0, 0, &[char_type, int, 16]);
        let to_array = base.add("", kind::PTR, 0, array, &[]);
        let to_char = base.add("", kind::PTR, 0, char_type, &[]);
        let fixed = base.add("", kind::CONST, 0, to_char, &[]);
        let callback = base.add("", kind::FUNC_PROTO, 2, int, &[0, to_char, 0, 0]);
        let to_callback = base.add("", kind::PTR, 0, callback, &[]);
        let id = base.function(
            "odd",
            to_char,
            &[("bytes", to_array), ("name", fixed), ("done", to_callback), ("", to_callback)],
        );
        let types = types(&base.bytes(), None).unwrap();
        assert_eq!(
            types.prototype(id).unwrap(),
            "char *odd(char (*bytes)[16], char *const name, int (*done)(char *, ...), \
             int (*)(char *, ...))"
        );
    }

    #[test]
    fn a_circle_of_types_ends() {
        let mut base = Builder::base();
        // Points to itself.
        let circle = base.add("", kind::PTR, 0, 1, &[]);
        let id = base.function("f", circle, &[("a", circle), ("b", circle)]);
        let text = types(&base.bytes(), None).unwrap().prototype(id).unwrap();
        assert!(text.contains("...") && text.len() < 4096, "{text}");
    }

    #[test]
    fn members_are_found() {
        let mut base = Builder::base();
        base.int("int");
        base.structure("module", &["name", "btf_data"]);
        let types = types(&base.bytes(), None).unwrap();
        assert_eq!(types.has_member("module", "btf_data"), Some(true));
        assert_eq!(types.has_member("module", "btf"), Some(false));
        assert_eq!(types.has_member("nothing", "btf"), None);
    }

    proptest! {
        #[test]
        fn damaged_types_never_panic(
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        ) {
            let mut base = Builder::base();
            let int = base.int("int");
            let pointer = base.add("", kind::PTR, 0, int, &[]);
            let array = base.add("", kind::ARRAY, 0, 0, &[pointer, int, 3]);
            base.structure("s", &["a", "b"]);
            base.function("f", pointer, &[("x", array), ("y", pointer)]);
            let mut bytes = base.bytes();
            for (at, byte) in damage {
                // The header stays, so that the types are reached.
                let at = 24 + at.index(bytes.len() - 24);
                bytes[at] = byte;
            }
            if let Ok(types) = types(&bytes, None) {
                for id in 0..32 {
                    let _ = types.prototype(id);
                }
                let _ = types.has_member("s", "a");
            }
        }
    }
}
