//! The symbols of the kernel and of its modules, and functions by address.

/// Bytes from a function's start to a probe on it, at most: behind `endbr64`, where the kernel puts it (`arch_adjust_kprobe_addr()`),
/// and ftrace's call.
const PROLOGUE: u64 = 16;

/// Longest name (`KSYM_NAME_LEN` of the kernel is 512 with its end mark): a guest may write what it likes.
const LONGEST: usize = 511;

/// The module that `/proc/kallsyms` names for BPF programs. It is in no list of modules.
pub const BPF: &str = "bpf";

/// Functions of the kernel and of modules, by address.
pub struct Names<'a> {
    /// Functions at one address are in the kernel's order.
    functions: Vec<(u64, &'a str, Option<&'a str>)>,
    /// Data of modules, by address.
    data: Vec<u64>,
    /// Name, first address and bytes of modules.
    modules: Vec<(&'a str, u64, u64)>,
}

impl<'a> Names<'a> {
    /// Those of lines of `/proc/kallsyms`; a text may also have the lines of `/proc/modules`, without which nothing is known to be in
    /// a module.
    pub fn of(texts: &[&'a str]) -> Self {
        let (mut functions, mut data) = (Vec::new(), Vec::new());
        for (at, kind, name, place) in texts.iter().flat_map(|text| lines_of(text)) {
            let Ok(at) = u64::from_str_radix(at, 16) else { continue };
            if is_function(kind) {
                functions.push((at, name, place));
            } else if place.is_some() {
                data.push(at);
            }
        }
        functions.sort_by_key(|function| function.0);
        data.sort_unstable();
        let lines = texts.iter().flat_map(|text| text.lines());
        Self { functions, data, modules: lines.filter_map(module).collect() }
    }

    /// The function at or below an address: where it starts, its name and its module.
    pub(super) fn below(&self, address: u64) -> Option<(u64, &'a str, Option<&'a str>)> {
        let after = self.functions.partition_point(|function| function.0 <= address);
        let last = self.functions.get(after.checked_sub(1)?)?;
        // The kernel takes the first of several names, too.
        let first = self.functions.partition_point(|function| function.0 < last.0);
        self.functions.get(first).copied()
    }

    /// Whether a function starts at an address.
    pub(super) fn starts(&self, address: u64) -> bool {
        self.below(address).is_some_and(|(start, ..)| start == address)
    }

    /// Where a module is, and its bytes.
    fn module(&self, module: &str) -> Option<(u64, u64)> {
        let mut modules = self.modules.iter();
        modules.find_map(|(name, start, bytes)| (*name == module).then_some((*start, *bytes)))
    }

    /// Whether an address is in the code of `module`, or a BPF program begins there.
    pub(super) fn is_in(&self, module: &str, address: u64) -> bool {
        if module == BPF {
            let found = self.below(address);
            return found.is_some_and(|(start, _, of)| start == address && of == Some(BPF));
        }
        let Some((first, bytes)) = self.module(module) else { return false };
        if address.checked_sub(first).is_none_or(|offset| offset >= bytes) {
            return false;
        }
        let after = self.data.partition_point(|data| *data <= address);
        let data = after.checked_sub(1).map_or(0, |last| self.data[last]);
        match self.below(address) {
            Some((start, _, of)) if start >= first => of == Some(module) && start > data,
            // Without symbols the nearest one lies before the module.
            _ => data < first,
        }
    }

    /// The name of a module's function: of one without a symbol its distance from the module's start.
    pub(super) fn handler(&self, module: &str, address: u64) -> String {
        match (self.below(address), self.module(module)) {
            (Some((start, name, _)), _) if start == address => clean(name),
            (_, Some((first, _))) => format!("{:#x}", address.wrapping_sub(first)),
            _ => format!("{address:#x}"),
        }
    }

    /// A function, with the offset of an address beyond its prologue.
    pub(super) fn place(&self, address: u64) -> String {
        let Some((start, name, module)) = self.below(address) else {
            return format!("{address:#x}");
        };
        let offset = match address - start {
            0..=PROLOGUE => String::new(),
            offset => format!("+{offset:#x}"),
        };
        let module = module.map_or(String::new(), |module| format!(" [{}]", clean(module)));
        format!("{}{offset}{module}", clean(name))
    }
}

/// The name, first address and bytes of a module in a line of `/proc/modules`.
pub fn module(line: &str) -> Option<(&str, u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (name, bytes) = (words.next()?, words.next()?.parse().ok()?);
    let address = words.nth(3)?.strip_prefix("0x")?;
    Some((name, u64::from_str_radix(address, 16).ok()?, bytes))
}

fn clean(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(LONGEST / 4).collect()
}

/// Length of an address in `/proc/kallsyms` in hexadecimal digits.
const ADDRESS: usize = 2 * size_of::<u64>();

/// Symbols of `/proc/kallsyms`: address, kind, name and module, in the order in which the kernel looks up
/// a name: its image, then modules, the newest first.
pub fn lines_of(kallsyms: &str) -> impl Iterator<Item = (&str, &str, &str, Option<&str>)> {
    // There are 200,000 of them, and each start of the program reads them: `lines` and `split_once` take ten times as
    // many instructions.
    let text = kallsyms.as_bytes();
    let ends = memchr::memchr_iter(b'\n', text).chain([text.len()]);
    let mut start = 0;
    let lines = ends.map(move |end| &kallsyms[std::mem::replace(&mut start, end + 1)..end]);
    lines.filter_map(|line| {
        // The kernel pads addresses to the length of the longest.
        let (address, line) = match line.as_bytes().get(ADDRESS) {
            Some(b' ') => (&line[..ADDRESS], &line[ADDRESS + 1..]),
            _ => line.split_once(' ')?,
        };
        let [_, b' ', ..] = line.as_bytes() else { return None };
        let (kind, line) = (&line[..1], &line[2..]);
        let of_module = line.ends_with(']').then(|| line.split_once('\t')).flatten();
        let (name, module) = match of_module {
            Some((name, module)) => (name, Some(module.trim_matches(['[', ']']))),
            None => (line, None),
        };
        Some((address, kind, name, module))
    })
}

/// Whether a symbol of this kind, as in `/proc/kallsyms`, is a function.
pub fn is_function(kind: &str) -> bool {
    matches!(kind, "t" | "T" | "w" | "W")
}

/// The address of a symbol, by lines of `/proc/kallsyms`.
pub fn address_of(kallsyms: &str, symbol: &str) -> Option<u64> {
    let (address, ..) = lines_of(kallsyms).find(|(_, _, name, _)| *name == symbol)?;
    u64::from_str_radix(address, 16).ok()
}

/// Whether a symbol is for the padding before a function (`CONFIG_FUNCTION_PADDING_BYTES`, kCFI), or says
/// that code or data of arm64 follows (`$x`, `$d`): it is no function.
pub fn is_padding(name: &str) -> bool {
    ["__pfx_", "__cfi_", "$"].iter().any(|prefix| name.starts_with(prefix))
}
