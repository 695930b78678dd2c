//! Hand-made blobs of BTF (include/uapi/linux/btf.h).

/// Kinds that tests build (include/uapi/linux/btf.h).
pub mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const CONST: u32 = 10;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const TYPE_TAG: u32 = 18;
    /// Of a declaration: it is of a union.
    pub const FLAG: u32 = 0x80;
}

/// A blob under construction; its ids follow those of its base.
pub struct Builder {
    pub types: Vec<u8>,
    strings: Vec<u8>,
    base_strings: usize,
    next: u32,
}

impl Builder {
    pub fn base() -> Self {
        Self { types: Vec::new(), strings: vec![0], base_strings: 0, next: 1 }
    }

    /// A module's blob on this one.
    pub fn split(&self) -> Self {
        Self {
            types: Vec::new(),
            strings: Vec::new(),
            base_strings: self.base_strings + self.strings.len(),
            next: self.next,
        }
    }

    pub fn name(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let offset = self.base_strings + self.strings.len();
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        offset as u32
    }

    /// Appends a type and gives its id: `third` is the size or type word, `rest` what follows.
    pub fn add(&mut self, name: &str, kind: u32, members: u32, third: u32, rest: &[u32]) -> u32 {
        let name = self.name(name);
        for word in [name, kind << 24 | members, third].iter().chain(rest) {
            self.types.extend(word.to_ne_bytes());
        }
        self.next += 1;
        self.next - 1
    }

    pub fn int(&mut self, name: &str) -> u32 {
        self.add(name, kind::INT, 0, 4, &[32])
    }

    /// A struct with members of type `int`-like id 1.
    pub fn structure(&mut self, name: &str, members: &[&str]) -> u32 {
        let mut rest = Vec::new();
        for member in members {
            rest.extend([self.name(member), 1, 0]);
        }
        self.add(name, kind::STRUCT, members.len() as u32, 8, &rest)
    }

    /// A struct of so many bytes with members at these offsets.
    pub fn layout(&mut self, name: &str, size: u32, members: &[(&str, u32)]) {
        let mut rest = Vec::new();
        for (member, offset) in members {
            rest.extend([self.name(member), 1, 8 * offset]);
        }
        self.add(name, kind::STRUCT, members.len() as u32, size, &rest);
    }

    /// A function with its prototype; a parameter is name and type.
    pub fn function(&mut self, name: &str, ret: u32, params: &[(&str, u32)]) -> u32 {
        let mut rest = Vec::new();
        for (name, id) in params {
            rest.extend([self.name(name), *id]);
        }
        let proto = self.add("", kind::FUNC_PROTO, params.len() as u32, ret, &rest);
        self.add(name, kind::FUNC, 0, proto, &[])
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        for word in [24, 0, types, types, strings] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }
}
